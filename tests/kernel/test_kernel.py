"""Every compiled function against its slow twin, at every dispatch level that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightir import kernel
from lightir.errors import FormatError, InvalidInput
from lightir.kernel import _native, reference
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments, ScannedRows, SparseRows, SparseSegments, pair_scores

LEVELS = kernel.available()
few = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.dispatch()
    _native.use_level(request.param)
    yield request.param
    _native.use_level(before)


def random_documents(rng: np.random.Generator, *, n_docs: int, vocab_size: int, dtype: type = np.uint8):
    """CSR documents with few distinct impacts, so that ties abound."""
    rows = [
        np.sort(rng.choice(vocab_size, rng.integers(0, min(vocab_size, 9) + 1), replace=False)) for _ in range(n_docs)
    ]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    term_ids = np.concatenate([np.zeros(0, np.int64), *rows]).astype(np.uint32)
    return indptr, term_ids, rng.choice([1, 2, 255], len(term_ids)).astype(dtype)


def random_query(rng: np.random.Generator, *, vocab_size: int, whole: bool):
    terms = rng.permutation(vocab_size)[: rng.integers(0, 8)].astype(np.uint32)
    weights = rng.integers(1, 4, len(terms)) if whole else rng.random(len(terms)) + 0.1
    return terms, weights.astype(np.float32)


def same(got, expected) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@few
@given(
    seed=st.integers(0, 2**32),
    n_docs=st.integers(0, 90),
    vocab_size=st.sampled_from([1, 7, 300, 262_144]),
    k=st.sampled_from([0, 1, 3, 1000]),
    whole=st.booleans(),
    dtype=st.sampled_from([np.uint8, np.float32]),
    filtered=st.booleans(),
)
def test_sparse_search_equals_its_twin_to_the_bit(level, seed, n_docs, vocab_size, k, whole, dtype, filtered) -> None:
    rng = np.random.default_rng(seed)
    documents = random_documents(rng, n_docs=n_docs, vocab_size=vocab_size, dtype=dtype)
    postings = kernel.invert(*documents, vocab_size=vocab_size, n_docs=n_docs)
    expected = reference.invert(*documents, vocab_size=vocab_size, n_docs=n_docs)
    same(postings.arrays().values(), expected.arrays().values())
    allowed = kernel.pack_bitmap(rng.random(n_docs) < 0.5) if filtered else None
    query = random_query(rng, vocab_size=vocab_size, whole=whole)
    hits = kernel.sparse_top_k(postings, *query, k=k, allowed=allowed)
    same(hits, reference.sparse_top_k(postings, *query, k=k, allowed=allowed))
    pairs = rng.integers(0, n_docs, 20 if n_docs else 0).astype(np.uint32)
    segments = SparseSegments([SparseRows(*documents, postings)], [n_docs])
    asked = segments.queries(np.array([0, len(query[0])]), *query)
    same(
        [pair_scores(pairs, asked), pair_scores(hits[0], asked)],
        [reference.sparse_pair_scores(*documents, pairs, *query), hits[1]],
    )


def test_sparse_search_crosses_blocks_and_keeps_the_total_order(level) -> None:
    n_docs = 2 * kernel.BLOCK_SIZE + 5
    rng = np.random.default_rng(1)
    impacts = rng.choice([1, 2, 3], n_docs).astype(np.uint8)
    impacts[kernel.BLOCK_SIZE :: 7] = 255
    indptr, terms = np.arange(n_docs + 1), np.zeros(n_docs, np.uint32)
    postings = kernel.invert(indptr, terms, impacts, vocab_size=1, n_docs=n_docs)
    for weight in (1.0, 0.5, 300.0):
        for k in (10, 5000, n_docs + 1):
            doc_ords, scores = kernel.sparse_top_k(postings, np.zeros(1, np.uint32), np.float32([weight]), k=k)
            order = np.lexsort((np.arange(n_docs), -impacts.astype(np.int64)))[:k]
            np.testing.assert_array_equal(doc_ords, order)
            np.testing.assert_array_equal(scores, np.float32(weight) * impacts[order])


def test_long_runs_count_whole_wherever_their_postings_lie(level) -> None:
    """Long runs are added a part of a block at a time; every document's sum is that of a plain addition."""
    n_docs, rng = 2 * kernel.BLOCK_SIZE + 30_001, np.random.default_rng(6)
    every = np.arange(n_docs)
    lists = [every, every[::2], every[-700:], every[kernel.BLOCK_SIZE :][:512], every[:511], every[16_383::16_384]]
    lists += [np.flatnonzero(rng.random(n_docs) < share) for share in (0.001, 0.008, 0.03, 0.2)]
    terms, docs = np.repeat(np.arange(len(lists)), list(map(len, lists))), np.concatenate(lists)
    order = np.lexsort((terms, docs))
    impacts = rng.integers(1, 256, len(docs)).astype(np.uint8)
    indptr = np.searchsorted(docs[order], np.arange(n_docs + 1))
    postings = kernel.invert(indptr, U32(terms[order]), impacts[order], vocab_size=len(lists), n_docs=n_docs)
    for chosen in (every[: len(lists)], np.array([2, 3, 4, 5]), np.array([1, 8])):
        weights = rng.integers(1, 4, len(chosen))
        sums = np.zeros(n_docs)
        for term, weight in zip(chosen, weights, strict=True):
            np.add.at(sums, docs[terms == term], weight * impacts[terms == term].astype(np.float64))
        ranked = np.lexsort((every, -sums))[: np.count_nonzero(sums)]
        for k in (10, 3000, n_docs):
            doc_ords, scores = kernel.sparse_top_k(postings, U32(chosen), F32(weights), k=k)
            np.testing.assert_array_equal(doc_ords, ranked[:k])
            np.testing.assert_array_equal(scores, sums[ranked[:k]])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("order", ["best first", "best last", "best in one place", "mixed"])
