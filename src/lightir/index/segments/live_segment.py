"""A segment as a view sees it: with its tombstones, and its place among the view's documents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index.segments.columns import Mask
from lightir.index.segments.segment import Segment
from lightir.types import Branch
from lightir.vectors import row_entries

Allowed = npt.NDArray[np.uint8] | None
"""A bitmap for the kernel; None for all documents."""


class LiveSegment:
    """A segment with its tombstones and its place among the doc_ords of a view."""

    def __init__(self, number: int, segment: Segment, deleted: Mask | None, first_ord: int) -> None:
        """Put the parts together."""
        self.number = number
        self.segment = segment
        self.deleted = deleted
        self.first_ord = first_ord

    def equals(self, other: LiveSegment) -> bool:
        """Whether number, tombstones and place are the same."""
        if (self.number, self.first_ord) != (other.number, other.first_ord):
            return False
        if self.deleted is None or other.deleted is None:
            return self.deleted is other.deleted
        return np.array_equal(self.deleted, other.deleted)

    @cached_property
    def live(self) -> Mask:
        """(n,) whether a document is there."""
        return np.ones(len(self.segment), dtype=np.bool_) if self.deleted is None else ~self.deleted

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """The places of the documents that are there."""
        return np.flatnonzero(self.live)

    @cached_property
    def n_live(self) -> int:
        """Number of documents that are there."""
        return len(self.segment) if self.deleted is None else int(self.live.sum())

    @cached_property
    def n_pending(self) -> int:
        """Number of documents that are there and wait for vectors."""
        return int((self.segment.pending & self.live).sum())

    @cached_property
    def total_length(self) -> int:
        """The number of terms of the documents that are there."""
        if self.deleted is None or self.segment.tokens is None or self.segment.holds_bags:
            return self.segment.total_length
        return self.segment.total_length - int(self.segment.lengths[self.deleted].sum(dtype=np.int64))

    def df(self, place: int) -> int:
        """In how many of the documents that are there a term occurs, by its place in the dictionary."""
        return int(self.segment.df[place]) - self._deleted_df.get(place, 0)

    @cached_property
    def _deleted_df(self) -> Mapping[int, int]:
        tokens = self.segment.tokens
        if self.deleted is None or tokens is None:
            return {}
        with self.segment.naming_damage():
            _, entries = row_entries(tokens.indptr, np.flatnonzero(self.deleted))
            places, counts = np.unique(tokens.term_ids[entries], return_counts=True)
        return dict(zip(places.tolist(), counts.tolist(), strict=True))

    def searchable(self, branch: Branch, matching: Mask | None) -> Allowed:
        """The bitmap of the documents that a branch may return."""
        mask = None if self.deleted is None else self.live
        if branch == "dense" and self.n_pending:
            mask = self.live & ~self.segment.pending
        if matching is not None:
            mask = matching if mask is None else mask & matching
        return None if mask is None else kernel.pack_bitmap(mask)
