"""Errors as problem details (RFC 9457), with the library's messages."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic_core import to_json

from lightir.errors import (
    AlreadyExists,
    ContractMismatch,
    FormatError,
    IndexLocked,
    InvalidInput,
    LightirError,
    NotFound,
    OutcomeUnknown,
    StorageError,
    WriteFailed,
)
from lightir.search.shard_set import ShardsMissing

PROBLEM_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

_STATUSES: tuple[tuple[type[LightirError], HTTPStatus], ...] = (  # subclasses first
    (NotFound, HTTPStatus.NOT_FOUND),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
    (AlreadyExists, HTTPStatus.CONFLICT),
    (ContractMismatch, HTTPStatus.CONFLICT),
    (ShardsMissing, HTTPStatus.SERVICE_UNAVAILABLE),
    (IndexLocked, HTTPStatus.SERVICE_UNAVAILABLE),
    (OutcomeUnknown, HTTPStatus.INTERNAL_SERVER_ERROR),
    (WriteFailed, HTTPStatus.INSUFFICIENT_STORAGE),
    (StorageError, HTTPStatus.SERVICE_UNAVAILABLE),
    (FormatError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


class Problem(Exception):
    """An error response."""

    def __init__(
        self, status: int, detail: str, *, retry_after_s: int | None = None, extra: Mapping[str, Any] | None = None
    ) -> None:
        """Describe an error.

        Args:
            status: HTTP status.
            detail: message with the error, the value, the expectation and the remedy.
            retry_after_s: number of seconds after which to try again; None if that does not help.
            extra: further members of the problem's object.
        """
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.extra = dict(extra or {})

    def headers(self) -> dict[str, str]:
        """Return the headers of the response."""
        headers = {"content-type": PROBLEM_TYPE}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if self.status == HTTPStatus.UNAUTHORIZED:
            headers["www-authenticate"] = "Bearer"
        return headers

    def body(self, path: str) -> bytes:
        """Return the problem's object; under OpenAI's path with the error that its clients read."""
        title = HTTPStatus(self.status).phrase
        members: dict[str, Any] = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        members |= self.extra
        if path == "/v1/embeddings":
            kind = "invalid_request_error" if self.status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
            members["error"] = {"message": self.detail, "type": kind, "param": None, "code": None}
        return to_json(members, inf_nan_mode="strings")


def problem_of(error: LightirError) -> Problem:
    """Return the problem of an error of the library."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
    retry = RETRY_AFTER_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    extra = {"missing_shards": error.numbers} if isinstance(error, ShardsMissing) else None
    return Problem(status, printable(str(error)), retry_after_s=retry, extra=extra)


def printable(text: str) -> str:
    """Return a text that can be encoded: halves of surrogate pairs, which a query may contain, are escaped."""
    return text.encode(errors="backslashreplace").decode()
