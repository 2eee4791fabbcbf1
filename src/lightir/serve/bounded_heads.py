"""Limits on the head of a request, its line and headers, which uvicorn with httptools does not have.

Also what uvicorn itself refuses gets problem details, like every other error.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from httptools import HttpParserInvalidURLError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lightir.serve.guard import BODY_ARRIVED
from lightir.serve.problems import Problem

MAX_HEAD_BYTES = 1 << 16
"""Maximum number of bytes of a request's line and headers, as they arrive in parts."""

MAX_URL_BYTES = 65_535
"""Maximum number of bytes of a URL: newer versions of httptools parse no more, older ones a wrong part of more."""

_TOO_LONG = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"the request's line and headers have more than {MAX_HEAD_BYTES:,} bytes; send long queries in a POST body",
)


class BoundedHeads(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too long or does not arrive in time.

    A head that arrives at once, as nearly all do, needs no timer.
    """

    head_s = 30.0
    """Maximum time from the connection, or from the first part of a head, to the end of the head."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the first request."""
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Note that a head begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Note that a head has ended, and refuse a URL that is too long with whichever version of httptools."""
        self._in_head = False
        self._stop_timer()
        if len(self.url) > MAX_URL_BYTES:
            raise HttpParserInvalidURLError
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Tell the app that the body has arrived."""
        super().on_message_complete()
        self.scope[BODY_ARRIVED] = True  # type: ignore[literal-required]

    def data_received(self, data: bytes) -> None:
        """Parse data, and close the connection if a head is too long."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(_TOO_LONG)
            else:
                self._start_timer()

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._refuse_late_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def send_400_response(self, msg: str) -> None:
        """Close a connection whose data cannot be parsed, such as a URL of more than 65,535 bytes."""
        problem = Problem(HTTPStatus.BAD_REQUEST, f"{msg} Send HTTP/1.1 with a URL of at most {MAX_URL_BYTES:,} bytes.")
        self._send_problem(problem)
        self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        """Close the connection; say why, unless the answer to an earlier request is being sent."""
        if self._head_bytes and (self.cycle is None or self.cycle.response_complete):
            self._send_problem(problem)
        self.transport.close()

    def _refuse_late_head(self) -> None:
        self._refuse(Problem(HTTPStatus.REQUEST_TIMEOUT, f"the head did not arrive in {self.head_s:g} seconds"))

    def _send_problem(self, problem: Problem) -> None:
        body, status = problem.body(""), HTTPStatus(problem.status)
        headers = {**problem.headers(), "connection": "close", "content-length": str(len(body))}
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)


def bounded_heads(seconds: float) -> type[BoundedHeads]:
    """Return the class of connections whose heads have to arrive within some seconds."""
    return type("BoundedHeads", (BoundedHeads,), {"head_s": seconds})
