"""Searches whose results hard negatives are chosen from: an index in any mode, or counted words. No torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from lightir.analysis import AUTO
from lightir.data import Dataset
from lightir.files import temporary_folder
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.search import DEFAULT_OPTIONS, Searcher, SearchOptions
from lightir.search.index_evaluation import Ranker
from lightir.search.language_model import Smoothing
from lightir.search.plan import WHOLE_DEPTH
from lightir.types import Query, Run


class Finder(Protocol):
    """A search that mining uses."""

    def find(self, queries: Sequence[Query], k: int) -> Run:
        """Return each query's k best documents."""

    def score(self, query: Query, doc_id: str) -> float:
        """Return one document's score on the scale of `find`, also of a document that `find` does not return."""


class IndexFinder:
    """A searcher with fixed options."""

    def __init__(self, searcher: Ranker, options: SearchOptions = DEFAULT_OPTIONS) -> None:
        """Fix all options except the depth."""
        self._searcher, self._options = searcher, options

    def find(self, queries: Sequence[Query], k: int) -> Run:
        """Return each query's k best documents."""
        return self._searcher.search(queries, k, dataclasses.replace(self._options, depth=max(WHOLE_DEPTH, k)))

    def score(self, query: Query, doc_id: str) -> float:
        """Return the score in a search of depth 1,000: a fused score depends on the fused lists."""
        return self._searcher.explain(query.text, doc_id, dataclasses.replace(self._options, depth=WHOLE_DEPTH)).score


@contextmanager
def word_finder(
    dataset: Dataset,
    folder: Path,
    *,
    analyzer: str = AUTO,
    threads: int = 1,
    smoothing: Smoothing | None = None,
) -> Iterator[Finder]:
    """Search a data set's corpus by BM25, or with smoothing by query likelihood; `folder` holds a temporary index."""
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as scratch:
        build_index(document_shards(dataset.corpus()), scratch / "index", options=IndexOptions(analyzer=analyzer))
        with Index.open(scratch / "index") as index:
            yield IndexFinder(Searcher(index, threads=threads), SearchOptions(mode="tokens", smoothing=smoothing))
