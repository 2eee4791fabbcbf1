"""The service as an ASGI app: routes, error handlers, and what starts and stops with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Sequence
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute

from lightir.errors import LightirError
from lightir.serve.api_keys import ApiKeys
from lightir.serve.context import Context
from lightir.serve.direct import direct_answers
from lightir.serve.document_routes import document_routes
from lightir.serve.embedding_routes import embedding_routes
from lightir.serve.forwarding import Forwarder
from lightir.serve.guard import Guard
from lightir.serve.interface import Service
from lightir.serve.lane import Lane
from lightir.serve.metrics import Metrics
from lightir.serve.page_routes import page_routes
from lightir.serve.problems import RETRY_AFTER_S, Problem, printable, problem_of
from lightir.serve.request_gate import RequestGate
from lightir.serve.search_routes import search_routes
from lightir.serve.status_routes import status_routes
from lightir.serve.writing import QueueFull, ServiceStops
from lightir.version import __version__

DESCRIPTION = """\
Semantic search without a model at query time. Errors are problem details (RFC 9457). Documents that a request adds are
searchable and durable when it is answered.
"""
ANSWER_MARGIN_S = 5.0
"""Time that the process which commits changes has to answer beyond the limits for its answers."""

MAX_SHOWN_ERRORS = 20
_TYPE_NAME = re.compile(r"[\[(]|^(str|constrained-str|function-.*)$")

logger = logging.getLogger(__name__)


def create_app(service: Service, keys: ApiKeys | None = None) -> FastAPI:
    """Return the app of a service. It closes the service when it stops.

    Its `state.direct` answers ordinary queries without it, see `lightir.serve.direct`.

    Args:
        service: the opened service.
        keys: accepted API keys; None if no request needs one.
    """
    options = service.options
    context = Context(service, Lane(options.threads, options.timeout_s, inline=not service.waits), Metrics(service))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        refresher = asyncio.create_task(_refresh_often(context))
        try:
            yield
        finally:
            refresher.cancel()
            context.lane.close()
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="lightir",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    routers = [
        routes(context) for routes in (search_routes, document_routes, embedding_routes, status_routes, page_routes)
    ]
    for router in routers:
        app.include_router(router)
    _handle_errors(app, context.metrics, [route for router in routers for route in router.routes])
    forward = None
    if service.member is not None and not service.member.commits_changes:
        answer_s = options.timeout_s + options.lock_s + ANSWER_MARGIN_S
        forward = Forwarder(service.member.socket_path, answer_s=answer_s)
    gate = RequestGate(options, keys, context.metrics)
    app.state.direct = direct_answers(context, gate)
    app.add_middleware(Guard, gate=gate, options=options, forward=forward)
    if options.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[*options.allow_origins],
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    return app


async def _refresh_often(context: Context) -> None:
    """Look for changes that other processes made, until the service stops."""
    service, known = context.service, None
    while True:
        await asyncio.sleep(service.options.refresh_s)
        await asyncio.to_thread(service.refresh)
        if service.problem != known:
            known = service.problem
            if known is not None:
                logger.warning("%s", known)


def _place(location: Sequence[str | int]) -> str:
    """Return the place of an error as a path, without the names of the types that a value may have."""
    return "/".join(str(part) for part in location if not (isinstance(part, str) and _TYPE_NAME.search(part)))


def _methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """Return the methods that a path has."""
    known = [route for route in routes if isinstance(route, APIRoute) and route.path_regex.match(path)]
    return sorted({method for route in known for method in route.methods or ()})


def _handle_errors(app: FastAPI, metrics: Metrics, routes: Sequence[BaseRoute]) -> None:
    """Answer errors with problem details."""

    def answer(request: Request, problem: Problem) -> Response:
        return Response(problem.body(request.url.path), problem.status, problem.headers())

    @app.exception_handler(Problem)
    async def of_problem(request: Request, error: Problem) -> Response:
        return answer(request, error)

    @app.exception_handler(QueueFull)
    async def of_full_queue(request: Request, error: QueueFull) -> Response:
        metrics.refuse("writes")
        return answer(request, Problem(HTTPStatus.TOO_MANY_REQUESTS, str(error), retry_after_s=RETRY_AFTER_S))

    @app.exception_handler(ServiceStops)
    async def of_stopping(request: Request, error: ServiceStops) -> Response:
        return answer(request, Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error), retry_after_s=RETRY_AFTER_S))

    @app.exception_handler(LightirError)
    async def of_library(request: Request, error: LightirError) -> Response:
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.error("%s %s: %s", request.method, request.url.path, error)
        return answer(request, problem)

    @app.exception_handler(RequestValidationError)
    async def of_validation(request: Request, error: RequestValidationError) -> Response:
        errors = [
            {"at": _place(entry["loc"]), "message": printable(entry["msg"])}
            for entry in error.errors()[:MAX_SHOWN_ERRORS]
        ]
        detail = "; ".join(f"{entry['at']}: {entry['message']}" for entry in errors) or "the request is malformed"
        extra = {"errors": [{name: printable(value) for name, value in entry.items()} for entry in errors]}
        return answer(request, Problem(HTTPStatus.UNPROCESSABLE_ENTITY, printable(detail), extra=extra))

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        problem = Problem(error.status_code, printable(str(error.detail)))
        response = answer(request, problem)
        response.headers.update(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the framework names those of the first route alone
            response.headers["allow"] = ", ".join(_methods(routes, request.url.path))
        return response

    @app.exception_handler(Exception)
    async def of_defect(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return answer(request, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the service has a defect; its log says more"))
