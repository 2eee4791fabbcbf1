"""A request that is answered before its body was read closes its connection."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from lightir.serve.api_keys import add_key


class Endpoint(NamedTuple):
    """Address of a service, and a key with the role write."""

    host: str
    port: int
    key: str


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, serve_module: Any, make_shop: Any) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("refused")
    keys = folder / "keys.json"
    key = add_key(keys, "app", "write")
    with serve_module(make_shop(folder), "--keys", str(keys)) as (_, address):
        parts = urlsplit(address)
        yield Endpoint(str(parts.hostname), int(parts.port or 0), key)


@contextlib.contextmanager
def asked(endpoint: Endpoint, head: str) -> Iterator[socket.socket]:
    """Send the head of a POST request."""
    lines = f"POST {head}\r\nhost: localhost\r\ncontent-type: application/json\r\n\r\n".replace("KEY", endpoint.key)
    with socket.create_connection((endpoint.host, endpoint.port), timeout=30) as opened:
        opened.sendall(lines.encode())
        yield opened


def rest(opened: socket.socket) -> bytes:
    """Return what arrives until the other side closes the connection."""
    received = b""
    while part := opened.recv(65536):
        received += part
    return received


REFUSED = [
    ("/v1/documents HTTP/1.1\r\ncontent-length: 9", 401),
    ("/v1/documents HTTP/1.1\r\ncontent-length: 9\r\nexpect: 100-continue", 401),
    ("/v1/bulk HTTP/1.1\r\ntransfer-encoding: chunked", 401),
    ("/v1/documents HTTP/1.1\r\ncontent-length: 900000000\r\nx-api-key: KEY", 413),
    ("/v1/bulk HTTP/1.1\r\ncontent-length: 9\r\nx-api-key: KEY", 415),
]


@pytest.mark.parametrize(("head", "status"), REFUSED)
def test_a_refusal_before_the_body_closes_the_connection(endpoint: Endpoint, head: str, status: int) -> None:
    with asked(endpoint, head) as opened:
        received = rest(opened)  # fails by its timeout if the connection stays open
    assert received.startswith(f"HTTP/1.1 {status} ".encode()), received
    assert b"\r\nconnection: close\r\n" in received


def test_a_client_that_sends_all_before_it_reads_gets_the_answer(endpoint: Endpoint) -> None:
    with asked(endpoint, "/v1/documents HTTP/1.1\r\ncontent-length: 4000000") as opened:
        for _ in range(4):
            opened.sendall(b"x" * 1_000_000)
        assert rest(opened).startswith(b"HTTP/1.1 401 ")


def test_a_refusal_after_the_body_keeps_the_connection(endpoint: Endpoint) -> None:
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=30)
    headers = {"content-type": "application/json", "x-api-key": endpoint.key}
    for _ in range(2):
        connection.request("POST", "/v1/search", b"{", headers)
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("connection")) == (422, None)
        answer.read()
    connection.close()
