"""BM25 and dense search against bm25s and faiss: the same scores, and the same documents apart from ties."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.index.bm25 import K1, B
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from small_collections import GivenVectors, word_contract

N_DOCUMENTS, DEPTH, WIDTH = 300, 20, 32


def compare(doc_ids: list[str], scores: np.ndarray, all_scores: np.ndarray, tolerance: float) -> None:
    """Require that a ranking has the k highest of all scores, and each document its score."""
    best = np.sort(all_scores)[::-1][: len(scores)]
    np.testing.assert_allclose(scores, best, rtol=tolerance, atol=tolerance)
    by_id = [all_scores[int(doc_id[1:])] for doc_id in doc_ids]
    np.testing.assert_allclose(scores, by_id, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_counted_words_are_those_of_bm25s(seed: int, tmp_path: Path) -> None:
    bm25s = pytest.importorskip("bm25s")
    rng = np.random.default_rng(seed)
    words = [f"w{i}" for i in range(60)]
    shares = rng.dirichlet(np.full(len(words), 0.3))
    rows = [rng.choice(words, size=rng.integers(1, 40), p=shares).tolist() for _ in range(N_DOCUMENTS)]
    documents = [Document(f"d{i}", " ".join(row)) for i, row in enumerate(rows)]
    build_index(document_shards(documents), tmp_path / "i", options=IndexOptions(analyzer="words"), progress=False)
    theirs = bm25s.BM25(method="lucene", k1=K1, b=B)
    theirs.index(rows, show_progress=False)
    with Index.open(tmp_path / "i") as index:
        for n_words in (1, 2, 5):
            query = rng.choice(words, size=n_words, replace=False).tolist()
            known = [word for word in query if any(word in row for row in rows)]
            expected = theirs.get_scores(known) if known else np.zeros(N_DOCUMENTS)
            ranking = Searcher(index).search([" ".join(query)], DEPTH, SearchOptions(mode="tokens"))["0"]
            assert len(ranking.doc_ids) == min(DEPTH, np.count_nonzero(expected))
            compare(list(ranking.doc_ids), np.asarray(ranking.scores), expected, 2e-6)


@pytest.mark.parametrize("dense_dtype", ["fp16", "fp16+int8", "int8"])
def test_dense_search_is_that_of_faiss(dense_dtype: str, tmp_path: Path) -> None:
    """int8 rows are compared with a flat index of the values that they stand for."""
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((N_DOCUMENTS, WIDTH)).astype(np.float32)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)
    queries = rng.standard_normal((8, WIDTH)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    contract = word_contract(dim=WIDTH, sparse=None)
    shard = Shard([Document(f"d{i}", "text") for i in range(N_DOCUMENTS)], rows, None)
    options = IndexOptions(analyzer=None, dense_dtype=dense_dtype)
    build_index([shard], tmp_path / "i", contract=contract, options=options, progress=False)
    encoder = GivenVectors(
        contract, {f"q{i}": query for i, query in enumerate(queries)}, {f"q{i}": {} for i in range(8)}
    )
    with Index.open(tmp_path / "i") as index:
        (live,) = index.view.segments
        stored, scales = live.segment.dense
        numbers = [int(live.segment.doc_ids[row][1:]) for row in range(N_DOCUMENTS)]
        values = np.zeros((N_DOCUMENTS, WIDTH), np.float32)
        values[numbers] = stored.astype(np.float32) * (1 if scales is None else scales[:, None])
        flat = faiss.IndexFlatIP(WIDTH)
        flat.add(values)
        run = Searcher(index, encoder).search([f"q{i}" for i in range(8)], DEPTH, SearchOptions(mode="dense"))
        best, _ = flat.search(queries, DEPTH)
        for i, query in enumerate(queries):
            scores = np.asarray(run[str(i)].scores)
            np.testing.assert_allclose(scores, best[i], rtol=2e-6, atol=2e-6)
            compare(list(run[str(i)].doc_ids), scores, values @ query, 2e-6)
        exact = faiss.IndexFlatIP(WIDTH)
        exact.add(rows.astype(np.float32))
        of_rows, _ = exact.search(queries, DEPTH)
        tolerance = 2e-6 if scales is None else 0.02
        np.testing.assert_allclose(best, of_rows, atol=tolerance)
