"""Fusion and the scores of given documents over segments against their slow twins: the same bits, with many ties."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir.errors import FormatError, InvalidInput
from lightir.index.bm25 import K1, B, saturation
from lightir.kernel import _native, available, code_rows, copy_rows, dispatch, invert, pack_bitmap, reference
from lightir.kernel.candidates import (
    BoundBranch,
    BranchList,
    Candidates,
    CandidateSearch,
    GivenLists,
    PendingDocuments,
    Request,
    normalize,
)
from lightir.kernel.segments import (
    BranchQueries,
    DenseSegments,
    DocumentIds,
    ScannedRows,
    SparseRows,
    SparseSegments,
    pair_scores,
)
from lightir.types import Branch

SCALES = ("none", "max", "min-max", "z-score", "dbsf", "rrf")
SPANS = ((-0.25, 1.5), (0.0, 2.0), (0.1, 0.3))
F32, U32 = np.float32, np.uint32


def u32(*values: int) -> Any:
    return np.array(values, U32)


def f32(*values: float) -> Any:
    return np.array(values, F32)


def dense_query(rows: DenseSegments, vector: Any) -> BranchQueries:
    return rows.queries(vector[None])


def term_query(rows: SparseSegments, term_ids: Any, weights: Any, **more: Any) -> BranchQueries:
    return rows.queries(np.array([0, len(term_ids)], np.int64), term_ids, weights, **more)


def fused(
    lists: list[tuple[Any, Any]],
    queries: list[Any],
    *,
    weights: Any,
    scale: Any,
    k: Any,
    complete: Any = None,
    **more: Any,
) -> Candidates:
    """Given lists of one query, joined by a search."""
    known = [False] * len(lists) if complete is None else complete
    bound = [
        BoundBranch(str(i), SimpleNamespace(native=query[0]), weight, is_complete)  # type: ignore[arg-type]
        for i, (query, weight, is_complete) in enumerate(zip(queries, weights, known, strict=True))
    ]
    given = [GivenLists.join([BranchList(*listed)]) for listed in lists]
    return CandidateSearch(bound, scale=scale, **more).search(queries, Request(k, 10**6), lists=given)[0]


def top(rows: Any, queries: BranchQueries, k: Any, *, threads: int = 1, allowed: Any = None) -> list[Candidates]:
    """Each query's best documents in one branch."""
    search = CandidateSearch([BoundBranch("", rows, allowed=allowed)], scale="none")
    return search.search([queries], Request(k, k, threads))


