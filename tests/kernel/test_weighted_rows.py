"""Dense queries with rows of pairs and a gate: the bits of the slow twin, and the definition in double precision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightir import kernel
from lightir.errors import InvalidInput
from lightir.kernel import _native, reference
from lightir.kernel.query import DenseRows, TextEncoder
from lightir.kernel.tokenizer import text_policy
from lightir.vectors import Ragged

DTYPES = [np.float16, np.float32, np.int8, np.uint16]  # uint16: bfloat16
N_TERMS = 6
ALL_PAIRS = [(first, second) for first in range(N_TERMS) for second in range(N_TERMS)]


@pytest.fixture(params=kernel.available())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.dispatch()
    _native.use_level(request.param)
    yield request.param
    _native.use_level(before)


def random_rows(rng: np.random.Generator, n: int, width: int, dtype: Any) -> tuple[np.ndarray, Any]:
    values = rng.standard_normal((n, width), dtype=np.float32)
    if dtype is np.uint16:
        return (values.view(np.uint32) >> 16).astype(np.uint16), None
    if dtype is np.int8:
        return np.rint(values * 30).astype(np.int8), rng.random(n, dtype=np.float32)
    return values.astype(dtype), None


def random_dense(
    seed: int, *, width: int, dtypes: tuple[Any, Any], gate: Any = None, gate_width: int = 16, size: float = 1.0
) -> DenseRows:
    """Return rows of N_TERMS terms and of some of all pairs, and a gate of the given dtype and size, or none."""
    rng = np.random.default_rng(seed)
    pairs = [pair for pair in ALL_PAIRS if rng.random() < 0.4]
    table, scales = random_rows(rng, N_TERMS, width, dtypes[0])
    pair_rows, pair_scales = random_rows(rng, len(pairs), width, dtypes[1])
    shape = (N_TERMS + len(pairs), gate_width)
    vectors = [(rng.standard_normal(shape) * size).astype(gate) for _ in range(2)] if gate else None
    pair_arrays = (np.array(pairs, np.uint32).reshape(-1, 2), pair_rows, pair_scales)
    return DenseRows(table, scales, pair_arrays, (vectors[0], vectors[1]) if vectors else None)


def encode(rows: DenseRows, queries: Ragged, *, dim: int | None = None, threads: int = 1) -> np.ndarray:
    encoder = TextEncoder(None, text_policy(), lambda texts, at: (queries.term_ids, queries.indptr), rows=rows, dim=dim)
    return encoder.encode_terms(queries, threads=threads)


def exact(rows: DenseRows, queries: Ragged, dim: int) -> np.ndarray:
    """Return the definition in double precision: L2(sum of w_i row_i), w_i = exp(clip(a_i . mean b, -6, 6))."""
    pairs, pair_rows, pair_scales = rows.pairs
    order = [tuple(pair) for pair in pairs.tolist()]
    table = np.concatenate([in_double(rows.table, rows.scales), in_double(pair_rows, pair_scales)])
    out = np.zeros((len(queries), dim))
    for i in range(len(queries)):
        terms = queries.row(i).tolist()
        ids = terms + [len(rows.table) + order.index(pair) for pair in itertools.pairwise(terms) if pair in order]
        if not ids:
            continue
        weights = np.ones(len(ids))
        if rows.gate is not None:
            keys, values = (array.astype(np.float64)[ids] for array in rows.gate)
            weights = np.exp(np.clip(keys @ values.mean(axis=0), -6, 6))
        total = weights @ table[ids][:, :dim]
        out[i] = total / np.linalg.norm(total)
    return out


def in_double(rows: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
    values = (rows.astype(np.uint32) << 16).view(np.float32) if rows.dtype == np.uint16 else rows
    return values.astype(np.float64) * (1 if scales is None else scales.astype(np.float64)[:, None])


QUERIES = st.lists(st.lists(st.integers(0, N_TERMS - 1), max_size=40), max_size=5)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queries=QUERIES,
    seed=st.integers(0, 99),
    width=st.sampled_from([1, 16, 65, 200]),
    cut=st.sampled_from([0, 1, 9]),
    dtypes=st.tuples(st.sampled_from(DTYPES), st.sampled_from(DTYPES)),
    gate=st.sampled_from([None, np.float16, np.float32]),
    gate_width=st.sampled_from([1, 16, 33]),
    size=st.sampled_from([0.2, 1.0, 100.0]),
)
def test_every_kind_of_rows_has_the_bits_of_the_twin(
    level: str, queries: list[list[int]], seed: int, width: int, cut: int, dtypes: Any, **options: Any
) -> None:
    rows = random_dense(seed, width=width, dtypes=dtypes, **options)
    ragged, dim = Ragged.from_lists(queries), max(width - cut, 1)
    got = encode(rows, ragged, dim=dim, threads=2)
    np.testing.assert_array_equal(got, reference.encode_terms(rows, ragged.term_ids, ragged.indptr, dim=dim))


CASES = [[], [2], [3, 3, 3, 3], [0, 1, 2, 3, 4, 5], [5, 0, 5, 0, 5, 0], [1] * 50]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [None, np.float16, np.float32])
@pytest.mark.parametrize("dim", [96, 40])
def test_the_twin_is_the_definition_but_for_rounding(dtype: Any, gate: Any, dim: int) -> None:
    rows = random_dense(1, width=96, dtypes=(dtype, dtype), gate=gate, size=0.7)
    queries = Ragged.from_lists(CASES)
    twin = reference.encode_terms(rows, queries.term_ids, queries.indptr, dim=dim)
    np.testing.assert_allclose(twin, exact(rows, queries, dim), atol=3e-6)
    np.testing.assert_array_equal(encode(rows, queries, dim=dim), twin)
    assert not twin[0].any()


def test_scores_are_clipped_on_both_sides() -> None:
    keys = np.array([[30000], [-30000], [0]], np.float16)
    rows = DenseRows(np.eye(3, dtype=np.float32), None, None, (keys, np.ones((3, 1), np.float16)))
    weights = np.exp([6, -6, 0])
    got = encode(rows, Ragged.from_lists([[0, 1, 2]]))
    np.testing.assert_allclose(got[0], weights / np.linalg.norm(weights), rtol=1e-6)


def test_a_gate_without_pairs_and_pairs_without_a_gate_are_allowed() -> None:
    whole = random_dense(4, width=40, dtypes=(np.float16, np.int8), gate=np.float16)
    queries = Ragged.from_lists(CASES)
    assert whole.gate is not None
    gate = (whole.gate[0][:N_TERMS].copy(), whole.gate[1][:N_TERMS].copy())
    for rows in (whole._replace(pairs=None, gate=gate), whole._replace(gate=None)):
        twin = reference.encode_terms(rows, queries.term_ids, queries.indptr, dim=40)
        np.testing.assert_array_equal(encode(rows, queries), twin)


def test_a_gate_of_zeros_and_no_known_pair_give_the_mean() -> None:
    rows = random_dense(4, width=384, dtypes=(np.int8, np.int8), gate=np.float32, size=0.0)
    assert rows.pairs is not None
    nothing = DenseRows(rows.table, rows.scales, (rows.pairs[0][:0], rows.pairs[1][:0], rows.pairs[2][:0]), None)
    queries = Ragged.from_lists([[2], *CASES])
    means = kernel.mean_rows(rows.table, queries.term_ids, queries.indptr, normalize=True, scales=rows.scales)
    np.testing.assert_array_equal(encode(nothing, queries), means)
    np.testing.assert_array_equal(encode(rows, queries), encode(rows._replace(gate=None), queries))


@pytest.mark.parametrize("threads", [1, 3])
def test_large_batches_are_the_same_as_small_ones(level: str, threads: int) -> None:
    rng = np.random.default_rng(3)
    rows = random_dense(7, width=520, dtypes=(np.int8, np.float16), gate=np.float16)
    queries = Ragged.from_lists([rng.integers(0, N_TERMS, rng.integers(0, 9)).tolist() for _ in range(4500)])
    got = encode(rows, queries, threads=threads)
    for first in range(0, 4500, 500):
        few = Ragged.from_lists([queries.row(i).tolist() for i in range(first, first + 500)])
        np.testing.assert_array_equal(got[first : first + 500], encode(rows, few))


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([0, 1, 2, 3, 1000]), far=st.booleans())
def test_pairs_are_found_in_large_sets_of_any_terms(seed: int, n: int, far: bool) -> None:
    """Each row of a pair has one column of its own, so that a query's vector shows the pairs that were found."""
    rng = np.random.default_rng(seed)
    terms = 60
    keys = np.sort(rng.choice(terms * terms, n, replace=False)).astype(np.uint32)
    pairs = np.stack([keys // terms, keys % terms], axis=1)
    shift = 100_000 if far else 0
    table = np.zeros((terms + shift, 2), np.float32)
    table[:, 0] = 1
    rows = DenseRows(table, None, ((pairs + shift).astype(np.uint32), np.tile(np.float32([0, 1]), (n, 1)), None))
    texts = [rng.integers(0, terms, rng.integers(1, 70)).tolist() for _ in range(20)]
    known = {tuple(pair) for pair in pairs.tolist()}
    counts = [[len(text), sum(pair in known for pair in itertools.pairwise(text))] for text in texts]
    got = encode(rows, Ragged.from_lists([[term + shift for term in text] for text in texts]))
    np.testing.assert_allclose(got, counts / np.linalg.norm(counts, axis=1, keepdims=True), rtol=1e-6)


def test_arrays_that_do_not_fit_are_refused() -> None:
    rows = random_dense(1, width=8, dtypes=(np.float16, np.float16), gate=np.float16)
    queries = Ragged.from_lists([[1]])
    assert rows.pairs is not None
    assert rows.gate is not None
    pairs, pair_rows, _ = rows.pairs
    refused = {
        "pairs and their rows differ": rows._replace(pairs=(pairs[1:].copy(), pair_rows, None)),
        "columns of pairs and terms differ": rows._replace(pairs=(pairs[:, :1].copy(), pair_rows, None)),
        "pairs must be uint32": rows._replace(pairs=(pairs.astype(np.int64), pair_rows, None)),
        "rows are 4 wide": rows._replace(pairs=(pairs, pair_rows[:, :4].copy(), None)),
        "rows and keys differ": rows._replace(gate=(rows.gate[0][1:].copy(), rows.gate[1])),
        "rows and values differ": rows._replace(gate=(rows.gate[0], rows.gate[1][1:].copy())),
        "columns of keys and values": rows._replace(gate=(rows.gate[0], rows.gate[1][:, 1:].copy())),
        "int8 rows need scales": rows._replace(gate=(rows.gate[0].astype(np.int8), rows.gate[1])),
    }
    for message, changed in refused.items():
        with pytest.raises(InvalidInput, match=message):
            encode(changed, queries)
    with pytest.raises(InvalidInput, match="term id 6 is outside the vocabulary of 6"):
        encode(rows, Ragged.from_lists([[6]]))
    with pytest.raises(InvalidInput, match="makes no dense vectors"):
        TextEncoder(None, text_policy(), lambda texts, at: (queries.term_ids, queries.indptr)).encode_terms(
            queries, threads=1
        )
