"""Documents by their names: the id, and values of fields with the flag `key`, such as part numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lightir.index.metadata_filters import json_path
from lightir.index.passages.naming import ID_SUFFIX_LENGTH, document_of

if TYPE_CHECKING:
    from lightir.index.view import View

MAX_NAME = 512
"""Maximum number of characters of a name that is looked up."""


def with_id(view: View, doc_id: str, *, any_case: bool) -> list[int]:
    """Return the doc_ords of the document with an id; a document that is stored as passages has several.

    Args:
        view: the view.
        doc_id: text that may be an id.
        any_case: return documents whose ids differ in the case of ASCII letters if no document has the id. This looks
            at all ids.
    """
    if not doc_id or len(doc_id) > MAX_NAME:
        return []
    doc_ords = view.doc_ords(doc_id)
    return _with_id_like(view, doc_id) if any_case and not doc_ords else doc_ords


def with_key(view: View, value: str) -> list[int]:
    """Return the doc_ords of the documents with a value of a key field, else of those that differ in case alone."""
    fields = {} if view.schema is None else view.schema.fields
    paths = [json_path(name, name) for name, known in fields.items() if known.key]
    if not paths or not value or len(value) > MAX_NAME:
        return []
    return _with_value(view, paths, value, any_case=False) or _with_value(view, paths, value, any_case=True)


def _with_id_like(view: View, doc_id: str) -> list[int]:
    if doc_id.lower() == doc_id.upper():
        return []  # there are no letters
    doc_ords = []
    for live in view.segments:
        ids = live.segment.doc_ids
        rows = ids.like(doc_id)
        if view.has_passages:
            n_bytes = len(doc_id.encode(errors="surrogatepass"))
            passages = ids.like(doc_id, longer=ID_SUFFIX_LENGTH)
            rows += [row for row in passages if len(document_of(ids[row]).encode()) == n_bytes]
        doc_ords += [live.first_ord + row for row in rows if live.live[row]]
    return doc_ords


def _with_value(view: View, paths: Iterable[str], value: str, *, any_case: bool) -> list[int]:
    doc_ords: dict[int, None] = {}
    for path in paths:
        for live in view.segments:
            column = live.segment.columns.column(path, view.metadata_source)
            rows = column.rows_with(column.texts_like(value) if any_case else [value])
            doc_ords |= {live.first_ord + row: None for row in rows.tolist() if live.live[row]}
    return [*doc_ords]