class Collection:
    """Documents of few distinct values in three branches over segments, one of which may lack each branch."""

    def __init__(self, seed: int, sizes: list[int], *, wide: bool) -> None:
        rng = np.random.default_rng(seed)
        self.n_docs, n_terms = sum(sizes), 7
        top = 2**32 - 1 if wide else 40
        self.term_ids = np.unique(rng.integers(0, top, n_terms)).astype(U32)
        self.query_vector = rng.integers(-1, 2, 3).astype(F32)
        # Whole weights have exact sums of 16 bits; others pick candidates by rounded ones.
        self.query_weights = rng.integers(1, 4, len(self.term_ids)).astype(F32) * F32(rng.choice([1, 0.3]))
        self.mean = 2.5
        self.with_rows: list[bool] = []
        self.sizes = sizes
        dense, sparse, tokens, places = [], [], [], []
        scores: dict[str, list[float]] = {"dense": [], "sparse": [], "tokens": []}
        for i, size in enumerate(sizes):
            rows = rng.integers(-1, 2, (size, 4)).astype(np.float16)
            counts = rng.integers(0, 3, (size, len(self.term_ids))).astype(np.uint8)
            there = rng.random(3) > 0.2 if i else np.ones(3, bool)
            indptr = np.concatenate([[0], np.cumsum((counts > 0).sum(axis=1))]).astype(np.int64)
            entries = counts[counts > 0]
            lengths = counts.sum(axis=1).astype(U32) + U32(1)
            local = np.where(rng.random(len(self.term_ids)) < 0.8, np.arange(len(self.term_ids)) + i, -1)
            columns = np.nonzero(counts)[1]
            copies, codes = copy_rows(rows) if i % 2 else None, code_rows(rows) if i % 4 > 1 else None
            dense.append(ScannedRows(rows, None, copies, codes) if there[0] else None)
            impacts = np.ones_like(entries) if i % 3 == 2 else entries
            by_term = reference.invert(indptr, self.term_ids[columns], impacts, vocab_size=top, n_docs=size)
            rows_of = SparseRows(indptr, self.term_ids[columns], impacts, by_term, binary=i % 3 == 2)
            sparse.append(rows_of if there[1] else None)
            kept, then = entries.astype(F32) if i % 2 else entries, self.mean * float(rng.choice([1, 1, 0.5, 3]))
            stored, here = saturation(entries, indptr, lengths, then), (columns + i).astype(U32)
            by_term = reference.invert(indptr, here, stored, vocab_size=len(self.term_ids) + i, n_docs=size)
            tokens.append(SparseRows(indptr, here, kept, by_term, lengths, then) if there[2] else None)
            self.with_rows.extend([bool(there[0])] * size)
            places.append(local)
            weights = saturation(entries, indptr, lengths, self.mean)
            known = (local >= 0).nonzero()[0]
            wanted = local[known].astype(U32), self.query_weights[known]
            docs = np.arange(size, dtype=U32)
            branch_scores = (
                reference.dense_pair_scores(rows, docs, self.query_vector),
                reference.sparse_pair_scores(
                    indptr, self.term_ids[columns], impacts, docs, self.term_ids, self.query_weights
                ),
                reference.sparse_pair_scores(indptr, (columns + i).astype(U32), weights, docs, *wanted),
            )
            for branch, values, is_there in zip(scores, branch_scores, there, strict=True):
                scores[branch].extend((values if is_there else np.zeros(size, F32)).tolist())
        self.scores = {branch: np.array(values, F32) for branch, values in scores.items()}
        order = rng.permutation(len(self.term_ids)).astype(U32)  # terms may come in any order
        stacked = np.array(places, dtype=np.int64).reshape(len(sizes), len(self.term_ids))
        self.order, self.places = order, stacked
        self.rows = DenseSegments(dense, sizes)
        self.impacts, self.counts = SparseSegments(sparse, sizes), SparseSegments(tokens, sizes, k1=K1, b=B)
        self.queries: dict[str, BranchQueries] = {
            "dense": dense_query(self.rows, self.query_vector),
            "sparse": term_query(self.impacts, self.term_ids, self.query_weights),
            "tokens": term_query(self.counts, order, self.query_weights[order], places=stacked, mean=self.mean),
        }

    def top(self, branch: str, k: int, allowed: Any, threads: int) -> Any:
        """Three times the same query, the second time without terms."""
        how = {"k": k, "threads": threads, "allowed": allowed}
        if branch == "dense":
            return top(self.rows, self.rows.queries(np.array([self.query_vector] * 3).reshape(3, -1)), **how)
        n = len(self.term_ids)
        indptr = np.array([0, n, n, 2 * n], np.int64)
        if branch == "sparse":
            asked = self.impacts.queries(indptr, np.tile(self.term_ids, 2), np.tile(self.query_weights, 2))
            return top(self.impacts, asked, **how)
        weights = np.tile(self.query_weights[self.order], 2)
        asked = self.counts.queries(indptr, np.tile(self.order, 2), weights, places=self.places, mean=self.mean)
        return top(self.counts, asked, **how)

    def listed(self, branch: str, depth: int) -> tuple[Any, Any]:
        scores = self.scores[branch]
        order = np.lexsort((np.arange(self.n_docs), -scores))[:depth].astype(U32)
        return order, scores[order]


collections = st.builds(
    Collection, st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=5), wide=st.booleans()
)


@given(collections, st.randoms(use_true_random=False))
def test_scores_of_given_documents_are_those_of_their_segments(data: Collection, random: Any) -> None:
    docs = np.array([random.randrange(data.n_docs) for _ in range(12)] if data.n_docs else [], U32)
    for branch, query in data.queries.items():
        np.testing.assert_array_equal(pair_scores(docs, query), data.scores[branch][docs])


@pytest.mark.parametrize("length", [0, 1, 2, 16, 17, 130])
def test_rows_of_any_length_and_queries_of_few_and_many_terms(length: int) -> None:
    """Few terms are looked up in a long row, many walked through: either has the bits of the twin."""
    rng = np.random.default_rng(length)
    n_docs, vocab_size = 9, 200
    rows = [np.sort(rng.choice(vocab_size, length, replace=False)) for _ in range(n_docs)]
    term_ids = np.concatenate(rows).astype(U32)
    indptr = np.arange(n_docs + 1, dtype=np.int64) * length
    weights = rng.integers(1, 9, len(term_ids)).astype(np.uint8)
    postings = reference.invert(indptr, term_ids, weights, vocab_size=vocab_size, n_docs=n_docs)
    segments = SparseSegments([SparseRows(indptr, term_ids, weights, postings)], [n_docs])
    docs = rng.permutation(n_docs).astype(U32)
    for n_terms in (0, 1, 2, 7, 8, 9, 17, 60, 200):
        wanted = np.sort(rng.choice(vocab_size, n_terms, replace=False)).astype(U32)
        query_weights = rng.random(n_terms, dtype=F32)
        expected = reference.sparse_pair_scores(indptr, term_ids, weights, docs, wanted, query_weights)
        np.testing.assert_array_equal(pair_scores(docs, term_query(segments, wanted, query_weights)), expected)


