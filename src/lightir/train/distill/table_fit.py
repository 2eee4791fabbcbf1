"""First part of the fit of a query table to a frozen encoder: weighted start, closed-form ridge, choice of bigrams.

A query is L2(mean of its terms' rows). Everything here works on arrays: term ids, teacher vectors.
"""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import torch

from lightir.errors import InvalidInput
from lightir.progress import followed
from lightir.query.bigrams import Bigrams, adjacent_terms
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows, entry_weights
from lightir.vectors import Floats, Ragged

SIF_CONSTANT = 1e-3  # Arora, Liang & Ma, ICLR 2017


def term_probabilities(texts: Ragged, *, vocab_size: int) -> Floats:
    """Return each term's share of all tokens, (vocab_size,) float32; zeros without tokens."""
    counts = np.bincount(texts.term_ids, minlength=vocab_size).astype(np.float64)
    return np.asarray(counts / max(counts.sum(), 1.0), dtype=np.float32)


def weighted_start(rows: Floats, probabilities: Floats) -> Floats:
    """Center rows on their frequency-weighted mean and multiply each by its SIF weight a / (a + p).

    Args:
        rows: (V, H) float32, each term encoded alone.
        probabilities: (V,) float32; if all are 0, rows are centered on the plain mean.
    """
    mass = probabilities if probabilities.sum() > 0 else np.full(len(rows), 1 / max(len(rows), 1), np.float32)
    centered = rows - (mass / mass.sum()) @ rows
    weights = np.float32(SIF_CONSTANT) / (np.float32(SIF_CONSTANT) + probabilities)
    return np.asarray(centered * weights[:, None], dtype=np.float32)


def ridge_table(
    start: FittedRows, queries: Ragged, targets: Floats, config: FitConfig, *, fitted_start: bool = False
) -> FittedRows:
    """Return the table whose row means are closest to the targets, held at a linear map of the start.

    The map M minimizes |A start M - T|^2; the residual D minimizes |A D - (T - A start M)|^2 + ridge |D|^2, where row i
    of A has each row's share of query i. A row without queries keeps its mapped start. For a start that is a fitted
    table, M is a number: its directions are right, and only the scale of rows that were fitted by cosine is free. A
    gate does not change; shares are then proportional to its weights.

    Args:
        start: (R, H0) start of the table.
        queries: rows of n queries, none empty.
        targets: (n, H) float32, the teacher's query vectors.
        config: settings of the fit.
        fitted_start: whether the start is a fitted table.
    """
    require_rows(queries, targets, len(start.rows))
    portions = _portions(start, queries)
    # A collection's queries have a tenth of the rows of a large table: only these take part in the iterations.
    used, positions = np.unique(queries.term_ids, return_inverse=True)
    entries = Ragged(positions.astype(np.uint32), queries.indptr)
    shares, transposed = _share_matrices(entries, portions, len(used))
    goal = torch.from_numpy(np.ascontiguousarray(targets, dtype=np.float32))
    rows = torch.from_numpy(start.rows)
    means = shares @ rows[torch.from_numpy(used.astype(np.int64))]
    if fitted_start:
        mapping = torch.eye(means.shape[1]) * float((means * goal).sum() / (means * means).sum().clamp_min(1e-12))
    else:
        gram = means.T @ means
        # The map is overdetermined many times; the small weight only guards against a start of low rank.
        weight = 1e-3 * float(gram.diagonal().mean()) + 1e-12
        mapping = torch.linalg.solve(gram + weight * torch.eye(len(gram)), means.T @ goal)
    right = transposed @ (goal - means @ mapping)
    diagonal = torch.from_numpy(_squared_shares(entries, portions, len(used)))[:, None] + config.ridge
    fitted = np.asarray((rows @ mapping).numpy(), dtype=np.float32)
    fitted[used] += _conjugate_gradient(shares, transposed, right, diagonal, config).numpy()
    return FittedRows(fitted, start.gate)


def bigrams_by_error(
    table: FittedRows, queries: Ragged, targets: Floats, n: int, *, ridge: float, min_count: int = 3
) -> Bigrams:
    """Select the n pairs of adjacent terms whose own rows would reduce the error of a table most.

    Let e be a query's error: the teacher's vector minus the table's unit vector. A row for the pair p that is
    added to every query with p, with weight 1 / sqrt(length), reduces the squared error at most by
    |sum of e / sqrt(length)|^2 / (sum of 1 / length + ridge), over the occurrences of p. Ties go to the smaller pair.

    Args:
        table: rows of terms.
        queries: terms of n queries, none empty.
        targets: (n, dim) float32, the teacher's vectors, L2-normalized.
        n: maximum number of pairs.
        ridge: weight of the row's own length; it holds back rare pairs.
        min_count: minimum number of occurrences of a pair.
    """
    keys, counts, pair, text = _pairs(queries)
    common = np.flatnonzero(counts >= min_count)
    if not len(common):
        return Bigrams(np.zeros((0, 2), dtype=np.uint32))
    number = np.full(len(keys), -1, dtype=np.int64)
    number[common] = np.arange(len(common))
    occurs = number[pair] >= 0
    rows, texts = number[pair[occurs]], text[occurs]
    weights = (1 / np.sqrt(queries.lengths)).astype(np.float32)
    means = torch.nn.functional.normalize(torch.from_numpy(table.sums(queries)), dim=-1)
    errors = (torch.from_numpy(np.asarray(targets, dtype=np.float32)) - means) * torch.from_numpy(weights)[:, None]
    mass = np.bincount(rows, weights=weights[texts] ** 2, minlength=len(common)) + ridge
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(common) + 1))
    gains = np.zeros(len(common), dtype=np.float32)
    for first in range(0, len(common), 16_384):
        last = min(first + 16_384, len(common))
        inside = torch.from_numpy(texts[order[starts[first] : starts[last]]])
        offsets = torch.from_numpy(starts[first:last] - starts[first])
        sums = torch.nn.functional.embedding_bag(inside, errors, offsets, mode="sum")
        gains[first:last] = (sums * sums).sum(1).numpy() / mass[first:last]
    best = np.sort(keys[common[np.argsort(-gains, kind="stable")[:n]]])
    return Bigrams(np.stack([best >> np.uint64(32), best & np.uint64(2**32 - 1)], axis=1).astype(np.uint32))


