"""The gate of the service, in front of its routes: host and origin, keys, sizes, load, headers and metrics.

It is plain ASGI, since a framework's middleware would cost more per request than a search.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightir.serve.api_keys import ApiKeys, Role
from lightir.serve.forwarding import JOBS, METRICS
from lightir.serve.metrics import Metrics
from lightir.serve.problems import RETRY_AFTER_S, Problem
from lightir.serve.serve_options import LOCAL_HOSTS, MAX_JSON_DEPTH, ServeOptions

STREAMED = "/v1/bulk"
"""Path of streams, whose bodies are not read as a whole."""

MCP_PATH = "/mcp"
"""Path of the Model Context Protocol, whose tools read only."""

FORWARDED = "forwarded"
"""Route under which a process counts requests that another one answers and counts too."""

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no key, and are answered under any load."""

PAGE_FILES = "/page/"
"""Beginning of the paths of the page's files, which need no key: the page asks for one."""

READS = frozenset(
    {
        "/",
        "/v1/search",
        "/v1/encode",
        "/v1/explain",
        "/v1/embeddings",
        "/v1/get",
        "/v1/list",
        "/embed",
        "/embed_sparse",
        "/rerank",
        MCP_PATH,
    }
)
"""Paths whose POST changes nothing. Everything else but GET and HEAD needs the role "write"."""

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
SECURITY_NAMES = frozenset(name for name, _ in SECURITY_HEADERS)

Headers: TypeAlias = Mapping[bytes, bytes]
"""The headers of a request by their names in lower case; of a repeated one the last."""

FastRoute: TypeAlias = Callable[[bytes], Awaitable[bytes | None]]
"""Function from the body of a POST request, which is JSON, to that of its response; None to leave it to the app."""

BODY_ARRIVED = "lightir.body_arrived"
"""Key of a scope that the server sets once the whole body of the request is in memory."""

_JSON = (b"content-type", b"application/json")

SendJson: TypeAlias = Callable[[bytes], Awaitable[None]]