@settings(max_examples=200)
@given(
    collections,
    st.sampled_from(("dense", "sparse", "tokens")),
    st.sampled_from((0, 1, 2, 5, 2**63)),
    st.sampled_from((1, 2)),
    st.booleans(),
    st.integers(0, 100),
)
def test_the_best_of_all_segments_are_those_of_loops_with_their_ties(
    data: Collection, branch: str, k: int, threads: int, filtered: bool, seed: int
) -> None:
    mask = np.random.default_rng(seed).random(data.n_docs) < (0.5 if filtered else 1.0)
    parts = np.split(mask, np.cumsum(data.sizes)[:-1])
    allowed = [None if part.all() else pack_bitmap(part) for part in parts] if filtered else None
    scores = data.scores[branch]
    is_listed = np.array(data.with_rows, bool) & data.query_vector.any() if branch == "dense" else scores > 0
    expected = sorted(np.flatnonzero(mask & is_listed).tolist(), key=lambda i: (-scores[i], i))[:k]
    for i, candidates in enumerate(data.top(branch, k, allowed, threads)):
        wanted = [] if i == 1 and branch != "dense" else expected
        assert candidates.doc_ords.tolist() == wanted
        np.testing.assert_array_equal(candidates.columns[""].scores, scores[wanted])
        np.testing.assert_array_equal(candidates.scores, scores[wanted].astype(np.float64))


@pytest.fixture(params=available())
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before = dispatch()
    _native.use_level(request.param)
    yield
    _native.use_level(before)


@pytest.mark.parametrize(
    ("kind", "n_terms"), [("impacts", 9), ("impacts", 600), ("impacts", 5000), ("bags", 600), ("ties", 9)]
)
def test_rounded_sums_lose_no_document(level: None, kind: str, n_terms: int) -> None:
    """Candidates are picked by sums of rounded weights; the best must be those by the scores of all documents."""
    rng = np.random.default_rng(n_terms)
    n_docs, vocab_size = 70_000, 6000
    lengths = rng.integers(0, 20, n_docs)
    ranks = rng.integers(0, vocab_size, lengths.sum()) ** 2 // vocab_size
    keys = np.unique(np.repeat(np.arange(n_docs), lengths) * vocab_size + ranks)
    docs, terms = np.divmod(keys, vocab_size)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(docs, minlength=n_docs))])
    weights = np.ones(len(terms), np.uint8) if kind == "bags" else rng.integers(1, 256, len(terms)).astype(np.uint8)
    query = np.sort(rng.permutation(vocab_size)[:n_terms]).astype(U32)
    query[0] = 0  # the most frequent one
    query_weights = (rng.random(n_terms) ** 8 + 1e-9).astype(F32)  # some weigh next to nothing
    if kind == "ties":
        weights, query_weights = weights // 100 + np.uint8(1), np.full(n_terms, 0.7, F32)
    cut = 66_000  # two segments, the first of two blocks
    parts = []
    for first, last in ((0, cut), (cut, n_docs)):
        span = slice(indptr[first], indptr[last])
        here = indptr[first : last + 1] - indptr[first], terms[span].astype(U32)
        by_term = invert(*here, weights[span], vocab_size=vocab_size, n_docs=last - first)
        parts.append(SparseRows(*here, weights[span], by_term, binary=kind == "bags"))
    segments = SparseSegments(parts, [cut, n_docs - cut])
    scores = pair_scores(np.arange(n_docs, dtype=U32), term_query(segments, query, query_weights))
    mask = rng.random(n_docs) < 0.5
    for allowed in (None, mask):
        matching = np.flatnonzero((scores > 0) & (True if allowed is None else allowed))
        ranked = matching[np.lexsort((matching, -scores[matching]))].astype(U32)
        bitmaps = None if allowed is None else [pack_bitmap(allowed[:cut]), pack_bitmap(allowed[cut:])]
        for k in (1, 10, 700):
            (given,) = top(segments, term_query(segments, query, query_weights), k, allowed=bitmaps)
            assert given.doc_ords.tolist() == ranked[:k].tolist()
            np.testing.assert_array_equal(given.columns[""].scores, scores[given.doc_ords])


@settings(max_examples=150)
@given(
    collections,
    st.lists(st.sampled_from(("dense", "sparse", "tokens")), min_size=2, max_size=3, unique=True),
    st.lists(st.sampled_from((0, 1, 2, 5, 100)), min_size=3, max_size=3),
    st.sampled_from(SCALES),
    st.sampled_from((0, 1, 2, 7, 1000)),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(((0.5, 0.0, 0.3), (0.7, -0.4, 0.3))),
)
def test_the_best_are_those_of_the_slow_twin(
    data: Collection,
    branches: list[str],
    depths: list[int],
    scale: Any,
    k: int,
    complete: list[bool],
    weights: tuple[float, ...],
) -> None:
    """The lists hold the best scores, whether the kernel is told so or not: fewer scores give the same result."""
    n = len(branches)
    lists = [data.listed(branch, depth) for branch, depth in zip(branches, depths, strict=False)]
    how = {"weights": weights[:n], "scale": scale, "k": k, "rrf_k": 2.5}
    queries = [data.queries[branch] for branch in branches]
    best = fused(lists, queries, **how, complete=complete[:n])
    outside = [dict(enumerate(data.scores[branch].tolist())) for branch in branches]
    expected = reference.fuse(lists, outside, **how)
    assert (best.doc_ords.tolist(), best.scores.tolist()) == expected[:2]
    assert columns_of(best) == expected[2]
    assert (best.doc_ords.dtype, best.scores.dtype) == (U32, np.float64)
    for column, listed in zip(best.columns.values(), lists, strict=True):
        again = normalize(column.scores, listed[1], column.ranks, scale=scale, rrf_k=2.5)
        np.testing.assert_array_equal(again, column.normalized)


def columns_of(candidates: Candidates) -> list[list[tuple[float, float, int]]]:
    return [
        list(zip(column.scores.tolist(), column.normalized.tolist(), column.ranks.tolist(), strict=True))
        for column in candidates.columns.values()
    ]


@settings(max_examples=200)
@given(
    collections,
    st.lists(st.sampled_from(("dense", "sparse", "tokens")), min_size=1, max_size=3, unique=True),
    st.sampled_from((*SCALES, "absolute", "absolute")),
    st.sampled_from((0, 1, 2, 7, 1000)),
    st.sampled_from((0, 1, 3, 1000)),
    st.sampled_from((None, "bound", "asked")),
    st.sampled_from(((0.5, 0.0, 0.3), (0.7, -0.4, 0.3))),
    st.booleans(),
    st.integers(0, 100),
)
def test_a_whole_search_is_that_of_the_slow_twin(
    data: Collection,
    branches: list[str],
    scale: Any,
    k: int,
    depth: int,
    filtered: str | None,
    weights: tuple[float, ...],
    columns: bool,
    seed: int,
) -> None:
    """Lists, fusion and order of ids in one call; the documents that may be found are bound before or given then."""
    rng = np.random.default_rng(seed)
    mask = rng.random(data.n_docs) < (0.6 if filtered else 1.0)
    bitmaps = [pack_bitmap(part) for part in np.split(mask, np.cumsum(data.sizes)[:-1])]
    names = [b"%03d" % i for i in rng.permutation(data.n_docs).tolist()]
    flat = [name for part in np.split(np.array(names, "S3"), np.cumsum(data.sizes)[:-1]) for name in sorted(part)]
    ids = DocumentIds(
        [
            (np.frombuffer(b"".join(part), np.uint8), np.arange(len(part) + 1, dtype=np.int64) * 3)
            for part in np.split(np.array(flat, "S3"), np.cumsum(data.sizes)[:-1])
        ]
    )
    in_order = flat == sorted(flat)
    documents = {"dense": data.rows, "sparse": data.impacts, "tokens": data.counts}
    parts = [
        BoundBranch(
            branch,
            documents[branch],
            weight,
            branch != "dense" or all(data.with_rows),  # without rows the score is 0, and others' may be less
            bitmaps if filtered == "bound" else None,
            span,
        )
        for branch, weight, span in zip(branches, weights, SPANS, strict=False)
    ]
    search = CandidateSearch(parts, scale=scale, rrf_k=2.5, ids=None if in_order else ids)
    (best,) = search.search(
        [data.queries[branch] for branch in branches],
        Request(k, depth, columns=columns),
        allowed=[bitmaps] * len(branches) if filtered == "asked" else None,
    )
    every = [dict(enumerate(data.scores[branch].tolist())) for branch in branches]
    lists = []
    for branch, scores in zip(branches, every, strict=True):
        there = {i: score for i, score in scores.items() if mask[i]}
        if branch == "dense":
            there = {i: score for i, score in there.items() if data.with_rows[i] and data.query_vector.any()}
        else:
            there = {i: score for i, score in there.items() if score > 0}
        lists.append(there)
    reach = [1.0 if branch == "dense" else sum(map(float, data.queries[branch][3])) for branch in branches]
    spans = [(low * weight, high * weight) for (low, high), weight in zip(SPANS, reach, strict=False)]
    by = spans if scale == "absolute" else scale
    how = {"weights": weights[: len(branches)], "scale": by, "k": k, "depth": depth, "rrf_k": 2.5}
    expected = reference.search(lists, every, flat, **how)  # type: ignore[arg-type]
    assert (best.doc_ords.tolist(), best.scores.tolist()) == expected[:2]
    assert columns_of(best) == (expected[2] if columns else [])
    assert ids.texts(best.doc_ords) == [flat[doc].decode() for doc in best.doc_ords]


@settings(max_examples=300)
@given(
    collections,
    st.sampled_from((("dense", "tokens"), ("dense", "sparse", "tokens"), ("sparse", "tokens"))),
    st.sampled_from(SCALES),
    st.sampled_from((0, 1, 2, 7, 1000)),
    st.sampled_from((0, 1, 3, 1000)),
    st.booleans(),
    st.sampled_from((0.0, 0.2, 0.8, 1.0)),
    st.lists(st.integers(0, 5), max_size=3, unique=True),
    st.integers(0, 100),
)
def test_pending_documents_keep_the_places_of_the_last_branch(
    data: Collection,
    branches: tuple[Branch, ...],
    scale: Any,
    k: int,
    depth: int,
    fuses_last: bool,
    share: float,
    excluded: list[int],
    seed: int,
) -> None:
    pending = np.random.default_rng(seed).random(data.n_docs) < share
    encoded = [pack_bitmap(part) for part in np.split(~pending, np.cumsum(data.sizes)[:-1])]
    documents = {"dense": data.rows, "sparse": data.impacts, "tokens": data.counts}
    weights = (0.5, 0.2, 0.3)[: len(branches)]
    parts = [
        BoundBranch(branch, documents[branch], weight, branch != "dense" or all(data.with_rows))
        for branch, weight in zip(branches, weights, strict=True)
    ]
    search = CandidateSearch(parts, scale=scale, rrf_k=2.5, pending=PendingDocuments(pending, fuses_last))
    spans = np.array([0, len(excluded)], np.int64)
    (best,) = search.search(
        [data.queries[branch] for branch in branches],
        Request(k, depth, excluded=(spans, u32(*excluded))),
        allowed=[None if branch == "tokens" else encoded for branch in branches],
    )
    every = [dict(enumerate(data.scores[branch].tolist())) for branch in branches]
    lists = []
    for branch, scores in zip(branches, every, strict=True):
        there = {i: score for i, score in scores.items() if branch == "tokens" or not pending[i]}
        if branch == "dense":
            lists.append({i: s for i, s in there.items() if data.with_rows[i] and data.query_vector.any()})
        else:
            lists.append({i: score for i, score in there.items() if score > 0})
    ids = [b"%09d" % i for i in range(data.n_docs)]
    how = {"weights": weights, "scale": scale, "k": k, "depth": depth, "rrf_k": 2.5}
    unfused = reference.Unfused(excluded, set(np.flatnonzero(pending).tolist()), fuses_last)
    expected = reference.search(lists, every, ids, unfused=unfused, **how)  # type: ignore[arg-type]
    assert (best.doc_ords.tolist(), best.scores.tolist()) == expected[:2]
    np.testing.assert_equal(columns_of(best), expected[2])


@settings(max_examples=150)
@given(
    collections,
    st.lists(st.sampled_from(("dense", "sparse", "tokens")), min_size=1, max_size=3, unique=True),
    st.sampled_from(SCALES),
    st.sampled_from((0, 1, 3, 1000)),
    st.sampled_from((0, 1, 4, 1000)),
    st.lists(st.lists(st.integers(0, 5), max_size=3, unique=True), max_size=4),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from((1, 2)),
)
def test_a_batch_ranks_each_query_as_if_it_were_alone_with_given_lists_too(
    data: Collection,
    branches: list[str],
    scale: Any,
    k: int,
    depth: int,
    excluded: list[list[int]],
    given: list[bool],
    threads: int,
) -> None:
    """Lists, and functions that score documents outside them, give what the branches' own lists give; sizes 0 and 1."""
    n = len(excluded)
    bound = {"dense": data.rows, "sparse": data.impacts, "tokens": data.counts}
    search = CandidateSearch([BoundBranch(branch, bound[branch], complete=False) for branch in branches], scale=scale)
    asked, lists = [], []
    deepest = (k if len(branches) == 1 else depth) + max(map(len, excluded), default=0)
    for branch, is_given in zip(branches, given, strict=False):
        queries = repeated(data.queries[branch], n)
        (listed,) = top(bound[branch], data.queries[branch], deepest)
        own = BranchList(listed.doc_ords, listed.columns[""].scores)
        scores = data.scores[branch]
        asked.append(None if is_given else queries)
        lists.append(GivenLists.join([own] * n, lambda _, docs, scores=scores: scores[docs]) if is_given else None)
    indptr = np.cumsum([0, *map(len, excluded)], dtype=np.int64)
    request = Request(k, depth, threads, excluded=(indptr, u32(*(doc for row in excluded for doc in row))))
    rankings = search.search(asked, request, lists=lists)
    assert len(rankings) == n
    for ranking, doc_ords in zip(rankings, excluded, strict=True):
        alone, n_more = [data.queries[branch] for branch in branches], len(doc_ords)
        (every,) = search.search(alone, Request(k + n_more, depth + n_more))
        expected = every.take(np.flatnonzero(~np.isin(every.doc_ords, doc_ords))[:k])
        assert ranking.doc_ords.tolist() == expected.doc_ords.tolist()
        assert ranking.scores.tolist() == expected.scores.tolist()
        assert columns_of(ranking) == columns_of(expected)


