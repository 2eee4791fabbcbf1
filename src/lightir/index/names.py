"""Documents by their names: the id, and values of fields with the flag `key`, such as part numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightir.index.metadata_filters import json_path
from lightir.index.passages.naming import ID_SUFFIX_LENGTH, document_of

if TYPE_CHECKING:
    from lightir.index.view import View

MAX_NAME = 512
"""Maximum number of characters of a name that is looked up."""

SCANS = 8
"""Number of names that a view looks for in all metadata, before it reads columns of the key fields."""

MAX_SCANNED = 1000
"""Maximum number of documents whose values are compared after such a scan."""


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
    if any_case and not view.has_passages and not any(live.segment.doc_ids.may_hold(doc_id) for live in view.segments):
        return []  # most words that are not letters alone
    doc_ords = view.doc_ords(doc_id)
    return _with_id_like(view, doc_id) if any_case and not doc_ords else doc_ords


def with_key(view: View, value: str) -> list[int]:
    """Return the doc_ords of the documents with a value of a key field, else of those that differ in case alone."""
    fields = {} if view.schema is None else view.schema.fields
    paths = [json_path(name, name) for name, known in fields.items() if known.key]
    if not paths or not value or len(value) > MAX_NAME:
        return []
    if value.isascii() and not _are_columns_kept(view, paths) and view.n_scans < SCANS:
        view.n_scans += 1
        scanned = _scanned(view, paths, value)
        if scanned is not None:
            return scanned
    return _with_value(view, paths, value, any_case=False) or _with_value(view, paths, value, any_case=True)


def holds_key(view: View, value: str) -> bool:
    """Whether a document has a value of a key field, in the same case."""
    fields = {} if view.schema is None else view.schema.fields
    paths = [json_path(name, name) for name, known in fields.items() if known.key]
    return bool(_with_value(view, paths, value, any_case=False))


def _are_columns_kept(view: View, paths: Sequence[str]) -> bool:
    return all(live.segment.columns.holds(path) for live in view.segments for path in paths)


def _scanned(view: View, paths: Sequence[str], value: str) -> list[int] | None:
    """Return the documents of `with_key` for an ASCII value without columns, which cost more to read than a few scans.

    None if there is too much to compare.
    """
    documents = view.store.documents
    keys = documents.keys_perhaps_having(value, MAX_SCANNED)
    if keys is None:
        return None
    values = [
        (i, text)
        for path in paths
        for i, kind, text in documents.values_of(path, keys)
        if kind == "text" and text.casefold() == value.casefold()
    ]
    rows = [i for i, text in values if text == value] or [i for i, _ in values]
    doc_ords: list[int] = []
    for live in view.segments if rows else ():
        having = np.flatnonzero(np.isin(live.segment.doc_keys, keys[rows]) & live.live)
        doc_ords += (live.first_ord + having).tolist()
    return doc_ords


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
