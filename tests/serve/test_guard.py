"""Refusals of the gate: keys, hosts, origins, sizes, depth, load; and the headers of every answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.serve.api_keys import ApiKeys, add_key, remove_key
from lightir.serve.request_gate import READS, SECURITY_HEADERS, is_nested_deeper, required_role
from lightir.serve.serve_options import ServeOptions


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "keys.json"
    return {"read": add_key(path, "reader", "read"), "write": add_key(path, "writer", "write"), "file": str(path)}


def test_keys_allow_what_their_roles_say(shop: Path, connect: Any, keys: dict[str, str]) -> None:
    with connect(shop, keys=Path(keys["file"])) as client:
        for header, status in (
            ({}, 401),
            ({"authorization": "Bearer wrong"}, 401),
            ({"authorization": f"Basic {keys['read']}"}, 401),
            ({"authorization": f"Bearer {keys['read']}"}, 200),
            ({"authorization": f"bearer {keys['write']}"}, 200),
            ({"x-api-key": keys["read"]}, 200),
        ):
            for path in ("/v1/info", "/metrics", "/openapi.json", "/v1/jobs", "/v1/search?q=x"):
                answer = client.get(path, headers=header)
                assert answer.status_code == status, (path, header)
                if status == 401:
                    assert answer.headers["www-authenticate"] == "Bearer"
            for path in ("/health", "/", "/page/page.js"):
                assert client.get(path, headers=header).status_code == 200
            assert (client.post("/", json={"inputs": "x"}, headers=header).status_code == 401) == (status == 401)
        for role in ("read", "write"):
            assert client.get("/v1/info", headers={"x-api-key": keys[role]}).json()["role"] == role
        reads = {"authorization": f"Bearer {keys['read']}"}
        assert client.post("/v1/search", json={"query": "pot"}, headers=reads).status_code == 200
        assert client.post("/v1/get", json={"doc_ids": ["x"]}, headers=reads).status_code == 200
        refused = client.put("/v1/documents/x", json={"text": "x"}, headers=reads)
        assert refused.status_code == 403
        assert "has the role read" in refused.json()["detail"]
        assert (
            client.put("/v1/documents/x", json={"text": "x"}, headers={"x-api-key": keys["write"]}).status_code == 200
        )


def test_every_route_that_changes_something_needs_the_role_write(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        paths = client.get("/openapi.json").json()["paths"]
    operations = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    reads = {(method, path) for method, path in operations if required_role(method, path) == "read"}
    served = {("POST", path) for path in READS if path != "/mcp"}  # that is a server of its own
    assert reads == {o for o in operations if o[0] == "GET"} | served
    assert {("PUT", "/v1/documents/{doc_id}"), ("POST", "/v1/bulk"), ("POST", "/v1/documents")} <= (operations - reads)


def test_a_file_of_keys_holds_hashes_alone(keys: dict[str, str]) -> None:
    path = Path(keys["file"])
    text = path.read_text()
    assert keys["read"] not in text
    assert keys["write"] not in text
    loaded = ApiKeys.load(path)
    assert [loaded.find(keys[role]).role for role in ("read", "write")] == ["read", "write"]  # type: ignore[union-attr]
    assert loaded.find(keys["read"] + "x") is None
    assert loaded.find("\udc80") is None
    remove_key(path, "reader")
    assert ApiKeys.load(path).find(keys["read"]) is None
    with pytest.raises(InvalidInput, match="writer"):
        add_key(path, "writer", "read")
    with pytest.raises(NotFound, match="reader"):
        remove_key(path, "reader")


def test_changes_of_the_file_of_keys_act_at_once(keys: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    path = Path(keys["file"])
    loaded = ApiKeys.load(path)
    added = add_key(path, "another", "read")
    assert loaded.find(added) is not None
    remove_key(path, "writer")
    assert loaded.find(keys["write"]) is None
    remaining = path.read_text()
    path.write_text(remaining[:-10])  # an editor has not finished yet
    assert loaded.find(added) is not None
    assert loaded.find(keys["write"]) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    path.unlink()
    assert loaded.find(added) is not None
    path.write_text('{"keys": []}')
    assert loaded.find(added) is None


def test_a_running_service_takes_new_keys_and_refuses_removed_ones(
    shop: Path, connect: Any, keys: dict[str, str]
) -> None:
    with connect(shop, keys=Path(keys["file"])) as client:
        added = add_key(Path(keys["file"]), "late", "read")
        assert client.get("/v1/info", headers={"x-api-key": added}).status_code == 200
        remove_key(Path(keys["file"]), "late")
        assert client.get("/v1/info", headers={"x-api-key": added}).status_code == 401


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": [{"name": "a"}]}', '{"keys": [{"name": "a", "role": "x", "sha256": "y"}]}']
)
def test_a_malformed_file_of_keys_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(FormatError, match=r"keys\.json"):
        ApiKeys.load(tmp_path / "keys.json")
    with pytest.raises(NotFound, match="lightir key"):
        ApiKeys.load(tmp_path / "none.json")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "localhost.evil", "[::2]"]
)
def test_other_names_than_the_services_are_refused(shop: Path, connect: Any, host: str) -> None:
    with connect(shop) as client:
        assert client.get("/health", headers={"host": host}).status_code == 421


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:80", "search.example", "localhost."]
)
def test_its_own_names_are_answered(shop: Path, connect: Any, host: str) -> None:
    with connect(shop, allow_hosts=("search.example",)) as client:
        assert client.get("/health", headers={"host": host}).status_code == 200


def test_web_pages_of_other_origins_change_and_read_nothing(shop: Path, connect: Any) -> None:
    asked = {"query": "pot"}
    with connect(shop) as client:
        for origin in ("http://evil.example", "null", "http://127.0.0.1:99", "http://["):
            assert client.post("/v1/search", json=asked, headers={"origin": origin}).status_code == 403
        own = client.post("/v1/search", json=asked, headers={"origin": "http://127.0.0.1"})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        assert client.get("/v1/search?q=x", headers={"origin": "http://evil.example"}).status_code == 200
        plain = client.post("/v1/search", content=json.dumps(asked), headers={"content-type": "text/plain"})
        assert plain.status_code == 422  # a page may send it without asking first
    with connect(shop, allow_origins=("https://shop.example",)) as client:
        allowed = client.post("/v1/search", json=asked, headers={"origin": "https://shop.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        asks = {"origin": "https://shop.example", "access-control-request-method": "POST"}
        assert client.options("/v1/search", headers=asks).status_code == 200
        assert client.post("/v1/search", json=asked, headers={"origin": "http://evil.example"}).status_code == 403


def test_long_and_deep_bodies_are_refused(shop: Path, connect: Any) -> None:
    with connect(shop, max_body_bytes=1000) as client:
        long = json.dumps({"query": "x" * 2000})
        assert client.post("/v1/search", content=long).status_code == 413
        assert client.post("/v1/search", content=(part for part in [long.encode()])).status_code == 413  # no length
        deep = '{"query": "x", "filter": ' + '{"not":' * 70 + "{}" + "}" * 71
        answer = client.post("/v1/search", content=deep, headers={"content-type": "application/json"})
        assert (answer.status_code, "64 levels" in answer.json()["detail"]) == (400, True)


nested = st.recursive(
    st.none() | st.text(alphabet='[]{}"\\a', max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(alphabet='[{"', max_size=2), inside, max_size=3)
    ),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(nested, st.integers(0, 6))
def test_the_depth_of_a_body_is_that_of_its_value(value: Any, levels: int) -> None:
    assert is_nested_deeper(json.dumps(value).encode(), levels) == (depth_of(value) > levels)


def test_a_body_that_does_not_arrive_is_given_up(shop: Path, connect: Any) -> None:
    async def ask(app: Any) -> int:
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            raise AssertionError

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": "/v1/search", "headers": [(b"host", b"localhost")]}
        await app(scope, receive, send)
        return statuses[0]

    with connect(shop, timeout_s=0.05) as client:
        assert asyncio.run(ask(client.app)) == 408


def test_more_requests_than_allowed_are_sent_away(shop: Path, connect: Any) -> None:
    async def ask(app: Any) -> list[int]:
        statuses: list[int] = []
        waiting = asyncio.Event()

        async def slow() -> dict[str, Any]:
            await waiting.wait()
            return {"type": "http.request", "body": b'{"query": "pot"}'}

        async def send(message: dict[str, Any]) -> None:
            statuses.append(message.get("status", 0))

        scope = {"type": "http", "method": "POST", "path": "/v1/search", "headers": [(b"host", b"localhost")]}
        first = asyncio.create_task(app(dict(scope), slow, send))
        await asyncio.sleep(0)
        await app({**scope, "method": "GET", "query_string": b"q=x"}, slow, send)
        waiting.set()
        first.cancel()
        return statuses

    with connect(shop, max_requests=1) as client:
        assert asyncio.run(ask(client.app))[0] == 503


def test_every_answer_has_security_headers(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        answers = [
            client.get("/health"),
            client.get("/nothing"),
            client.get("/metrics"),
            client.get("/health", headers={"host": "evil"}),
            client.post("/v1/search", json={"query": "pot"}),
            client.post("/v1/search", json={}),
        ]
    for answer in answers:
        assert {name.decode(): value.decode() for name, value in SECURITY_HEADERS}.items() <= dict(
            answer.headers
        ).items()


def test_other_addresses_than_loopback_need_keys_or_consent() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.1", "search.example"):
        with pytest.raises(InvalidInput, match="lightir key"):
            ServeOptions(host=host)
        ServeOptions(host=host, without_keys=True)
        ServeOptions(host=host, keys=Path("keys.json"))
    for host in ("127.0.0.1", "127.1.2.3", "::1", "localhost"):
        ServeOptions(host=host)
    with pytest.raises(InvalidInput, match="max_writes"):
        ServeOptions(max_writes=0)
    with pytest.raises(InvalidInput, match="timeout_s"):
        ServeOptions(timeout_s=0)
