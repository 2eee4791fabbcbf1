"""Checking documents and converting them to rows of the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightir.errors import InvalidInput
from lightir.text import check_text
from lightir.types import Document

MAX_DOC_ID_BYTES = 10_000
MAX_ROW_BYTES = 999_000_000
"""SQLite stores rows of less than 1,000,000,000 bytes."""

MAX_METADATA_DEPTH = 500
"""SQLite's JSON functions reject more than 1,000 or 2,000 levels, so one deeper document would break every filter."""

StoreRow = tuple[str, str, str, str]
"""doc_id, title, text, metadata as JSON."""


def store_row(document: Document) -> StoreRow:
    """Return the row of a document.

    Raises:
        InvalidInput: the id is empty or too long, a text is not UTF-8, the metadata are not JSON, or text and title or
            metadata are too large for SQLite.
    """
    doc_id = check_text(document.doc_id, "a doc_id")
    if not doc_id or len(doc_id.encode()) > MAX_DOC_ID_BYTES:
        raise InvalidInput(f"doc_id {doc_id[:40]!r} has {len(doc_id.encode())} bytes; expected 1 to {MAX_DOC_ID_BYTES}")
    title = check_text(document.title, f"the title of document {doc_id!r}")
    text = check_text(document.text, f"the text of document {doc_id!r}")
    try:
        metadata = json.dumps(dict(document.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the metadata of document {doc_id!r} is not a JSON object: {error}") from None
    if _is_nested_deeper(document.metadata, metadata):
        raise InvalidInput(f"the metadata of document {doc_id!r} is nested deeper than {MAX_METADATA_DEPTH}")
    metadata = check_text(metadata, f"the metadata of document {doc_id!r}")
    for name, written in (("title and text", title + text), ("metadata", metadata)):
        if 4 * len(written) > MAX_ROW_BYTES and len(written.encode()) > MAX_ROW_BYTES:
            raise InvalidInput(
                f"{name} of document {doc_id!r} have more than {MAX_ROW_BYTES:,} bytes; divide the document"
            )
    return doc_id, title, text, metadata


def _is_nested_deeper(value: Any, written: str) -> bool:
    """Return whether a JSON value, whose text is `written`, has more than MAX_METADATA_DEPTH levels."""
    if written.count("[") + written.count("{") <= MAX_METADATA_DEPTH:
        return False
    level, depth = [value], 0
    while level and depth <= MAX_METADATA_DEPTH:
        inside = [parent.values() if isinstance(parent, Mapping) else parent for parent in level]
        level = [child for children in inside for child in children if isinstance(child, Mapping | list | tuple)]
        depth += 1
    return depth > MAX_METADATA_DEPTH