def test_a_wrong_guess_of_the_threshold_loses_no_hit(level, order: str, dtype: type) -> None:
    """A large k guesses its threshold from the first documents; here their scores say too much, too little, or ties."""
    n_docs = kernel.BLOCK_SIZE + 20_000
    rng = np.random.default_rng(3)
    impacts = np.sort(rng.integers(1, 256, n_docs))
    if order == "best first":
        impacts = impacts[::-1]
    elif order == "best in one place":
        impacts = np.where(np.arange(n_docs) // 500 == 1, 200, 1 + np.arange(n_docs) % 7)
    elif order == "mixed":
        rng.shuffle(impacts)
    indptr, terms = np.arange(n_docs + 1), np.zeros(n_docs, np.uint32)
    postings = kernel.invert(indptr, terms, impacts.astype(dtype), vocab_size=1, n_docs=n_docs)
    mask = rng.random(n_docs) < 0.3
    for allowed in (None, mask):
        bitmap = None if allowed is None else kernel.pack_bitmap(allowed)
        ranked = np.lexsort((np.arange(n_docs), -impacts))
        ranked = ranked if allowed is None else ranked[allowed[ranked]]
        for k in (20, 700, 30_000):
            doc_ords, scores = kernel.sparse_top_k(postings, np.zeros(1, np.uint32), F32([2]), k=k, allowed=bitmap)
            np.testing.assert_array_equal(doc_ords, ranked[:k])
            np.testing.assert_array_equal(scores, 2 * impacts[ranked[:k]])


def test_many_terms_do_not_overflow_sixteen_bits(level) -> None:
    terms = np.arange(600, dtype=np.uint32)
    postings = kernel.invert(np.array([0, 600]), terms, np.full(600, 255, np.uint8), vocab_size=600, n_docs=1)
    _, scores = kernel.sparse_top_k(postings, terms, np.full(600, 1, np.float32), k=1)
    assert scores.tolist() == [600 * 255]


def test_a_batch_equals_its_queries_one_by_one_with_any_number_of_threads(level) -> None:
    rng = np.random.default_rng(2)
    postings = kernel.invert(*random_documents(rng, n_docs=200, vocab_size=50), vocab_size=50, n_docs=200)
    queries = [random_query(rng, vocab_size=50, whole=False) for _ in range(17)]
    indptr = np.cumsum([0, *(len(terms) for terms, _ in queries)], dtype=np.int64)
    flat = [np.concatenate(part) for part in zip(*queries, strict=True)]
    one = [kernel.sparse_top_k(postings, *query, k=5) for query in queries]
    for threads in (1, 3, 40):
        bounds, doc_ords, scores = kernel.sparse_top_k_batch(postings, indptr, *flat, k=5, threads=threads)
        for i, (docs, values) in enumerate(one):
            same([doc_ords[bounds[i] : bounds[i + 1]], scores[bounds[i] : bounds[i + 1]]], [docs, values])
    assert kernel.sparse_top_k_batch(postings, np.zeros(1, np.int64), flat[0][:0], flat[1][:0], k=5)[0].tolist() == [0]


def whole_rows(rng: np.random.Generator, n: int, width: int, dtype: type):
    """Small whole numbers: every sum is exact, ties abound. int8 rows get scales that are powers of two."""
    rows = rng.integers(-2, 3, (n, width)).astype(dtype)
    scales = rng.choice([0.5, 1, 2], n).astype(np.float32) if dtype is np.int8 else None
    return rows, scales


@few
@given(
    seed=st.integers(0, 2**32),
    n=st.sampled_from([0, 1, 2, 63, 300, 700]),
    width=st.sampled_from([1, 31, 32, 100]),
    cut=st.integers(0, 5),
    n_queries=st.sampled_from([0, 1, 3, 33]),
    k=st.sampled_from([0, 1, 10, 1000]),
    dtype=st.sampled_from([np.float16, np.float32, np.int8]),
    threads=st.sampled_from([1, 3]),
    filtered=st.booleans(),
)
def test_dense_search_equals_its_twin(level, seed, n, width, cut, n_queries, k, dtype, threads, filtered) -> None:
    rng = np.random.default_rng(seed)
    rows, scales = whole_rows(rng, n, width, dtype)
    queries = rng.integers(-2, 3, (n_queries, max(width - cut, 1))).astype(np.float32)
    allowed = kernel.pack_bitmap(rng.random(n) < 0.5) if filtered else None
    got = kernel.dense_top_k(rows, queries, k=k, scales=scales, threads=threads, allowed=allowed)
    same(got, reference.dense_top_k(rows, queries, k=k, scales=scales, allowed=allowed))
    for query, doc_ords, scores in zip(queries, *got, strict=True):
        same([kernel.dense_pair_scores(rows, doc_ords, query, scales=scales)], [scores])
        same([reference.dense_pair_scores(rows, doc_ords, query, scales=scales)], [scores])


def by_pair_scores(rows: np.ndarray, query: np.ndarray, k: int, scales: np.ndarray | None):
    """The best k rows and their scores, from every row's own score."""
    scores = kernel.dense_pair_scores(rows, np.arange(len(rows), dtype=np.uint32), query, scales=scales)
    order = np.lexsort((np.arange(len(rows)), -scores))[:k]
    return order.astype(np.uint32), scores[order]


@few
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([1, 15, 63, 64, 65, 300, 8192, 8200]),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    k=st.sampled_from([1, 10, 400]),
    alike=st.booleans(),
    threads=st.sampled_from([1, 3]),
)
def test_bounds_of_int8_rows_lose_no_hit(level, seed, width, spread, k, alike, threads) -> None:
    """Rows are left out by a bound on their score; whatever the query's spread, the best stay, to the bit."""
    rng = np.random.default_rng(seed)
    n = 900 if width < 1000 else 300
    rows = rng.integers(-128, 128, (n, width), dtype=np.int8)
    if alike:  # scores that differ in their last bits only
        rows[:] = rows[0]
    scales = (rng.choice([-1, 1, 1, 1], n) * (1 + 1e-6 * rng.random(n)) * 0.01).astype(np.float32)
    queries = (rng.standard_normal((2, width)) * np.exp(spread * rng.standard_normal((2, width)))).astype(np.float32)
    doc_ords, scores = kernel.dense_top_k(rows, queries, k=k, scales=scales, threads=threads)
    for i, query in enumerate(queries):
        same([doc_ords[i], scores[i]], by_pair_scores(rows, query, k, scales))


