"""Requests to OpenSearch and Elasticsearch, and their answers, without a server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import engine_suite as suite
from lightir.engines import CollectionRecord, EngineFailed, EngineRows, open_engine
from lightir.engines.elasticsearch import of_cosine, of_inner_product
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import parse
from lightir.types import Document

RECORD = CollectionRecord(2, 100, fingerprint="f" * 16)


class Server(ThreadingHTTPServer):
    """A server that keeps requests, and gives the answers that it was told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str, Any]] = []
        self.headers: list[Any] = []
        self.answers: list[tuple[int, Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        lines = self.headers.get("Content-Type") == "application/x-ndjson"
        body = [json.loads(line) for line in text.splitlines()] if lines else json.loads(text or "null")
        self.server.requests.append((self.command, self.path, body))
        self.server.headers.append(self.headers)
        status, answer = self.server.answers.pop(0)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 (http.server's names)

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def opened(server: Server, kind: str, record: CollectionRecord = RECORD) -> Any:
    engine = open_engine(f"{kind}://127.0.0.1:{server.server_address[1]}/docs")
    server.answers.append((200, {"docs": {"mappings": {"_meta": record.to_json()}}}))
    assert engine.collection() == record
    return engine


def hits(*pairs: tuple[str, float]) -> dict[str, Any]:
    return {"hits": {"hits": [{"_id": doc_id, "_score": score} for doc_id, score in pairs]}}


def test_opensearch_is_asked_for_neighbors_and_its_scores_become_inner_products(server: Server) -> None:
    engine = opened(server, "opensearch")
    server.answers.append((200, hits(("a", 2.5), ("b", 1.0), ("c", 0.4))))
    (listed,) = engine.dense(np.array([[1, 2]], np.float32), 3, exact=False)
    assert server.requests[-1] == (
        "POST",
        "/docs/_search",
        {"query": {"knn": {"dense": {"vector": [1.0, 2.0], "k": 3}}}, "size": 3, "_source": False},
    )
    assert listed.doc_ids == ["a", "b", "c"]
    np.testing.assert_allclose(listed.scores, [1.5, 0.0, -1.5])
    server.answers.append((200, hits()))
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=True)
    script = server.requests[-1][2]["query"]["script_score"]["script"]
    assert script["params"] == {"field": "dense", "query_value": [1.0, 2.0], "space_type": "innerproduct"}
    assert (script["lang"], script["source"]) == ("knn", "knn_score")


def test_filters_become_terms_that_every_matching_row_has(server: Server) -> None:
    wanted = {
        "lang": "en",
        "n": {"in": [0, 2.0, True]},
        "price": {"lt": 3},
        "not": {"x": 1},
        "or": [{"a": "b"}, {"c": 4.5}],
    }
    lang, n = {"terms": {"metadata.lang": ["en"]}}, {"terms": {"metadata.n": ["true", "0", "0.0", "-0.0", "2", "2.0"]}}
    either = [{"terms": {"metadata.a": ["b"]}}, {"terms": {"metadata.c": ["4.5"]}}]
    allowed = {"bool": {"filter": [lang, n, {"bool": {"should": either, "minimum_should_match": 1}}]}}
    vector, terms = np.array([[1, 2]], np.float32), suite.csr([{3: 2}], vocab_size=100, dtype=np.float32)
    for kind in ("opensearch", "elasticsearch"):
        engine = opened(server, kind)
        assert engine.restrict(parse(wanted))  # the rows are to be tested
        server.answers += [(200, hits())] * 3
        engine.dense(vector, 3, exact=False)
        asked = server.requests[-1][2]
        nearest = asked["query"]["knn"]["dense"] if kind == "opensearch" else asked["knn"]
        assert nearest["filter"] == allowed
        engine.dense(vector, 3, exact=True)
        scored = server.requests[-1][2]["query"]["script_score"]["query"]
        assert scored == {"bool": {"must": [{"exists": {"field": "dense"}}], "filter": [allowed]}}
        engine.sparse(terms, 3)
        (query,) = server.requests[-1][2]["query"]["bool"]["must"]
        assert ("sparse_vector" in query) == (kind == "elasticsearch")
        assert server.requests[-1][2]["query"]["bool"]["filter"] == [allowed]
        assert not engine.restrict(None)
        server.answers.append((200, hits()))
        engine.sparse(terms, 3)
        assert "metadata" not in json.dumps(server.requests[-1][2])
        for unknown in (
            {"a": None},
            {"a": {"exists": True}},
            {"a": {"gt": "b"}},
            {"a b": 1},
            {"a": "x" * 9000},
            {"or": []},
        ):
            assert engine.restrict(parse(unknown))
            assert engine._filter == ({"match_none": {}} if "or" in unknown else None)


def test_a_flat_collection_of_opensearch_is_always_scanned(server: Server) -> None:
    engine = opened(server, "opensearch", CollectionRecord(2, None, fingerprint="f", index="flat"))
    server.answers.append((200, hits()))
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=False)
    assert "script_score" in server.requests[-1][2]["query"]


def test_opensearch_gets_a_mapping_of_vectors_and_rank_features(server: Server) -> None:
    engine = open_engine(f"opensearch://127.0.0.1:{server.server_address[1]}/docs")
    server.answers.append((200, {"acknowledged": True}))
    engine.create(RECORD)
    method, path, body = server.requests[-1]
    assert (method, path, body["settings"]) == ("PUT", "/docs", {"index": {"knn": True}})
    assert body["mappings"]["_meta"] == RECORD.to_json()
    properties = body["mappings"]["properties"]
    assert properties["dense"] == {
        "type": "knn_vector",
        "dimension": 2,
        "space_type": "innerproduct",
        "method": {"name": "hnsw", "engine": "faiss"},
    }
    assert properties["sparse"] == {"type": "rank_features"}
    assert properties["metadata"] == {"type": "flat_object"}


def test_rows_are_sent_line_by_line_without_empty_sparse_vectors(server: Server) -> None:
    engine = opened(server, "opensearch")
    server.answers.append((200, {"errors": False, "items": []}))
    sparse = suite.csr([{3: 2}, {}], vocab_size=100, dtype=np.float32)
    rows = EngineRows([Document("a", "x"), Document("b", "y")], ["v", "w"], np.ones((2, 2), np.float32), sparse)
    engine.upsert(rows)
    method, path, lines = server.requests[-1]
    assert (method, path) == ("POST", "/docs/_bulk")
    assert lines[0::2] == [{"index": {"_id": "a"}}, {"index": {"_id": "b"}}]
    assert lines[1]["sparse"] == {"3": 2.0}
    assert "sparse" not in lines[3]
    with pytest.raises(InvalidInput, match="513 bytes"):
        engine.upsert(EngineRows([Document("x" * 513, "x")], ["v"], None, None))


def test_a_row_that_the_server_refuses_is_named(server: Server) -> None:
    engine = opened(server, "elasticsearch")
    refused = {"index": {"_id": "a", "status": 400, "error": {"type": "t", "reason": "bad field"}}}
    server.answers.append((200, {"errors": True, "items": [refused]}))
    with pytest.raises(EngineFailed, match="refused the row 'a': bad field"):
        engine.upsert(EngineRows([Document("a", "x")], ["v"], None, None))
    missing = {"delete": {"_id": "z", "status": 404, "error": {"reason": "not found"}}}
    server.answers.append((200, {"errors": True, "items": [missing]}))
    engine.delete(["z"])


def test_keys_are_sent_and_errors_have_the_servers_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, sent in [("me:secret", "Basic bWU6c2VjcmV0"), ("abc", "ApiKey abc")]:
        monkeypatch.setenv("LIGHTIR_ENGINE_KEY", key)
        opened(server, "elasticsearch")
        assert server.headers[-1]["Authorization"] == sent
    engine = opened(server, "elasticsearch")
    server.answers += [
        (403, {"error": {"reason": "no permission"}}),
        (302, {}),
        (200, b"<html>"),
        (404, {}),
    ]
    with pytest.raises(EngineFailed, match="answered 403: no permission") as caught:
        engine.collection()
    assert "secret" not in str(caught.value)
    with pytest.raises(EngineFailed, match="answered 302"):
        engine.collection()
    with pytest.raises(EngineFailed, match="with no JSON"):
        engine.collection()
    assert engine.collection() is None


def test_an_index_of_another_program_is_read_by_its_mapping(server: Server) -> None:
    def mapped(kind: str, **properties: Any) -> Any:
        engine = open_engine(f"{kind}://127.0.0.1:{server.server_address[1]}/docs")
        server.answers.append((200, {"docs": {"mappings": {"properties": properties}}}))
        return engine.collection()

    dot = {"type": "dense_vector", "dims": 3, "similarity": "max_inner_product"}
    assert mapped("elasticsearch", v=dot, text={"type": "text"}) == CollectionRecord(3, None, "dot")
    assert mapped("elasticsearch", v={"type": "dense_vector", "dims": 3}) == CollectionRecord(3, None, "cosine")
    space = {"type": "knn_vector", "dimension": 4, "method": {"space_type": "cosinesimil"}}
    assert mapped("opensearch", v=space) == CollectionRecord(4, None, "cosine")
    with pytest.raises(InvalidInput, match="compares vectors by l2"):
        mapped("opensearch", v={"type": "knn_vector", "dimension": 4})
    with pytest.raises(InvalidInput, match=r"\?vector=NAME"):
        mapped("elasticsearch", v=dot, w=dot)


def test_scores_are_turned_back_into_inner_products() -> None:
    for product in (-3.0, -0.5, 0.0, 0.25, 7.0):
        score = product + 1 if product >= 0 else 1 / (1 - product)
        assert of_inner_product(score) == pytest.approx(product)
        assert of_cosine((1 + product) / 2) == pytest.approx(product)
