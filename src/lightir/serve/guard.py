"""The gate of the service as an app in front of its routes, with headers and metrics.

It is plain ASGI, since a framework's middleware would cost more per request than a search.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from http import HTTPStatus
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightir.serve.problems import Problem
from lightir.serve.request_gate import SECURITY_HEADERS, SECURITY_NAMES, STREAMED, Headers, RequestGate, is_forwarded
from lightir.serve.serve_options import ServeOptions

FORWARDED = "forwarded"
"""Route under which a process counts requests that another one answers and counts too."""

LINGER_S = 1.0
"""Seconds for which the rest of a body is read and dropped before its connection is closed. Closing at once would reset
the connection of a client that is still sending, which may then not read the answer."""


class Guard:
    """Refuses what may not pass, and counts what does."""

    def __init__(self, app: ASGIApp, gate: RequestGate, options: ServeOptions, forward: ASGIApp | None = None) -> None:
        """Put the gate in front of an app.

        Args:
            app: the routes.
            gate: the gate.
            options: limits.
            forward: app of another process that answers requests for changes, jobs and metrics; None if this does.
        """
        self._app = app
        self._gate = gate
        self._options = options
        self._forward = forward

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 500
        headers: Headers = dict(scope["headers"])
        body = _Body(headers, receive)
        send_closing = body.closing(send)

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name for name, _ in message["headers"]} & SECURITY_NAMES
                message["headers"] += [header for header in SECURITY_HEADERS if header[0] not in own]
            await send_closing(message)

        try:
            await self._pass(scope, headers, body.receive, send_guarded)
        except Problem as problem:
            await respond(problem, scope, body.receive, send_guarded)
        finally:
            route = scope.get("answered") or getattr(scope.get("route"), "path", "unknown")
            self._gate.metrics.count(scope["method"], str(route), status, time.perf_counter() - started)

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        scope["role"] = self._gate.check(method, path, headers)
        with self._gate.running(path):
            if path != STREAMED and method not in ("GET", "HEAD"):
                receive = _replay(await self._body(headers, receive), receive)
            app = self._app
            if self._forward is not None and is_forwarded(method, path):
                scope["answered"], app = FORWARDED, self._forward
            await app(scope, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Return the body of a request.

        Raises:
            Problem: it is too long (413), nested too deeply (400), or does not arrive in time (408).
        """
        self._gate.check_size(headers.get(b"content-length", b"0"))
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    message = await receive()
            except TimeoutError:
                detail = f"no part of the body arrived within {self._options.timeout_s:g} s"
                raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail) from None
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._options.max_body_bytes:
                raise self._gate.too_long()
            more = message.get("more_body", False)
        body = b"".join(parts)
        self._gate.check_depth(body)
        return body


class _Body:
    """The body of a request, of which an early answer may leave a part unread.

    The rest of the body could then be taken for the next request, or the next request for the rest of the body. So such
    an answer closes the connection.
    """

    def __init__(self, headers: Headers, receive: Receive) -> None:
        """Note whether there is a body."""
        self._unread = headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers
        self._receive = receive

    async def receive(self) -> Message:
        """Return the next part."""
        message = await self._receive()
        self._unread = bool(message.get("more_body", False))
        return message

    def closing(self, send: Send) -> Send:
        """Return a function that sends an answer and closes the connection if the body has not been read by then."""
        closes = False

        async def send_closing(message: Message) -> None:
            nonlocal closes
            if message["type"] == "http.response.start" and self._unread:
                closes = True
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            if closes and message["type"] == "http.response.body" and not message.get("more_body", False):
                await send({**message, "more_body": True})
                await self._drop_rest()
                message = {"type": "http.response.body", "body": b"", "more_body": False}
            await send(message)

        return send_closing

    async def _drop_rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while self._unread:
                    await self.receive()


async def respond(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a problem."""
    response = Response(problem.body(scope["path"]), problem.status, problem.headers())
    await response(scope, receive, send)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that was read, and then what follows."""
    first: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed
