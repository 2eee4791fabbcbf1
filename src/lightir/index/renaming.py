"""Other ids for stored documents, which keep their vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from lightir.errors import InvalidInput, NotFound
from lightir.index.intake import Intake
from lightir.index.passages.naming import moved_passage
from lightir.index.recounting import rows_of
from lightir.index.segments.rows import DocumentRows
from lightir.index.store_row import StoreRow, store_row
from lightir.index.stored_documents import DocKeys
from lightir.index.view import View


@dataclasses.dataclass(frozen=True, slots=True)
class Renamed:
    """Documents of one segment under their new ids.

    Attributes:
        old_keys: keys of their old rows.
        stored: their rows for the store.
        rows: their rows for a segment, without keys.
    """

    old_keys: DocKeys
    stored: list[StoreRow]
    rows: DocumentRows


def require_renamable(view: View, new_ids: Mapping[str, str]) -> None:
    """Check that documents can get new ids.

    Raises:
        NotFound: there is no document with an old id.
        InvalidInput: a new id exists, or is given twice.
    """
    known = {*view.existing(list(new_ids))}
    if missing := [doc_id for doc_id in new_ids if doc_id not in known]:
        raise NotFound(f"there is no document {missing[0]!r} in {view.folder}")
    if taken := view.existing(list(new_ids.values())):
        raise InvalidInput(f"document id {taken[0]!r} is already in the index")
    if len({*new_ids.values()}) < len(new_ids):
        raise InvalidInput("two documents get the same id; doc_ids must be distinct")


def renamed(view: View, intake: Intake, new_ids: Mapping[str, str]) -> Iterator[Renamed]:
    """Yield the stored rows of documents and their passages under new ids, segment by segment.

    Words are counted anew. Vectors are copied, after the checksums of their segment were verified.

    Args:
        view: state before the change.
        intake: maker of rows.
        new_ids: new id of each document by its old id.
    """
    keys = np.array(sorted(view.stored_keys(new_ids).values()), dtype=np.int64)
    for live in view.segments:
        at = np.flatnonzero(live.live & np.isin(live.segment.doc_keys, keys))
        if not len(at):
            continue
        live.segment.verify()
        old_keys = live.segment.doc_keys[at]
        by_key = view.store.documents.of(old_keys.tolist())
        documents = []
        for key in old_keys.tolist():
            document = by_key[key]
            new_id = new_ids.get(document.doc_id)
            moved = moved_passage(document, new_ids) if new_id is None else dataclasses.replace(document, doc_id=new_id)
            documents.append(moved)
        stored = [store_row(document) for document in documents]
        yield Renamed(old_keys, stored, rows_of(live.segment, at, documents, intake))