@few
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([1, 15, 64, 65, 300]),
    cut=st.integers(0, 1),
    spread=st.sampled_from([0.0, 1.0, 8.0]),
    size=st.sampled_from([1e-6, 1.0, 1e3]),
    k=st.sampled_from([1, 10, 400]),
    alike=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32]),
)
def test_copies_of_rows_lose_no_hit(level, seed, width, cut, spread, size, k, alike, dtype) -> None:
    rng = np.random.default_rng(seed)
    spreads = np.exp(spread / 4 * rng.standard_normal((1500, width)))
    rows = (size * rng.standard_normal((1500, width)) * spreads).clip(-6e4, 6e4).astype(dtype)
    rows[rng.random(1500) < 0.1] = 0
    if alike:
        rows[:1000] = rows[0]
    queries = (rng.standard_normal((2, max(width - cut, 1))) * np.exp(spread * rng.standard_normal(2)[:, None])).astype(
        np.float32
    )
    doc_ords, scores = kernel.dense_top_k(rows, queries, k=k, copies=kernel.copy_rows(rows))
    for i, query in enumerate(queries):
        same([doc_ords[i], scores[i]], by_pair_scores(rows, query, k, None))


def hostile_rows(rng: np.random.Generator, kind: str, n: int, width: int) -> npt.NDArray[np.float64]:
    """Return rows with values up to 1e4, in which few numbers occur or which codes represent badly."""
    rows = rng.standard_normal((n, width))
    if kind == "ties":
        rows = rng.integers(-1, 2, (n, width)).astype(np.float64)
    if kind == "constant":
        rows[:] = rows[0]
    if kind == "one column":
        rows *= 1e-4
        rows[:, 0] = rng.choice([-1e4, 1.0, 1e4], n)
    if kind == "far from the center":
        rows += 50 * rng.standard_normal(width)
    if kind == "late":  # rows after the sample of columns differ from it
        rows[: n // 2] = 0
    rows[rng.random(n) < 0.1] = 0
    return rows


@few
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "ties", "constant", "one column", "far from the center", "late"]),
    width=st.sampled_from([1, 3, 4, 5, 31, 128, 129, 256, 260, 300]),
    cut=st.integers(0, 2),
    k=st.sampled_from([1, 3, 400]),
    dtype=st.sampled_from([np.float16, np.float32, np.int8]),
    few_allowed=st.booleans(),
)
def test_codes_of_rows_lose_no_hit(level, seed, kind, width, cut, k, dtype, few_allowed) -> None:
    rng = np.random.default_rng(seed)
    rows, scales = hostile_rows(rng, kind, 3000, width), None
    if dtype is np.int8:
        scales = (np.abs(rows).max(axis=1) / 127).astype(F32)
        rows = np.rint(rows / np.maximum(scales, F32(1e-9))[:, None]).clip(-127, 127)
    rows = rows.astype(dtype)
    queries = np.concatenate([rng.standard_normal((2, max(width - cut, 1))), np.ones((1, max(width - cut, 1)))])
    queries = np.concatenate([queries, 1e-30 * queries, 0 * queries[:1]]).astype(F32)
    center = kernel.code_center(rows[:500], scales=None if scales is None else scales[:500])
    codes = kernel.code_rows(rows, scales=scales, center=center)
    for documents in (None, rng.random(3000) < (0.02 if few_allowed else 0.7)):
        bits = None if documents is None else kernel.pack_bitmap(documents)
        options = {"k": k, "scales": scales, "copies": codes, "allowed": bits}
        mine = kernel.dense_top_k(rows, queries, threads=int(rng.integers(1, 3)), **options)
        for i, query in enumerate(queries):
            scores = kernel.dense_pair_scores(rows, np.arange(3000, dtype=U32), query, scales=scales)
            docs = np.arange(3000) if documents is None else np.flatnonzero(documents)
            best = docs[np.lexsort((docs, -scores[docs]))][:k]
            same([mine[0][i], mine[1][i]], [best.astype(U32), scores[best]])