LINGER_S = 1.0
"""Seconds for which the rest of a body is read and dropped before its connection is closed. Closing at once would reset
the connection of a client that is still sending, which may then not read the answer."""

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class Guard:
    """Refuses what may not pass, and counts what does."""

    def __init__(
        self,
        app: ASGIApp,
        options: ServeOptions,
        keys: ApiKeys | None,
        metrics: Metrics,
        fast: Mapping[str, FastRoute] | None = None,
        forward: ASGIApp | None = None,
    ) -> None:
        """Put the gate in front of an app.

        Args:
            app: the routes.
            fast: routes by path that answer in place of the app, which costs more than a search. They leave to it
                whatever is not an ordinary request.
            options: limits and allowed hosts.
            keys: accepted keys; None if no request needs one.
            metrics: metrics to count in.
            forward: app of another process that answers requests for changes, jobs and metrics; None if this does.
        """
        self._app = app
        self._options = options
        self._keys = keys
        self._metrics = metrics
        self._fast = dict(fast or {})
        self._forward = forward
        self._hosts = frozenset({*LOCAL_HOSTS, options.host.lower(), *(host.lower() for host in options.allow_hosts)})
        self._running = 0

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

        async def send_json(answer: bytes) -> None:  # the body has been read, so that nothing is left to close for
            nonlocal status
            status = 200
            length = (b"content-length", str(len(answer)).encode())
            await send({"type": "http.response.start", "status": 200, "headers": [_JSON, length, *SECURITY_HEADERS]})
            await send({"type": "http.response.body", "body": answer})

        try:
            await self._pass(scope, headers, body.receive, send_guarded, send_json)
        except Problem as problem:
            await respond(problem, scope, body.receive, send_guarded)
        finally:
            route = scope.get("answered") or getattr(scope.get("route"), "path", "unknown")
            self._metrics.count(scope["method"], str(route), status, time.perf_counter() - started)

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, send: Send, send_json: SendJson) -> None:
        self._check_host(headers)
        self._check_origin(scope["method"], headers)
        scope["role"] = self._check_key(scope["method"], scope["path"], headers)
        if self._running >= self._options.max_requests and scope["path"] not in OPEN_PATHS:
            self._metrics.refuse("requests")
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._options.max_requests} requests are being answered; send this one again later",
                retry_after_s=RETRY_AFTER_S,
            )
        self._running += 1
        try:
            if scope["path"] != STREAMED and scope["method"] not in ("GET", "HEAD"):
                body = await self._body(headers, receive, has_arrived=BODY_ARRIVED in scope)
                fast = self._fast.get(scope["path"]) if scope["method"] == "POST" else None
                if fast is not None and headers.get(b"content-type", b"").startswith(b"application/json"):
                    answer = await fast(body)
                    if answer is not None:
                        scope["answered"] = scope["path"]
                        await send_json(answer)
                        return
                receive = _replay(body, receive)
            app = self._app
            if self._forward is not None and is_forwarded(scope["method"], scope["path"]):
                scope["answered"], app = FORWARDED, self._forward
            await app(scope, receive, send)
        finally:
            self._running -= 1

    def _check_host(self, headers: Headers) -> None:
        """Refuse other names than the service's own, which a web page may have pointed here (DNS rebinding)."""
        host = headers.get(b"host", b"").decode("latin-1")
        if "*" not in self._hosts and _host_name(host) not in self._hosts:
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"the Host header is {host[:100]!r}; expected {', '.join(sorted(self._hosts))}. Allow another name "
                "with --allow-host",
            )

    def _check_origin(self, method: str, headers: Headers) -> None:
        """Refuse web pages of other origins, which could send requests in their visitors' names."""
        given = headers.get(b"origin")
        if given is None or method in ("GET", "HEAD"):
            return
        origin = given.decode("latin-1")
        if origin in self._options.allow_origins:
            return
        try:
            same = urlsplit(origin).netloc == headers.get(b"host", b"").decode("latin-1")
        except ValueError:
            same = False
        if not same:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"web pages of {origin[:100]!r} may not use this service; allow them with --allow-origin",
            )

    def _check_key(self, method: str, path: str, headers: Headers) -> Role:
        """Return the role of a request."""
        if self._keys is None:
            return "write"
        if needs_no_key(method, path):
            return "read"
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", b"").decode("latin-1")
        if not key:
            raise Problem(HTTPStatus.UNAUTHORIZED, "an API key is required: Authorization: Bearer KEY")
        known = self._keys.find(key)
        if known is None:
            self._metrics.refuse("key")
            raise Problem(HTTPStatus.UNAUTHORIZED, "the API key is unknown")
        if required_role(method, path) == "write" and known.role != "write":
            raise Problem(
                HTTPStatus.FORBIDDEN, f"the API key of {known.name!r} has the role read; this request needs write"
            )
        return known.role

    async def _body(self, headers: Headers, receive: Receive, *, has_arrived: bool) -> bytes:
        """Return the body of a request. One that has arrived is not waited for, which saves a timer.

        Raises:
            Problem: it is too long (413), nested too deeply (400), or does not arrive in time (408).
        """
        most = self._options.max_body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared[:20]) > most:
            raise self._too_long()
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            try:
                if has_arrived:
                    message = await receive()
                else:
                    async with asyncio.timeout(self._options.timeout_s):
                        message = await receive()
            except TimeoutError:
                detail = f"no part of the body arrived within {self._options.timeout_s:g} s"
                raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail) from None
            if message["type"] == "http.disconnect":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise self._too_long()
            more = message.get("more_body", False)
        body = b"".join(parts)
        if is_nested_deeper(body, MAX_JSON_DEPTH):
            raise Problem(HTTPStatus.BAD_REQUEST, f"the body is nested deeper than {MAX_JSON_DEPTH} levels")
        return body

    def _too_long(self) -> Problem:
        self._metrics.refuse("body")
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {self._options.max_body_bytes:,} bytes; send less at once, or documents as a "
            f"stream of NDJSON to {STREAMED}",
        )


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


def required_role(method: str, path: str) -> Role:
    """Return the role that a request needs; "write" for whatever is not known to change nothing."""
    return "read" if method in ("GET", "HEAD", "OPTIONS") or (method == "POST" and path in READS) else "write"


def is_forwarded(method: str, path: str) -> bool:
    """Return whether the process that commits changes must answer a request."""
    return required_role(method, path) == "write" or path == METRICS or path.startswith(JOBS)


def needs_no_key(method: str, path: str) -> bool:
    """Return whether a request is answered without a key: the state of the process, and the page's own files."""
    return path in OPEN_PATHS or (method == "GET" and (path == "/" or path.startswith(PAGE_FILES)))


def is_nested_deeper(body: bytes, levels: int) -> bool:
    """Return whether a JSON text has more than a number of levels. Of text that is not JSON the brackets count too."""
    if body.count(b"[") + body.count(b"{") <= levels:
        return False
    depth = 0
    for match in _BRACKETS.finditer(body):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > levels:
                return True
        elif first in b"]}":
            depth -= 1
    return False


async def respond(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a problem."""
    response = Response(problem.body(scope["path"]), problem.status, problem.headers())
    await response(scope, receive, send)


def _host_name(host: str) -> str:
    """Return a Host header without its port, in lower case."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives a body that was read, and then what follows."""
    first: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed
