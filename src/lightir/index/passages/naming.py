"""Names and places of passages, and the document that passages came from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput
from lightir.index.schema import Field
from lightir.types import Document, Passage

PASSAGE = "passage"
"""Metadata field of a passage: an object with its document and its place, see `lightir.types.Passage`."""

DOCUMENT_FIELD = f"{PASSAGE}.document"

PASSAGE_FIELDS: Mapping[str, Field] = {
    DOCUMENT_FIELD: Field("keyword"),
    f"{PASSAGE}.heading": Field("keyword"),
    f"{PASSAGE}.page": Field("number"),
}
"""Types of the fields of a passage that filters can name."""

_TITLE = "title"
_MARK, _HEX = "#p-", 12
_SUFFIX = re.compile(rf"{_MARK}[0-9a-f]{{{_HEX}}}")
ID_SUFFIX_LENGTH = len(_MARK) + _HEX
"""Number of characters, all ASCII, by which the id of a passage is longer than that of its document."""


def document_of(doc_id: str) -> str:
    """Return the id of the document of a passage; of another document its own id."""
    end = len(doc_id) - ID_SUFFIX_LENGTH
    return doc_id[:end] if end > 0 and _SUFFIX.fullmatch(doc_id, end) else doc_id


def first_of_documents(doc_ids: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the position of the first of the stored ids of each document, ascending."""
    first: dict[str, int] = {}
    for position, doc_id in enumerate(doc_ids):
        first.setdefault(document_of(doc_id), position)
    return np.fromiter(first.values(), dtype=np.int64, count=len(first))


def passage_ids_range(doc_id: str) -> tuple[str, str]:
    """Return two texts: every id of a document's passages is at least the first and below the second."""
    return f"{doc_id}{_MARK}", f"{doc_id}{_MARK}g"


def passage_ids(doc_id: str, texts: Sequence[str]) -> list[str]:
    """Return an id for each passage of a document.

    It depends on the passage's text and the number of equal ones before it alone. So a passage keeps its id, and with
    it its vectors, if another part of the document changes.
    """
    counts: dict[str, int] = {}
    ids = []
    for text in texts:
        counts[text] = counts.get(text, -1) + 1
        digest = hashlib.blake2b(f"{counts[text]} {text}".encode(), digest_size=_HEX // 2).hexdigest()
        ids.append(f"{doc_id}{_MARK}{digest}")
    return ids


def require_no_passage(document: Document) -> None:
    """Refuse a document that would be taken for a passage.

    Raises:
        InvalidInput: its id ends like one of a passage, or its metadata have the field of passages.
    """
    if document_of(document.doc_id) != document.doc_id:
        raise InvalidInput(f"the id {document.doc_id!r} ends like that of a passage ({_MARK} and {_HEX} digits)")
    require_no_place(document.metadata, document.doc_id)


def require_no_place(metadata: Mapping[str, Any], doc_id: str) -> None:
    """Raise InvalidInput if metadata, or changes of them, have the field of passages."""
    if any(isinstance(name, str) and name.partition(".")[0] == PASSAGE for name in metadata):
        raise InvalidInput(
            f"document {doc_id!r} has a metadata field {PASSAGE!r}, which an index with passages uses itself; "
            "give it another name"
        )


def passage_of(document: Document) -> Passage | None:
    """Return the place of a stored passage in its document; None for a whole document."""
    if document_of(document.doc_id) == document.doc_id:
        return None
    stored = document.metadata.get(PASSAGE)
    known: Any = {} if not isinstance(stored, Mapping) else stored
    try:
        return Passage(
            known["document"],
            known["start"],
            known["end"],
            known.get("heading", ""),
            known.get("page"),
            known.get("line"),
        )
    except KeyError as error:
        raise FormatError(f"the passage {document.doc_id!r} has no {error} in its metadata") from None


def as_passage(document: Document, doc_id: str, text: str, title: str, passage: Passage) -> Document:
    """Return a passage as a document of the index; the first one also keeps the document's own title."""
    stored: dict[str, Any] = {"document": passage.document, "start": passage.start, "end": passage.end}
    stored |= {"heading": passage.heading} if passage.heading else {}
    stored |= {"page": passage.page} if passage.page is not None else {}
    stored |= {"line": passage.line} if passage.line is not None else {}
    stored |= {_TITLE: document.title} if passage.start == 0 and document.title else {}
    return Document(doc_id, text, title, {**document.metadata, PASSAGE: stored})


def moved_passage(passage: Document, new_ids: Mapping[str, str]) -> Document:
    """Return a passage of a document that gets a new id, given by its old one."""
    old_id = document_of(passage.doc_id)
    moved = {**passage.metadata[PASSAGE], "document": new_ids[old_id]}
    doc_id = new_ids[old_id] + passage.doc_id[len(old_id) :]
    return replace(passage, doc_id=doc_id, metadata={**passage.metadata, PASSAGE: moved})


def without_place(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the field of passages."""
    return {name: value for name, value in metadata.items() if name != PASSAGE}


def whole_document(passages: Sequence[Document]) -> Document:
    """Return the document that passages came from.

    Args:
        passages: all passages of one document, in any order, or one whole document.

    Raises:
        FormatError: a part of the text is missing.
    """
    placed = [(passage, document) for document in passages if (passage := passage_of(document)) is not None]
    if not placed:
        return passages[0]
    placed.sort(key=lambda pair: pair[0].start)
    text = ""
    for passage, document in placed:
        if passage.start > len(text):
            raise FormatError(f"document {passage.document!r} lacks its text from character {len(text):,} on")
        text += document.text[len(text) - passage.start :]
    first, stored = placed[0]
    return Document(first.document, text, stored.metadata[PASSAGE].get(_TITLE, ""), without_place(stored.metadata))
