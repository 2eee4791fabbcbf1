"""Connections to one HTTP server that are kept open between requests, by Python's library alone."""

from __future__ import annotations

import base64
import contextlib
import http.client
import select
import ssl
import time
import urllib.parse
import urllib.request
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

TIMEOUT_S = 60.0
IDLE_S = 3.0
"""Age of an unused connection at which it is closed. Servers keep theirs for longer, so that none is closed while a
request is on its way: that request would fail, and could not be sent again without knowing whether it was served."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer of a server.

    Attributes:
        status: status code.
        reason: words of the status line.
        body: content.
    """

    status: int
    reason: str
    body: bytes


class KeptConnections:
    """Connections to one server. Threads may share them: each request has a connection for itself."""

    def __init__(self, url: str) -> None:
        """Keep the address; nothing is sent.

        Args:
            url: base address, http or https. The environment variables http_proxy, https_proxy and no_proxy apply, as
                in urllib.
        """
        self._parts = urllib.parse.urlsplit(url)
        self._proxy = _proxy(self._parts)
        self._tls = ssl.create_default_context()
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        weakref.finalize(self, _close_all, self._idle)

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> HttpAnswer:
        """Send a request and return the answer. Redirects are not followed.

        Args:
            method: HTTP method.
            path: path with its query, quoted, behind the path of the base address.
            body: content; None for none.
            headers: headers.

        Raises:
            OSError, HTTPException: the server cannot be reached, or does not answer with HTTP in TIMEOUT_S.
        """
        with self._connection() as connection:
            connection.request(method, f"{self._target}{self._parts.path}{path}", body, self._common | dict(headers))
            answer = connection.getresponse()
            return HttpAnswer(answer.status, answer.reason, answer.read())

    def close(self) -> None:
        """Close the connections that no request uses; a later request opens one anew."""
        _close_all(self._idle)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[http.client.HTTPConnection]:
        """Yield a connection, and keep it if the block succeeds and the server leaves it open."""
        connection = self._usable() or self._new()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # None after "Connection: close"
            self._idle.append((connection, time.monotonic()))

    def _usable(self) -> http.client.HTTPConnection | None:
        """Return the connection that was used last if it is young, and the server has not closed it; else None."""
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - since < IDLE_S and not _is_readable(connection):
                return connection
            connection.close()

    def _new(self) -> http.client.HTTPConnection:
        """Return a connection that the first request opens."""
        is_secure, host, port = self._parts.scheme == "https", self._parts.hostname or "", self._parts.port
        if self._proxy is None:
            return self._to(host, port, is_secure=is_secure)
        through = self._to(self._proxy.host, self._proxy.port, is_secure=is_secure or self._proxy.is_secure)
        if is_secure:
            through.set_tunnel(host, port, dict(self._proxy.headers))
        return through

    def _to(self, host: str, port: int | None, *, is_secure: bool) -> http.client.HTTPConnection:
        if is_secure:
            return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    @property
    def _target(self) -> str:
        """Beginning of a request's target: the server's address if a proxy has to know it, else nothing."""
        is_told = self._proxy is not None and self._parts.scheme == "http"
        return f"http://{self._parts.netloc}" if is_told else ""

    @property
    def _common(self) -> dict[str, str]:
        """Headers of every request."""
        return dict(self._proxy.headers) if self._proxy is not None and self._parts.scheme == "http" else {}


@dataclass(frozen=True, slots=True)
class _Proxy:
    """A proxy: its address, whether it is reached by TLS, and the headers that it requires."""

    host: str
    port: int | None
    is_secure: bool
    headers: Mapping[str, str]


def _proxy(target: urllib.parse.SplitResult) -> _Proxy | None:
    """Return the proxy that the environment names for an address; None for none."""
    address = urllib.request.getproxies().get(target.scheme)
    if not address or urllib.request.proxy_bypass(target.netloc):
        return None
    parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    headers = {}
    if parts.username is not None:
        user = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    return _Proxy(parts.hostname or "", parts.port, parts.scheme == "https", headers)


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """Return whether an unused connection has something to read, which is its end, or what nobody asked for."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _close_all(idle: list[tuple[http.client.HTTPConnection, float]]) -> None:
    while idle:
        with contextlib.suppress(IndexError):
            idle.pop()[0].close()
