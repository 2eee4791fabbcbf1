"""Answers to ordinary queries straight from the connection: a task, events and a framework cost more than a search.

What is no ordinary request is left to the app, whose routes give the same answers: malformed bodies, whatever the
library refuses, and searches that are slow enough for threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json

from lightir.serve.context import JSON_TYPE, Context
from lightir.serve.embedding_routes import embedded, openai_embeddings
from lightir.serve.problems import Problem
from lightir.serve.request_gate import SECURITY_HEADERS, Headers, RequestGate
from lightir.serve.schemas import EmbeddingsRequest, SearchRequest, TeiRequest
from lightir.serve.search_routes import kind_of

DirectRoute: TypeAlias = Callable[[bytes], bytes | None]
"""Function from the body of a request, which is JSON, to that of its response; None to leave it to the app."""

M = TypeVar("M", bound=BaseModel)


class DirectAnswers:
    """Answers POST requests whose whole bodies have arrived."""

    def __init__(self, gate: RequestGate, routes: Mapping[str, DirectRoute], *, allows_origins: bool) -> None:
        """Put the gate in front of routes.

        Args:
            gate: the gate.
            routes: routes by path.
            allows_origins: whether web pages of some other origins are answered; the app adds the headers for them.
        """
        self._gate = gate
        self._routes = {path.encode(): (path, route) for path, route in routes.items()}
        self._allows_origins = allows_origins

    def takes(self, path: bytes) -> bool:
        """Return whether a path has a route."""
        return path in self._routes

    def answer(self, path: bytes, headers: Headers, body: bytes, default: bytes = b"") -> bytes | None:
        """Return a response, head and body; None to leave it to the app.

        Args:
            path: path of the request, which has a route.
            headers: headers of the request.
            body: its body.
            default: lines of the server's own headers.
        """
        started = time.perf_counter()
        route_path, route = self._routes[path]
        is_json = headers.get(b"content-type", b"").startswith(b"application/json")
        if not is_json or (self._allows_origins and b"origin" in headers):
            return None
        gate, status = self._gate, int(HTTPStatus.OK)
        try:
            gate.check("POST", route_path, headers)
            gate.check_load(route_path)
            gate.check_size(headers.get(b"content-length", b""))
            gate.check_depth(body)
            answer = route(body)
            if answer is None:
                return None
            line, own = _LINE, _TYPE
        except Problem as problem:
            status, answer = problem.status, problem.body(route_path)
            line, own = _line(status), _lines(problem.headers())
        except Exception:  # noqa: BLE001 - whatever fails here fails in the app too, which says what is wrong
            return None
        gate.metrics.count("POST", route_path, status, time.perf_counter() - started)
        return b"".join((line, default, own, _SECURITY, b"content-length: %d\r\n\r\n" % len(answer), answer))


def direct_answers(context: Context, gate: RequestGate) -> DirectAnswers:
    """Return the answers of a service."""
    routes = {
        "/v1/search": _route(context, SearchRequest, kind_of, context.service.search),
        "/v1/embeddings": _route(
            context, EmbeddingsRequest, _encoding, lambda asked: openai_embeddings(context, asked)
        ),
        "/embed": _route(context, TeiRequest, _encoding, lambda asked: embedded(context, asked)),
    }
    return DirectAnswers(gate, routes, allows_origins=bool(context.service.options.allow_origins))


def _route(context: Context, model: type[M], kind: Callable[[M], str], work: Callable[[M], object]) -> DirectRoute:
    lane = context.lane

    def route(body: bytes) -> bytes | None:
        asked = model.model_validate_json(body)
        asked_kind = kind(asked)
        return to_json(lane.run_here(asked_kind, lambda: work(asked))) if lane.is_fast(asked_kind) else None

    return route


def _encoding(_: BaseModel) -> str:
    return "encode"


def _line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


def _lines(headers: Mapping[str, str]) -> bytes:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1")


_LINE = _line(HTTPStatus.OK)
_TYPE = _lines({"content-type": JSON_TYPE})
_SECURITY = b"".join(b"%b: %b\r\n" % header for header in SECURITY_HEADERS)
