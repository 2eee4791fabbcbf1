"""Answers straight from the connection: which requests get them, and that all others reach the app."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from lightir.serve.api_keys import add_key
from lightir.serve.connection import DIRECT_WAIT_S, MAX_DIRECT_BYTES, connections
from lightir.serve.request_gate import SECURITY_HEADERS

BODY = b'{"query": "cat"}'
CHUNKED = b"POST /v1/search HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
KIND = b"content-type: application/json\r\n"


class Answers:
    """Answers every body but those with "app" in them."""

    def takes(self, path: bytes) -> bool:
        """Return whether the path is the one that is answered."""
        return path == b"/v1/search"

    def answer(self, path: bytes, headers: Mapping[bytes, bytes], body: bytes, default: bytes) -> bytes | None:
        """Return the body."""
        assert path == b"/v1/search"
        assert headers[b"host"] == b"localhost"
        if b"app" in body:
            return None
        assert default.startswith(b"date: ")
        return b"HTTP/1.1 200 OK\r\n" + default + b"content-length: %d\r\n\r\ndirect %b" % (7 + len(body), body)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer "app" and the body, slowly if it says so."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
    if b"slow" in body:
        await asyncio.sleep(0.3)
    length = (b"content-length", str(4 + len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": b"app " + body})


@pytest.fixture(scope="module")
def server() -> Iterator[uvicorn.Server]:
    """A server in a thread, with direct answers and an app."""
    answers: Any = Answers()
    config = uvicorn.Config(app, port=0, http=connections(30.0, answers), log_level="error", lifespan="off")
    started = uvicorn.Server(config)

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(started.serve())

    thread = threading.Thread(target=run)
    thread.start()
    while not started.started:
        time.sleep(0.01)
    yield started
    started.should_exit = True
    thread.join()


@pytest.fixture
def opened(server: uvicorn.Server) -> Iterator[socket.socket]:
    """A connection to the server."""
    address = server.servers[0].sockets[0].getsockname()
    with socket.create_connection(address, timeout=30) as connected:
        yield connected


def request(body: bytes = BODY, *, line: bytes = b"POST /v1/search HTTP/1.1", headers: bytes = KIND) -> bytes:
    return b"%b\r\nhost: localhost\r\n%bcontent-length: %d\r\n\r\n%b" % (line, headers, len(body), body)


def answers(opened: socket.socket, n: int) -> list[bytes]:
    """Return the bodies of the next n responses of a connection."""
    received, bodies = b"", []
    while len(bodies) < n:
        head, end, rest = received.partition(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        if end and len(rest) >= length:
            bodies.append(rest[:length])
            received = rest[length:]
            continue
        part = opened.recv(1 << 20)
        assert part, received
        received += part
    assert not received
    return bodies


def test_queries_are_answered_directly_and_others_by_the_app(opened: socket.socket) -> None:
    for asked, answer in (
        (request(), b"direct " + BODY),
        (request(b"app"), b"app app"),
        (request(b""), b"direct "),
        (request(line=b"GET /v1/search HTTP/1.1"), b"app " + BODY),
        (request(line=b"POST /v1/search?x=1 HTTP/1.1"), b"app " + BODY),
        (request(line=b"POST /v1/%73earch HTTP/1.1"), b"app " + BODY),
        (request(line=b"POST /v1/bulk HTTP/1.1"), b"app " + BODY),
        (request(b"x" * MAX_DIRECT_BYTES), b"direct " + b"x" * MAX_DIRECT_BYTES),
        (request(b"x" * (MAX_DIRECT_BYTES + 1)), b"app " + b"x" * (MAX_DIRECT_BYTES + 1)),
        (CHUNKED, b"app x"),
        (request(), b"direct " + BODY),
    ):
        opened.sendall(asked)
        assert answers(opened, 1) == [answer], asked[:200]


def test_the_app_tells_clients_to_go_on(opened: socket.socket) -> None:
    head, _, body = request(headers=b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    opened.sendall(head + b"\r\n\r\n")
    assert opened.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    opened.sendall(body)
    assert answers(opened, 1) == [b"app " + BODY]


@pytest.mark.parametrize("last", [b"connection: close\r\n", b"HTTP/1.0"])
def test_connections_that_shall_be_closed_are(opened: socket.socket, last: bytes) -> None:
    asked = request(line=b"POST /v1/search HTTP/1.0") if last == b"HTTP/1.0" else request(headers=last)
    opened.sendall(asked)
    received = b""
    while part := opened.recv(1000):
        received += part
    assert received.endswith(b"app " + BODY)


def test_requests_at_once_are_answered_in_their_order(opened: socket.socket) -> None:
    bodies = [b"first", b"app slow", b"second", b"third", b"app", b"fourth"]
    opened.sendall(b"".join(map(request, bodies)))
    assert answers(opened, 6) == [b"direct first", *(b"app " + body for body in bodies[1:])]
    opened.sendall(request(b"app slow"))
    time.sleep(0.05)
    opened.sendall(request())  # behind an answer that is due
    assert answers(opened, 2) == [b"app app slow", b"app " + BODY]
    for _ in range(3):
        opened.sendall(request())
        assert answers(opened, 1) == [b"direct " + BODY]


@pytest.mark.parametrize("pause", [0.0, DIRECT_WAIT_S / 10])
def test_a_body_that_follows_its_head_is_answered_directly(
    opened: socket.socket, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightir.serve.connection.DIRECT_WAIT_S", 30.0)  # for a busy machine
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    asked = request()
    for cut in (len(asked) - len(BODY), len(asked) - 1):
        opened.sendall(asked[:cut])
        time.sleep(pause)
        opened.sendall(asked[cut:])
        assert answers(opened, 1) == [b"direct " + BODY]


def test_the_app_waits_for_a_late_body(opened: socket.socket) -> None:
    asked = request()
    opened.sendall(asked[:-3])
    time.sleep(10 * DIRECT_WAIT_S)
    opened.sendall(asked[-3:] + request(b"next"))
    assert answers(opened, 2) == [b"app " + BODY, b"app next"]


def test_a_client_that_leaves_early_harms_nobody(server: uvicorn.Server) -> None:
    address = server.servers[0].sockets[0].getsockname()
    for cut in (1, 20, len(request()) - 1):
        with socket.create_connection(address) as left:
            left.sendall(request()[:cut])
    time.sleep(2 * DIRECT_WAIT_S)
    with socket.create_connection(address, timeout=30) as opened:
        opened.sendall(request())
        assert answers(opened, 1) == [b"direct " + BODY]


def test_the_service_ends_after_the_answer_that_is_due() -> None:
    config = uvicorn.Config(app, port=0, http=connections(30.0, Answers()), log_level="error", lifespan="off")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    with socket.create_connection(server.servers[0].sockets[0].getsockname(), timeout=30) as opened:
        asked = request()
        opened.sendall(asked[:-3])
        time.sleep(DIRECT_WAIT_S / 5)
        server.should_exit = True
        time.sleep(10 * DIRECT_WAIT_S)
        opened.sendall(asked[-3:])
        assert answers(opened, 1) == [b"app " + BODY]
        assert not opened.recv(10)
    thread.join()


# The answers of a service


@pytest.fixture(autouse=True)
def _busy_machines_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a search takes here, it is answered directly."""
    monkeypatch.setattr("lightir.serve.lane.INLINE_S", float("inf"))