def widened(bfloat16: npt.NDArray[np.uint16]) -> npt.NDArray[np.float64]:
    """Return numbers whose upper halves are given."""
    return (bfloat16.astype(np.uint32) << 16).view(F32).astype(np.float64)


def numbers_of(codes: kernel.RowCodes, n: int, width: int) -> npt.NDArray[np.float64]:
    """Return the (n, width) numbers that codes stand for."""
    m = codes.rows.shape[1]
    at = [[(i // 64, j % m, i % 64, 2 * (j // m)) for j in range(width)] for i in range(n)]
    return np.array([[2 * (int(codes.rows[b, c, r]) >> shift & 3) - 3 for b, c, r, shift in row] for row in at], float)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("kind", ["normal", "ties", "constant", "one column", "far from the center", "late"])
def test_errors_of_few_columns_bound_every_score(kind: str, dtype: type[np.generic]) -> None:
    """Up to 43 columns have the bound of Cauchy and Schwarz, which holds for the worst query too."""
    rows, scales = hostile_rows(np.random.default_rng(4), kind, 40, 9).clip(-127, 127).astype(dtype), None
    if dtype is np.int8:
        scales = np.linspace(0, 2, 40, dtype=F32)
    codes, rotation = kernel.code_rows(rows, scales=scales), reference.rotation(9)
    rotated = (rows * (1.0 if scales is None else scales[:, None]) - codes.center.astype(float)) @ rotation.T
    coded = widened(codes.scales)[:, None] * numbers_of(codes, 40, 9)
    for i, row in enumerate(rotated):
        residual = coded[i] - row
        assert abs(residual @ row) <= 0.004 * (row @ row) + 1e-9  # the estimate for the row itself is right
        assert np.linalg.norm(residual) <= widened(codes.errors)[i]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("width", [1, 7, 64, 100])
def test_codes_are_those_of_the_twin(width: int, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(width)
    rows, scales = (30 * rng.standard_normal((150, width)) + 3).clip(-127, 127).astype(dtype), None
    if dtype is np.int8:
        scales = rng.random(150, dtype=F32)
    center = kernel.code_center(rows, scales=scales)
    codes = kernel.code_rows(rows, scales=scales, center=center)
    expected, factors, errors = reference.code_rows(rows, center, scales=scales)
    np.testing.assert_array_equal(numbers_of(codes, 150, width), 2.0 * expected - 3)
    np.testing.assert_allclose(widened(codes.scales), factors, rtol=2**-8)
    assert (widened(codes.errors) >= errors).all()
    sizes = np.linalg.norm(rows.astype(np.float64) * (1 if scales is None else scales[:, None]), axis=1)
    lengths = factors * np.linalg.norm(2.0 * expected - 3, axis=1)
    assert (
        widened(codes.errors) <= 1.008 * (errors + 2**-8 * lengths) + 3e-4 * (sizes + np.linalg.norm(center)) + 1e-6
    ).all()


@pytest.mark.parametrize("width", [1, 2, 3, 64, 100, 384])
def test_the_rotation_keeps_lengths_and_spreads_each_column(width: int) -> None:
    matrix = reference.rotation(width)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-12)
    assert np.abs(matrix).max() < 6.5 / np.sqrt(width)


SPREADS = {
    "normal": lambda rng, n, width: rng.standard_normal((n, width)),
    "few columns": lambda rng, n, width: rng.standard_normal((n, width)) * (rng.random((n, width)) < 2 / width),
    "one column": lambda rng, n, width: np.eye(width)[rng.integers(0, width, n)],
    "signs": lambda rng, n, width: rng.choice([-1.0, 1.0], (n, width)),
    "steep spectrum": lambda rng, n, width: rng.standard_normal((n, width)) * 0.97 ** np.arange(width),
    "blocks": lambda rng, n, width: np.repeat(rng.standard_normal((n, width // 16)), 16, axis=1),
}


@pytest.mark.parametrize("queries", SPREADS)
@pytest.mark.parametrize("rows", SPREADS)
@pytest.mark.parametrize("width", [128, 384])
def test_deviations_of_scores_are_those_of_random_directions(rows: str, queries: str, width: int) -> None:
    """The error of a score, in units of a 6.5th of its bound, is distributed like a normal one, so 6.5 units are enough.

    Of 200,000 normal numbers the largest magnitude is below 5.6 with a probability above 0.995.
    """
    rng = np.random.default_rng([width, *map(list(SPREADS).index, (rows, queries))])
    values, asked = SPREADS[rows](rng, 1000, width).astype(F32), SPREADS[queries](rng, 200, width)
    values = values[np.abs(values).max(axis=1) > 0]
    asked = asked[np.abs(asked).max(axis=1) > 0]
    codes, rotation = kernel.code_rows(values, center=np.zeros(width, F32)), reference.rotation(width)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    estimates = asked @ rotation.T @ (widened(codes.scales)[:, None] * numbers_of(codes, len(values), width)).T
    units = (estimates - asked @ values.T.astype(float)) / (widened(codes.errors) / 6.5)
    assert np.abs(units).max() < 5.6
    assert units.std() < 1.02


def test_codes_of_normal_rows_are_near_them() -> None:
    """Four levels leave at least 0.117 of a normal distribution's variance (Max, 1960): equal steps leave 0.119.

    The part across the row is then tan of the angle between row and codes, which is sqrt(0.119 / 0.881) times its length.
    """
    rows = (np.random.default_rng(5).standard_normal((2000, 256)) + 2).astype(np.float16)
    errors = widened(kernel.code_rows(rows).errors) * np.sqrt(255) / 6.5
    centered = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    assert 0.36 < (errors / np.linalg.norm(centered, axis=1)).mean() < 0.375


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_have_no_error_bound_are_refused(bad: float) -> None:
    rows = np.ones((300, 4), F32)
    rows[270, 1] = bad
    with pytest.raises(InvalidInput, match="row 270 cannot be coded"):
        kernel.code_rows(rows, center=np.zeros(4, F32))


@pytest.mark.parametrize("n_rows", [*range(200, 217), 256, 257, 300])
def test_copies_that_know_nothing_but_their_errors_lose_no_hit(level, n_rows: int) -> None:
    """The best row is once at every place after the last whole vector of rows."""
    rows = np.full((n_rows, 5), 1e-3, np.float32)
    rows[-1] = 1.0
    rows[:-1:3] = 0.5
    lengths = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32) * np.float32(1.001)
    copies = kernel.Copies(np.zeros((n_rows, 5), np.int8), np.ones(n_rows, np.float32), lengths)
    earlier = np.full((1, 5), 0.9, np.float32)  # scores 4.5, so that only rows with bounds above it are read
    segments = DenseSegments([ScannedRows(earlier), ScannedRows(rows, None, copies)], [1, n_rows])
    search = CandidateSearch([BoundBranch("dense", segments)], scale="none")
    (best,) = search.search([segments.queries(np.ones((1, 5), np.float32))], Request(1, 1))
    assert (best.doc_ords.tolist(), best.scores.tolist()) == ([n_rows], [5.0])


@few
@given(
    seed=st.integers(0, 2**32),
    k=st.sampled_from([1, 10, 1000]),
    dtype=st.sampled_from([np.float16, np.int8]),
    order=st.sampled_from(["best first", "best last", "mixed"]),
    threads=st.sampled_from([1, 3]),
)
def test_best_scores_of_earlier_segments_leave_out_only_worse_rows(level, seed, k, dtype, order, threads) -> None:
    """A segment gets the k-th best score of the earlier ones; its rows that tie with it come after them."""
    rng = np.random.default_rng(seed)
    rows, scales = whole_rows(rng, 900, 31, dtype)
    queries = rng.integers(-2, 3, (3, 31)).astype(np.float32)
    if order != "mixed":
        scores = kernel.dense_pair_scores(rows, np.arange(900, dtype=np.uint32), queries[0], scales=scales)
        sorting = np.argsort(scores if order == "best last" else -scores)
        rows, scales = rows[sorting].copy(), None if scales is None else scales[sorting]
    cuts = [slice(0, 300), slice(300, 340), slice(340, 900)]
    parts = [ScannedRows(rows[cut], None if scales is None else scales[cut]) for cut in cuts]
    segments = DenseSegments(parts, [300, 40, 560])
    search = CandidateSearch([BoundBranch("dense", segments)], scale="none")
    expected = kernel.dense_top_k(rows, queries, k=k, scales=scales)
    for i, best in enumerate(search.search([segments.queries(queries)], Request(k, k, threads))):
        same([best.doc_ords, best.scores.astype(np.float32)], [expected[0][i], expected[1][i]])


@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1e30, 3e37])
@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e30])
def test_very_small_and_very_large_numbers_are_ranked_by_their_scores(level, size: float, scale: float) -> None:
    rng = np.random.default_rng(7)
    rows = rng.integers(-3, 4, (700, 5), dtype=np.int8)
    scales = np.full(700, scale, np.float32)
    query = F32([size, 0, size / 2, 0, 0])
    got = kernel.dense_top_k(rows, query[None], k=9, scales=scales)
    same([got[0][0], got[1][0]], by_pair_scores(rows, query, 9, scales))


@few
@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from([1, 16, 130, 260]),
    cut=st.integers(0, 20),
    n_queries=st.sampled_from([0, 1, 5, 600]),
    dtype=st.sampled_from([np.float16, np.float32, np.int8]),
    normalize=st.booleans(),
    threads=st.sampled_from([1, 3]),
)
def test_mean_rows_equals_its_twin(level, seed, width, cut, n_queries, dtype, normalize, threads) -> None:
    rng = np.random.default_rng(seed)
    table = (rng.standard_normal((50, width)) * (30 if dtype is np.int8 else 1)).astype(dtype)
    scales = rng.random(50).astype(np.float32) if dtype is np.int8 else None
    indptr = np.cumsum([0, *rng.integers(0, 12, n_queries)], dtype=np.int64)
    tokens = rng.integers(0, 50, indptr[-1]).astype(np.uint32)
    options = {"normalize": normalize, "scales": scales, "dim": max(width - cut, 1)}
    got = kernel.mean_rows(table, tokens, indptr, threads=threads, **options)
    same([got], [reference.mean_rows(table, tokens, indptr, **options)])


