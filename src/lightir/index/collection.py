"""Counts and words of a collection that several indexes hold, its shards.

BM25 counts the documents of a collection, their mean length, and the documents that contain a word. A shard that is
opened with the counts of all shards gives its documents the scores of one index of the whole. It also corrects and
completes words alike, and searches the same branches.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput
from lightir.files import checksums_of_files, damaged_files, read_json, write_json
from lightir.index.segments.dictionary import SortedIds, SortedStrings
from lightir.index.view import View
from lightir.types import BRANCHES, Branch
from lightir.vectors import row_starts

COLLECTION_FILE = "collection.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class CollectionCounts:
    """The counts and words of all shards.

    Attributes:
        n_documents: number of stored documents; a passage counts as one.
        n_pending: number of those that are pending.
        total_length: number of terms of all documents.
        branches: branches that can be searched in any shard, in the order of BRANCHES.
        terms: words, or term ids of the model, ascending; None without a tokens branch.
        df: (n,) uint32, number of documents that have each term.
    """

    n_documents: int
    n_pending: int
    total_length: int
    branches: tuple[Branch, ...]
    terms: SortedStrings | SortedIds | None
    df: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, views: Sequence[View]) -> CollectionCounts:
        """Count the documents and words of several indexes.

        Raises:
            InvalidInput: there are none, or they differ in model, analyzer or options.
        """
        require_alike(views)
        present = {branch for view in views for branch in view.branches}
        terms, df = _counted(views)
        return cls(
            sum(len(view) for view in views),
            sum(view.n_pending for view in views),
            sum(live.total_length for view in views for live in view.segments),
            tuple(branch for branch in BRANCHES if branch in present),
            terms,
            df,
        )

    def frequency(self, term: str | int) -> int:
        """Return the number of documents that have a term."""
        position = None if self.terms is None else self.terms.find(term)  # type: ignore[arg-type]
        return 0 if position is None else int(self.df[position])

    def save(self, folder: Path) -> None:
        """Write the counts and words into an empty folder."""
        arrays: dict[str, npt.NDArray[Any]] = {"df": self.df}
        if isinstance(self.terms, SortedStrings):
            arrays |= dict(zip(("text", "indptr"), self.terms.arrays, strict=True))
        elif self.terms is not None:
            arrays["ids"] = self.terms.select(np.ones(len(self.terms), dtype=np.bool_))
        for name, values in arrays.items():
            np.save(folder / f"{name}.npy", values)
        counts = {name: getattr(self, name) for name in ("n_documents", "n_pending", "total_length", "branches")}
        files = checksums_of_files(folder)
        write_json(folder / COLLECTION_FILE, {"format_version": FORMAT_VERSION, **counts, "files": files})

    @classmethod
    def open(cls, folder: Path) -> CollectionCounts:
        """Map the counts and words that `save` wrote.

        Raises:
            FormatError: a file is missing, damaged or of another version.
        """
        record = read_json(folder / COLLECTION_FILE)
        if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
            raise FormatError(f"{folder / COLLECTION_FILE} is damaged, or of a newer version of lightir")
        try:
            if damage := damaged_files(folder, record["files"]):
                raise FormatError(f"{folder} is damaged: {'; '.join(damage)}")
            arrays = {Path(name).stem: np.load(folder / name, mmap_mode="r") for name in record["files"]}
            terms: SortedStrings | SortedIds | None = None
            if "text" in arrays:
                terms = SortedStrings(arrays["text"], arrays["indptr"])
            elif "ids" in arrays:
                terms = SortedIds(arrays["ids"])
            n_documents, n_pending, total = (int(record[name]) for name in ("n_documents", "n_pending", "total_length"))
            return cls(n_documents, n_pending, total, tuple(record["branches"]), terms, arrays["df"])
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise FormatError(f"{folder} is damaged: {error}") from error


def require_alike(views: Sequence[View]) -> None:
    """Raise InvalidInput unless several indexes can be searched as one."""
    if not views:
        raise InvalidInput("there are no shards")
    first = views[0]
    for view in views[1:]:
        theirs, ours = (None if v.contract is None else v.contract.fingerprint for v in (view, first))
        if theirs != ours:
            raise InvalidInput(f"{view.folder} is an index of another model than {first.folder}")
        if view.analyzer != first.analyzer:
            raise InvalidInput(f"{view.folder} counts words by another analyzer than {first.folder}")
        if view.options != first.options:
            raise InvalidInput(
                f"{view.folder} was built with other options than {first.folder}: {view.options} and {first.options}"
            )


def _counted(views: Sequence[View]) -> tuple[SortedStrings | SortedIds | None, npt.NDArray[np.uint32]]:
    """Return the terms of live documents, ascending, and the number of documents that have each."""
    if all(view.analyzer is None for view in views):
        return None, np.zeros(0, np.uint32)
    merged = heapq.merge(*(_terms_of(view) for view in views))
    summed = [(term, sum(df for _, df in same)) for term, same in itertools.groupby(merged, key=lambda pair: pair[0])]
    df = np.array([n for _, n in summed], dtype=np.uint32)
    if views[0].counts_model_terms:
        return SortedIds(np.array([term for term, _ in summed], dtype=np.uint32)), df
    encoded = [term for term, _ in summed]
    text = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return SortedStrings(text, row_starts([len(term) for term in encoded])), df


def _terms_of(view: View) -> Iterator[tuple[Any, int]]:
    """Yield the terms of a view, as UTF-8 or ids, ascending, each with its document frequency in a segment."""

    def of_segment(position: int) -> Iterator[tuple[Any, int]]:
        live = view.segments[position]
        terms = live.segment.terms
        for i in range(len(terms)):
            if n := live.df(i):
                yield (terms.raw(i) if isinstance(terms, SortedStrings) else terms[i]), n

    held = [position for position, live in enumerate(view.segments) if live.segment.has("tokens")]
    return heapq.merge(*(of_segment(position) for position in held))
