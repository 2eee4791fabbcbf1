"""Means of sparse rows: the bits of the slow twin, whatever the batch and the number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from lightir import kernel
from lightir.errors import InvalidInput
from lightir.kernel import reference


@pytest.mark.parametrize("vocab_size", [1, 63, 64, 65, 4096, 4097, 200_000])
@pytest.mark.parametrize("width", [0, 1, 2, 7, 48])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_means_have_the_bits_of_the_twin(vocab_size: int, width: int, dtype: type) -> None:
    rng = np.random.default_rng(vocab_size + width)
    ids = rng.integers(0, vocab_size, (30, width)).astype(np.uint32)  # the same id twice in a row, too
    weights = (rng.random((30, width)) * (rng.random((30, width)) < 0.8)).astype(dtype)
    ids[:, :1], weights[:, :1] = vocab_size - 1, np.finfo(dtype).tiny  # the last term, and sums of unlike sizes
    indptr = np.cumsum([0, 3, 0, 1, *rng.integers(0, 9, 150)], dtype=np.int64)
    tokens = rng.integers(0, 30, indptr[-1]).astype(np.uint32)
    expected = reference.mean_expansions(ids, weights, tokens, indptr, vocab_size=vocab_size)
    for threads in (1, 3):
        means = kernel.mean_expansions(ids, weights, tokens, indptr, vocab_size=vocab_size, threads=threads)
        for one, other in zip(means, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    for query in (0, 1, 70):
        begin, end = indptr[query], indptr[query + 1]
        alone = kernel.mean_expansions(
            ids, weights, tokens[begin:end], np.array([0, end - begin]), vocab_size=vocab_size
        )
        np.testing.assert_array_equal(alone[2], expected[2][expected[0][query] : expected[0][query + 1]])


def test_one_query_by_hand() -> None:
    ids = np.array([[5, 2, 0], [2, 7, 7]], dtype=np.uint32)
    weights = np.array([[1.0, 0.5, 0.0], [3.0, 0.25, 0.5]], dtype=np.float16)
    means = kernel.mean_expansions(ids, weights, np.array([0, 1, 1], np.uint32), np.array([0, 3]), vocab_size=8)
    assert [array.tolist() for array in means[:2]] == [[0, 3], [2, 5, 7]]
    np.testing.assert_allclose(means[2], [6.5 / 3, 1 / 3, 0.5], rtol=1e-7)
    none = kernel.mean_expansions(ids, weights, np.zeros(0, np.uint32), np.zeros(1, np.int64), vocab_size=8)
    assert [array.tolist() for array in none] == [[0], [], []]


def test_the_size_of_the_vocabulary_costs_no_memory() -> None:
    """It comes from a file of a stranger; only the terms that occur cost memory."""
    ids, weights = np.array([[5, 2, 7]], dtype=np.uint32), np.ones((1, 3), dtype=np.float32)
    for vocab_size in (2**40, 2**62):
        means = kernel.mean_expansions(ids, weights, np.zeros(2, np.uint32), np.array([0, 2]), vocab_size=vocab_size)
        assert [array.tolist() for array in means] == [[0, 3], [2, 5, 7], [1.0, 1.0, 1.0]]


def test_a_refused_query_leaves_nothing_behind() -> None:
    ids, weights = np.array([[1, 2], [1, 9]], dtype=np.uint32), np.ones((2, 2), dtype=np.float32)
    one = np.array([0, 1])
    for token, says in ((1, "outside the vocabulary of 8"), (2, "has no expansion; there are 2")):
        with pytest.raises(InvalidInput, match=says):
            kernel.mean_expansions(ids, weights, np.array([0, token], np.uint32), np.array([0, 1, 2]), vocab_size=8)
        means = kernel.mean_expansions(ids, weights, np.zeros(1, np.uint32), one, vocab_size=8)
        assert [array.tolist() for array in means] == [[0, 2], [1, 2], [1.0, 1.0]]
    with pytest.raises(InvalidInput, match="outside the vocabulary"):
        reference.mean_expansions(ids, weights, np.ones(1, np.uint32), one, vocab_size=8)
    for wrong in (weights.astype(np.float64), weights[:, :1].copy()):
        with pytest.raises(InvalidInput, match="weights"):
            kernel.mean_expansions(ids, wrong, np.zeros(1, np.uint32), one, vocab_size=10)
