"""The files of titles, texts and metadata, which a page reads when it shows hits."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from lightir.index.passages.naming import document_of, passage_of, without_place
from lightir.publish.live_rows import LiveRows
from lightir.publish.parts import PartWriter
from lightir.types import Document

HEAD_CHARACTERS = 4000
"""Number of characters of a text that snippets are taken from; the rest is read when a person opens the document."""

BATCH = 256


def documents_of(rows: LiveRows) -> Iterable[Document]:
    """Yield the documents and passages in the order of their numbers."""
    for start in range(0, len(rows), BATCH):
        yield from rows.view.documents_at(rows.doc_ords[start : start + BATCH])


def write_documents(writer: PartWriter, rows: LiveRows, advance: Callable[[int], object]) -> None:
    """Write titles, texts and metadata.

    Args:
        writer: writer of the publication.
        rows: the documents.
        advance: called with the number of documents that were written since the last call.
    """
    records, texts = bytearray(), bytearray()
    record_sizes, text_sizes = [], []
    for document in documents_of(rows):
        record = _deflated(json.dumps(_record(document), ensure_ascii=False, separators=(",", ":")))
        text = _deflated(document.text) if len(document.text) > HEAD_CHARACTERS else b""
        records += record
        texts += text
        record_sizes.append(len(record))
        text_sizes.append(len(text))
        advance(1)
    writer.write("records", bytes(records))
    writer.write("texts", bytes(texts))
    writer.write_numbers("record-sizes", record_sizes)
    writer.write_numbers("text-sizes", text_sizes)
    if rows.view.has_passages:
        writer.write_numbers("groups", _distances(rows.doc_ids))


def _record(document: Document) -> dict[str, Any]:
    passage = passage_of(document)
    record: dict[str, Any] = {
        "doc_id": document_of(document.doc_id) if passage is None else passage.document,
        "title": document.title,
        "text": document.text[:HEAD_CHARACTERS],
        "metadata": dict(document.metadata),
    }
    if passage is not None:
        record["metadata"] = without_place(document.metadata)
        record["passage"] = {name: getattr(passage, name) for name in passage.__slots__}
        record["document_title"] = document.metadata["passage"].get("title", "")
    return record


def _distances(doc_ids: list[str]) -> list[int]:
    """Return for each document or passage how far before it the first one of its document is."""
    first: dict[str, int] = {}
    return [i - first.setdefault(document_of(doc_id), i) for i, doc_id in enumerate(doc_ids)]


def _deflated(text: str) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(text.encode()) + packer.flush()