@given(collections, st.sampled_from(SCALES), st.integers(0, 9), st.integers(0, 5), st.integers(0, 100))
def test_documents_that_are_named_are_ranked_too(
    data: Collection, scale: Any, depth: int, n_named: int, seed: int
) -> None:
    names = ("dense", "sparse")
    bound = [BoundBranch("dense", data.rows, 0.5, complete=False), BoundBranch("sparse", data.impacts, 0.3)]
    search, queries = CandidateSearch(bound, scale=scale), [data.queries[name] for name in names]
    also = np.random.default_rng(seed).integers(0, max(data.n_docs, 1), n_named).astype(U32)[: data.n_docs]
    (every,) = search.search(queries, Request(10**6, depth))
    (ranking,) = search.search(queries, Request(10**6, depth, also=also))
    assert set(ranking.doc_ords.tolist()) == {*every.doc_ords.tolist(), *also.tolist()}
    for doc, score in zip(every.doc_ords.tolist(), every.scores.tolist(), strict=True):
        assert ranking.scores[ranking.doc_ords == doc].tolist() == [score]
    for name in names:
        np.testing.assert_array_equal(ranking.columns[name].scores, data.scores[name][ranking.doc_ords])


def repeated(queries: BranchQueries, n: int) -> BranchQueries:
    if len(queries) == 2:
        return queries[0], np.repeat(queries[1], n, axis=0)
    rows, indptr, term_ids, weights, *rest = queries
    return rows, np.arange(n + 1, dtype=np.int64) * indptr[-1], np.tile(term_ids, n), np.tile(weights, n), *rest


def test_a_search_refuses_queries_of_others() -> None:
    search = CandidateSearch([BoundBranch("dense", DENSE), BoundBranch("sparse", SPARSE)], scale="rrf")
    asked = [dense_query(DENSE, f32(1, 0)), term_query(SPARSE, u32(3), f32(1))]
    how = Request(1, 1)
    assert search.search(asked, how)[0].doc_ords.tolist() == [0]
    other = SparseSegments([ROWS], [2])
    two = (*term_query(SPARSE, u32(3), f32(1))[:1], np.array([0, 1, 1], np.int64), u32(3), f32(1), None, 1.0, None)
    wide = dense_query(DENSE, np.ones(3, F32))
    alone = PendingDocuments(np.zeros(2, np.bool_), fuses_last=False)

    def excluding(indptr: Any, doc_ords: Any) -> Request:
        return Request(1, 1, excluded=(indptr, doc_ords))

    for says, call in {
        "at least one branch": lambda: CandidateSearch([], scale="rrf"),
        "no scale 'log'": lambda: CandidateSearch([BoundBranch("", DENSE)], scale="log"),  # type: ignore[arg-type]
        "queries and branches differ": lambda: search.search(asked[:1], how),
        "for other documents": lambda: search.search([asked[0], term_query(other, u32(3), f32(1))], how),
        "batches of queries differ": lambda: search.search([asked[0], two], how),
        "neither queries nor lists": lambda: search.search([asked[0], None], how),
        "allowed and branches differ": lambda: search.search(asked, how, allowed=[None]),
        "lists and branches differ": lambda: search.search(asked, how, lists=[None]),
        "allowed and segments differ": lambda: search.search(asked, how, allowed=[[], None]),
        "k must not be negative": lambda: search.search(asked, Request(-1, 1)),
        "depth must not be negative": lambda: search.search(asked, Request(1, -1)),
        "depth must be a whole number": lambda: search.search(asked, Request(1, None)),  # type: ignore[arg-type]
        "threads must be at least 1": lambda: search.search(asked, Request(1, 1, 0)),
        "less than the 3 columns": lambda: search.search([wide, asked[1]], how),
        "without an encoder": lambda: search.search_texts(["a"], how),
        "doc_ord 2 is outside": lambda: search.search(asked, Request(9, 1, also=u32(2))),
        "excluded_indptr differ": lambda: search.search(asked, excluding(np.zeros(3, np.int64), u32())),
        "excluded_indptr must start": lambda: search.search(asked, excluding(np.array([0, 2], np.int64), u32(1))),
        "excluded must be uint32": lambda: search.search(asked, excluding(np.array([0, 1], np.int64), f32(1))),
        "no branch is fused": lambda: CandidateSearch([BoundBranch("", DENSE)], scale="rrf", pending=alone),
    }.items():
        with pytest.raises(InvalidInput, match=says):
            call()


def test_an_error_of_a_function_that_scores_reaches_the_caller() -> None:
    def refuse(query: int, doc_ords: Any) -> Any:
        raise ZeroDivisionError(f"query {query}")

    bound = [BoundBranch("dense", DENSE, complete=False), BoundBranch("other", DENSE, complete=False)]
    lists = [GivenLists.join([BranchList(u32(i), f32(1))] * 3, refuse) for i in (0, 1)]
    for threads in (1, 2):
        with pytest.raises(ZeroDivisionError, match="query"):
            CandidateSearch(bound, scale="none").search([None, None], Request(5, 5, threads), lists=lists)
    wrong = [GivenLists(*given[:3], lambda _, docs: np.zeros(len(docs) + 1, F32)) for given in lists]
    with pytest.raises(InvalidInput, match="doc_ords and scores differ"):
        CandidateSearch(bound, scale="none").search([None, None], Request(5, 5), lists=wrong)


