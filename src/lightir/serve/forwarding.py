"""Requests that a process forwards to the one that commits changes, over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from pathlib import Path

import httptools
from starlette.types import Receive, Scope, Send

from lightir.serve.problems import RETRY_AFTER_S, Problem

JOBS, METRICS = "/v1/jobs", "/metrics"
"""Paths that are forwarded though they change nothing: the process that commits changes alone knows the answer."""

PART_BYTES = 1 << 16

_OF_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade", b"expect", b"date"}
)
"""Headers that hold for one connection, or that this process sends itself."""


class Forwarder:
    """Sends requests to the process that commits changes, and returns its answers."""

    def __init__(self, path: Path, *, answer_s: float) -> None:
        """Set where requests go.

        Args:
            path: path of the socket.
            answer_s: maximum time for an answer, from the end of the request on.
        """
        self._path = path
        self._answer_s = answer_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request.

        Raises:
            Problem: the other process ends or hangs (503).
        """
        answer = _Answer()
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
            try:
                async with asyncio.timeout(None) as limit:
                    await self._exchange(scope, receive, reader, writer, answer, limit)
            finally:
                writer.close()
        except (OSError, TimeoutError, httptools.HttpParserError):
            answer.complete = False
        if not answer.complete:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the process that commits changes did not answer, and the change was made as a whole or not at all; "
                "send it again, which is safe",
                retry_after_s=RETRY_AFTER_S,
            )
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": bytes(answer.body)})

    async def _exchange(
        self,
        scope: Scope,
        receive: Receive,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: _Answer,
        limit: asyncio.Timeout,
    ) -> None:
        """Send a request and read the answer, which may come before the end of the request."""

        async def sending() -> None:
            await _send_request(scope, receive, writer)
            limit.reschedule(asyncio.get_running_loop().time() + self._answer_s)

        sent = asyncio.create_task(sending())
        try:
            parser = httptools.HttpResponseParser(answer)
            while not answer.complete and (part := await reader.read(PART_BYTES)):
                parser.feed_data(part)
            answer.status = parser.get_status_code() if answer.complete else 0
        finally:
            sent.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sent


class _Answer:
    """An answer as httptools' parser reads it; the names of the methods are the parser's."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = bytearray()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _OF_CONNECTION:
            self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


async def _send_request(scope: Scope, receive: Receive, writer: asyncio.StreamWriter) -> None:
    """Send a request's line, headers, and body as it arrives."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    has_body = scope["method"] not in ("GET", "HEAD")
    lines = [b"%b %b HTTP/1.1" % (scope["method"].encode(), target), b"connection: close"]
    lines += [b"transfer-encoding: chunked"] * has_body
    left_out = _OF_CONNECTION | {b"content-length"}
    lines += [b"%b: %b" % (name, value) for name, value in scope["headers"] if name not in left_out]
    writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
    while has_body:
        message = await receive()
        if message["type"] == "http.disconnect":
            writer.close()  # the other process sees that the request ends early
            return
        if body := message.get("body", b""):
            writer.write(b"%x\r\n%b\r\n" % (len(body), body))
            await writer.drain()
        if not message.get("more_body", False):
            writer.write(b"0\r\n\r\n")
            break
    await writer.drain()
