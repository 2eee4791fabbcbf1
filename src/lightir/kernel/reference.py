"""Slow, readable twins of the kernel's functions in plain Python and numpy, against which the fast ones are tested."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.kernel import BLOCK_SIZE, DocOrds, Postings, Rows, Scores, Weights
from lightir.kernel.query import DenseRows

Cell: TypeAlias = tuple[float, float, int]
"""A document's raw score, normalized score and rank in one branch."""

Row: TypeAlias = tuple[int, float, list[Cell]]
"""A document of a ranking, its score, and its cell of each branch."""

NO_SCORE: Cell = (math.nan, math.nan, 0)


class Unfused(NamedTuple):
    """Documents that are not fused.

    Attributes:
        excluded: documents that the query is not given.
        pending: pending documents; None if no branch may find them.
        fuses_last: whether the last branch is fused; otherwise it only ranks pending documents.
    """

    excluded: Collection[int] = ()
    pending: Collection[int] | None = None
    fuses_last: bool = True


def invert(
    indptr: npt.NDArray[np.int64], term_ids: npt.NDArray[np.uint32], impacts: Weights, *, vocab_size: int, n_docs: int
) -> Postings:
    """Return the postings of documents, as `lightir.kernel.invert` does."""
    runs: dict[tuple[int, int], list[tuple[int, int]]] = {}  # (term, block) -> [(offset, position of the impact)]
    for doc in range(n_docs):
        for entry in range(indptr[doc], indptr[doc + 1]):
            runs.setdefault((int(term_ids[entry]), doc // BLOCK_SIZE), []).append((doc % BLOCK_SIZE, entry))
    keys = sorted(runs)
    terms = sorted({term for term, _ in keys})
    runs_of = [sum(term == key[0] for key in keys) for term in terms]
    postings = [posting for key in keys for posting in runs[key]]
    return Postings(
        vocab_size,
        n_docs,
        term_ids=np.array(terms, dtype=np.uint32),
        term_indptr=np.cumsum([0, *runs_of], dtype=np.int64),
        run_blocks=np.array([block for _, block in keys], dtype=np.uint32),
        run_indptr=np.cumsum([0, *(len(runs[key]) for key in keys)], dtype=np.int64),
        offsets=np.array([offset for offset, _ in postings], dtype=np.uint16),
        weights=impacts[np.array([entry for _, entry in postings], dtype=np.int64)],
    )


def sparse_top_k(
    postings: Postings,
    query_term_ids: npt.NDArray[np.uint32],
    query_weights: npt.NDArray[np.float32],
    *,
    k: int,
    allowed: npt.NDArray[np.uint8] | None = None,
) -> tuple[DocOrds, Scores]:
    """Return the k best documents of one query, as `lightir.kernel.sparse_top_k` does."""
    scores: dict[int, np.float32] = {}
    for term_id, weight in sorted(zip(query_term_ids.tolist(), query_weights, strict=True)):
        for term in np.flatnonzero(postings.term_ids == term_id):
            for run in range(postings.term_indptr[term], postings.term_indptr[term + 1]):
                for posting in range(postings.run_indptr[run], postings.run_indptr[run + 1]):
                    doc = int(postings.run_blocks[run]) * BLOCK_SIZE + int(postings.offsets[posting])
                    scores[doc] = scores.get(doc, np.float32(0)) + weight * np.float32(postings.weights[posting])
    keep = _mask(allowed, postings.n_docs)
    ranked = sorted((-score, doc) for doc, score in scores.items() if score > 0 and keep[doc])[:k]
    return (
        np.array([doc for _, doc in ranked], dtype=np.uint32),
        np.array([-score for score, _ in ranked], dtype=np.float32),
    )


def sparse_pair_scores(
    indptr: npt.NDArray[np.int64],
    term_ids: npt.NDArray[np.uint32],
    impacts: Weights,
    doc_ords: DocOrds,
    query_term_ids: npt.NDArray[np.uint32],
    query_weights: npt.NDArray[np.float32],
) -> Scores:
    """Return the sparse scores of given documents, as `lightir.kernel.segments.pair_scores` does."""
    weights = dict(zip(query_term_ids.tolist(), query_weights, strict=True))
    scores = np.zeros(len(doc_ords), dtype=np.float32)
    for i, doc in enumerate(doc_ords):
        for entry in range(indptr[doc], indptr[doc + 1]):
            scores[i] += weights.get(int(term_ids[entry]), np.float32(0)) * np.float32(impacts[entry])
    return scores


def dense_top_k(
    rows: Rows,
    queries: npt.NDArray[np.float32],
    *,
    k: int,
    scales: npt.NDArray[np.float32] | None = None,
    allowed: npt.NDArray[np.uint8] | None = None,
) -> tuple[DocOrds, Scores]:
    """Return the k best rows of each query, as `lightir.kernel.dense_top_k` does, with sums in float64."""
    docs = np.flatnonzero(_mask(allowed, len(rows)))
    scores = (_values(rows, scales)[docs, : queries.shape[1]] @ queries.T.astype(np.float64)).T
    best = np.array([np.lexsort((docs, -row))[:k] for row in scores], dtype=np.int64)
    best = best.reshape(len(queries), min(k, len(docs)) if len(queries) else 0)
    return docs[best].astype(np.uint32), np.take_along_axis(scores, best, axis=1).astype(np.float32)


def rotation(width: int) -> npt.NDArray[np.float64]:
    """Return the (width, width) matrix of the rotation of `lightir.kernel.code_rows`.

    Three rounds change signs, then multiply the first p columns by a Hadamard matrix of order p, and the last p too if
    there are more: p is the largest power of 2 up to the width. A sign is negative if the next number of splitmix64
    (Steele et al., 2014), which starts at 0, has its highest bit.
    """
    order = 1 << (width.bit_length() - 1)
    hadamard: npt.NDArray[np.floating] = np.ones((1, 1))
    while len(hadamard) < order:
        hadamard = np.kron([[1, 1], [1, -1]], hadamard)
    first, last = np.eye(width), np.eye(width)
    first[:order, :order] = last[width - order :, width - order :] = hadamard / np.sqrt(order)
    signs = []
    for n in range(1, 3 * width + 1):
        bits = n * 0x9E3779B97F4A7C15 % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        signs.append(-1.0 if (bits ^ bits >> 31) >> 63 else 1.0)
    product = np.eye(width)
    for round_signs in np.reshape(signs, (3, width)):
        product = first @ np.diag(round_signs) @ product
        if order < width:
            product = last @ product
    return product


def code_rows(
    rows: Rows,
    center: npt.NDArray[np.float32],
    *,
    scales: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return what `lightir.kernel.code_rows` stores: (n, width) codes, (n,) scales, (n,) errors, without roundings."""
    width = rows.shape[1]
    share = min(1.0, 6.5 / np.sqrt(width - 1)) if width > 1 else 1.0
    codes, factors, errors = np.zeros(rows.shape, np.uint8), np.zeros(len(rows)), np.zeros(len(rows))
    rotated = (_values(rows, scales) - center.astype(np.float64)) @ rotation(width).T
    for i, row in enumerate(rotated):
        step = np.sqrt(np.mean(row**2))
        codes[i] = 2 if step == 0 else np.floor(row / step).clip(-2, 1) + 2
        numbers = 2.0 * codes[i] - 3
        if step > 0:
            factors[i] = (row @ row) / (numbers @ row)
            errors[i] = max(share * np.linalg.norm(factors[i] * numbers - row), 2 * factors[i])
    return codes, factors, errors


def dense_pair_scores(
    rows: Rows,
    doc_ords: DocOrds,
    query: npt.NDArray[np.float32],
    *,
    scales: npt.NDArray[np.float32] | None = None,
) -> Scores:
    """Return the scores of given rows, as `lightir.kernel.dense_pair_scores` does, with sums in float64."""
    return (_values(rows, scales)[doc_ords, : len(query)] @ query.astype(np.float64)).astype(np.float32)


def fuse(
    lists: Sequence[tuple[DocOrds, Scores]],
    scores: Sequence[Mapping[int, float]],
    *,
    weights: Sequence[float],
    scale: str | Sequence[tuple[float, float]],
    k: int,
    rrf_k: float = 60.0,
) -> tuple[list[int], list[float], list[list[tuple[float, float, int]]]]:
    """Fuse given lists, as `lightir.kernel.candidates` does.

    `scores` holds each branch's scores of all documents. `scale` is a name, or for "absolute" each branch's scores that
    are normalized to 0 and to 1.
    """
    sums: dict[int, float] = {int(doc): 0.0 for doc_ords, _ in lists for doc in doc_ords}
    columns: list[dict[int, tuple[float, float, int]]] = []
    scales: Sequence[str | tuple[float, float]] = [scale] * len(lists) if isinstance(scale, str) else scale
    for (doc_ords, listed), outside, weight, own_scale in zip(lists, scores, weights, scales, strict=True):
        ranks = {int(doc): rank for rank, doc in enumerate(doc_ords, 1)}
        column = {}
        for doc in sums:
            score = float(listed[ranks[doc] - 1]) if doc in ranks else float(np.float32(outside[doc]))
            normalized = _normalized(score, ranks.get(doc, 0), listed.tolist(), own_scale, rrf_k)
            column[doc] = (score, normalized, ranks.get(doc, 0))
            sums[doc] += weight * normalized
        columns.append(column)
    best = sorted(sums, key=lambda doc: (-sums[doc], doc))[:k]
    return best, [sums[doc] for doc in best], [[column[doc] for doc in best] for column in columns]


def _normalized(score: float, rank: int, listed: list[float], scale: str | tuple[float, float], rrf_k: float) -> float:
    if not listed:
        return 0.0
    if not isinstance(scale, str):
        low, high = scale
        return max((score - low) / (high - low), 0.0) if high > low else 0.0
    if scale == "rrf":
        return 1.0 / (rrf_k + rank) if rank else 0.0
    if scale == "none":
        return score
    least, most = min(listed), max(listed)
    if scale == "max":
        least, scale = min(least, 0.0), "min-max"
    if least == most:
        above, below = {"min-max": (1.0, 0.0), "z-score": (0.0, -1.0), "dbsf": (0.5, 0.0)}[scale]
        return above if score >= most else below
    if scale == "min-max":
        return min(max((score - least) / (most - least), 0.0), 1.0)
    total = squares = 0.0
    for value in listed:
        total += value
    mean = total / len(listed)
    for value in listed:
        squares += (value - mean) * (value - mean)
    z = (score - mean) / math.sqrt(squares / (len(listed) - 1))
    return z if scale == "z-score" else max(0.5 + z / 6.0, 0.0)


def search(
    matches: Sequence[Mapping[int, float]],
    scores: Sequence[Mapping[int, float]],
    ids: list[bytes],
    *,
    weights: Sequence[float],
    scale: str | Sequence[tuple[float, float]],
    k: int,
    depth: int,
    rrf_k: float = 60.0,
    unfused: Unfused | None = None,
) -> tuple[list[int], list[float], list[list[Cell]]]:
    """Return the k best documents of one query, as `lightir.kernel.candidates.CandidateSearch.search` does.

    For each branch, `matches` holds the scores of the matching documents and `scores` those of all documents.
    `scale` is that of `fuse`.
    """
    excluded, pending, fuses_last = unfused or Unfused()
    n_listed = (k if len(matches) == 1 else depth) + len(excluded)
    lists = []
    for match in matches:
        best = sorted(match, key=lambda doc: (-match[doc], ids[doc]))[:n_listed]
        lists.append((np.array(best, np.uint32), np.array([match[doc] for doc in best], np.float32)))
    rows: list[Row]
    if len(matches) == 1:
        pairs = zip(lists[0][0].tolist(), lists[0][1].tolist(), strict=True)
        rows = [(doc, score, [(score, score, rank)]) for rank, (doc, score) in enumerate(pairs, 1)]
    else:
        n_fused = len(lists) if fuses_last else len(lists) - 1
        n_candidates = sum(len(docs) for docs, _ in lists)
        docs, sums, columns = fuse(
            lists[:n_fused],
            scores[:n_fused],
            weights=weights[:n_fused],
            scale=scale if isinstance(scale, str) else scale[:n_fused],
            k=n_candidates,
            rrf_k=rrf_k,
        )
        columns += [[NO_SCORE] * len(docs)] * (len(lists) - n_fused)
        rows = [(docs[i], sums[i], [column[i] for column in columns]) for i in order_of_ids(docs, sums, ids)]
    rows = [row for row in rows if row[0] not in {*excluded, *(pending or ())}]
    if pending is not None:
        rows = in_places(rows, _waiting(lists, excluded, pending))
    rows = rows[:k]
    return [row[0] for row in rows], [row[1] for row in rows], [[row[2][b] for row in rows] for b in range(len(lists))]


def in_places(fused: Sequence[Row], waiting: dict[int, Row]) -> list[Row]:
    """Put pending documents, by their places from 1, into a ranking of others; see `PendingDocuments`."""
    ranking: list[Row] = []
    remaining, score = list(fused), fused[0][1] if fused else None
    while remaining or waiting:
        if remaining and len(ranking) + 1 not in waiting:
            ranking.append(remaining.pop(0))
            score = ranking[-1][1]
        else:
            doc, own_score, cells = waiting.pop(min(waiting))
            ranking.append((doc, own_score if score is None else score, cells))
    return ranking


def _waiting(
    lists: Sequence[tuple[DocOrds, Scores]], excluded: Collection[int], pending: Collection[int]
) -> dict[int, Row]:
    """Return the pending documents of the last list by their places among those that are not excluded."""
    ranks = {doc: rank for rank, doc in enumerate(lists[-1][0].tolist(), 1) if doc not in excluded}
    waiting: dict[int, Row] = {}
    for position, (doc, rank) in enumerate(ranks.items(), 1):
        score = float(lists[-1][1][rank - 1])
        if doc in pending:
            waiting[position] = (doc, score, [NO_SCORE] * (len(lists) - 1) + [(score, math.nan, rank)])
    return waiting


def order_of_ids(doc_ords: list[int], scores: list[float], ids: list[bytes]) -> list[int]:
    """Return the positions in the total order, as `DocumentIds.order` does; `ids` is indexed by doc_ord."""
    return sorted(range(len(doc_ords)), key=lambda i: (-scores[i], ids[doc_ords[i]]))


def mean_rows(
    table: Rows | npt.NDArray[np.uint16],
    token_ids: npt.NDArray[np.uint32],
    indptr: npt.NDArray[np.int64],
    *,
    normalize: bool,
    scales: npt.NDArray[np.float32] | None = None,
    dim: int | None = None,
) -> npt.NDArray[np.float32]:
    """Return the bits of `lightir.kernel.mean_rows`: it rounds the same sums in the same order."""
    width = table.shape[1] if dim is None else dim
    out = np.zeros((len(indptr) - 1, width), dtype=np.float32)
    for i, row in enumerate(out):
        ids = token_ids[indptr[i] : indptr[i + 1]]
        total = np.float32(0)
        for term_id in ids:
            factor = np.float32(1) if scales is None else scales[term_id]
            row += factor * _floats(table[term_id, :width])
            total += np.float32(1)
        if normalize:
            total = np.sqrt(_sum_of_squares(row))
        row *= np.float32(1) / total if total > 0 else np.float32(0)
    return out


def encode_terms(
    rows: DenseRows, token_ids: npt.NDArray[np.uint32], indptr: npt.NDArray[np.int64], *, dim: int
) -> npt.NDArray[np.float32]:
    """Return the bits of `lightir.kernel.query.TextEncoder.encode_terms`: the same sums, rounded in the same order."""
    pairs, pair_rows, pair_scales = rows.pairs or ((), (), None)
    row_of_pair = {(int(first), int(second)): row for row, (first, second) in enumerate(pairs)}
    out = np.zeros((len(indptr) - 1, dim), dtype=np.float32)
    for i, total in enumerate(out):
        terms = token_ids[indptr[i] : indptr[i + 1]].tolist()
        pair_ids = [row_of_pair[pair] for pair in itertools.pairwise(terms) if pair in row_of_pair]
        chosen = [(rows.table[term], 1 if rows.scales is None else rows.scales[term]) for term in terms]
        chosen += [(pair_rows[row], 1 if pair_scales is None else pair_scales[row]) for row in pair_ids]
        weights = _gate_weights(rows.gate, [*terms, *(len(rows.table) + row for row in pair_ids)])
        for (row, row_scale), weight in zip(chosen, weights, strict=True):
            total += weight * np.float32(row_scale) * _floats(row[:dim])
        length = np.sqrt(_sum_of_squares(total))
        total *= np.float32(1) / length if length > 0 else np.float32(0)
    return out


def _gate_weights(gate: tuple[Rows, Rows] | None, row_ids: list[int]) -> list[np.float32]:
    """Return the weights of a query's rows, as `lightir.kernel.query.DenseRows` defines them."""
    if gate is None or not row_ids:
        return [np.float32(1)] * len(row_ids)
    keys, values = gate
    context = np.zeros(keys.shape[1], dtype=np.float32)
    for row in row_ids:
        context += values[row].astype(np.float32)
    context *= np.float32(1) / np.float32(len(row_ids))
    scores = [float(_dot(keys[row].astype(np.float32), context)) for row in row_ids]
    return [np.float32(math.exp(min(max(score, -6.0), 6.0))) for score in scores]


def mean_expansions(
    row_ids: npt.NDArray[np.uint32],
    row_weights: npt.NDArray[np.float16] | npt.NDArray[np.float32],
    token_ids: npt.NDArray[np.uint32],
    indptr: npt.NDArray[np.int64],
    *,
    vocab_size: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Return the bits of `lightir.kernel.mean_expansions`: it rounds the same sums in the same order."""
    means: list[list[tuple[int, np.float32]]] = []
    for first, last in itertools.pairwise(indptr.tolist()):
        sums: dict[int, float] = {}
        for token in token_ids[first:last]:
            for term, weight in zip(row_ids[token].tolist(), row_weights[token].tolist(), strict=True):
                if term >= vocab_size:
                    raise InvalidInput(f"term id {term} of an expansion is outside the vocabulary of {vocab_size}")
                sums[term] = sums.get(term, 0.0) + weight
        rounded = [(term, np.float32(total / (last - first))) for term, total in sorted(sums.items())]
        means.append([(term, mean) for term, mean in rounded if mean != 0])
    return (
        np.cumsum([0, *map(len, means)], dtype=np.int64),
        np.array([term for row in means for term, _ in row], dtype=np.uint32),
        np.array([mean for row in means for _, mean in row], dtype=np.float32),
    )


def _floats(row: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Return a row of a table as floats; uint16 is bfloat16, the upper half of a float."""
    return (row.astype(np.uint32) << 16).view(np.float32) if row.dtype == np.uint16 else row.astype(np.float32)


def _sum_of_squares(row: npt.NDArray[np.float32]) -> np.float32:
    return _dot(row, row)


def _dot(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> np.float32:
    """Return the inner product in 32 lanes, each summed in order and then added in a tree."""
    lanes = np.zeros(32, dtype=np.float32)
    for strip in np.pad(a * b, (0, -len(a) % 32)).reshape(-1, 32):
        lanes += strip
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return np.float32(lanes[0])


def _values(rows: Rows, scales: npt.NDArray[np.float32] | None) -> npt.NDArray[np.float64]:
    values = rows.astype(np.float64)
    return values if scales is None else values * scales[:, None]


def _mask(allowed: npt.NDArray[np.uint8] | None, n: int) -> npt.NDArray[np.bool_]:
    if allowed is None:
        return np.ones(n, dtype=np.bool_)
    return np.unpackbits(allowed, count=n, bitorder="little").astype(np.bool_)


def split_words(
    texts: Sequence[str],
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64], list[int]]:
    """Return the words of ASCII texts, as `lightir.kernel.split_words` does."""
    positions: dict[str, int] = {}
    rows = [re.findall(r"\b\w\w+\b", text.lower()) if text.isascii() else [] for text in texts]
    ids = [positions.setdefault(word, len(positions)) for row in rows for word in row]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return list(positions), np.array(ids, np.uint32), indptr, [i for i, text in enumerate(texts) if not text.isascii()]


def near_terms(
    terms: Sequence[str], word: str, *, distance: int, prefix: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the terms that are near a word, as `lightir.kernel.near_terms` does."""
    ends = [range(len(term) + 1) if prefix else [len(term)] for term in terms]
    distances = [min(edit_distance(word, term[:n]) for n in of_term) for term, of_term in zip(terms, ends, strict=True)]
    near = [position for position, far in enumerate(distances) if far <= distance]
    return np.array(near, np.int64), np.array([distances[position] for position in near], np.uint8)


def edit_distance(a: str, b: str) -> int:
    """Return the optimal string alignment distance: insertions, deletions, replacements and swaps of neighbors."""
    rows = [[max(i, j) if not i or not j else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[len(a)][len(b)]
