"""Checks that every request must pass, whichever way it is answered: host, origin, key, load, size and depth."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TypeAlias
from urllib.parse import urlsplit

from lightir.serve.api_keys import ApiKeys, Role
from lightir.serve.forwarding import JOBS, METRICS
from lightir.serve.metrics import Metrics
from lightir.serve.problems import RETRY_AFTER_S, Problem
from lightir.serve.serve_options import LOCAL_HOSTS, MAX_JSON_DEPTH, ServeOptions

STREAMED = "/v1/bulk"
"""Path of streams, whose bodies are not read as a whole."""

MCP_PATH = "/mcp"
"""Path of the Model Context Protocol, whose tools read only."""

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

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


class RequestGate:
    """Refuses what may not pass.

    Attributes:
        metrics: metrics that requests are counted in.
    """

    def __init__(self, options: ServeOptions, keys: ApiKeys | None, metrics: Metrics) -> None:
        """Set what may pass.

        Args:
            options: limits and allowed hosts.
            keys: accepted keys; None if no request needs one.
            metrics: metrics to count in.
        """
        self.metrics = metrics
        self._options = options
        self._keys = keys
        self._hosts = frozenset({*LOCAL_HOSTS, options.host.lower(), *(host.lower() for host in options.allow_hosts)})
        self._running = 0
        self._passed: tuple[bytes | None, bytes | None] | None = None

    def check(self, method: str, path: str, headers: Headers) -> Role:
        """Return the role of a request.

        Raises:
            Problem: another host (421), a web page of another origin (403), or no key of the role (401, 403).
        """
        source = headers.get(b"host"), headers.get(b"origin")
        if self._keys is None and source == self._passed:
            return "write"
        self._check_host(headers)
        self._check_origin(method, headers)
        role = self._check_key(method, path, headers)
        if method == "POST":  # what may send this may send all else
            self._passed = source
        return role

    def check_size(self, declared: bytes) -> None:
        """Refuse a body whose declared length is too large."""
        if declared.isdigit() and int(declared[:20]) > self._options.max_body_bytes:
            raise self.too_long()

    def check_depth(self, body: bytes) -> None:
        """Refuse a body that is nested too deeply."""
        if is_nested_deeper(body, MAX_JSON_DEPTH):
            raise Problem(HTTPStatus.BAD_REQUEST, f"the body is nested deeper than {MAX_JSON_DEPTH} levels")

    def check_load(self, path: str) -> None:
        """Refuse a request if too many are being answered."""
        if self._running >= self._options.max_requests and path not in OPEN_PATHS:
            self.metrics.refuse("requests")
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"{self._options.max_requests} requests are being answered; send this one again later",
                retry_after_s=RETRY_AFTER_S,
            )

    @contextmanager
    def running(self, path: str) -> Iterator[None]:
        """Count a request while it is answered, and refuse it if too many are."""
        self.check_load(path)
        self._running += 1
        try:
            yield
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
            self.metrics.refuse("key")
            raise Problem(HTTPStatus.UNAUTHORIZED, "the API key is unknown")
        if required_role(method, path) == "write" and known.role != "write":
            raise Problem(
                HTTPStatus.FORBIDDEN, f"the API key of {known.name!r} has the role read; this request needs write"
            )
        return known.role

    def too_long(self) -> Problem:
        """Return the problem of a body that is too long."""
        self.metrics.refuse("body")
        return Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {self._options.max_body_bytes:,} bytes; send less at once, or documents as a "
            f"stream of NDJSON to {STREAMED}",
        )


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


def _host_name(host: str) -> str:
    """Return a Host header without its port, in lower case."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")
