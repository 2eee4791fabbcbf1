"""Routes about the service: health, readiness, metrics and the index."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from lightir.serve.context import Context, json_response, problems
from lightir.serve.problems import RETRY_AFTER_S, Problem
from lightir.serve.responses import StatusBody
from lightir.version import __version__


def status_routes(context: Context) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["status"])
    service = context.service
    ok: dict[int | str, dict[str, Any]] = {200: {"model": StatusBody, "description": "It is"}}

    @router.get("/health", summary="Say whether the process answers", response_model=None, responses=ok)
    async def health() -> Response:
        return json_response({"status": "ok"})

    @router.get(
        "/ready",
        summary="Say whether the newest state of the index is served, and all of its shards answer",
        response_model=None,
        responses={**problems(), **ok},
    )
    async def ready() -> Response:
        if service.problem is not None:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                service.problem,
                retry_after_s=RETRY_AFTER_S,
                extra={"missing_shards": missing} if (missing := service.missing_shards) else None,
            )
        return json_response({"status": "ok"})

    @router.get("/v1/info", summary="Describe the index", response_model=None, responses=problems())
    async def info(request: Request) -> Response:
        described = await context.lane.run("info", service.info)
        return json_response(
            {
                "version": __version__,
                "index": service.folder.name,
                "model": service.model.name,
                "read_only": service.is_read_only,
                "role": request.scope["role"],
                "default_mode": service.default_mode,
                **described,
            }
        )

    text = {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}

    @router.get(
        "/metrics",
        summary="Return metrics for Prometheus",
        response_class=Response,
        response_model=None,
        responses={**problems(), 200: text},
    )
    async def metrics() -> Response:
        return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
