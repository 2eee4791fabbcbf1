"""Routes of documents and of the jobs that change them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import ValidationError
from starlette import convertors
from starlette.responses import Response

from lightir.errors import InvalidInput, LightirError
from lightir.serve.context import Context, json_response, problems
from lightir.serve.problems import Problem, printable, problem_of
from lightir.serve.request_gate import STREAMED
from lightir.serve.responses import BulkResult, FoundDocument, FoundDocuments, IdList, JobBody, JobList
from lightir.serve.schemas import (
    DeleteRequest,
    DocumentBody,
    DocumentItem,
    DocumentsRequest,
    IdsRequest,
    ListRequest,
    MetadataRequest,
)
from lightir.serve.service import document_json
from lightir.serve.writing import Change, Delete, DeleteWhere, Job, QueueFull, SetMetadata, Upsert, WriteQueue
from lightir.types import Document


class IdInPath(convertors.PathConvertor):
    """A path parameter that takes all characters, line breaks too."""

    regex = "(?s:.+)"


convertors.register_url_convertor("document", IdInPath())

STREAM_DOCUMENTS = 500
"""Maximum number of documents per commit of a stream."""

NDJSON = ("application/x-ndjson", "application/jsonl", "application/x-jsonlines")

IdParameter = Annotated[str, Path(min_length=1, max_length=2500, description="id of the document")]
WaitParameter = Annotated[bool, Query(description="wait for the commit; otherwise the answer is 202 with the job")]
CHANGED: dict[int | str, dict[str, Any]] = {
    200: {"model": JobBody, "description": "The change is durable, and searches see it"},
    202: {"model": JobBody, "description": "The change waits; ask for its job"},
}


def document_routes(context: Context) -> APIRouter:
    """Return the routes."""
    router = APIRouter()
    _add_reads(router, context)
    _add_changes(router, context)
    _add_stream(router, context)
    _add_jobs(router, context)
    return router


def _add_reads(router: APIRouter, context: Context) -> None:
    service, lane = context.service, context.lane

    @router.get(
        "/v1/documents/{doc_id:document}",
        summary="Get a document",
        tags=["documents"],
        response_model=None,
        responses={**problems(404), 200: {"model": FoundDocument, "description": "The document"}},
    )
    async def get_document(doc_id: IdParameter) -> Response:
        return json_response(document_json(await lane.run("get", lambda: service.document(doc_id))))

    @router.post(
        "/v1/get",
        summary="Get several documents",
        tags=["documents"],
        response_model=None,
        responses={**problems(), 200: {"model": FoundDocuments, "description": "The documents that exist"}},
    )
    async def get_documents(asked: IdsRequest) -> Response:
        documents = await lane.run("get several", lambda: service.documents(asked.doc_ids))
        return json_response({"documents": [document_json(document) for document in documents]})

    @router.post(
        "/v1/list",
        summary="List ids of documents by filter",
        tags=["documents"],
        response_model=None,
        responses={**problems(), 200: {"model": IdList, "description": "Ids in ascending order"}},
    )
    async def list_documents(asked: ListRequest) -> Response:
        def listed() -> dict[str, Any]:
            total, doc_ids = service.listed(asked.filter, asked.after, asked.limit)
            after = doc_ids[-1] if len(doc_ids) == asked.limit else None
            return {"total": total, "doc_ids": doc_ids, "next": after}

        return json_response(await lane.run("list", listed))


def _add_changes(router: APIRouter, context: Context) -> None:
    @router.put(
        "/v1/documents/{doc_id:document}",
        summary="Add or replace a document",
        tags=["documents"],
        response_model=None,
        responses={**problems(429, 507), **CHANGED},
    )
    async def put_document(doc_id: IdParameter, body: DocumentBody, wait: WaitParameter = True) -> Response:
        document = Document(doc_id, body.text, body.title, body.metadata)
        return await _changed(context, Upsert([document]), wait)

    @router.post(
        "/v1/documents",
        summary="Add or replace documents",
        tags=["documents"],
        response_model=None,
        responses={**problems(429, 507), **CHANGED},
    )
    async def post_documents(body: DocumentsRequest, wait: WaitParameter = True) -> Response:
        return await _changed(context, Upsert([item.document() for item in body.documents]), wait)

    @router.patch(
        "/v1/documents/{doc_id:document}",
        summary="Change metadata of a document",
        tags=["documents"],
        response_model=None,
        responses={**problems(404, 429, 507), **CHANGED},
    )
    async def patch_document(doc_id: IdParameter, body: MetadataRequest, wait: WaitParameter = True) -> Response:
        return await _changed(context, SetMetadata({doc_id: body.metadata}), wait)

    @router.delete(
        "/v1/documents/{doc_id:document}",
        summary="Delete a document",
        tags=["documents"],
        response_model=None,
        responses={**problems(429, 507), **CHANGED},
    )
    async def delete_document(doc_id: IdParameter, wait: WaitParameter = True) -> Response:
        return await _changed(context, Delete([doc_id]), wait)

    @router.post(
        "/v1/delete",
        summary="Delete documents by ids or by a filter",
        tags=["documents"],
        response_model=None,
        responses={**problems(429, 507), **CHANGED},
    )
    async def delete_documents(body: DeleteRequest, wait: WaitParameter = True) -> Response:
        if (body.doc_ids is None) == (body.filter is None):
            raise InvalidInput("expected either doc_ids or filter")
        change: Change = DeleteWhere(body.filter) if body.filter is not None else Delete(body.doc_ids or [])
        return await _changed(context, change, wait)


def _add_stream(router: APIRouter, context: Context) -> None:
    schema = {"type": "string", "description": "a document per line, as POST /v1/documents takes them"}
    line = '{"doc_id": "kettle-7", "title": "Steel kettle", "text": "Holds 1.7 l.", "metadata": {"price": 39.5}}\n'
    body = {"required": True, "content": {NDJSON[0]: {"schema": schema, "example": line}}}

    @router.post(
        STREAMED,
        summary="Add or replace documents from a stream of NDJSON",
        description=f"Every {STREAM_DOCUMENTS} documents are a commit. After an error, the problem's member "
        '"committed" is the number of lines that are durable. Documents replace those with their ids, so that a '
        "stream can be sent again.",
        tags=["documents"],
        response_model=None,
        openapi_extra={"requestBody": body},
        responses={**problems(415, 429, 507), 200: {"model": BulkResult, "description": "All lines are durable"}},
    )
    async def stream_documents(request: Request) -> Response:
        writes = _writes(context)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in NDJSON:
            detail = f"the content type is {kind[:100]!r}; expected {' or '.join(NDJSON)}"
            raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
        committed = 0
        try:
            async for documents in _batches(request, context):
                job = await _queued(writes, Upsert(documents))
                await asyncio.shield(asyncio.wrap_future(job.result))
                committed += len(documents)
        except LightirError as error:
            problem = problem_of(error)
            raise Problem(
                problem.status,
                problem.detail,
                retry_after_s=problem.retry_after_s,
                extra={"committed": committed},
            ) from error
        return json_response({"documents": committed})


def _add_jobs(router: APIRouter, context: Context) -> None:
    @router.get(
        "/v1/jobs",
        summary="List recent changes",
        tags=["jobs"],
        response_model=None,
        responses={**problems(), 200: {"model": JobList, "description": "Jobs, newest first"}},
    )
    async def list_jobs(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        writes = context.service.writes
        jobs = [] if writes is None else writes.jobs()[:limit]
        return json_response({"jobs": [job.as_json() for job in jobs]})

    @router.get(
        "/v1/jobs/{number}",
        summary="Get a change",
        tags=["jobs"],
        response_model=None,
        responses={**problems(404), 200: {"model": JobBody, "description": "The job"}},
    )
    async def get_job(number: Annotated[int, Path(ge=1)]) -> Response:
        writes = context.service.writes
        job = None if writes is None else writes.job(number)
        if job is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no job {number}; the service remembers the last 1,000")
        return json_response(job.as_json())


def _writes(context: Context) -> WriteQueue:
    if context.service.writes is None:
        raise Problem(HTTPStatus.FORBIDDEN, f"the service is read-only; {context.service.why_read_only}")
    return context.service.writes


async def _changed(context: Context, change: Change, wait: bool) -> Response:
    """Queue a change, and answer with its job when it is committed, or at once, or when the time is over."""
    job = _writes(context).submit(change)
    if wait:
        result = asyncio.wrap_future(job.result)
        done, _ = await asyncio.wait([result], timeout=context.service.options.timeout_s)
        if done:
            result.result()  # raises the job's error
            return json_response(job.as_json())
    job.result.add_done_callback(lambda done: done.exception())  # nobody else reads it
    return json_response(job.as_json(), HTTPStatus.ACCEPTED)


async def _queued(writes: WriteQueue, change: Change) -> Job:
    """Queue a change of a stream, which waits for its place."""
    while True:
        try:
            return writes.submit(change)
        except QueueFull:
            await asyncio.sleep(0.05)


async def _batches(request: Request, context: Context) -> AsyncIterator[list[Document]]:
    """Yield the documents of a stream, up to STREAM_DOCUMENTS at once, and no more text than a body may have.

    Raises:
        InvalidInput: a line that is no document, or too long.
    """
    most = context.service.options.max_body_bytes
    documents: list[Document] = []
    n_bytes, number = 0, 0
    async for line in _lines(request, context):
        number += 1
        if not line.strip():
            continue
        try:
            documents.append(DocumentItem.model_validate_json(line).document())
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            field = "/".join(map(str, first["loc"])) or "the line"
            raise InvalidInput(f"line {number}: {field}: {printable(first['msg'])}") from None
        n_bytes += len(line)
        if len(documents) == STREAM_DOCUMENTS or n_bytes >= most:
            yield documents
            documents, n_bytes = [], 0
    if documents:
        yield documents


async def _lines(request: Request, context: Context) -> AsyncIterator[bytes]:
    """Yield the lines of a body as they arrive.

    Raises:
        InvalidInput: a line is too long.
        Problem: nothing arrives in time.
    """
    options = context.service.options
    rest = bytearray()
    parts = request.stream()
    while True:
        try:
            async with asyncio.timeout(options.timeout_s):
                part = await anext(parts, None)
        except TimeoutError:
            detail = f"no part of the body arrived within {options.timeout_s:g} s"
            raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail) from None
        if part is None:
            break
        *lines, tail = part.split(b"\n")
        for line in lines:
            rest += line
            _check_line(rest, options.max_body_bytes)
            yield bytes(rest)
            rest.clear()
        rest += tail
        _check_line(rest, options.max_body_bytes)
    if rest:
        yield bytes(rest)


def _check_line(line: bytearray, most: int) -> None:
    if len(line) > most:
        raise InvalidInput(f"a line has more than {most:,} bytes; expected a document per line")
