"""Routes of other services' APIs, so that their clients get query vectors here: OpenAI, text-embeddings-inference."""

from __future__ import annotations

import base64
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from lightir.errors import InvalidInput
from lightir.serve.context import Context, json_response, problems
from lightir.serve.responses import EmbeddingsResult, RankedText, SparseValue
from lightir.serve.schemas import EmbeddingsRequest, TeiRequest, TeiRerankRequest, TeiSparseRequest


def embedding_routes(context: Context) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["embeddings"])

    @router.post(
        "/v1/embeddings",
        summary="Encode texts as queries, as OpenAI's API does",
        response_model=None,
        responses={**problems(), 200: {"model": EmbeddingsResult, "description": "Embeddings"}},
    )
    async def embeddings(asked: EmbeddingsRequest) -> Response:
        return json_response(await context.lane.run("encode", lambda: openai_embeddings(context, asked)))

    async def embed(asked: TeiRequest) -> Response:
        return json_response(await context.lane.run("encode", lambda: embedded(context, asked)))

    for path in ("/embed", "/"):
        router.post(
            path,
            summary="Encode texts as queries, as text-embeddings-inference does",
            name=f"embed at {path}",
            response_model=None,
            responses={**problems(), 200: {"model": list[list[float]], "description": "Dense vectors"}},
        )(embed)

    @router.post(
        "/embed_sparse",
        summary="Encode texts as sparse queries, as text-embeddings-inference does",
        response_model=None,
        responses={**problems(), 200: {"model": list[list[SparseValue]], "description": "Sparse vectors"}},
    )
    async def embed_sparse(asked: TeiSparseRequest) -> Response:
        return json_response(await context.lane.run("encode", lambda: _sparse(context, _texts(asked.inputs))))

    @router.post(
        "/rerank",
        summary="Rank texts for a query by BM25, in the form of text-embeddings-inference",
        response_model=None,
        responses={**problems(), 200: {"model": list[RankedText], "description": "Texts, best first"}},
    )
    async def rerank(asked: TeiRerankRequest) -> Response:
        return json_response(await context.lane.run("rerank", lambda: _ranked(context, asked)))

    return router


def _texts(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given


def embedded(context: Context, asked: TeiRequest) -> list[list[float]]:
    """Return the answer of text-embeddings-inference to a request.

    Raises:
        InvalidInput: the index has no dense branch, or the request asks for what the vectors are not.
    """
    if not asked.normalize:
        raise InvalidInput("normalize is false; query vectors always have length 1")
    rows: list[list[float]] = context.service.model.dense(_texts(asked.inputs), asked.dimensions).tolist()
    return rows


def openai_embeddings(context: Context, asked: EmbeddingsRequest) -> dict[str, Any]:
    """Return OpenAI's answer to a request.

    Raises:
        InvalidInput: the index has no dense branch, or `dimensions` is above its width.
    """
    texts = _texts(asked.input)
    vectors = context.service.model.dense(texts, asked.dimensions)
    rows: list[Any] = vectors.tolist()
    if asked.encoding_format == "base64":
        rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
    n_words = sum(len(text.split()) for text in texts)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
        "model": context.service.model.name,
        "usage": {"prompt_tokens": n_words, "total_tokens": n_words},
    }


def _sparse(context: Context, texts: list[str]) -> list[list[dict[str, float]]]:
    vectors = context.service.model.sparse(texts)
    rows = (vectors.row(i) for i in range(len(texts)))
    return [
        [{"index": index, "value": value} for index, value in zip(indices.tolist(), values.tolist(), strict=True)]
        for indices, values in rows
    ]


def _ranked(context: Context, asked: TeiRerankRequest) -> list[dict[str, Any]]:
    scores = context.service.text_scores(asked.query, asked.texts, raw=asked.raw_scores)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    ranked: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
    if asked.return_text:
        for entry in ranked:
            entry["text"] = asked.texts[entry["index"]]
    return ranked