def test_the_mean_comes_before_the_normalisation() -> None:
    table = np.array([[4, 0], [0, 3]], np.float32)
    got = kernel.mean_rows(table, np.array([0, 1, 0], np.uint32), np.array([0, 2, 2, 3]), normalize=True)
    np.testing.assert_allclose(got, [[0.8, 0.6], [0, 0], [1, 0]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8])
def test_every_level_gives_the_same_bits(dtype: type) -> None:
    rng = np.random.default_rng(3)
    rows = (rng.standard_normal((500, 77)) * (40 if dtype is np.int8 else 1)).astype(dtype)
    scales = rng.random(500).astype(np.float32) if dtype is np.int8 else None
    queries = rng.standard_normal((4, 77)).astype(np.float32)
    tokens, indptr = rng.integers(0, 500, 60).astype(np.uint32), np.array([0, 7, 7, 60])
    before, results = kernel.dispatch(), []
    for name in LEVELS:
        _native.use_level(name)
        dense = kernel.dense_top_k(rows, queries, k=50, scales=scales)
        results.append([*dense, kernel.mean_rows(rows, tokens, indptr, normalize=True, scales=scales)])
    _native.use_level(before)
    for result in results[1:]:
        same(result, results[0])


def test_every_half_is_read_exactly(level) -> None:
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)].reshape(-1, 1)
    tokens, indptr = np.arange(len(finite), dtype=np.uint32), np.arange(len(finite) + 1)
    got = kernel.mean_rows(np.repeat(finite, 17, axis=1), tokens, indptr, normalize=False)
    np.testing.assert_array_equal(got, np.repeat(finite, 17, axis=1).astype(np.float32))


