"""Searches over HTTP give what the library gives, and errors say what the library says."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest

from lightir.index import Index
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.search.hit_json import hit_json
from lightir.serve import lane
from lightir.serve.service import SearchService

BY_SYNTAX = SearchOptions(syntax=True)


def library_hits(folder: Path, query: str, k: int = 10, *, explain: bool = False) -> list[dict[str, Any]]:
    with Index.open(folder) as index:
        hits = Searcher(index).hits(query, k, BY_SYNTAX, explain=explain)
        return json.loads(json.dumps([hit_json(hit, explain=explain) for hit in hits]))


@pytest.mark.parametrize("explain", [False, True])
@pytest.mark.parametrize("query", ["steel kettle", '"steel kettle"', "kettle -glass", "brand:Vidra", "kettel", "zzz"])
def test_hits_are_the_librarys(shop: Path, connect: Any, query: str, explain: bool) -> None:
    with connect(shop) as client:
        body = client.post("/v1/search", json={"query": query, "k": 3, "explain": explain}).json()
        by_address = client.get("/v1/search", params={"q": query, "k": 3, "explain": explain}).json()
    assert body["hits"] == library_hits(shop, query, 3, explain=explain)
    assert by_address["hits"] == body["hits"]
    assert (body["query"], body["mode"]) == (query, "tokens")


def test_modes_search_their_branches(animals: Path, connect: Any) -> None:
    with connect(animals) as client:
        for mode in ("dense", "sparse", "tokens", "hybrid", "dense+tokens"):
            answer = client.post("/v1/search", json={"query": "cat at the well", "mode": mode}).json()
            with Index.open(animals) as index:
                expected = Searcher(index).hits("cat at the well", 10, SearchOptions(mode=mode, syntax=True))
            assert [(hit["doc_id"], hit["score"]) for hit in answer["hits"]] == [(h.doc_id, h.score) for h in expected]
            assert answer["mode"] == mode


def test_explanations_are_the_librarys(animals: Path, shop: Path, connect: Any) -> None:
    asked = {"query": "cat at the well", "weights": {"dense": 1, "tokens": 0.5}, "mode": "dense+tokens"}
    with connect(animals) as client, Index.open(animals) as index:
        options = SearchOptions(mode="dense+tokens", weights=asked["weights"], syntax=True)  # type: ignore[arg-type]
        for doc_id in ("a", "b", "c"):
            answer = client.post("/v1/explain", json={**asked, "doc_id": doc_id})
            explained = dataclasses.asdict(Searcher(index).explain(str(asked["query"]), doc_id, options))
            assert answer.json() == {"query": asked["query"], **json.loads(json.dumps(explained))}
        missing = client.post("/v1/explain", json={"query": "cat", "doc_id": "x"})
        assert (missing.status_code, missing.json()["detail"]) == (404, "there is no document 'x'")
    with connect(shop) as client:
        body = {"query": "pot", "doc_id": "shop/pot", "filter": {"brand": "Vidra"}}
        refused = client.post("/v1/explain", json=body)
        assert (refused.status_code, "does not match the filter" in refused.json()["detail"]) == (400, True)
        assert client.post("/v1/explain", json={"query": "pot", "doc_id": "a", "k": 3}).status_code == 422


def test_a_batch_has_an_answer_per_query_in_order(shop: Path, connect: Any) -> None:
    queries = ["kettle", "pot", "kettle", "zzz"]
    with connect(shop) as client:
        whole = client.post("/v1/search", json={"query": queries}).json()["results"]
        ids = client.post("/v1/search", json={"query": queries, "ids_only": True}).json()["results"]
        single = client.post("/v1/search", json={"query": "pot", "ids_only": True}).json()
    assert [answer["query"] for answer in whole] == queries
    for answer, named in zip(whole, ids, strict=True):
        assert answer["hits"] == library_hits(shop, answer["query"])
        assert named["hits"] == [{"doc_id": hit["doc_id"], "score": hit["score"]} for hit in answer["hits"]]
    assert single["hits"] == ids[1]["hits"]


def test_a_page_has_total_facets_and_order(shop: Path, connect: Any) -> None:
    asked = {"query": "", "k": 2, "offset": 1, "sort": "price:desc", "facets": {"brand": 1}}
    with connect(shop) as client:
        answer = client.post("/v1/search", json=asked).json()
        listed = client.get("/v1/search", params={"q": "", "filter": '{"price": {"lt": 50}}', "facet": "brand"}).json()
    with Index.open(shop) as index:
        expected = Searcher(index).page("", PageOptions(1, 2, {"brand": 1}, "price:desc"), BY_SYNTAX)
    assert (
        [hit["doc_id"] for hit in answer["hits"]] == [hit.doc_id for hit in expected.hits] == ["kettle-1", "shop/pot"]
    )
    assert answer["total"] == expected.total == 4
    assert answer["facets"] == {"brand": [{"value": "Norda", "count": 2}]}
    assert listed["total"] == 2
    assert listed["facets"] == {"brand": [{"value": "Norda", "count": 2}]}


def test_an_answer_shows_what_was_asked_for(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        asked = {"query": "pot", "fields": ["brand", "none"], "highlights": False, "full_text": True}
        (hit,) = client.post("/v1/search", json=asked).json()["hits"]
    assert hit["metadata"] == {"brand": "Norda"}
    assert "highlights" not in hit
    assert hit["snippet"].startswith("A pot of steel. A pot of steel. ")
    assert hit["snippet"].endswith("It is no kettle.")


BODIES = [
    b'{"query": "kettle"}',
    b'{"query": ["kettle", "pot"], "ids_only": true, "k": 2}',
    b'{"query": "kettle", "facets": ["brand"], "sort": "price"}',
    b'{"query": "kettle", "k": "3"}',
    b'{"query": "kettle", "k": 2.0, "typos": "yes"}',
    b'{"query": "kettle", "min_score": NaN}',
    b'{"query": "kettle", "k": 0}',
    b'{"query": "kettle", "unknown": 1}',
    b'{"query": "kettle", "filter": {"price": {"lt": "x"}}}',
    b'{"query": "kettle", "mode": "dense"}',
    b'{"query": "\\ud800"}',
    b'{"query": "kettle", "query": "pot"}',
    b'{"query": 5}',
    b"{",
    b"",
    b"[]",
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", BODIES)
def test_the_fast_route_answers_as_the_frameworks(shop: Path, connect: Any, body: bytes) -> None:
    """A media type that ends in +json is left to the framework."""
    with connect(shop) as client:
        fast = client.post("/v1/search", content=body, headers={"content-type": "application/json"})
        slow = client.post("/v1/search", content=body, headers={"content-type": "application/vnd.x+json"})
    assert fast.status_code == slow.status_code
    assert fast.status_code < 500
    assert without_time(fast.json()) == without_time(slow.json())


def without_time(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: without_time(value) for name, value in answer.items() if name != "took_ms"}
    return [without_time(value) for value in answer] if isinstance(answer, list) else answer


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"query": "x", "mode": "dense"}, 400, "has no dense branch; it has tokens"),
        ({"query": "x", "fusion": "magic"}, 400, "fusion"),
        ({"query": "x", "filter": {"price": {"lt": "ten"}}}, 400, "price"),
        ({"query": "x", "sort": "unknown"}, 400, "unknown"),
        ({"query": "x", "k": 0}, 422, "greater than or equal to 1"),
        ({"query": "x" * 10_001}, 422, "10000"),
        ({"query": ["x"] * 257}, 422, "256"),
        ({"query": "x", "kk": 1}, 422, "kk"),
        ({}, 422, "query"),
    ],
)
def test_errors_are_problem_details(shop: Path, connect: Any, asked: Any, status: int, words: str) -> None:
    with connect(shop) as client:
        answer = client.post("/v1/search", json=asked)
    problem = answer.json()
    assert answer.status_code == problem["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "detail"} <= set(problem)
    assert words in problem["detail"]


def test_a_filter_in_an_address_is_a_json_object(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        for text in ("[1]", "{", "5", "[" * 2000, '{"a":' * 2000):
            answer = client.get("/v1/search", params={"q": "x", "filter": text})
            assert answer.status_code == 400
            assert "expected a JSON object" in answer.json()["detail"]


def test_unknown_paths_and_methods_are_problems_too(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        assert client.get("/nothing").json()["status"] == 404
        answer = client.put("/v1/search", json={})
        assert answer.json()["status"] == 405
        assert answer.headers["allow"] == "GET, POST"


def test_slow_searches_go_to_threads_and_end_in_time(shop: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "INLINE_S", -1.0)
    with connect(shop) as client:
        assert client.post("/v1/search", json={"query": "pot"}).json()["hits"] == library_hits(shop, "pot")
        assert client.post("/v1/search", json={"query": "pot", "mode": "dense"}).status_code == 400
    monkeypatch.setattr(SearchService, "search", lambda *_: time.sleep(0.3))
    with connect(shop, timeout_s=0.05) as client:
        answer = client.get("/v1/search", params={"q": "pot"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"


def test_info_names_a_model_and_hides_its_folder(animals: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(animals) as client:
        contract = client.get("/v1/info").json()["contract"]
        with Index.open(animals) as index:
            described = index.info()
            assert described.contract is not None
            elsewhere = {**described.contract, "backbone": "/home/somebody/models/words"}
            monkeypatch.setattr(Index, "info", lambda _: dataclasses.replace(described, contract=elsewhere))
        assert client.get("/v1/info").json()["contract"] == contract
        assert contract["backbone"] == client.get("/v1/info").json()["model"] == "words"


def test_health_info_and_metrics(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}
        info = client.get("/v1/info").json()
        client.post("/v1/search", json={"query": "pot"})
        client.post("/v1/search", json={"query": "pot", "k": 0})
        metrics = client.get("/metrics").text
    assert (info["documents"], info["branches"], info["model"]) == (4, ["tokens"], "bm25")
    assert "lightir_documents 4.0" in metrics
    for status in (200, 422):
        assert f'lightir_request_seconds_count{{method="POST",route="/v1/search",status="{status}"}} 1.0' in metrics
