"""Searches at the limits of their arithmetic: 16-bit sums, bounds of rounded queries, the largest k, all threads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lightir import kernel
from lightir.errors import InvalidInput
from lightir.kernel import _native
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments, ScannedRows, SparseRows, SparseSegments

HUGE = [2**32, 2**63 - 257, 2**63 - 256, 2**63 - 1, 2**64, 10**30]


@pytest.fixture(params=kernel.available())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    before = kernel.dispatch()
    _native.use_level(request.param)
    yield request.param
    _native.use_level(before)


def full_rows(n_docs: int, n_terms: int, impact: int) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
    """Return documents that all have all terms."""
    terms = np.tile(np.arange(n_terms, dtype=np.uint32), n_docs)
    return np.arange(n_docs + 1) * n_terms, terms, np.full(n_docs * n_terms, impact, np.uint8)


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("total", [255, 256, 257, 258, 259, 514])
@pytest.mark.parametrize("n_terms", [1, 2, 250])
def test_sums_of_the_largest_impacts_are_whole(total: int, n_terms: int) -> None:
    """Weights that add up to 257 give 65,535, the largest number of 16 bits; those of 258 give 65,790."""
    postings = kernel.invert(*full_rows(40, n_terms, 255), vocab_size=n_terms, n_docs=40)
    weights = np.ones(n_terms, np.float32)
    weights[-1] = total - (n_terms - 1)
    doc_ords, scores = kernel.sparse_top_k(postings, np.arange(n_terms, dtype=np.uint32), weights, k=40)
    assert doc_ords.tolist() == list(range(40))
    assert scores.tolist() == [255.0 * total] * 40


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("n_small", [3, 2000, 4095, 4096])
def test_rounded_sums_of_many_small_weights_do_not_overflow(n_small: int, binary: bool) -> None:
    """Each small weight counts at least one step of the 16-bit sums; the only document with all of them is best."""
    impact, n_docs = (1 if binary else 255), 3000
    best = 1700
    rows = [np.arange(n_small + 1) if doc == best else np.array([n_small]) for doc in range(n_docs)]
    indptr = np.cumsum([0, *map(len, rows)])
    terms = np.concatenate(rows).astype(np.uint32)
    impacts = np.full(len(terms), impact, np.uint8)
    postings = kernel.invert(indptr, terms, impacts, vocab_size=n_small + 1, n_docs=n_docs)
    part = SparseRows(indptr, terms, impacts, postings, binary=binary)
    segments = SparseSegments([part], [n_docs])
    weights = np.full(n_small + 1, 1e-6, np.float32)
    weights[-1] = 1.0
    query = segments.queries(np.array([0, n_small + 1]), np.arange(n_small + 1, dtype=np.uint32), weights)
    (candidates,) = CandidateSearch([BoundBranch("sparse", segments)], scale="none").search([query], Request(1, 1))
    assert candidates.doc_ords.tolist() == [best]


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("share", [0.3, 0.49, 0.499])
def test_a_row_that_only_the_rounding_of_the_query_hides_is_found(share: float) -> None:
    """A scan bounds int8 rows by the query in steps of its largest value / 16,256; smaller values count as 0 there.

    A thousand rows score 1. The last row scores more than that by its small columns alone.
    """
    width, n_rows = 64, 1500
    rows = np.zeros((n_rows, width), np.int8)
    rows[:, 0] = 1
    rows[-1] = 1
    query = np.full((1, width), share / (127 * 128), np.float32)
    query[0, 0] = 1.0
    doc_ords, scores = kernel.dense_top_k(rows, query, k=1, scales=np.ones(n_rows, np.float32))
    assert doc_ords.tolist() == [[n_rows - 1]]
    assert scores[0, 0] > 1.0
    negative, _ = kernel.dense_top_k(-rows, -query, k=1, scales=np.ones(n_rows, np.float32))
    assert negative.tolist() == [[n_rows - 1]]


@pytest.mark.usefixtures("level")
def test_a_row_that_only_the_rounding_of_its_copy_hides_is_found() -> None:
    width, n_rows = 64, 1500
    rows = np.zeros((n_rows, width), np.float32)
    rows[:, 0] = 1.0
    rows[-1, 1:] = 0.49 / 127  # 0 in the copy
    doc_ords, _ = kernel.dense_top_k(rows, np.ones((1, width), np.float32), k=1, copies=kernel.copy_rows(rows))
    assert doc_ords.tolist() == [[n_rows - 1]]


@pytest.mark.parametrize("k", HUGE)
def test_a_huge_k_means_all_documents(k: int) -> None:
    """A k near 2 ** 63 read outside its arrays."""
    postings = kernel.invert(*full_rows(600, 2, 3), vocab_size=2, n_docs=600)
    terms, weights = np.array([0, 1], np.uint32), np.array([0.5, 1.0], np.float32)
    assert len(kernel.sparse_top_k(postings, terms, weights, k=k)[0]) == 600
    rows = np.ones((600, 2), np.float32)
    queries = np.ones((1, 2), np.float32)
    assert kernel.dense_top_k(rows, queries, k=k, copies=kernel.copy_rows(rows))[0].shape == (1, 600)
    part = SparseRows(*full_rows(600, 2, 3), postings)
    sparse, dense = SparseSegments([part], [600]), DenseSegments([ScannedRows(rows)], [600])
    asked = [dense.queries(queries), sparse.queries(np.array([0, 2]), terms, weights)]
    for request in (
        Request(k, 5),
        Request(5, k),
        Request(k, k, threads=k),
        Request(k, k, excluded=(np.array([0, 2]), np.array([700, 701], np.uint32))),
    ):
        search = CandidateSearch([BoundBranch("dense", dense), BoundBranch("sparse", sparse)], scale="max")
        (best,) = search.search(asked, request)
        assert len(best) == (5 if 5 in request[:2] else 600)


def test_rows_and_documents_of_a_segment_agree() -> None:
    """A filter has a bit per document, and rows beyond them would be looked up outside it."""
    with pytest.raises(InvalidInput, match="rows and documents"):
        DenseSegments([ScannedRows(np.ones((600, 2), np.float32))], [3])


def test_the_fuzzer_finds_nothing() -> None:
    """Two seconds of what `make fuzz` runs under sanitizers."""
    script = Path(__file__).with_name("fuzz.py")
    command = [sys.executable, str(script), "--seconds", "2", "--seed", "20261122"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