def test_negative_zero_ties_with_zero_and_infinity_takes_its_place(level) -> None:
    rows = np.array([[-0.0], [0.0], [np.inf], [-np.inf], [1.0]], np.float32)
    doc_ords, _ = kernel.dense_top_k(rows, np.ones((1, 1), np.float32), k=5)
    assert doc_ords.tolist() == [[2, 4, 0, 1, 3]]


def test_nan_is_refused_wherever_it_would_be_ranked(level) -> None:
    rows = np.zeros((2000, 40), np.float32)
    rows[1500, 3] = np.nan
    query = np.ones((1, 40), np.float32)
    with pytest.raises(InvalidInput, match="row 1500 scores NaN"):
        kernel.dense_top_k(rows, query, k=3)
    with pytest.raises(InvalidInput, match="row 1500 scores NaN"):
        kernel.dense_pair_scores(rows, np.array([0, 1500], np.uint32), query[0])
    with pytest.raises(InvalidInput, match=r"query 0 holds .*nan in column 3"):
        kernel.dense_top_k(rows, rows[1500:1501], k=3)
    allowed = kernel.pack_bitmap(np.arange(2000) != 1500)
    assert kernel.dense_top_k(rows, query, k=3, allowed=allowed)[0].tolist() == [[0, 1, 2]]


