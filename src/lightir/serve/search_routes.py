"""Routes of searches and of query vectors."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from lightir.errors import InvalidInput
from lightir.serve.context import Context, json_response, problems
from lightir.serve.request_gate import is_nested_deeper
from lightir.serve.responses import EncodeResult, ExplainResult, SearchResult, SearchResults
from lightir.serve.schemas import EncodeRequest, ExplainRequest, SearchRequest
from lightir.serve.serve_options import MAX_JSON_DEPTH, MAX_K, MAX_OFFSET, MAX_QUERY_CHARACTERS

QueryParameter = Annotated[str, Query(max_length=MAX_QUERY_CHARACTERS, description="text of the query")]
FilterParameter = Annotated[str | None, Query(description="condition on the metadata, as a JSON object")]
FacetParameter = Annotated[list[str], Query(max_length=100, description="field whose values to count; may be repeated")]


def search_routes(context: Context) -> APIRouter:
    """Return the routes."""
    router = APIRouter(tags=["search"])

    async def answer(asked: SearchRequest) -> Response:
        return json_response(await context.lane.run(kind_of(asked), lambda: context.service.search(asked)))

    @router.post(
        "/v1/search",
        summary="Search for one query or a list of queries",
        response_model=None,
        responses={**problems(409), 200: {"model": SearchResult | SearchResults, "description": "Hits, best first"}},
    )
    async def search(asked: SearchRequest) -> Response:
        return await answer(asked)

    @router.get(
        "/v1/search",
        summary="Search for one query",
        response_model=None,
        responses={**problems(409), 200: {"model": SearchResult, "description": "Hits, best first"}},
    )
    async def search_by_address(
        q: QueryParameter,
        k: Annotated[int, Query(ge=1, le=MAX_K)] = 10,
        offset: Annotated[int, Query(ge=0, le=MAX_OFFSET)] = 0,
        mode: str | None = None,
        filter: FilterParameter = None,
        facet: FacetParameter = [],  # noqa: B006 - FastAPI copies it
        sort: str | None = None,
        explain: bool = False,
    ) -> Response:
        shown = {"k": k, "offset": offset, "facets": facet, "sort": sort, "explain": explain}
        return await answer(
            SearchRequest.model_validate({"query": q, "mode": mode, "filter": _json_object(filter), **shown})
        )

    @router.post(
        "/v1/explain",
        summary="Explain a document's score for a query",
        response_model=None,
        responses={**problems(404, 409), 200: {"model": ExplainResult, "description": "Parts of the score"}},
    )
    async def explain(asked: ExplainRequest) -> Response:
        return json_response(await context.lane.run("explain", lambda: context.service.explain(asked)))

    @router.post(
        "/v1/encode",
        summary="Encode texts as queries",
        response_model=None,
        responses={**problems(), 200: {"model": EncodeResult, "description": "Vectors, in the order of the texts"}},
    )
    async def encode(asked: EncodeRequest) -> Response:
        return json_response(await context.lane.run("encode", lambda: _encoded(context, asked)))

    return router


def kind_of(asked: SearchRequest) -> str:
    """Return the kind of a request, of which each takes another time."""
    kind = "search" if isinstance(asked.query, str) else "batch"
    return kind + " page" * asked.pages + " explained" * asked.explain


def _json_object(text: str | None) -> Any:
    """Return the object that a parameter holds as JSON; None for None.

    Raises:
        InvalidInput: it is no JSON object, or nested too deeply.
    """
    if text is None:
        return None
    try:
        value = None if is_nested_deeper(text.encode(errors="replace"), MAX_JSON_DEPTH) else json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f'filter is {text[:100]!r}; expected a JSON object, such as {{"year": 2015}}')
    return value


def _encoded(context: Context, asked: EncodeRequest) -> dict[str, Any]:
    model = context.service.model
    vectors = model.encode(asked.texts)
    dense = None if vectors is None or not asked.dense else vectors.dense
    sparse = None if vectors is None or not asked.sparse else vectors.sparse
    rows = None
    if sparse is not None:
        rows = [
            {"indices": indices.tolist(), "values": values.tolist()}
            for indices, values in (sparse.row(i) for i in range(len(asked.texts)))
        ]
    return {"model": model.name, "dense": None if dense is None else dense.tolist(), "sparse": rows}
