"""Pushes to a pretended Vespa and searches of it, and requests that its documentation defines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine_suite as suite
from lightir.cli import main
from lightir.engines import CollectionRecord, EngineFailed, EngineRows, PushOptions, open_engine, push_index
from lightir.engines.vespa import CONNECTIONS, MIN_EXPLORED, row_id, row_number, values_of, whole_weights
from lightir.engines.vespa_package import application_package, write_package
from lightir.errors import AlreadyExists, InvalidInput, NotFound
from lightir.index import Index
from lightir.index.metadata_filters import parse
from lightir.types import Document
from pretended_vespa import PretendedVespa, started_vespa

RECORD = CollectionRecord(2, 100, fingerprint="f" * 16)


@pytest.fixture
def server() -> Iterator[PretendedVespa]:
    with started_vespa() as server:
        yield server


@pytest.fixture
def deployed(server: PretendedVespa) -> PretendedVespa:
    server.deploy(application_package("docs", CollectionRecord(suite.DIM, suite.VOCAB_SIZE)))
    return server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return suite.build(tmp_path / "index")


def opened(server: PretendedVespa, record: CollectionRecord = RECORD) -> Any:
    server.deploy(application_package("docs", record))
    engine = open_engine(server.address)
    engine.create(record)
    assert engine.collection() == record
    return engine


def test_vespa_ranks_like_the_index_and_gets_every_change_once(deployed: PretendedVespa, folder: Path) -> None:
    engine = open_engine(deployed.address)
    suite.assert_push_and_search(engine, folder)
    assert len(deployed.clients) <= CONNECTIONS < len(deployed.requests)
    suite.assert_reads_back(engine, folder)
    suite.assert_ranks_like_the_index(engine, folder, exact=True)
    with pytest.raises(InvalidInput, match="not supported for vespa"):
        suite.assert_fuses_natively(engine, folder)
    suite.assert_changes_are_pushed(engine, folder)


def test_a_push_that_was_killed_continues(
    deployed: PretendedVespa, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.assert_resumes(open_engine(deployed.address), folder, monkeypatch)


def test_a_filter_finds_what_it_finds_in_the_index(deployed: PretendedVespa, folder: Path) -> None:
    engine = open_engine(deployed.address)
    suite.assert_filters_like_the_index(engine, folder)
    engine.max_listed = 40  # a third of the rows: the engine itself has to leave others out
    few = suite.EngineSearcher(engine, suite.RandomQueries())
    assert len(few.search(["a"], 20, suite.SearchOptions(filter={"s": "ä"}, mode="dense"))["0"]) == 20
    engine.max_listed = 10_000
    suite.assert_dates_are_compared_as_in_the_index(engine, folder)


def test_a_push_says_that_the_schema_must_be_deployed_and_writes_it(
    server: PretendedVespa, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotFound, match="does not exist; push an index"):
        suite.EngineSearcher(open_engine(server.address), suite.RandomQueries())
    assert main(["push", str(folder), server.address]) == 1
    assert "Document type 'docs' does not exist. Write an application package" in capsys.readouterr().err
    package = tmp_path / "app"
    assert main(["push", str(folder), server.address, "--package", str(package)]) == 0
    files = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*") if path.is_file()}
    assert files == application_package("docs", CollectionRecord(suite.DIM, suite.VOCAB_SIZE))
    server.deploy(files)
    assert main(["push", str(folder), server.address, "--overwrite"]) == 0
    assert "400 rows sent" in capsys.readouterr().err
    assert main(["push", str(folder), server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == suite.N
    assert main(["push", str(folder), server.address, "--package", str(package)]) == 1
    assert "not an empty folder" in capsys.readouterr().err
    with pytest.raises(AlreadyExists):
        write_package(package, server.address, RECORD)
    with pytest.raises(InvalidInput, match="qdrant requires no application package"):
        write_package(tmp_path / "other", "qdrant://localhost/docs", RECORD)
    for name in ("my-docs", "1docs", "docs.old"):
        with pytest.raises(InvalidInput, match="letters, digits and _"):
            open_engine(f"vespa://localhost/{name}")


def test_an_overwritten_collection_is_empty_but_for_its_record(deployed: PretendedVespa, folder: Path) -> None:
    engine = open_engine(deployed.address)
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
        assert len(deployed.documents) == suite.N + 1
        assert engine.count() == suite.N
        engine.drop()
        assert not deployed.documents
        assert engine.collection() is None
        assert push_index(index, engine, PushOptions(overwrite=True, attempts=1)).sent == suite.N


def test_a_schema_has_the_fields_of_its_branches() -> None:
    both = application_package("docs", RECORD)["schemas/docs.sd"]
    assert "tensor<float>(x[2])" in both
    assert "hnsw" in both
    assert "weightedset<int>" in both
    flat = application_package("docs", CollectionRecord(3, None, index="flat"))["schemas/docs.sd"]
    assert "hnsw" not in flat
    assert "index" not in flat.replace("indexing", "")
    assert "sparse" not in flat
    assert "indexing: attribute | summary\n            attribute {\n                distance-metric" in flat
    sparse = application_package("docs", CollectionRecord(None, 9))["schemas/docs.sd"]
    assert "dense" not in sparse
    assert "rawScore(sparse)" in sparse


def test_a_row_has_an_id_that_paths_take_and_its_vectors(server: PretendedVespa) -> None:
    engine = opened(server)
    sparse = suite.csr([{3: 2}, {}], vocab_size=100, dtype=np.float32)
    documents = [Document("a/../ä b", "x", "", {"t": ["u", 1.0]}), Document("b", "")]
    engine.upsert(EngineRows(documents, ["v", "w"], np.ones((2, 2), np.float32), sparse))
    sent = {path: body["fields"] for method, path, body in server.requests[2:]}
    row = sent[f"/document/v1/docs/docs/docid/{row_id('a/../ä b')}"]
    assert row == {
        "doc_id": "a/../ä b",
        "lightir_row": row_number("a/../ä b"),
        "title": "",
        "text": "x",
        "metadata": '{"t": ["u", 1.0]}',
        "lightir_values": sorted(values_of({"t": ["u", 1]})),
        "lightir_version": "v",
        "dense": [1.0, 1.0],
        "sparse": {"3": 2},
    }
    assert len(row_id("a")) == 32
    assert 0 <= row_number("a") < 2**63
    rows = engine.fetch(["b", "a/../ä b", "c"], ("dense", "sparse"))
    assert sorted(rows.documents, key=lambda document: document.doc_id) == documents
    assert sorted(map(len, (rows.sparse.row(at)[0] for at in range(2)))) == [0, 1]
    engine.delete(["b", "never there"])
    assert engine.count() == 1


def test_searches_ask_for_what_the_documentation_defines(server: PretendedVespa) -> None:
    engine = opened(server)
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=False)
    common = {
        "queryProfile": "lightir",
        "model.restrict": "docs",
        "timeout": "55s",
        "ranking.softtimeout.enable": False,
        "hits": 3,
        "presentation.summary": "lightir_ids",
    }
    more = f"hnsw.exploreAdditionalHits: {MIN_EXPLORED - 3}"
    assert server.requests[-1] == (
        "POST",
        "/search/",
        {
            "yql": f"select doc_id from sources * where ({{targetHits: 3, {more}}}nearestNeighbor(dense, q))",
            "ranking.profile": "dense",
            "input.query(q)": [1.0, 2.0],
            **common,
        },
    )
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=True)
    assert "{targetHits: 3, approximate: false}" in server.requests[-1][2]["yql"]
    engine.sparse(suite.csr([{7: 2, 9: 1}], vocab_size=100, dtype=np.float32), 3)
    asked = {"yql": "select doc_id from sources * where ({targetHits: 3}wand(sparse, @terms))", "terms": "{7: 2, 9: 1}"}
    assert server.requests[-1][2] == {**asked, "ranking.profile": "sparse", **common}
    assert engine.restrict(parse({"lang": "en", "n": {"in": [2.0, None]}, "not": {"x": 1}, "price": {"lt": 3}}))
    engine.sparse(suite.csr([{7: 2}], vocab_size=100, dtype=np.float32), 3)
    (lang,), both = values_of({"lang": "en"}), [*values_of({"n": [None, 2]})]
    condition = f"(lightir_values in ({lang}L) and lightir_values in ({both[0]}L, {both[1]}L))"
    assert server.requests[-1][2]["yql"].endswith(f"wand(sparse, @terms)) and {condition}")
    assert engine.restrict(parse({"or": []}))
    assert engine._where("true") == "true and lightir_row in (-1)"
    assert engine.restrict(parse({"a": {"exists": True}}))
    assert engine._where("true") == "true"


def test_weights_of_queries_become_whole_numbers_without_loss_or_with_a_small_one() -> None:
    assert whole_weights({}) == ({}, 1.0)
    assert whole_weights({3: 2.0, 4: 1.0, 5: 0.0, 6: -1.0}) == ({3: 2, 4: 1}, 1.0)
    rng = np.random.default_rng(0)
    for size in (1e-6, 1.0, 3e9):
        weights = {term: float(np.float32(weight * size)) for term, weight in enumerate(rng.exponential(size=50))}
        whole, scale = whole_weights(weights)
        assert np.log2(scale) == round(np.log2(scale))
        assert 2**29 <= max(whole.values()) <= 2**30
        for term, weight in weights.items():
            assert abs(whole[term] / scale - weight) <= max(weights.values()) * 2.0**-30


def test_incomplete_answers_and_errors_fail_the_search(server: PretendedVespa) -> None:
    engine, query = opened(server), np.array([[1, 2]], np.float32)
    for status, answer, words in (
        (200, {"root": {"coverage": {"full": False, "degraded": {"timeout": True}}}}, "only some documents"),
        (200, {"root": {"errors": [{"code": 8, "summary": "Error", "message": "no such field"}]}}, "no such field"),
        (504, {"root": {"errors": [{"summary": "Timed out"}]}}, "answered 504: .*Timed out"),
        (404, {}, "only some documents"),
    ):
        server.answers.append((status, answer))
        with pytest.raises(EngineFailed, match=words):
            engine.dense(query, 3, exact=False)
    server.answers.append((503, {"message": "busy"}))
    with pytest.raises(EngineFailed, match="answered 503: busy"):
        engine.collection()


def test_a_busy_server_is_asked_again_and_a_row_that_does_not_fit_is_named(
    deployed: PretendedVespa, folder: Path
) -> None:
    engine = open_engine(deployed.address)
    with Index.open(folder) as index:
        push_index(index, engine, suite.NOW)
        engine.delete(["d001"])
        deployed.answers += [(200, {"fields": deployed.documents["lightir", "docs", "record"]})]
        deployed.answers += [(200, {"documents": []}), (429, {"message": "too many requests"})]
        report = push_index(index, engine, PushOptions(attempts=2, wait_s=0))
        assert report.sent == suite.N  # the visit found no rows
    with pytest.raises(InvalidInput, match=r"refused the row 'a': .*answered 400: .*'dense'.* write its package again"):
        engine.upsert(EngineRows([Document("a", "x")], ["v"], np.ones((1, 3), np.float32), None))
    half = suite.csr([{3: 0.5}], vocab_size=suite.VOCAB_SIZE, dtype=np.float32)
    with pytest.raises(InvalidInput, match="no whole numbers"):
        engine.upsert(EngineRows([Document("a", "x")], ["v"], np.ones((1, suite.DIM), np.float32), half))