@pytest.mark.parametrize(
    ("scale", "n_asked"), [("min-max", 0), ("max", 0), ("rrf", 0), ("z-score", 1), ("none", 1), ("dbsf", 1)]
)
def test_scores_that_cannot_matter_are_not_asked_for(scale: Any, n_asked: int) -> None:
    """Row 2 scores NaN, an error as soon as anybody asks; what it can be at most leaves it behind the first."""
    rows = f32(9, 8, np.nan, 6, 1).reshape(5, 1)
    dense = dense_query(DenseSegments([ScannedRows(rows)], [5]), f32(1))
    sparse = term_query(SparseSegments([SparseRows(*TERMS, FIVE)], [5]), u32(3), f32(1))
    lists = [(u32(0, 1, 3), f32(9, 8, 6)), (u32(0, 2, 4), f32(9, 2, 1))]
    how: Any = {"weights": [0.5, 0.5], "scale": scale, "k": 1}
    assert fused(lists, [dense, sparse], **how, complete=[True, True]).doc_ords.tolist() == [0]
    if n_asked:
        with pytest.raises(InvalidInput, match="row 2 scores NaN"):
            fused(lists, [dense, sparse], **how)


@pytest.mark.parametrize("best_in", ["first", "last", "all"])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_a_guess_from_the_first_segments_loses_no_document(best_in: str, kind: Any) -> None:
    """Large k: what all segments will give is guessed from the first ones, which hold all of the best, or none."""
    rng = np.random.default_rng(3)
    n_segments, size = 6, 700
    segments = []
    for i in range(n_segments):
        weights = rng.integers(1, 40, size)
        if i == {"first": 0, "last": n_segments - 1, "all": -1}[best_in]:
            weights += 30
        csr = np.arange(size + 1, dtype=np.int64), np.full(size, 5, U32), weights.astype(kind)
        segments.append(SparseRows(*csr, invert(*csr, vocab_size=9, n_docs=size)))
    view = SparseSegments(segments, [size] * n_segments)
    scores = np.concatenate([segment.weights for segment in segments]).astype(F32)
    mask = rng.random(n_segments * size) < 0.7
    for allowed in (None, [pack_bitmap(part) for part in np.split(mask, n_segments)]):
        kept = np.flatnonzero(mask) if allowed else np.arange(len(scores))
        ranked = kept[np.lexsort((kept, -scores[kept]))]
        for k in (40, 300, 1500, 2900):
            (best,) = top(view, term_query(view, u32(5), f32(1)), k, allowed=allowed)
            assert best.doc_ords.tolist() == ranked[:k].tolist()
            np.testing.assert_array_equal(best.scores, scores[ranked[:k]])


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_one_query_alone_finds_the_same_with_several_threads(kind: Any) -> None:
    """Documents of two large segments, which threads share, and of a small one between them; many have equal scores."""
    rng = np.random.default_rng(5)
    sizes = [200_000, 900, 150_000]
    segments, scores = [], []
    for size in sizes:
        weights = rng.integers(1, 30, (size, 2)).astype(kind)
        csr = np.arange(0, 2 * size + 1, 2, dtype=np.int64), np.tile(u32(3, 5), size), weights.ravel()
        segments.append(SparseRows(*csr, invert(*csr, vocab_size=9, n_docs=size)))
        scores.append(weights.astype(F32) @ f32(2, 1))
    view, flat = SparseSegments(segments, sizes), np.concatenate(scores)
    ranked = np.lexsort((np.arange(len(flat)), -flat))
    search = CandidateSearch([BoundBranch("sparse", view)], scale="none")
    for k in (1, 100, 3000):
        for threads in (1, 2, 5):
            (best,) = search.search([term_query(view, u32(3, 5), f32(2, 1))], Request(k, k, threads))
            assert best.doc_ords.tolist() == ranked[:k].tolist()
            np.testing.assert_array_equal(best.scores, flat[ranked[:k]])


def test_sums_run_in_the_lists_order_however_long_they_are() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    rows = rng.standard_normal((n, 2)).astype(F32)
    scores = reference.dense_pair_scores(rows, np.arange(n, dtype=U32), np.array([1.0, 0.5], F32))
    order = np.lexsort((np.arange(n), -scores)).astype(U32)[:2500]
    query = dense_query(DenseSegments([ScannedRows(rows)], [n]), np.array([1.0, 0.5], F32))
    lists = [(order, pair_scores(order, query)), (order[:1], f32(1))]
    everywhere = dict.fromkeys(range(n), 0.0)
    for scale in ("z-score", "dbsf"):
        how: Any = {"weights": [0.7, 0.0], "scale": scale, "k": n}
        assert fused(lists, [query, query], **how).scores.tolist() == reference.fuse(lists, [everywhere] * 2, **how)[1]


