"""`lightir search --fallback` through a model that torch runs, from the fit of its table to the ranking."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.data import read_documents
from lightir.encode import EncodeOptions, encode_corpus
from lightir.encode.full_queries import FullQueryEncoder
from lightir.index import Index, build_index
from lightir.query import CachedQueryEncoder
from lightir.query.confidence import Confidence
from lightir.shards import Shard, VectorsReader
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.distill.fit_config import FitConfig
from tiny_models import write_sentence_transformer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper"]
SURE, UNSURE = "river stone cloud", "violin zzz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher, its fitted table with rows of pairs and a gate, and an index of 60 documents."""
    top = tmp_path_factory.mktemp("fallback")
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(WORDS, size=9)) for _ in range(60)]
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (top / "corpus.jsonl").write_text("\n".join(lines))
    teacher = write_sentence_transformer(top / "teacher")
    fit = FitConfig(steps=20, batch_size=16, candidates=20, bigrams=10, gate=4)
    options = DistillationOptions(spans=600, fit=fit)
    model = distill(teacher, [top / "corpus.jsonl"], out=top / "model", options=options)
    encoding = EncodeOptions(dtype="fp32", runtime="torch")
    encode_corpus(model, read_documents(top / "corpus.jsonl"), top / "vectors", options=encoding)
    vectors = VectorsReader(top / "vectors")
    build_index(vectors, top / "index", contract=vectors.contract, query_encoder=top / "vectors" / "query-encoder")
    return top


def ranked(folder: Path, vector: np.ndarray) -> list[str]:
    """Return the ten best documents by the inner product with the stored vectors."""
    shard = Shard.concatenate(list(VectorsReader(folder / "vectors")))
    assert shard.dense is not None
    scores = shard.dense.astype(np.float32) @ vector
    order = sorted(range(len(scores)), key=lambda row: (-scores[row], shard.documents[row].doc_id))
    return [shard.documents[row].doc_id for row in order[:10]]


def found(folder: Path, query: str, threshold: float, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], bool]:
    """Return what `lightir search --fallback` finds, and whether it says that the model encoded the query."""
    options = ["--mode", "dense", "-k", "10", "--json", "--fallback", str(threshold), "--model", str(folder / "model")]
    assert main(["search", str(folder / "index"), query, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    return [hit["doc_id"] for hit in answer["hits"]], answer["by_model"]


def test_a_query_below_the_confidence_is_ranked_by_the_model_and_another_by_the_table(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = CachedQueryEncoder.load(folder / "index" / "query-encoder")
    assert table.bigrams is not None
    assert table.gate is not None
    confidence = Confidence.load(folder / "index" / "query-encoder")
    assert confidence is not None
    values = dict(zip((SURE, UNSURE), confidence.of_queries(table, table.encode([SURE, UNSURE]).term_ids), strict=True))
    model, light = FullQueryEncoder.load(folder / "model").encode([SURE, UNSURE]), table.encode([SURE, UNSURE])
    assert model.dense is not None
    assert light.dense is not None
    by_model = {query: ranked(folder, row) for query, row in zip((SURE, UNSURE), model.dense, strict=True)}
    by_table = {query: ranked(folder, row) for query, row in zip((SURE, UNSURE), light.dense, strict=True)}
    assert by_model != by_table  # otherwise the test could not tell them apart
    thresholds = [0.0, 1.0, *(float(own) + step for own in values.values() for step in (-0.01, 0.01))]
    asked = 0
    for query, own in values.items():
        for threshold in (threshold for threshold in thresholds if 0 <= threshold <= 1):
            below = float(own) < threshold
            expected = by_model[query] if below else by_table[query]
            assert found(folder, query, threshold, capsys) == (expected, below), (query, own, threshold)
            asked += below
    assert asked


def test_a_model_that_is_gone_fails_the_search_and_no_other_query(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = ["--fallback", "1", "--model", str(tmp_path / "gone")]
    assert main(["search", str(folder / "index"), UNSURE, *missing]) == 1
    assert "gone" in capsys.readouterr().err
    with Index.open(folder / "index") as index:
        assert len(index) == 60
