"""Limits on the head of a request, its line and headers, which uvicorn with httptools does not have."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 16
"""Maximum number of bytes of a request's line and headers, as they arrive in parts."""


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
        """Note that a head has ended."""
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        """Parse data, and close the connection if a head is too long."""
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            else:
                self._start_timer()

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: HTTPStatus) -> None:
        """Close the connection; say why, unless the answer to an earlier request is being sent."""
        if self._head_bytes and (self.cycle is None or self.cycle.response_complete):
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(head.encode())
        self.transport.close()


def bounded_heads(seconds: float) -> type[BoundedHeads]:
    """Return the class of connections whose heads have to arrive within some seconds."""
    return type("BoundedHeads", (BoundedHeads,), {"head_s": seconds})
