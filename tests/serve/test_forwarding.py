"""Forwarding to another process: what it receives, what is answered, and what happens when it does not answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("httptools")

from lightir.serve.forwarding import Forwarder
from lightir.serve.problems import Problem

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-own: 1\r\nconnection: close\r\ndate: now\r\n\r\nok"


def forwarded(handler: Handler, parts: Sequence[bytes | None], **scope: Any) -> list[dict[str, Any]]:
    """Forward a request with a body of parts to a server; None instead of a part is a client that disconnects."""

    async def run() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [
            {"type": "http.disconnect"}
            if part is None
            else {"type": "http.request", "body": part, "more_body": i + 1 < len(parts)}
            for i, part in enumerate(parts)
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[return-value]

        async def send(message: Any) -> None:
            sent.append(message)

        connections: list[asyncio.Task[None] | None] = []

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connections.append(asyncio.current_task())
            try:
                await handler(reader, writer)
            finally:
                writer.close()

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            server = await asyncio.start_unix_server(handle, path)
            asked = {"method": "POST", "raw_path": b"/v1/x%20y", "query_string": b"a=b", "headers": [], **scope}
            try:
                await Forwarder(path, answer_s=0.2)(asked, receive, send)
            finally:
                server.close()
                await asyncio.gather(*filter(None, connections), return_exceptions=True)
        return sent

    return asyncio.run(asyncio.wait_for(run(), 20))


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """Return a body that is sent in chunks."""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readline() == b"\r\n"
    return body


@settings(max_examples=30)
@given(parts=st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_the_request_arrives_as_it_was_sent(parts: list[bytes]) -> None:
    received: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend([await reader.readuntil(b"\r\n\r\n"), await read_body(reader)])
        writer.write(OK)

    headers = [(b"host", b"h"), (b"authorization", b"Bearer k"), (b"content-length", b"9"), (b"connection", b"x")]
    start, body = forwarded(handler, parts, headers=headers)
    head, content = received
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/x%20y?a=b HTTP/1.1"
    own = [b"connection: close", b"transfer-encoding: chunked"]
    assert sorted(lines[1:-2]) == sorted([*own, b"host: h", b"authorization: Bearer k"])
    assert content == b"".join(parts)
    assert (start["status"], start["headers"]) == (200, [(b"content-length", b"2"), (b"x-own", b"1")])
    assert body["body"] == b"ok"


def test_a_request_without_a_body(tmp_path: Path) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"chunked" not in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\ntransfer-encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n")

    start, body = forwarded(handler, [b""], method="GET", query_string=b"")
    assert (start["status"], start["headers"], body["body"]) == (404, [], b"no")


def test_an_answer_may_come_before_the_end_of_the_request() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        await reader.read()

    assert forwarded(handler, [b"x" * 1000] * 3 + [b""] * 2)[1]["body"] == b"ok"
    endless = [b"x" * 100_000] * 200
    assert forwarded(handler, endless)[1]["body"] == b"ok"


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def end_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK[:-1])


async def say_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"nonsense\r\n\r\n")


@pytest.mark.parametrize("handler", [hang, end, end_early, say_nonsense])
def test_no_answer_is_refused_and_nothing_is_answered_half(handler: Handler) -> None:
    with pytest.raises(Problem) as raised:
        forwarded(handler, [b"x"])
    assert (raised.value.status, raised.value.retry_after_s) == (503, 1)


def test_a_client_that_disconnects_ends_the_request() -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        seen.append(await reader.read())

    with pytest.raises(Problem):
        forwarded(handler, [b"abc", None])
    assert seen in ([b"3\r\nabc\r\n"], [])  # no last chunk, so that the request is incomplete


def test_a_socket_without_a_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="did not answer"):
        asyncio.run(Forwarder(tmp_path / "none", answer_s=1)({}, None, None))  # type: ignore[arg-type]
