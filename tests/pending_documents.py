"""Pending documents, and an encoder without a model, for the tests of the queue and its workers."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lightir.contract import Contract
from lightir.index import Index, IndexWriter
from lightir.shards import Shard
from lightir.types import Document
from small_collections import VOCAB_SIZE, csr, word_contract

POISON = "poison"


def documents(n: int, *, first: int = 0) -> list[Document]:
    """Return documents number first to first + n - 1 with distinct texts that contain the word "cat"."""
    return [Document(f"d{i:04d}", f"the cat {i} {'runs ' * (i % 7)}") for i in range(first, first + n)]


def pending_index(folder: Path, n: int) -> Path:
    """Create an index of n documents without vectors."""
    with IndexWriter.create(folder, contract=word_contract()) as writer:
        if n:
            writer.add(documents(n))
    return folder


class FakeEncoder:
    """An encoder whose vectors are hashes of the texts. A text with the word poison raises. Calls can be logged."""

    def __init__(
        self,
        *,
        contract: Contract | None = None,
        log: Path | None = None,
        watch: Callable[[Sequence[Document]], None] = lambda documents: None,
    ) -> None:
        self.contract = contract or word_contract()
        self.encoded: list[str] = []
        self._log = log
        self.watch = watch

    def encode(self, documents: Sequence[Document]) -> Shard:
        self.watch(documents)
        if any(POISON in document.text for document in documents):
            raise ValueError(f"cannot read {[document.doc_id for document in documents]}")
        self.encoded += [document.doc_id for document in documents]
        if self._log is not None:
            with self._log.open("ab", buffering=0) as file:  # one write: whole lines, however many processes write
                file.write("".join(f"{os.getpid()} {document.doc_id}\n" for document in documents).encode())
        rows = np.array([vector(document.text) for document in documents], np.float16)
        impacts = csr([{1: int(row[0]) + 1} for row in rows], vocab_size=VOCAB_SIZE, dtype=np.uint8)
        return Shard(documents, rows, impacts)


def vector(text: str) -> list[int]:
    """Return four small whole numbers that depend on the text."""
    return [byte % 16 for byte in zlib.crc32(text.encode()).to_bytes(4, "little")]


def require_right_vectors(index: Index) -> set[str]:
    """Check that each vector in the index is that of its document's text; return the ids of encoded documents."""
    index.verify()
    doc_ids = set()
    for live in index.view.segments:
        for row in np.flatnonzero(live.live & ~live.segment.pending).tolist():
            doc_id = live.segment.doc_ids[row]
            assert live.segment.dense is not None
            assert live.segment.dense[0][row].tolist() == vector(index.documents([doc_id])[0].text)
            doc_ids.add(doc_id)
    return doc_ids
