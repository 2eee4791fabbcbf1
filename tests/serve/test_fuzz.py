"""Random filters and bodies: every one is answered or refused, none of them with a 5xx, and direct answers agree.

LIGHTIR_LONG=1 tries 2,000 of each kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi")

from starlette.testclient import TestClient

from lightir.index import Field, Index, IndexOptions, Schema, build_index
from small_collections import animal_shard, word_contract, word_table, write_folder

PATHS = (
    ("POST", "/v1/search"),
    ("POST", "/v1/explain"),
    ("POST", "/v1/encode"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/documents"),
    ("POST", "/v1/bulk"),
    ("POST", "/v1/get"),
    ("POST", "/v1/list"),
    ("POST", "/v1/delete"),
    ("PUT", "/v1/documents/a"),
    ("PATCH", "/v1/documents/a"),
    ("POST", "/embed"),
    ("POST", "/embed_sparse"),
    ("POST", "/rerank"),
    ("POST", "/"),
)
EXAMPLES = 2000 if os.environ.get("LIGHTIR_LONG") else 150
SLOW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=EXAMPLES)

names = st.sampled_from(["page", "brand", "price", "on", "a.b", "none", "and", "or", "not", "gt", "in", "exists", ""])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["2020-01-01", "2020-01-01T00:00:00Z", "9999-99-99", "x\ud800", "\0", "1e400"])
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
MEMBERS = """
    query k offset mode fusion weights depth filter passages syntax typos exclude min_score facets sort group total
    explain fields ids_only doc_id doc_ids documents text title metadata texts input inputs dimensions model after limit
    encoding_format truncate normalize dense sparse raw_scores return_text
"""
members = st.sampled_from(MEMBERS.split())
good = {
    "query": "the cat",
    "doc_id": "a",
    "doc_ids": ["a"],
    "text": "x",
    "metadata": {"page": 1},
    "texts": ["x"],
    "input": "x",
    "inputs": "x",
    "documents": [{"doc_id": "n", "text": "x"}],
}
bodies = st.dictionaries(members, values, max_size=4).flatmap(
    lambda body: st.sets(st.sampled_from(sorted(good)), max_size=3).map(
        lambda kept: {**body, **{name: good[name] for name in kept}}
    )
)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with vectors, words and a field of each type."""
    folder = tmp_path_factory.mktemp("fuzz")
    encoder = write_folder(folder / "q", word_contract(), {"": {"embeddings": word_table()}})
    kinds = {"page": "number", "brand": "keyword", "price": "number", "on": "date", "and": "boolean"}
    schema = Schema({name: Field(kind) for name, kind in kinds.items()})  # type: ignore[arg-type]
    options = IndexOptions(schema=schema)
    build_index([animal_shard()], folder / "typed", query_encoder=encoder, options=options, progress=False)
    return folder / "typed"


@pytest.fixture(scope="module")
def client(typed: Path, connect_module: Any) -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patched, connect_module(typed) as client:
        patched.setattr("lightir.serve.lane.INLINE_S", float("inf"))  # on a busy machine, too, all is answered directly
        yield client
    with Index.open(typed) as index:
        index.verify()


def sent(client: TestClient, method: str, path: str, body: Any) -> Any:
    content = json.dumps(body).encode()  # NaN, Infinity and halves of surrogate pairs too
    kind = "application/x-ndjson" if path == "/v1/bulk" else "application/json"
    return client.request(method, path, content=content, headers={"content-type": kind})


@SLOW
@given(filter=st.dictionaries(names, values, max_size=4))
def test_filters_are_answered_or_refused(client: TestClient, filter: dict[str, Any]) -> None:
    for path, body in (
        ("/v1/search", {"query": "the cat", "filter": filter}),
        ("/v1/search", {"query": "", "filter": filter, "facets": ["brand"], "sort": "price"}),
        ("/v1/list", {"filter": filter}),
        ("/v1/explain", {"query": "cat", "doc_id": "a", "filter": filter}),
    ):
        answer = sent(client, "POST", path, body)
        assert answer.status_code in (200, 400, 422), (filter, answer.text)
        assert answer.json()["detail"] if answer.status_code != 200 else True


@SLOW
@given(request=st.sampled_from(PATHS), body=bodies | values)
def test_bodies_are_answered_or_refused(client: TestClient, request: tuple[str, str], body: Any) -> None:
    method, path = request
    answer = sent(client, method, path, body)
    assert answer.status_code in (200, 202, 400, 404, 422), (request, body, answer.text)
    json.loads(answer.text)


def without_time(answer: Any) -> Any:
    """Return an answer with the members that differ between runs set to 0."""
    if isinstance(answer, dict):
        return {name: 0 if name == "took_ms" else without_time(value) for name, value in answer.items()}
    return [without_time(value) for value in answer] if isinstance(answer, list) else answer


@SLOW
@given(path=st.sampled_from(["/v1/search", "/v1/embeddings", "/embed"]), body=bodies)
def test_a_direct_answer_is_that_of_the_app(client: TestClient, path: str, body: dict[str, Any]) -> None:
    """The bytes are equal, but for the time that a search took; headers too. What the app refuses is left to it."""
    content = json.dumps(body).encode()
    headers = {b"host": b"127.0.0.1", b"content-type": b"application/json"}
    direct = client.app.state.direct.answer(path.encode(), headers, content)  # type: ignore[attr-defined]
    plain = sent(client, "POST", path, body)
    if direct is None:
        assert plain.status_code != 200 or b"\\ud800" in content  # which the app ignores in members that it ignores
        return
    assert plain.status_code == 200
    head, _, answer = direct.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    assert first == "HTTP/1.1 200 OK"
    length = {"content-length"} if path == "/v1/search" else set()  # the time has more digits or fewer
    assert {line.partition(": ")[0] for line in {*lines} ^ {f"{k}: {v}" for k, v in plain.headers.items()}} <= length
    if path == "/v1/search":
        assert without_time(json.loads(answer)) == without_time(plain.json())
    else:
        assert answer == plain.content