I64, U32, U8, F32 = np.int64, np.uint32, np.uint8, np.float32
POSTINGS = kernel.invert(np.array([0, 2, 3]), U32([1, 5, 5]), U8([3, 4, 9]), vocab_size=10, n_docs=2)
REFUSED = {
    "outside the vocabulary of 10": lambda: kernel.sparse_top_k(POSTINGS, U32([10]), F32([1]), k=1),
    "occurs twice": lambda: kernel.sparse_top_k(POSTINGS, U32([5, 5]), F32([1, 1]), k=1),
    "finite and not negative": lambda: kernel.sparse_top_k(POSTINGS, U32([5]), F32([np.nan]), k=1),
    "query_term_ids must be uint32, not int64": lambda: kernel.sparse_top_k(POSTINGS, np.array([5]), F32([1]), k=1),
    "query_term_ids and query_weights differ": lambda: kernel.sparse_top_k(POSTINGS, U32([5]), F32([1, 1]), k=1),
    "k must not be negative": lambda: kernel.sparse_top_k(POSTINGS, U32([5]), F32([1]), k=-1),
    "k must be a whole number, but is None": lambda: kernel.sparse_top_k(POSTINGS, U32([5]), F32([1]), k=None),  # type: ignore[arg-type]
    "n_docs must be a whole number, but is 2.0": lambda: kernel.invert(
        I64([0, 1]),
        U32([1]),
        U8([1]),
        vocab_size=5,
        n_docs=2.0,  # type: ignore[arg-type]
    ),
    "threads must be a whole number": lambda: kernel.dense_top_k(
        np.eye(2, dtype=F32),
        np.ones((1, 2), F32),
        k=1,
        threads=None,  # type: ignore[arg-type]
    ),
    "allowed must hold one bit per document": lambda: kernel.sparse_top_k(
        POSTINGS, U32([5]), F32([1]), k=1, allowed=U8([1, 1])
    ),
    "query_indptr must start at 0": lambda: kernel.sparse_top_k_batch(
        POSTINGS, I64([0, 2, 1]), U32([5]), F32([1]), k=1
    ),
    "threads must be at least 1": lambda: kernel.sparse_top_k_batch(
        POSTINGS, I64([0]), U32([]), F32([]), k=1, threads=0
    ),
    "outside the vocabulary of 5": lambda: kernel.invert(I64([0, 1]), U32([5]), U8([1]), vocab_size=5, n_docs=1),
    "must ascend within a row": lambda: kernel.invert(I64([0, 2]), U32([3, 3]), U8([1, 1]), vocab_size=5, n_docs=1),
    "never fall": lambda: kernel.invert(I64([0, 2, 1]), U32([1, 2]), U8([1, 1]), vocab_size=5, n_docs=2),
    "end at the number of term ids": lambda: kernel.invert(
        I64([0, 1]), U32([1, 2]), U8([1, 1]), vocab_size=5, n_docs=1
    ),
    "weights must be uint8 or float32": lambda: kernel.invert(I64([0, 1]), U32([1]), I64([1]), vocab_size=5, n_docs=1),
    "weights must be finite": lambda: kernel.invert(I64([0, 1]), U32([1]), F32([-1]), vocab_size=5, n_docs=1),
    "indptr and n_docs": lambda: kernel.invert(I64([0, 1]), U32([1]), U8([1]), vocab_size=5, n_docs=2),
    "doc_ord 2 is outside": lambda: kernel.dense_pair_scores(np.eye(2, dtype=F32), U32([2]), F32([1, 1])),
    "rows are 2 wide": lambda: kernel.dense_top_k(np.eye(2, dtype=F32), np.ones((1, 3), F32), k=1),
    "rows must be a C-contiguous": lambda: kernel.dense_top_k(np.eye(4, dtype=F32)[:, ::2], np.ones((1, 2), F32), k=1),
    "rows must be float16, float32 or int8, not float64": lambda: kernel.dense_top_k(
        np.eye(2), np.ones((1, 2), F32), k=1
    ),
    "blocks of rows and of codes differ": lambda: kernel.dense_top_k(
        np.eye(2, dtype=F32), np.ones((1, 2), F32), k=1, copies=kernel.code_rows(np.eye(70, 2, dtype=F32))
    ),
    "columns of rows and codes differ": lambda: kernel.dense_top_k(
        np.eye(2, dtype=F32), np.ones((1, 2), F32), k=1, copies=kernel.code_rows(np.eye(2, 9, dtype=F32))
    ),
    "rows and copies differ": lambda: kernel.dense_top_k(
        np.eye(2, dtype=F32), np.ones((1, 2), F32), k=1, copies=kernel.copy_rows(np.eye(3, 2, dtype=F32))
    ),
    "queries must have 2 dimension": lambda: kernel.dense_top_k(np.eye(2, dtype=F32), F32([1, 1]), k=1),
    "int8 rows need scales": lambda: kernel.dense_top_k(np.eye(2, dtype=np.int8), np.ones((1, 2), F32), k=1),
    "term id 2 is outside": lambda: kernel.mean_rows(np.eye(2, dtype=F32), U32([2]), I64([0, 1]), normalize=True),
    "indptr must start at 0": lambda: kernel.mean_rows(np.eye(2, dtype=F32), U32([1]), I64([0, 9]), normalize=True),
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_arguments_are_refused_by_name(message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        REFUSED[message]()


def test_damaged_postings_are_refused_and_leave_nothing_behind(level) -> None:
    arrays = POSTINGS.arrays()
    damaged = kernel.Postings(10, 2, **{**arrays, "run_indptr": np.array([0, 1, 99])})
    with pytest.raises(FormatError, match="damaged"):
        kernel.sparse_top_k(damaged, U32([1, 5]), F32([1, 1]), k=2)
    behind = kernel.Postings(10, 2, **{**arrays, "offsets": np.array([0, 40_000, 50_000], np.uint16)})
    assert kernel.sparse_top_k(behind, U32([1, 5]), F32([1, 1]), k=2)[0].tolist() == [0]
    far = kernel.invert(I64([0] * 50_001 + [1]), U32([1]), U8([7]), vocab_size=10, n_docs=50_001)
    assert kernel.sparse_top_k(far, U32([1]), F32([1]), k=2)[1].tolist() == [7]
    assert kernel.sparse_top_k(POSTINGS, U32([5]), F32([1]), k=2)[1].tolist() == [9, 4]
    n_docs = 40_000
    large = kernel.invert(np.arange(n_docs + 1), U32([3] * n_docs), U8([1] * n_docs), vocab_size=10, n_docs=n_docs)
    offsets = large.offsets.copy()
    offsets[30_000] = 7
    with pytest.raises(FormatError, match="do not ascend"):
        kernel.sparse_top_k(
            kernel.Postings(10, n_docs, **{**large.arrays(), "offsets": offsets}), U32([3]), F32([1]), k=2
        )
    assert kernel.sparse_top_k(large, U32([3]), F32([1]), k=n_docs)[1].max() == 1


@pytest.mark.parametrize("name", LEVELS)
def test_the_environment_picks_the_level(name: str) -> None:
    command = [sys.executable, "-c", "from lightir import kernel; print(kernel.dispatch())"]
    result = subprocess.run(command, env={**os.environ, "LIGHTIR_KERNEL": name}, capture_output=True, text=True)
    assert result.stdout.strip() == name


def test_an_unknown_level_in_the_environment_is_an_error() -> None:
    command = [sys.executable, "-c", "from lightir import kernel"]
    result = subprocess.run(command, env={**os.environ, "LIGHTIR_KERNEL": "fast"}, capture_output=True, text=True)
    assert result.returncode != 0
    assert "'fast' cannot be used here" in result.stderr
