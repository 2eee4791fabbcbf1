"""The lexical branch has the reference figures of BM25, which recipes/bm25_reference.py computes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightir.index import Index, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.types import Document, Query
from real_collections import real_collection


def records(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "expected"), [("scifact", 0.676), ("nfcorpus", 0.318), ("nq-utd", 0.801), ("cranfield", 0.358)]
)
def test_bm25_reaches_the_field_s_ndcg(tmp_path: Path, name: str, expected: float) -> None:
    ir_measures = pytest.importorskip("ir_measures")
    folder = real_collection(name)
    qrels = list(ir_measures.read_trec_qrels(trec_qrels(folder / "qrels" / "test.tsv")))
    judged = {qrel.query_id for qrel in qrels}
    documents = (Document(r["_id"], r["text"], r.get("title", "")) for r in records(folder / "corpus.jsonl.gz"))
    queries = [Query(r["_id"], r["text"]) for r in records(folder / "queries.jsonl.gz") if r["_id"] in judged]
    build_index(document_shards(documents), tmp_path / "index", progress=False)
    with Index.open(tmp_path / "index") as index:
        run = Searcher(index).search(queries, 10, SearchOptions(typos=False, question_words=True))
    scores = {i: dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)) for i, ranking in run.items()}
    assert ir_measures.nDCG(cutoff=10).calc_aggregate(qrels, scores) == pytest.approx(expected, abs=0.0015)


def trec_qrels(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    rows = [line.split("\t") for line in lines if line]
    return "\n".join(f"{query_id} 0 {doc_id} {grade}" for query_id, doc_id, grade in rows)