def direct(client: Any, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], Any] | None:
    """Return the status, the headers and the object that a service answers directly; None for nothing."""
    given = {"host": "127.0.0.1", "content-type": "application/json", **headers}
    pairs = {name.encode(): value.encode() for name, value in given.items()}
    answer = client.app.state.direct.answer(path.encode(), pairs, json.dumps(body).encode())
    if answer is None:
        return None
    head, _, content = answer.partition(b"\r\n\r\n")
    line, *lines = head.decode().split("\r\n")
    return int(line.split()[1]), dict(part.split(": ", 1) for part in lines), json.loads(content)


def test_a_service_answers_queries_directly(animals: Path, connect: Any) -> None:
    with connect(animals) as client:
        for path, body in (
            ("/v1/search", {"query": "cat", "k": 1}),
            ("/v1/embeddings", {"input": "cat", "model": "m"}),
            ("/embed", {"inputs": "cat"}),
        ):
            assert client.app.state.direct.takes(path.encode())
            answered = direct(client, path, body)
            assert answered is not None, path
            status, headers, content = answered
            assert (status, headers["content-type"]) == (200, "application/json")
            assert all(headers[name.decode()] == value.decode() for name, value in SECURITY_HEADERS)
            if path == "/v1/search":
                assert len(content["hits"]) == 1
        assert not client.app.state.direct.takes(b"/v1/documents")
        counted = client.get("/metrics").text
        line = 'lightir_request_seconds_count{method="POST",route="/v1/search",status="200"} 1.0'
        assert line in counted


