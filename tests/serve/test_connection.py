"""Heads of requests that are too long, or do not arrive: their connections are closed, and others are answered."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from lightir.serve.connection import MAX_HEAD_BYTES, MAX_URL_BYTES

HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, serve_module: Any, make_shop: Any) -> Iterator[tuple[str, int]]:
    with serve_module(make_shop(tmp_path_factory.mktemp("heads")), "--timeout", "3") as (_, address):
        host = urlsplit(address)
        yield str(host.hostname), int(host.port or 0)


@contextlib.contextmanager
def connection(endpoint: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(endpoint, timeout=30) as opened:
        yield opened


def rest(opened: socket.socket) -> bytes:
    """Return what arrives until the other side closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while part := opened.recv(4096):
            received += part
    return received


def problem(received: bytes) -> Any:
    """Return the problem details of a response, whose status is that of its first line."""
    head, _, body = received.partition(b"\r\n\r\n")
    details = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % details["status"])
    assert b"\r\ncontent-type: application/problem+json\r\n" in head
    assert b"\r\ncontent-length: %d" % len(body) in head
    return details


def test_a_head_in_parts_is_answered(endpoint: tuple[str, int]) -> None:
    with connection(endpoint) as opened:
        for _ in range(2):
            for byte in range(0, len(HEAD), 16):
                opened.sendall(HEAD[byte : byte + 16])
                time.sleep(0.001)
            opened.sendall(b"x-long: " + b"y" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\n")
            received = b""
            while not received.endswith(b'{"status":"ok"}'):
                received += (part := opened.recv(4096))
                assert part, received
            assert received.startswith(b"HTTP/1.1 200")


def test_several_requests_at_once_are_answered(endpoint: tuple[str, int]) -> None:
    with connection(endpoint) as opened:
        opened.sendall((HEAD + b"\r\n") * 3 + HEAD + b"connection: close\r\n\r\n")
        assert rest(opened).count(b"HTTP/1.1 200") == 4


@pytest.mark.parametrize("part", [b"x: " + b"y" * 1000 + b"\r\n", b"z" * 1000])
def test_a_head_without_end_is_refused(endpoint: tuple[str, int], part: bytes) -> None:
    for before in (HEAD, HEAD + b"\r\n" + HEAD):  # also of the second request of a connection
        with connection(endpoint) as opened:
            opened.sendall(before + b"x-first: ")
            with contextlib.suppress(ConnectionResetError, BrokenPipeError):
                for _ in range(100 * MAX_HEAD_BYTES // len(part)):
                    opened.sendall(part)
                raise AssertionError("everything is read")


def test_a_head_that_is_too_long_gets_431(endpoint: tuple[str, int]) -> None:
    with connection(endpoint) as opened:
        opened.sendall(HEAD)
        opened.sendall(b"x: " + b"y" * MAX_HEAD_BYTES)
        assert problem(rest(opened))["status"] == 431


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /health?" + b"x" * MAX_URL_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / of no version\r\n\r\n",
        b"\x16\x03\x01 a client that expects TLS\r\n\r\n",
    ],
)
def test_what_cannot_be_parsed_gets_400(endpoint: tuple[str, int], request_line: bytes) -> None:
    with connection(endpoint) as opened:
        opened.sendall(request_line)
        refused = problem(rest(opened))
    assert refused["status"] == 400
    assert f"{MAX_URL_BYTES:,} bytes" in refused["detail"]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"", b""), (b"GET", b"HTTP/1.1 408 "), (HEAD, b"HTTP/1.1 408 "), (HEAD + b"\r\n" + HEAD, b"HTTP/1.1 200 ")],
)
def test_a_head_that_does_not_arrive_is_refused(endpoint: tuple[str, int], sent: bytes, answer: bytes) -> None:
    with connection(endpoint) as opened:
        opened.sendall(sent)
        received = rest(opened)  # returns, since the connection is closed
    assert received.startswith(answer)
    if answer.startswith(b"HTTP/1.1 408"):
        assert problem(received)["detail"] == "the head did not arrive in 3 seconds"
    assert received.count(b" 408 ") == (1 if sent else 0)
