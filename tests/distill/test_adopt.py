"""A collection of another program gets a query table, and is searched by it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import lightir.engines
from engine_in_memory import EngineInMemory
from fake_endpoint import DIM, text_vector
from lightir.cli import main
from lightir.contract import Contract, external_contract
from lightir.engines import CollectionRecord, EngineRows
from lightir.index import Index
from lightir.query import CachedQueryEncoder
from lightir.types import Document
from tiny_models import tiny_tokenizer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper", "meadow", "lantern"]
ADDRESS = "qdrant://localhost/docs"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> EngineInMemory:
    """A collection of 200 documents whose vectors are sums of their words' vectors."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=8)) for _ in range(200)]
    documents = [Document(f"d{i}", text, " ".join(text.split()[:2])) for i, text in enumerate(texts)]
    engine = EngineInMemory()
    engine.create(CollectionRecord(DIM, None, "dot"))
    engine.upsert(EngineRows(documents, [""] * 200, np.array([text_vector(text) for text in texts], np.float32), None))
    monkeypatch.setattr(lightir.engines, "open_engine", lambda address: engine)
    return engine


def adopt(tmp_path: Path, *more: str) -> list[str]:
    tiny_tokenizer().save(tmp_path / "tokenizer.json")
    model = ["--vector-model", "embed-3", "--made-by", "acme", "--out", str(tmp_path / "model")]
    return ["adopt", ADDRESS, *model, "--tokenizer", str(tmp_path / "tokenizer.json"), "--set", "steps=20", *more]


def test_a_table_is_fitted_to_a_collection_and_searches_it(
    engine: EngineInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(adopt(tmp_path, "--json", "--save-vectors", str(tmp_path / "vectors"))) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["documents"] == 200
    assert report["report"]["overlap"] > 0.2
    contract = Contract.load(tmp_path / "model")
    expected = external_contract("embed-3", DIM, similarity="dot", maker="acme", query=contract.query)
    assert contract.document_fingerprint == expected.document_fingerprint
    encoder = CachedQueryEncoder.load(tmp_path / "model")
    query = np.array(text_vector("river copper"))
    assert encoder.encode(["river copper"]).dense[0] @ query / 3 > 0.9
    assert main(["search", ADDRESS, "river copper", "--query-encoder", str(tmp_path / "model"), "--json"]) == 0
    doc_ids = [hit["doc_id"] for hit in json.loads(capsys.readouterr().out)["hits"]]
    scores = {doc_id: float(row.dense[0] @ query) for doc_id, row in engine.stored.items()}
    assert len({*doc_ids} & {*sorted(scores, key=lambda doc_id: -scores[doc_id])[:10]}) >= 6
    assert main(["index", str(tmp_path / "vectors"), "--out", str(tmp_path / "index")]) == 0
    with Index.open(tmp_path / "index") as index:
        assert index.get(["d3"])["d3"] == engine.stored["d3"].documents[0]


def test_what_cannot_be_adopted_is_refused_before_the_fit(
    engine: EngineInMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.create(CollectionRecord(DIM, None, fingerprint="f" * 16, model="minilm"))
    assert main(adopt(tmp_path)) == 1
    assert "was pushed from an index of minilm" in capsys.readouterr().err
    engine.drop()
    assert main(adopt(tmp_path)) == 1
    assert "does not exist" in capsys.readouterr().err
    engine.create(CollectionRecord(DIM, None))
    few = [Document(f"d{i}", "river stone") for i in range(9)]
    engine.upsert(EngineRows(few, [""] * 9, np.ones((9, DIM), np.float32), None))
    assert main(adopt(tmp_path)) == 1
    assert "9 documents have vectors; a table is fitted to stored vectors of 50 or more" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "x").write_text("mine")
    assert main(adopt(tmp_path)) == 1
    assert "exists" in capsys.readouterr().err