def _pairs(
    queries: Ragged,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the distinct pairs, ascending, and their counts; for each occurrence its pair's position and its text."""
    first, second, positions = adjacent_terms(queries)
    keys = (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)
    distinct, pair, counts = np.unique(keys, return_inverse=True, return_counts=True)
    text = np.repeat(np.arange(len(queries), dtype=np.int64), queries.lengths)[positions]
    return distinct, counts, pair, text


def with_bigrams(queries: Ragged, bigrams: Bigrams, *, vocab_size: int) -> Ragged:
    """Append each query's known pairs and longer runs to its terms, as vocab_size + their row, for a table of both."""
    pairs = bigrams.find(queries).rows
    numbers = np.arange(len(queries), dtype=np.int64)
    text = np.concatenate([np.repeat(numbers, queries.lengths), np.repeat(numbers, pairs.lengths)])
    rows = np.concatenate([queries.term_ids, pairs.term_ids + np.uint32(vocab_size)])
    return Ragged(rows[np.argsort(text, kind="stable")], queries.indptr + pairs.indptr)


def select_rows(rows: Ragged, positions: npt.NDArray[np.int64]) -> Ragged:
    """Return the rows at the positions, in that order."""
    lengths = rows.lengths[positions]
    indptr = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    shifts = np.repeat(rows.indptr[positions] - indptr[:-1], lengths)
    return Ragged(rows.term_ids[np.arange(len(shifts)) + shifts], indptr)


def require_rows(queries: Ragged, targets: Floats, n_rows: int) -> None:
    if len(queries) == 0:
        raise InvalidInput("no query has a term of the vocabulary; a table is fitted to queries or spans of documents")
    if len(queries) != len(targets):
        raise InvalidInput(f"{len(queries)} queries but {len(targets)} teacher vectors")
    if queries.lengths.min() == 0:
        raise InvalidInput("a query has no terms; drop such queries")
    if int(queries.term_ids.max()) >= n_rows:
        raise InvalidInput(f"term id {queries.term_ids.max()} is outside the table of {n_rows} rows")


def _portions(start: FittedRows, queries: Ragged) -> Floats:
    """Return each entry's share of its query, float32: 1 / length, or in proportion to the gate's weights."""
    lengths = np.repeat(queries.lengths, queries.lengths)
    if start.gate is None:
        return (1.0 / lengths).astype(np.float32)
    weights = entry_weights(start.gate, queries).astype(np.float64)
    totals = np.add.reduceat(weights, queries.indptr[:-1])  # no query is empty
    return np.asarray(weights / np.repeat(totals, queries.lengths), dtype=np.float32)


def _share_matrices(queries: Ragged, portions: Floats, n_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return A (n, R) and its transpose as CSR: a row's share of a query."""
    n = len(queries)
    row_of = np.repeat(np.arange(n, dtype=np.int64), queries.lengths)
    columns = queries.term_ids.astype(np.int64)
    order = np.argsort(columns, kind="stable")
    starts = np.zeros(n_rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(columns, minlength=n_rows), out=starts[1:])
    return (
        _csr(queries.indptr, columns, portions, (n, n_rows)),
        _csr(starts, row_of[order], portions[order], (n_rows, n)),
    )


def _csr(
    indptr: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], values: Floats, shape: tuple[int, int]
) -> torch.Tensor:
    rows, terms, shares = (torch.from_numpy(np.ascontiguousarray(array)) for array in (indptr, columns, values))
    # A repeated term has two entries in its row, which products sum correctly but the checks would refuse.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(rows, terms, shares, size=shape, check_invariants=False)


def _squared_shares(queries: Ragged, portions: Floats, n_rows: int) -> Floats:
    """Return the diagonal of A'A, ignoring repeated terms: it is only a preconditioner."""
    squares = portions.astype(np.float64) ** 2
    return np.bincount(queries.term_ids, weights=squares, minlength=n_rows).astype(np.float32)


def _conjugate_gradient(
    shares: torch.Tensor, transposed: torch.Tensor, right: torch.Tensor, diagonal: torch.Tensor, config: FitConfig
) -> torch.Tensor:
    """Return (A'A + ridge)^-1 right for all columns, preconditioned by the diagonal."""
    solution = torch.zeros_like(right)
    residual = right.clone()
    direction = residual / diagonal
    energy = (residual * direction).sum(0)
    n_iterations = config.ridge_iterations
    for _ in followed(range(n_iterations), "ridge", unit="iteration", total=n_iterations):
        product = transposed @ (shares @ direction) + config.ridge * direction
        step = energy / (direction * product).sum(0).clamp_min(1e-30)
        solution += step * direction
        residual -= step * product
        scaled = residual / diagonal
        fresh = (residual * scaled).sum(0)
        direction = scaled + fresh / energy.clamp_min(1e-30) * direction
        energy = fresh
    return solution
