"""Several threads search the branches of one query over many documents at the same time, and find what one finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lightir.index.bm25 import K1, B, saturation
from lightir.kernel import graphs, invert, pack_bitmap
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments, ScannedRows, SparseRows, SparseSegments, StoredGraph, WalkCosts

SIZES = [200_000, 100_000]
WIDTH = 4
EVERY = 20
TERMS = 5
MEAN = 3.0


def terms_of(rng: np.random.Generator, size: int) -> tuple[Any, Any, Any]:
    """Return rows of two terms per document, the last term and another one, with weights of 1 to 9."""
    term_ids = np.stack([rng.integers(0, TERMS - 1, size), np.full(size, TERMS - 1)], axis=1).astype(np.uint32)
    weights = rng.integers(1, 10, 2 * size).astype(np.uint8)
    return np.arange(size + 1, dtype=np.int64) * 2, term_ids.ravel(), weights


class Branches:
    """A graph over some rows of each segment, sparse vectors, and words whose stored scores are exact."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        dense, sparse, words = [], [], []
        self.allowed = []
        for size in SIZES:
            nodes = np.arange(0, size, EVERY, dtype=np.uint32)
            rows = rng.standard_normal((size, WIDTH))
            rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
            settings = graphs.GraphSettings("int8", WIDTH, 16, 32)
            stored = graphs.build(nodes, [(rows[nodes] * 127).astype(np.int8)], settings, threads=1)
            dense.append(ScannedRows(rows, graph=StoredGraph(stored, element="int8", shape=rows.shape, neighbors=16)))
            self.allowed.append(pack_bitmap(np.arange(size) % EVERY == 0))
            indptr, term_ids, weights = terms_of(rng, size)
            postings = invert(indptr, term_ids, weights, vocab_size=TERMS, n_docs=size)
            sparse.append(SparseRows(indptr, term_ids, weights, postings))
            indptr, term_ids, counts = terms_of(rng, size)
            lengths = rng.integers(2, 6, size).astype(np.uint32)
            postings = invert(
                indptr, term_ids, saturation(counts, indptr, lengths, MEAN), vocab_size=TERMS, n_docs=size
            )
            words.append(SparseRows(indptr, term_ids, counts, postings, lengths, MEAN))
        self.dense = DenseSegments(dense, SIZES, costs=WalkCosts(32, 1))
        self.scanned = DenseSegments([ScannedRows(part.rows) for part in dense], SIZES)
        self.sparse = SparseSegments(sparse, SIZES)
        self.words = SparseSegments(words, SIZES, k1=K1, b=B)
        self.vector = rng.standard_normal((1, WIDTH)).astype(np.float32)


@pytest.fixture(scope="module")
def branches() -> Branches:
    return Branches()


@pytest.mark.parametrize("scale", ["max", "min-max", "rrf"])
@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("by_graph", [True, False])
def test_any_number_of_threads_finds_the_same(branches: Branches, scale: Any, weight: float, by_graph: bool) -> None:
    rows = branches.dense if by_graph else branches.scanned
    indptr, term_ids = np.array([0, 3], np.int64), np.array([0, 2, TERMS - 1], np.uint32)
    places = np.tile(np.arange(TERMS), (len(SIZES), 1))
    weights = np.array([3, 2, 1], np.float32) * np.float32(weight)
    queries = [
        rows.queries(branches.vector),
        branches.sparse.queries(indptr, term_ids, weights),
        branches.words.queries(indptr, term_ids, weights, places=places, mean=MEAN),
    ]
    search = CandidateSearch(
        [
            BoundBranch("dense", rows, 0.5, not by_graph, allowed=branches.allowed),
            BoundBranch("sparse", branches.sparse, 0.3, True, allowed=branches.allowed),
            BoundBranch("words", branches.words, 0.2, True, allowed=branches.allowed),
        ],
        scale=scale,
    )
    (alone,) = search.search(queries, Request(10, 200))
    assert len(alone.doc_ords) == 10
    for threads in (2, 5):
        (ranked,) = search.search(queries, Request(10, 200, threads))
        np.testing.assert_array_equal(ranked.doc_ords, alone.doc_ords)
        np.testing.assert_array_equal(ranked.scores, alone.scores)
        for name, column in alone.columns.items():
            np.testing.assert_array_equal(ranked.columns[name].scores, column.scores)
            np.testing.assert_array_equal(ranked.columns[name].ranks, column.ranks)
