"""Routes of the search page and its files, which are part of the package. The page uses the other routes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from lightir.serve.context import Context, problems
from lightir.serve.problems import Problem
from lightir.serve.request_gate import PAGE_FILES

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types of the page's files by suffix."""

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content-Security-Policy of the page: its own files, no inline script or style, and no text that becomes HTML."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page.

    Attributes:
        content: its bytes.
        media_type: its content type.
        etag: quoted hash of its bytes.
    """

    content: bytes
    media_type: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """Return the page's files by name."""
    read: dict[str, PageFile] = {}
    for file in files("lightir.serve").joinpath("page").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in TYPES:
            content = file.read_bytes()
            read[file.name] = PageFile(content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return read


def page_routes(_: Context) -> APIRouter:
    """Return the routes. A name that a request gives is looked up among the files, and is never part of a path."""
    router = APIRouter(tags=["page"])
    html = {"description": "The page", "content": {"text/html": {"schema": {"type": "string"}}}}
    known = page_files()

    def answer(name: str, request: Request) -> Response:
        file = known.get(name)
        if file is None:
            raise Problem(HTTPStatus.NOT_FOUND, f"the page has no file {name[:100]!r}")
        headers = {"content-security-policy": PAGE_POLICY, "cache-control": "no-cache", "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    @router.get(
        "/",
        summary="Show the search page",
        response_class=Response,
        response_model=None,
        responses={**problems(), 200: html, 304: {"description": "The page is as it was"}},
    )
    async def page(request: Request) -> Response:
        return answer("index.html", request)

    @router.get(PAGE_FILES + "{name}", response_model=None, include_in_schema=False)
    async def page_file(name: str, request: Request) -> Response:
        return answer(name, request)

    return router
