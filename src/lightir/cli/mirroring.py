"""Making an index equal to files: which documents are deleted, and which have only moved."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.index import IndexWriter, View
    from lightir.shards import Shard
    from lightir.types import Document

MAX_DELETED = 0.2
"""Largest share of the documents that is deleted without --yes: a wrong path is a likelier cause."""

FEW_DELETED = 10
"""Number of documents that may be deleted whatever their share."""


def why_not_delete(stored: Sequence[str], wanted: Container[str], n_wanted: int) -> str | None:
    """Return why documents should not be deleted without --yes; None if they may be.

    Args:
        stored: ids of the documents of the index.
        wanted: ids of the documents that the files contain.
        n_wanted: number of these.
    """
    if not n_wanted:
        return "the files contain no documents, and all documents of the index would be deleted"
    n_deleted = sum(doc_id not in wanted for doc_id in stored)
    if n_deleted > max(FEW_DELETED, MAX_DELETED * len(stored)):
        return f"{n_deleted:,} of {counted(len(stored), 'document')} would be deleted"
    return None


def stored_ids(view: View) -> list[str]:
    """Return the ids of all documents of an index."""
    stored = (live.segment.doc_ids[row] for live in view.segments for row in live.live.nonzero()[0].tolist())
    return list(dict.fromkeys(map(view.document_of, stored)))


def renaming(
    shards: Iterator[Shard], writer: IndexWriter, wanted: Iterable[str], moves: dict[str, str]
) -> Iterator[Shard]:
    """Yield the shards; before each one, documents of the index that it has under new ids get these.

    A document moved if its id is no longer wanted, and a new one has its title and text. It keeps its vectors.

    Args:
        shards: documents to add.
        writer: writer of the index.
        wanted: ids of all documents to add.
        moves: new id by old id, filled in.
    """
    known = set(stored_ids(writer.view))
    contents: dict[bytes, list[str]] = {}
    for doc_id in sorted(known.difference(wanted)):
        contents.setdefault(content_hash(writer.view.whole_documents([doc_id])[0]), []).append(doc_id)
    for shard in shards:
        new_ids: dict[str, str] = {}
        for document in shard.documents if contents else ():
            if document.doc_id not in known and (same := contents.get(content_hash(document))):
                new_ids[same.pop()] = document.doc_id
        if new_ids:
            writer.rename(new_ids)
            moves |= new_ids
        yield shard


def content_hash(document: Document) -> bytes:
    """Return a hash of title and text."""
    return hashlib.blake2b(f"{document.title}\0{document.text}".encode(), digest_size=16).digest()
