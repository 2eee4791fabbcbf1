"""Connections that are kept open between requests, against a small server that counts them."""

from __future__ import annotations

import gc
import json
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lightir.engines import kept_connections
from lightir.engines.engine import EngineFailed
from lightir.engines.http_json import JsonOverHttp, RequestRefused
from lightir.engines.kept_connections import KeptConnections


class CountingServer(ThreadingHTTPServer):
    """A server that echoes requests."""

    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.clients: list[Any] = []
        """Address of the client's end of the connection, for each request."""
        self.lines: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[bytes] = []
        """Whole answers to the next requests, after which the server closes the connection without a word."""
        self.ended = threading.Semaphore(0)
        """Released when the server closes a connection."""

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self.ended.release()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: CountingServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.clients.append(self.client_address)
        self.server.lines.append(self.requestline)
        self.server.headers.append(dict(self.headers))
        if self.server.answers:
            self.wfile.write(self.server.answers.pop(0))
            self.close_connection = True
            return
        status = {"/missing": 404, "/refused": 400, "/moved": 302}.get(self.path, 200)
        content = json.dumps({"path": self.path, "body": body.decode(), "message": "words"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Location", "/elsewhere")
        if self.path == "/last":
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET  # noqa: N815 (http.server's name)

    def do_CONNECT(self) -> None:
        self.do_GET()

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[CountingServer]:
    with CountingServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def client(server: CountingServer) -> Iterator[JsonOverHttp]:
    client = JsonOverHttp(server.url, key="key", key_scheme="ApiKey")
    yield client
    client.close()


def test_requests_one_after_another_share_a_connection_whatever_the_answers(
    server: CountingServer, client: JsonOverHttp
) -> None:
    assert client.ask("GET", "/a?b=c")["path"] == "/a?b=c"
    assert client.ask("POST", "/a", {"x": 1})["body"] == '{"x": 1}'
    assert client.ask("GET", "/missing") is None
    with pytest.raises(RequestRefused, match="answered 400: words"):
        client.ask("POST", "/refused", [{"x": 1}, {"y": 2}])
    with pytest.raises(RequestRefused, match="answered 302: words"):  # redirects are not followed
        client.ask("GET", "/moved")
    assert len(set(server.clients)) == 1
    assert all(headers["Authorization"] == "ApiKey key" for headers in server.headers)


def test_threads_have_a_connection_each_and_get_their_own_answers(server: CountingServer, client: JsonOverHttp) -> None:
    paths = [f"/{number}" for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda path: client.ask("POST", path, {"path": path}), paths))
    assert [answer["path"] for answer in answers] == paths
    assert [json.loads(answer["body"])["path"] for answer in answers] == paths
    assert len(set(server.clients)) <= 8


def test_a_connection_that_the_server_closes_is_replaced(server: CountingServer, client: JsonOverHttp) -> None:
    client.ask("GET", "/last")  # the server says so
    client.ask("GET", "/a")
    server.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"]  # the server does not say so
    client.ask("GET", "/b")
    for _ in range(2):
        assert server.ended.acquire(timeout=30)
    client.ask("GET", "/c")
    first, second, third, fourth = server.clients
    assert second == third
    assert len({first, second, fourth}) == 3


def test_an_old_connection_is_not_used_again(
    server: CountingServer, client: JsonOverHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_connections, "IDLE_S", 0.0)
    for _ in range(3):
        client.ask("GET", "/a")
    assert len(set(server.clients)) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "cannot be reached: Remote end closed connection"),
        (b"no HTTP\r\n\r\n", "cannot be reached: no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "cannot be reached: IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{x", "answered with no JSON"),
        (b"HTTP/1.0 503 Too Busy\r\n\r\nwait", "answered 503: (Too Busy|wait)"),
    ],
)
def test_a_broken_answer_is_an_error_and_the_next_request_succeeds(
    answer: bytes, message: str, server: CountingServer, client: JsonOverHttp
) -> None:
    server.answers = [answer]
    with pytest.raises(EngineFailed, match=message):
        client.ask("GET", "/a")
    assert server.ended.acquire(timeout=30)
    assert client.ask("GET", "/b")["path"] == "/b"


def test_an_address_where_nothing_listens_is_an_error() -> None:
    with CountingServer() as closed:
        url = closed.url
    with pytest.raises(EngineFailed, match=r"cannot be reached: .*refused"):
        JsonOverHttp(url, key=None, key_scheme="").ask("GET", "/")


def test_a_forgotten_client_closes_its_connections(server: CountingServer) -> None:
    client = JsonOverHttp(server.url, key=None, key_scheme="")
    client.ask("GET", "/a")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del client
        gc.collect()
    assert server.ended.acquire(timeout=30)


def test_the_environment_s_proxy_is_used(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = server.url.replace("http://", "http://user:pass%20word@")
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    plain = KeptConnections("http://engine.invalid:9200/base")
    assert plain.request("GET", "/a", None, {}).status == 200
    assert server.lines == ["GET http://engine.invalid:9200/base/a HTTP/1.1"]
    assert server.headers[0]["Host"] == "engine.invalid:9200"
    encrypted = JsonOverHttp("https://engine.invalid:9243", key="key", key_scheme="ApiKey")
    server.answers = [b"HTTP/1.1 403 Forbidden\r\n\r\n"]
    with pytest.raises(EngineFailed, match=r"cannot be reached: Tunnel connection failed: 403 Forbidden"):
        encrypted.ask("GET", "/a")
    assert server.lines[1].startswith("CONNECT engine.invalid:9243 HTTP/1.")
    for headers in server.headers:
        assert headers["Proxy-Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
    assert "Authorization" not in server.headers[1]
    direct = KeptConnections(server.url)
    assert direct.request("GET", "/direct", None, {}).status == 200
    assert server.lines[2] == "GET /direct HTTP/1.1"
    for connections in (plain, direct):
        connections.close()