CSR = (np.array([0, 1, 2], np.int64), u32(3, 4), np.ones(2, np.uint8))
POSTINGS = reference.invert(*CSR, vocab_size=5, n_docs=2)
ROWS = SparseRows(*CSR, POSTINGS)
TERMS = (np.arange(6, dtype=np.int64), np.full(5, 3, U32), np.array([9, 1, 2, 1, 1], np.uint8))
FIVE = reference.invert(*TERMS, vocab_size=5, n_docs=5)
DENSE, SPARSE = DenseSegments([ScannedRows(np.eye(2, dtype=F32))], [2]), SparseSegments([ROWS], [2])
BY_DENSE, BY_TERMS = dense_query(DENSE, f32(1, 2)), term_query(SPARSE, u32(3), f32(1))
LIST = (u32(1, 0), f32(2, 1))
TWICE = [(u32(1, 1), f32(1, 1)), LIST]
JOINED: Any = {"weights": [1, 1], "scale": "none"}
REFUSED = {
    "doc_ord 2 is outside the 2 documents": lambda: pair_scores(u32(2), BY_DENSE),
    "there is no query 1": lambda: pair_scores(u32(1), BY_DENSE, 1),
    "doc_ord 9 is outside": lambda: fused([(u32(9), f32(1)), LIST], [BY_TERMS] * 2, k=1, **JOINED),
    "lists a document twice": lambda: fused(TWICE, [BY_TERMS] * 2, k=1, **JOINED),
    "k must be a whole number, but is None": lambda: fused([LIST] * 2, [BY_TERMS] * 2, k=None, **JOINED),
    "k must be a whole number, but is 2.0": lambda: top(DENSE, BY_DENSE, 2.0),
    "k must not be negative, but is -2": lambda: top(SPARSE, BY_TERMS, -2),
    "threads must be a whole number": lambda: top(DENSE, BY_DENSE, 1, threads="2"),  # type: ignore[arg-type]
    "doc_ords must be uint32": lambda: pair_scores(np.array([1]), BY_DENSE),  # type: ignore[arg-type]
    "less than the 3 columns asked for": lambda: pair_scores(u32(1), dense_query(DENSE, np.ones(3, F32))),
    "query holds|query 0 holds": lambda: pair_scores(u32(1), dense_query(DENSE, f32(np.nan, 1))),
    "places and segments differ": lambda: pair_scores(
        u32(1), term_query(SPARSE, u32(0), f32(1), places=np.zeros((2, 1), np.int64))
    ),
    "has no place": lambda: pair_scores(u32(1), term_query(SPARSE, u32(1), f32(1), places=np.zeros((1, 1), np.int64))),
    "indptr and documents . 1 differ": lambda: SparseSegments([ROWS], [3]),
    "allowed and segments differ": lambda: top(DENSE, BY_DENSE, 1, allowed=[]),
    "one bit per document": lambda: top(DENSE, BY_DENSE, 1, allowed=[np.zeros(2, np.uint8)]),
    "parts and segments differ": lambda: DenseSegments([], [1]),
    "scores and ranks differ": lambda: normalize(f32(1), f32(1), np.zeros(2, np.int64), scale="max"),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_fused_is_refused(says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        REFUSED[says]()


def test_a_row_outside_the_arrays_is_damage() -> None:
    broken = SparseSegments([SparseRows(np.array([0, 9, 2], np.int64), *CSR[1:], POSTINGS)], [2])
    with pytest.raises(FormatError, match="no row"):
        pair_scores(u32(0, 1), term_query(broken, u32(3), f32(1)))


@given(st.lists(st.lists(st.text(max_size=3), unique=True, max_size=6), min_size=1, max_size=4), st.randoms())
def test_ties_stand_in_the_order_of_their_ids_wherever_they_are(segments: list[list[str]], random: Any) -> None:
    ids = [sorted(text.encode() for text in one) for one in segments]
    flat = [encoded for one in ids for encoded in one]
    arrays = [(np.frombuffer(b"".join(one), np.uint8), np.cumsum([0, *map(len, one)], dtype=np.int64)) for one in ids]
    docs = random.sample(range(len(flat)), random.randint(0, len(flat)))
    scores = sorted((random.choice([3.0, 0.5, -1.0]) for _ in docs), reverse=True)
    for dtype in (np.float32, np.float64):
        order = DocumentIds(arrays).order(np.array(docs, U32), np.array(scores, dtype))
        by_twin = reference.order_of_ids(docs, scores, flat)
        assert [flat[docs[i]] for i in order] == [flat[docs[i]] for i in by_twin]
        assert sorted(order.tolist()) == list(range(len(docs)))
        assert [scores[i] for i in order] == scores


def test_an_id_that_lies_outside_its_text_is_taken_for_empty() -> None:
    text, indptr = np.frombuffer(b"ab", np.uint8), np.array([0, 1, 9], np.int64)
    assert DocumentIds([(text, indptr)]).order(u32(0, 1), f32(1, 1)).tolist() == [1, 0]
    with pytest.raises(InvalidInput, match="doc_ord 2 is outside the 2 documents"):
        DocumentIds([(text, indptr)]).order(u32(0, 2), f32(1, 1))
    assert DocumentIds([(text, indptr)]).texts(u32(1, 0)) == ["", "a"]
    with pytest.raises(FormatError, match="lightir verify"):
        DocumentIds([(np.frombuffer(b"a\xff", np.uint8), np.array([0, 1, 2], np.int64))]).texts(u32(0, 1))
