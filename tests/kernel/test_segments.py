"""Fusion and the scores of given documents over segments against their slow twins: the same bits, with many ties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from lightir.contract import Fusion
from lightir.errors import FormatError, InvalidInput
from lightir.index.bm25 import K1, B, saturation
from lightir.kernel import _native, available, copy_rows, dispatch, invert, pack_bitmap, reference
from lightir.kernel.hybrid import BoundBranch, HybridSearch
from lightir.kernel.segments import (
    BranchQuery,
    DenseSegments,
    DocumentIds,
    SparseRows,
    SparseSegments,
    fuse,
    pair_scores,
)
from lightir.search import BranchList
from lightir.search.fusion import fuse as fuse_all
from lightir.search.fusion import fuse_best
from lightir.types import Branch

SCALES = ("none", "max", "min-max", "z-score", "dbsf", "rrf")
F32, U32 = np.float32, np.uint32


def u32(*values: int) -> Any:
    return np.array(values, U32)


def f32(*values: float) -> Any:
    return np.array(values, F32)


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
            dense.append((rows, None, copy_rows(rows) if i % 2 else None) if there[0] else None)
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
            found = (
                reference.dense_pair_scores(rows, docs, self.query_vector),
                reference.sparse_pair_scores(
                    indptr, self.term_ids[columns], impacts, docs, self.term_ids, self.query_weights
                ),
                reference.sparse_pair_scores(indptr, (columns + i).astype(U32), weights, docs, *wanted),
            )
            for branch, each, is_there in zip(scores, found, there, strict=True):
                scores[branch].extend((each if is_there else np.zeros(size, F32)).tolist())
        self.scores = {branch: np.array(each, F32) for branch, each in scores.items()}
        order = rng.permutation(len(self.term_ids)).astype(U32)  # terms may come in any order
        stacked = np.array(places, dtype=np.int64).reshape(len(sizes), len(self.term_ids))
        self.order, self.places = order, stacked
        self.rows = DenseSegments(dense, sizes)
        self.impacts, self.counts = SparseSegments(sparse, sizes), SparseSegments(tokens, sizes, k1=K1, b=B)
        self.queries: dict[str, BranchQuery] = {
            "dense": self.rows.query(self.query_vector),
            "sparse": self.impacts.query(self.term_ids, self.query_weights),
            "tokens": self.counts.query(order, self.query_weights[order], places=stacked, mean=self.mean),
        }

    def top(self, branch: str, k: int, allowed: Any, threads: int) -> Any:
        """Three times the same query, the second time without terms."""
        how = {"k": k, "threads": threads, "allowed": allowed}
        if branch == "dense":
            return self.rows.top_k(np.array([self.query_vector] * 3).reshape(3, -1), **how)
        n = len(self.term_ids)
        indptr = np.array([0, n, n, 2 * n], np.int64)
        if branch == "sparse":
            return self.impacts.top_k(indptr, np.tile(self.term_ids, 2), np.tile(self.query_weights, 2), **how)
        weights = np.tile(self.query_weights[self.order], 2)
        return self.counts.top_k(indptr, np.tile(self.order, 2), weights, places=self.places, mean=self.mean, **how)

    def listed(self, branch: str, depth: int) -> tuple[Any, Any]:
        scores = self.scores[branch]
        order = np.lexsort((np.arange(self.n_docs), -scores))[:depth].astype(U32)
        return order, scores[order]


collections = st.builds(
    Collection, st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=5), wide=st.booleans()
)


@settings(deadline=None)
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
        np.testing.assert_array_equal(pair_scores(docs, segments.query(wanted, query_weights)), expected)


@settings(deadline=None, max_examples=200)
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
    indptr, doc_ords, scores = data.top(branch, k, allowed, threads)
    said = data.scores[branch]
    found = [i for i in range(data.n_docs) if mask[i] and (data.with_rows[i] if branch == "dense" else said[i] > 0)]
    expected = sorted(found, key=lambda i: (-said[i], i))
    while k < len(expected) and (k == 0 or said[expected[-1]] < said[expected[k - 1]]):
        expected.pop()
    segment = np.repeat(np.arange(len(data.sizes)), data.sizes)
    # Of a segment's own ties no more than k are needed: inside it doc_ords are in the order of the ids.
    needed = [i for i in expected if sum(segment[j] == segment[i] for j in expected[: expected.index(i)]) < k]
    for i in range(3):
        given = doc_ords[indptr[i] : indptr[i + 1]].tolist()
        if i == 1 and branch != "dense":
            assert given == []
            continue
        assert [j for j in expected if j in given] == given
        assert [j for j in given if j in needed] == needed
        np.testing.assert_array_equal(scores[indptr[i] : indptr[i + 1]], said[given])


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
    scores = pair_scores(np.arange(n_docs, dtype=U32), segments.query(query, query_weights))
    mask = rng.random(n_docs) < 0.5
    for allowed in (None, mask):
        found = np.flatnonzero((scores > 0) & (True if allowed is None else allowed))
        ranked = found[np.lexsort((found, -scores[found]))].astype(U32)
        bitmaps = None if allowed is None else [pack_bitmap(allowed[:cut]), pack_bitmap(allowed[cut:])]
        for k in (1, 10, 700):
            _, doc_ords, given = segments.top_k(np.array([0, n_terms]), query, query_weights, k=k, allowed=bitmaps)
            assert doc_ords[:k].tolist() == ranked[:k].tolist()
            np.testing.assert_array_equal(given, scores[doc_ords])


@settings(deadline=None, max_examples=150)
@given(
    collections,
    st.lists(st.sampled_from(("dense", "sparse", "tokens")), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from((0, 1, 2, 5, 100)), min_size=3, max_size=3),
    st.sampled_from(SCALES),
    st.sampled_from((0, 1, 2, 7, 1000)),
    st.booleans(),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(((0.5, 0.0, 0.3), (0.7, -0.4, 0.3))),
)
def test_the_best_are_those_of_the_slow_twin(
    data: Collection,
    branches: list[str],
    depths: list[int],
    scale: Any,
    k: int,
    ties: bool,
    complete: list[bool],
    weights: tuple[float, ...],
) -> None:
    """The lists hold the best scores, whether the kernel is told so or not: fewer scores give the same result."""
    n = len(branches)
    lists = [data.listed(branch, depth) for branch, depth in zip(branches, depths, strict=False)]
    how = {"weights": weights[:n], "scale": scale, "k": k, "rrf_k": 2.5, "ties": ties}
    queries = [data.queries[branch] for branch in branches]
    doc_ords, sums, columns = fuse(lists, queries, **how, complete=complete[:n])
    outside = [dict(enumerate(data.scores[branch].tolist())) for branch in branches]
    expected = reference.fuse(lists, outside, **how)
    assert (doc_ords.tolist(), sums.tolist()) == expected[:2]
    for column, rows in zip(columns, expected[2], strict=True):
        assert list(zip(*(each.tolist() for each in column), strict=True)) == rows
    assert (doc_ords.dtype, sums.dtype) == (U32, np.float64)


@settings(deadline=None)
@given(collections, st.sampled_from(SCALES), st.sampled_from((1, 4, 1000)), st.integers(1, 30), st.booleans())
def test_the_kernel_s_best_are_the_first_of_all_that_numpy_ranks(
    data: Collection, scale: Any, k: int, depth: int, complete: bool
) -> None:
    method: Any = scale if scale in ("dbsf", "rrf") else "linear"
    fusion = Fusion(method, {"dense": 0.5, "sparse": 0.2, "tokens": 0.3}, scale if method == "linear" else "none")
    lists: dict[Branch, BranchList] = {branch: BranchList(*data.listed(branch, depth)) for branch in fusion.weights}
    queries: dict[Branch, BranchQuery] = {branch: data.queries[branch] for branch in lists}
    every = fuse_all(lists, lambda branch, docs: pair_scores(docs, queries[branch]), fusion=fusion)
    best = fuse_best(lists, queries, fusion=fusion, k=k, ties=False, complete=tuple(lists) if complete else ())
    first = every.take(slice(0, k))
    np.testing.assert_array_equal(best.doc_ords, first.doc_ords)
    np.testing.assert_array_equal(best.scores, first.scores)
    for branch, column in first.columns.items():
        for name in ("scores", "normalized", "ranks", "weight"):
            np.testing.assert_array_equal(getattr(best.columns[branch], name), getattr(column, name))


@settings(deadline=None, max_examples=200)
@given(
    collections,
    st.lists(st.sampled_from(("dense", "sparse", "tokens")), min_size=1, max_size=3, unique=True),
    st.sampled_from(SCALES),
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
            documents[branch],
            weight,
            branch != "dense" or all(data.with_rows),  # without rows the score is 0, and others' may be less
            bitmaps if filtered == "bound" else None,
        )
        for branch, weight in zip(branches, weights, strict=False)
    ]
    search = HybridSearch(parts, scale=scale, rrf_k=2.5, ids=None if in_order else ids)
    doc_ords, sums, said = search.search(
        [data.queries[branch] for branch in branches],
        k=k,
        depth=depth,
        allowed=[bitmaps] * len(branches) if filtered == "asked" else None,
        columns=columns,
    )
    every = [dict(enumerate(data.scores[branch].tolist())) for branch in branches]
    found = []
    for branch, scores in zip(branches, every, strict=True):
        there = {i: score for i, score in scores.items() if mask[i]}
        if branch == "dense":
            there = {i: score for i, score in there.items() if data.with_rows[i] and data.query_vector.any()}
        else:
            there = {i: score for i, score in there.items() if score > 0}
        found.append(there)
    how = {"weights": weights[: len(branches)], "scale": scale, "k": k, "depth": depth, "rrf_k": 2.5}
    expected = reference.search(found, every, flat, **how)  # type: ignore[arg-type]
    assert (doc_ords.tolist(), sums.tolist()) == expected[:2]
    assert [list(zip(*(each.tolist() for each in column), strict=True)) for column in said] == (
        expected[2] if columns else []
    )
    assert ids.texts(doc_ords) == [flat[doc].decode() for doc in doc_ords]


def test_a_search_refuses_queries_of_others() -> None:
    search = HybridSearch([BoundBranch(DENSE), BoundBranch(SPARSE)], scale="rrf")
    asked = [DENSE.query(f32(1, 0)), SPARSE.query(u32(3), f32(1))]
    assert search.search(asked, k=1, depth=1)[0].tolist() == [0]
    other = SparseSegments([ROWS], [2])
    how: Any = {"k": 1, "depth": 1}
    for says, call in {
        "needs one branch": lambda: HybridSearch([], scale="rrf"),
        "no scale 'log'": lambda: HybridSearch([BoundBranch(DENSE)], scale="log"),  # type: ignore[arg-type]
        "queries and branches differ": lambda: search.search(asked[:1], **how),
        "for other documents": lambda: search.search([asked[0], other.query(u32(3), f32(1))], **how),
        "allowed and branches differ": lambda: search.search(asked, allowed=[None], **how),
        "given and branches differ": lambda: search.search(asked, given=[None], **how),
        "allowed and segments differ": lambda: search.search(asked, allowed=[[], None], **how),
        "k must not be negative": lambda: search.search(asked, k=-1, depth=1),
        "depth must not be negative": lambda: search.search(asked, k=1, depth=-1),
        "depth must be a whole number": lambda: search.search(asked, k=1, depth=None),  # type: ignore[arg-type]
        "threads must be at least 1": lambda: search.search(asked, threads=0, **how),
        "less than the 3 columns": lambda: search.search([DENSE.query(np.ones(3, F32)), asked[1]], **how),
    }.items():
        with pytest.raises(InvalidInput, match=says):
            call()


@pytest.mark.parametrize(
    ("scale", "n_asked"), [("min-max", 0), ("max", 0), ("rrf", 0), ("z-score", 1), ("none", 1), ("dbsf", 1)]
)
def test_scores_that_cannot_matter_are_not_asked_for(scale: Any, n_asked: int) -> None:
    """Row 2 scores NaN, an error as soon as anybody asks; what it can be at most leaves it behind the first."""
    rows = f32(9, 8, np.nan, 6, 1).reshape(5, 1)
    dense = DenseSegments([(rows, None, None)], [5]).query(f32(1))
    sparse = SparseSegments([SparseRows(*TERMS, FIVE)], [5]).query(u32(3), f32(1))
    lists = [(u32(0, 1, 3), f32(9, 8, 6)), (u32(0, 2, 4), f32(9, 2, 1))]
    how: Any = {"weights": [0.5, 0.5], "scale": scale, "k": 1}
    found = fuse(lists, [dense, sparse], **how, complete=[True, True])
    assert found[0].tolist() == [0]
    if n_asked:
        with pytest.raises(InvalidInput, match="row 2 scores NaN"):
            fuse(lists, [dense, sparse], **how)


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
    said = np.concatenate([each.weights for each in segments]).astype(F32)
    mask = rng.random(n_segments * size) < 0.7
    for allowed in (None, [pack_bitmap(part) for part in np.split(mask, n_segments)]):
        kept = np.flatnonzero(mask) if allowed else np.arange(len(said))
        ranked = kept[np.lexsort((kept, -said[kept]))]
        for k in (40, 300, 1500, 2900):
            _, doc_ords, scores = view.top_k(np.array([0, 1], np.int64), u32(5), f32(1), k=k, allowed=allowed)
            expected = ranked[said[ranked] >= said[ranked[k - 1]]]
            needed = [i for part in range(n_segments) for i in expected[expected // size == part][:k].tolist()]
            assert set(needed) <= set(doc_ords.tolist()) <= set(expected.tolist())
            np.testing.assert_array_equal(scores, said[doc_ords])
            assert doc_ords.tolist() == [i for i in expected.tolist() if i in set(doc_ords.tolist())]


def test_of_a_segment_s_ties_no_more_than_k_come() -> None:
    size, k = 2000, 30
    csr = np.arange(size + 1, dtype=np.int64), np.full(size, 5, U32), np.ones(size, np.uint8)
    one = SparseRows(*csr, invert(*csr, vocab_size=9, n_docs=size))
    found = SparseSegments([one] * 3, [size] * 3).top_k(np.array([0, 1], np.int64), u32(5), f32(1), k=k)
    assert found[1].tolist() == [first + i for first in (0, size, 2 * size) for i in range(k)]


def test_sums_run_in_the_lists_order_however_long_they_are() -> None:
    rng = np.random.default_rng(0)
    n = 3000
    rows = rng.standard_normal((n, 2)).astype(F32)
    scores = reference.dense_pair_scores(rows, np.arange(n, dtype=U32), np.array([1.0, 0.5], F32))
    order = np.lexsort((np.arange(n), -scores)).astype(U32)[:2500]
    query = DenseSegments([(rows, None, None)], [n]).query(np.array([1.0, 0.5], F32))
    listed = (order, pair_scores(order, query))
    for scale in ("z-score", "dbsf"):
        expected = reference.fuse([listed], [{}], weights=[0.7], scale=scale, k=n)
        assert fuse([listed], [query], weights=[0.7], scale=scale, k=n)[1].tolist() == expected[1]  # type: ignore[arg-type]


CSR = (np.array([0, 1, 2], np.int64), u32(3, 4), np.ones(2, np.uint8))
POSTINGS = reference.invert(*CSR, vocab_size=5, n_docs=2)
ROWS = SparseRows(*CSR, POSTINGS)
TERMS = (np.arange(6, dtype=np.int64), np.full(5, 3, U32), np.array([9, 1, 2, 1, 1], np.uint8))
FIVE = reference.invert(*TERMS, vocab_size=5, n_docs=5)
DENSE, SPARSE = DenseSegments([(np.eye(2, dtype=F32), None, None)], [2]), SparseSegments([ROWS], [2])
BY_DENSE, BY_TERMS = DENSE.query(f32(1, 2)), SPARSE.query(u32(3), f32(1))
LIST = (u32(1, 0), f32(2, 1))
REFUSED = {
    "doc_ord 2 is outside the 2 documents": lambda: pair_scores(u32(2), BY_DENSE),
    "doc_ord 9 is outside": lambda: fuse([(u32(9), f32(1)), LIST], [BY_TERMS] * 2, weights=[1, 1], scale="none", k=1),
    "lists a document twice": lambda: fuse([(u32(1, 1), f32(1, 1))], [BY_TERMS], weights=[1], scale="rrf", k=1),
    "no scale 'log'": lambda: fuse([LIST], [BY_TERMS], weights=[1], scale="log", k=1),  # type: ignore[arg-type]
    "k must not be negative": lambda: fuse([LIST], [BY_TERMS], weights=[1], scale="none", k=-1),
    "k must be a whole number, but is None": lambda: fuse([LIST], [BY_TERMS], weights=[1], scale="none", k=None),  # type: ignore[arg-type]
    "k must be a whole number, but is 2.0": lambda: DENSE.top_k(np.ones((1, 2), F32), k=2.0),  # type: ignore[arg-type]
    "k must not be negative, but is -2": lambda: SPARSE.top_k(np.array([0, 1]), u32(3), f32(1), k=-2),
    "threads must be a whole number": lambda: DENSE.top_k(np.ones((1, 2), F32), k=1, threads="2"),  # type: ignore[arg-type]
    "lists and complete differ": lambda: fuse([LIST], [BY_TERMS], weights=[1], scale="none", k=1, complete=[]),
    "lists and weights differ in length": lambda: fuse([LIST], [BY_TERMS], weights=[], scale="none", k=1),
    "doc_ords must be uint32": lambda: pair_scores(np.array([1]), BY_DENSE),  # type: ignore[arg-type]
    "less than the 3 columns asked for": lambda: pair_scores(u32(1), DENSE.query(np.ones(3, F32))),
    "query holds|query 0 holds": lambda: pair_scores(u32(1), DENSE.query(f32(np.nan, 1))),
    "places and segments differ": lambda: pair_scores(
        u32(1), SPARSE.query(u32(0), f32(1), places=np.zeros((2, 1), np.int64))
    ),
    "has no place": lambda: pair_scores(u32(1), SPARSE.query(u32(1), f32(1), places=np.zeros((1, 1), np.int64))),
    "indptr and documents . 1 differ": lambda: SparseSegments([ROWS], [3]),
    "allowed and segments differ": lambda: DENSE.top_k(np.ones((1, 2), F32), k=1, allowed=[]),
    "one bit a document": lambda: DENSE.top_k(np.ones((1, 2), F32), k=1, allowed=[np.zeros(2, np.uint8)]),
    "parts and segments differ": lambda: DenseSegments([], [1]),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_fused_is_refused(says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        REFUSED[says]()


def test_a_row_outside_the_arrays_is_damage() -> None:
    broken = SparseSegments([SparseRows(np.array([0, 9, 2], np.int64), *CSR[1:], POSTINGS)], [2])
    with pytest.raises(FormatError, match="no row"):
        pair_scores(u32(0, 1), broken.query(u32(3), f32(1)))


@settings(deadline=None)
@given(st.lists(st.lists(st.text(max_size=3), unique=True, max_size=6), min_size=1, max_size=4), st.randoms())
def test_ties_stand_in_the_order_of_their_ids_wherever_they_are(segments: list[list[str]], random: Any) -> None:
    ids = [sorted(each.encode() for each in one) for one in segments]
    flat = [each for one in ids for each in one]
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
