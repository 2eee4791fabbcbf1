"""The context of the routes: the service, the lane that runs work, metrics, and forms of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from lightir.serve.interface import Service
from lightir.serve.lane import Lane
from lightir.serve.metrics import Metrics
from lightir.serve.problems import PROBLEM_TYPE
from lightir.serve.schemas import ProblemBody

JSON_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that all routes use.

    Attributes:
        service: the served index.
        lane: the lane that runs searches.
        metrics: metrics.
    """

    service: Service
    lane: Lane
    metrics: Metrics


def json_response(content: Any, status: int = 200) -> Response:
    """Return a response with a value as JSON."""
    return Response(to_json(content), status, media_type=JSON_TYPE)


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of error responses for the OpenAPI document: those of every route, and some more."""
    every = (400, 401, 403, 408, 413, 421, 422, 431, 503, *statuses)
    content = {PROBLEM_TYPE: {"schema": ProblemBody.model_json_schema()}}
    return {status: {"description": "Problem", "content": content} for status in sorted(every)}