def test_long_bodies_are_refused_directly_too(animals: Path, connect: Any) -> None:
    body = {"query": "cat " * 100}
    length = str(len(json.dumps(body)))
    with connect(animals, max_body_bytes=100) as client:
        answered = direct(client, "/v1/search", body, **{"content-length": length})
        assert answered is not None
        assert answered[0] == client.post("/v1/search", json=body).status_code == 413


def test_what_is_not_ordinary_is_left_to_the_app(animals: Path, connect: Any) -> None:
    with connect(animals) as client:
        assert direct(client, "/v1/search", {"query": 1}) is None
        assert direct(client, "/v1/search", {"query": "cat", "mode": "none"}) is None
        assert direct(client, "/v1/search", {"query": "cat"}, **{"content-type": "text/plain"}) is None


def test_slow_searches_are_left_to_the_threads(animals: Path, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(animals) as client:
        assert direct(client, "/v1/search", {"query": "cat"}) is not None
        monkeypatch.setattr("lightir.serve.lane.INLINE_S", 0.0)
        assert direct(client, "/v1/search", {"query": "cat"}) is None


def test_the_gate_refuses_directly_too(animals: Path, connect: Any, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "reader", "read")
    body = {"query": "cat"}
    with connect(animals, keys=tmp_path / "keys.json") as client:
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "wrong"}, 401),
            ({"x-api-key": key}, 200),
            ({"x-api-key": key, "host": "evil.example"}, 421),
            ({"x-api-key": key, "origin": "http://evil.example"}, 403),
            ({"x-api-key": key, "origin": "http://127.0.0.1"}, 200),
        ):
            answered = direct(client, "/v1/search", body, **headers)
            plain = client.post("/v1/search", json=body, headers=headers)
            assert answered is not None
            assert answered[0] == status == plain.status_code, headers
            if status != 200:
                assert answered[2] == plain.json()
                assert {*answered[1]} == {*plain.headers} - {"connection"}  # the app has not read the body yet
        refused = 'lightir_refused_total{reason="key"} 2.0'  # once directly, once by the app
        assert refused in client.get("/metrics", headers={"x-api-key": key}).text
        deep: Any = []
        for _ in range(100):
            deep = [deep]
        answered = direct(client, "/v1/search", deep, **{"x-api-key": key})
        assert answered is not None
        assert answered[0] == 400


def test_pages_of_allowed_origins_are_left_to_the_app(animals: Path, connect: Any) -> None:
    with connect(animals, allow_origins=("https://shop.example",)) as client:
        assert direct(client, "/v1/search", {"query": "cat"}, origin="https://shop.example") is None
        assert direct(client, "/v1/search", {"query": "cat"}) is not None
