"""Faults that are planted in the library to test the soak: each breaks one promise, and the soak must notice it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

from lightir.errors import IndexLocked
from lightir.index import Index, IndexWriter, removal, view_words, writer
from lightir.search import Searcher
from lightir.types import Document


def lost() -> None:
    """Acknowledge each third deletion without making it."""
    real, calls = IndexWriter.delete, itertools.count()
    IndexWriter.delete = lambda self, ids: len(ids) if next(calls) % 3 == 2 else real(self, ids)  # type: ignore[assignment, method-assign, arg-type]


def torn() -> None:
    """Make each update of several documents in two commits."""
    real = IndexWriter.upsert

    def upsert(self: IndexWriter, documents: Sequence[Document], **vectors: Any) -> int:
        if len(documents) < 2 or vectors:
            return real(self, documents, **vectors)
        return real(self, documents[:1]) + real(self, documents[1:])

    IndexWriter.upsert = upsert  # type: ignore[assignment, method-assign]


def stale() -> None:
    """Refresh without opening the newest view."""
    Index.refresh = lambda self: False  # type: ignore[method-assign]


def refused() -> None:
    """Refuse each tenth update after it was made."""
    real, calls = IndexWriter.upsert, itertools.count(1)

    def upsert(self: IndexWriter, *arguments: Any, **vectors: Any) -> int:
        n = real(self, *arguments, **vectors)
        if next(calls) % 10 == 0:
            raise IndexLocked("planted")
        return n

    IndexWriter.upsert = upsert  # type: ignore[method-assign]


def ranking() -> None:
    """Count one document too many in the statistics of BM25."""
    real = view_words.idf
    view_words.idf = lambda n_docs, df: real(n_docs + 1, df)  # type: ignore[attr-defined]


def vectors() -> None:
    """Store the vectors of each change in reverse order."""
    real = IndexWriter.set_vectors

    def set_vectors(self: IndexWriter, documents: Any, *, dense: Any = None, sparse: Any = None) -> list[str]:
        return real(self, documents, dense=dense[::-1].copy(), sparse=sparse)

    IndexWriter.set_vectors = set_vectors  # type: ignore[assignment, method-assign]


def raw() -> None:
    """Let each twentieth opening raise the system's own error."""
    real, calls = Index.open, itertools.count(1)

    def opened(folder: Any, **options: Any) -> Index:
        if next(calls) % 20 == 0:
            raise FileNotFoundError(2, "planted", str(folder))
        return real(folder, **options)

    Index.open = opened  # type: ignore[assignment, method-assign]


def leak() -> None:
    """Keep each tenth view open."""
    real, calls, kept = Index.close, itertools.count(1), []

    def close(self: Index) -> None:
        if next(calls) % 10 == 0:
            kept.append(self.view)
        else:
            real(self)

    Index.close = close  # type: ignore[method-assign]


def litter() -> None:
    """Remove no segment."""
    nothing: Callable[..., None] = lambda *arguments: None  # noqa: E731
    removal.remove_unlisted = writer.remove_unlisted = nothing


def crash() -> None:
    """Abort the process at each thirtieth search."""
    real, calls = Searcher.search, itertools.count(1)

    def search(self: Searcher, *arguments: Any, **options: Any) -> Any:
        if next(calls) % 30 == 0:
            os.abort()
        return real(self, *arguments, **options)

    Searcher.search = search  # type: ignore[method-assign]


PLANTS = ("lost", "torn", "stale", "refused", "ranking", "vectors", "raw", "leak", "litter", "crash")


def plant(name: str) -> None:
    """Break the library."""
    globals()[name]()
