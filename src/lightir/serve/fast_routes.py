"""The routes of queries without the framework, which costs more than a search. The framework's routes give the same.

What is no ordinary request is left to them: malformed bodies, and whatever the library refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from lightir.errors import LightirError
from lightir.serve.context import Context
from lightir.serve.embedding_routes import embedded, openai_embeddings
from lightir.serve.guard import FastRoute
from lightir.serve.schemas import EmbeddingsRequest, SearchRequest, TeiRequest
from lightir.serve.search_routes import kind_of

M = TypeVar("M", bound=BaseModel)


def fast_routes(context: Context) -> dict[str, FastRoute]:
    """Return the routes by path."""
    return {
        "/v1/search": _route(context, SearchRequest, kind_of, context.service.search),
        "/v1/embeddings": _route(
            context, EmbeddingsRequest, _encoding, lambda asked: openai_embeddings(context, asked)
        ),
        "/embed": _route(context, TeiRequest, _encoding, lambda asked: embedded(context, asked)),
    }


def _route(context: Context, model: type[M], kind: Callable[[M], str], work: Callable[[M], object]) -> FastRoute:
    async def route(body: bytes) -> bytes | None:
        try:
            asked = model.model_validate_json(body)
            return to_json(await context.lane.run(kind(asked), lambda: work(asked)))
        except (ValidationError, LightirError):
            return None  # the framework's route says what is wrong

    return route


def _encoding(_: BaseModel) -> str:
    return "encode"
