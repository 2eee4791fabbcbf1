"""Connections of uvicorn with httptools, with limits on heads, and direct answers to queries whose bodies have arrived.

A head is a request's line and headers. Also what uvicorn itself refuses gets problem details, like every other error.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from httptools import HttpParserInvalidURLError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lightir.serve.direct import DirectAnswers
from lightir.serve.problems import Problem
from lightir.serve.request_gate import Headers

MAX_HEAD_BYTES = 1 << 16
"""Maximum number of bytes of a request's line and headers, as they arrive in parts."""

MAX_URL_BYTES = 65_535
"""Maximum number of bytes of a URL: newer versions of httptools parse no more, older ones a wrong part of more."""

MAX_DIRECT_BYTES = 1 << 16
"""Maximum number of bytes of a body that is answered directly; the app reads longer ones with control of their flow."""

DIRECT_WAIT_S = 0.1
"""Time that a body may take until the app waits for it. Most arrive with their heads, and nearly all soon after."""

_TOO_LONG = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"the request's line and headers have more than {MAX_HEAD_BYTES:,} bytes; send long queries in a POST body",
)


class HttpConnection(HttpToolsProtocol):
    """A connection that is closed if the head of a request is too long or does not arrive in time.

    A head that arrives at once, as nearly all do, needs no timer. The app learns of a request at the end of its head,
    but of one that may be answered directly only if it is not: uvicorn's own handlers are called late. Of requests that
    arrive together the first may be answered directly: many would keep other connections waiting.
    """

    head_s = 30.0
    """Maximum time from the connection, or from the first part of a head, to the end of the head."""

    direct: DirectAnswers | None = None
    """Answers to queries without the app; None for no such answers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Wait for the first request."""
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._held: list[bytes] | None = None  # parts of the body of a request that the app has not learned of
        self._held_timer: asyncio.TimerHandle | None = None
        self._given: Headers = {}  # headers of that request
        self._has_answered = False  # whether a request of the data that is parsed was answered directly
        self._default: tuple[object, bytes] = (None, b"")  # the server's own headers, and their lines

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and drop a request that is not complete."""
        self._stop_timer()
        self._end_hold()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End after the answer to the request that is arriving."""
        self._tell_app()
        super().shutdown()

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
        if self._may_be_direct():
            self._held = []
        else:
            super().on_headers_complete()

    def _may_be_direct(self) -> bool:
        """Return whether a request whose head has arrived is one that `direct` may answer, and no answer is due yet."""
        if self.direct is None or self._has_answered or not self.direct.takes(self.url):
            return False
        headers = self._given = dict(self.headers)
        length = headers.get(b"content-length", b"")
        return (
            (self.cycle is None or self.cycle.response_complete)
            and self.parser.get_method() == b"POST"
            and length.isdigit()
            and len(length) <= len(str(MAX_DIRECT_BYTES))
            and int(length) <= MAX_DIRECT_BYTES
            and not headers.keys() & {b"transfer-encoding", b"upgrade", b"expect"}
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.flow.write_paused
        )

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        if self._held is None:
            super().on_body(body)
        else:
            self._held.append(body)

    def on_message_complete(self) -> None:
        """Answer a request directly, or else tell the app of it."""
        if self._held is not None:
            assert self.direct is not None
            answer = self.direct.answer(self.url, self._given, b"".join(self._held), self._default_lines())
            if answer is not None:
                self._end_hold()
                self._has_answered = True
                self.transport.write(answer)
                self.on_response_complete()
                return
            self._tell_app()
        super().on_message_complete()

    def _default_lines(self) -> bytes:
        """Return the lines of the server's own headers, which it replaces every second."""
        headers = self.server_state.default_headers
        if self._default[0] is not headers:
            self._default = headers, b"".join(b"%b: %b\r\n" % header for header in headers)
        return self._default[1]

    def _tell_app(self) -> None:
        """Let the app answer a request that was held back."""
        held = self._end_hold()
        if held is not None:
            super().on_headers_complete()
            for part in held:
                super().on_body(part)

    def _end_hold(self) -> list[bytes] | None:
        """Return the parts of a body that was held back; None if none was."""
        held, self._held = self._held, None
        if self._held_timer is not None:
            self._held_timer.cancel()
            self._held_timer = None
        return held

    def data_received(self, data: bytes) -> None:
        """Parse data, and close the connection if a head is too long."""
        self._has_answered = False
        super().data_received(data)
        if self._held is not None and self._held_timer is None:
            self._held_timer = self.loop.call_later(DIRECT_WAIT_S, self._tell_app)
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


def connections(head_s: float, direct: DirectAnswers | None) -> type[HttpConnection]:
    """Return the class of connections whose heads have to arrive within some seconds.

    Args:
        head_s: maximum time of a head.
        direct: answers to queries without the app; None for no such answers.
    """
    return type("HttpConnection", (HttpConnection,), {"head_s": head_s, "direct": direct})
