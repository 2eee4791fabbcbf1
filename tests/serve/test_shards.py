"""A service of shards answers as a service of the index that was split, and says which shards it lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from lightir.cli import main
from lightir.index.splitting import ShardedManifest, shard_of, split_index
from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.serve.sharded_service import ShardedService
from service_client import send
from sharded_indexes import Pickled, build_random

ADDRESS = "http://127.0.0.1"
SHARDS = 3


class Shards(Pickled):
    """Shards whose silence is known at once."""

    @property
    def missing(self) -> frozenset[int]:
        return self.silent


class Both:
    """The services of an index and of its shards."""

    def __init__(self, one: TestClient, sharded: TestClient, shards: Shards) -> None:
        self.one, self.sharded, self.shards = one, sharded, shards

    @contextlib.contextmanager
    def without(self, *numbers: int) -> Iterator[None]:
        self.shards.silent = frozenset(numbers)
        try:
            yield
        finally:
            self.shards.silent = frozenset()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> ShardedManifest:
    folder = tmp_path_factory.mktemp("shards")
    build_random(folder / "index", 1, 60, model=True, encoded=0.8, long=True)
    return split_index(folder / "index", folder / "shards", SHARDS, progress=False)


@pytest.fixture(scope="module")
def both(manifest: ShardedManifest) -> Iterator[Both]:
    options = ServeOptions(read_only=True)
    one = create_app(SearchService(manifest.folder.with_name("index"), options))
    shards = Shards.open(manifest)
    sharded = create_app(ShardedService(manifest, shards, options))
    with (
        contextlib.closing(shards),
        TestClient(one, base_url=ADDRESS) as client,
        TestClient(sharded, base_url=ADDRESS) as of_shards,
    ):
        yield Both(client, of_shards, shards)


def timeless(answer: Any) -> Any:
    """Return an answer without the time that it took."""
    if isinstance(answer, dict):
        return {name: timeless(value) for name, value in answer.items() if name != "took_ms"}
    return [timeless(value) for value in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/search", {"query": "cat dog", "k": 20}),
        ("/v1/search", {"query": "cat", "explain": True, "full_text": True, "mode": "tokens"}),
        ("/v1/search", {"query": "cat", "k": 3, "offset": 4, "facets": ["brand"], "sort": "n:desc", "total": True}),
        ("/v1/search", {"query": " ", "filter": {"n": {"gte": 2}}, "facets": ["n"]}),
        ("/v1/search", {"query": ["cat", "brand:a dog", ""], "k": 100, "ids_only": True}),
        ("/v1/search", {"query": ["cat", "dog"], "allow_partial": True}),
        ("/v1/search", {"query": "cat dog", "k": 3, "offset": 1, "group": "brand", "facets": ["n"]}),
        ("/v1/search", {"query": " ", "k": 3, "group": "n", "sort": "brand:desc"}),
        ("/v1/search", {"query": "cat", "group": "none"}),
        ("/v1/explain", {"query": "cat dog", "doc_id": "d-1"}),
        ("/v1/explain", {"query": "cat dog", "doc_id": "d-2", "mode": "tokens"}),
        ("/v1/explain", {"query": "cat", "doc_id": "none"}),
        ("/v1/search", {"query": "cat", "mode": "none"}),
        ("/v1/search", {"query": "cat", "filter": {"n": {"about": 2}}}),
        ("/v1/list", {"limit": 7}),
        ("/v1/list", {"limit": 7, "after": "d-2", "filter": {"brand": "a"}}),
        ("/v1/list", {"filter": {"n": {"about": 2}}}),
        ("/v1/encode", {"texts": ["cat", "dog"]}),
        ("/v1/embeddings", {"input": "the cat"}),
        ("/embed_sparse", {"inputs": "the cat"}),
        ("/rerank", {"query": "the cat", "texts": ["a dog", "the cat sleeps", "the the well"]}),
    ],
)
def test_answers_are_those_of_one_index(both: Both, path: str, body: dict[str, Any]) -> None:
    expected, answered = both.one.post(path, json=body), both.sharded.post(path, json=body)
    assert answered.status_code == expected.status_code, answered.text
    if expected.status_code == 200:
        assert timeless(answered.json()) == timeless(expected.json())


def test_documents_are_those_of_one_index(both: Both) -> None:
    doc_ids = both.one.post("/v1/list", json={"limit": 1000}).json()["doc_ids"]
    assert {shard_of(doc_id, SHARDS) for doc_id in doc_ids} == {*range(SHARDS)}
    wanted = {"doc_ids": [*reversed(doc_ids), "none"]}
    assert both.sharded.post("/v1/get", json=wanted).json() == both.one.post("/v1/get", json=wanted).json()
    for doc_id in (*doc_ids[:5], "none"):
        expected, answered = (client.get(f"/v1/documents/{doc_id}") for client in (both.one, both.sharded))
        assert (answered.status_code, answered.json()) == (expected.status_code, expected.json())


def test_the_description_counts_all_shards(both: Both) -> None:
    expected, described = both.one.get("/v1/info").json(), both.sharded.get("/v1/info").json()
    assert described["shards"] == SHARDS
    for name in ("documents", "passages", "encoded", "pending", "branches", "fields", "contract", "default_mode"):
        assert described[name] == expected[name], name
    assert f"lightir_documents {float(expected['documents'])}" in both.sharded.get("/metrics").text


def test_without_a_shard_an_answer_is_an_error_or_names_the_shard(both: Both) -> None:
    asked = {"query": "cat dog", "k": 1000, "ids_only": True, "mode": "tokens"}
    every = both.sharded.post("/v1/search", json=asked).json()["hits"]
    with both.without(1):
        refused = both.sharded.post("/v1/search", json=asked)
        assert (refused.status_code, refused.json()["missing_shards"]) == (503, [1])
        assert refused.headers["retry-after"] == "1"
        partial = both.sharded.post("/v1/search", json={**asked, "allow_partial": True}).json()
        several = both.sharded.post("/v1/search", json={"query": ["cat", "dog"], "allow_partial": True}).json()
        described = both.sharded.get("/v1/info")
        listed = both.sharded.post("/v1/list", json={})
        explained = both.sharded.post("/v1/explain", json={"query": "cat", "doc_id": every[0]["doc_id"]})
    assert partial["missing_shards"] == several["missing_shards"] == [1]
    assert partial["hits"] == [hit for hit in every if shard_of(hit["doc_id"], SHARDS) != 1]
    assert 0 < len(partial["hits"]) < len(every)
    assert len(several["results"]) == 2
    assert described.status_code == listed.status_code == explained.status_code == 503
    assert "missing_shards" not in both.sharded.post("/v1/search", json={**asked, "allow_partial": True}).json()


def test_a_document_is_found_while_its_shard_answers(both: Both) -> None:
    doc_ids = both.one.post("/v1/list", json={"limit": 1000}).json()["doc_ids"]
    lost = next(doc_id for doc_id in doc_ids if shard_of(doc_id, SHARDS) == 1)
    kept = next(doc_id for doc_id in doc_ids if shard_of(doc_id, SHARDS) != 1)
    with both.without(1):
        statuses = [both.sharded.get(f"/v1/documents/{doc_id}").status_code for doc_id in (lost, kept)]
    assert statuses == [503, 200]


def test_readiness_and_metrics_name_missing_shards(both: Both) -> None:
    assert both.sharded.get("/ready").status_code == 200
    with both.without(0, 2):
        answer = both.sharded.get("/ready")
        metrics = both.sharded.get("/metrics").text
        assert both.sharded.get("/health").status_code == 200
    assert (answer.status_code, answer.json()["missing_shards"]) == (503, [0, 2])
    assert answer.json()["detail"] == "shards that do not answer: 0, 2"
    assert "lightir_missing_shards 2.0" in metrics


def test_every_document_is_explained_as_in_one_index(both: Both) -> None:
    for doc_id in both.one.post("/v1/list", json={"limit": 1000}).json()["doc_ids"]:
        asked = {"query": "the cat and the dog", "doc_id": doc_id}
        expected, answered = (client.post("/v1/explain", json=asked) for client in (both.one, both.sharded))
        assert answered.status_code == 200
        assert timeless(answered.json()) == timeless(expected.json())


def test_shards_take_no_changes(both: Both) -> None:
    changed = both.sharded.put("/v1/documents/x", json={"text": "x"})
    assert changed.status_code == 403
    assert "change the index that was split" in changed.json()["detail"]


def test_the_command_serves_a_folder_of_shards(manifest: ShardedManifest, serve: Any) -> None:
    with serve(manifest.folder) as (_, address):
        status, answer = send(address, "POST", "/v1/search", {"query": "cat dog", "k": 3})
    assert status == 200
    assert len(answer["hits"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "SHARDS", "--watch"], "require a folder of files"),
        (["serve", "SHARDS", "--processes", "2"], "which one process serves"),
        (["serve", "SHARDS", "--replicas", "2"], "name it with --ray ADDRESS"),
        (["serve", "INDEX", "--ray", "auto"], "lightir split INDEX"),
    ],
)
def test_wrong_options_are_refused(
    manifest: ShardedManifest, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    paths = {"SHARDS": str(manifest.folder), "INDEX": str(manifest.folder.with_name("index"))}
    assert main([paths.get(argument, argument) for argument in arguments]) == 1
    assert message in capsys.readouterr().err
