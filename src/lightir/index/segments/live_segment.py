"""A segment in a view: with its tombstones and its first doc_ord."""

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
"""Bitmap of allowed documents for the kernel; None for all documents."""


class LiveSegment:
    """A segment with its tombstones and its first doc_ord in a view."""

    def __init__(self, number: int, segment: Segment, deleted: Mask | None, first_ord: int) -> None:
        """Combine the parts.

        Args:
            number: number of the segment.
            segment: segment itself.
            deleted: (n,) bool, tombstones; None for none.
            first_ord: doc_ord of the first document.
        """
        self.number = number
        self.segment = segment
        self.deleted = deleted
        self.first_ord = first_ord

    def equals(self, other: LiveSegment) -> bool:
        """Return whether number, tombstones and first doc_ord are equal."""
        if (self.number, self.first_ord) != (other.number, other.first_ord):
            return False
        if self.deleted is None or other.deleted is None:
            return self.deleted is other.deleted
        return np.array_equal(self.deleted, other.deleted)

    @cached_property
    def live(self) -> Mask:
        """(n,) bool, whether a document is live."""
        return np.ones(len(self.segment), dtype=np.bool_) if self.deleted is None else ~self.deleted

    @cached_property
    def places(self) -> npt.NDArray[np.int64]:
        """Row numbers of the live documents."""
        return np.flatnonzero(self.live)

    @cached_property
    def n_live(self) -> int:
        """Number of live documents."""
        return len(self.segment) if self.deleted is None else int(self.live.sum())

    @cached_property
    def n_pending(self) -> int:
        """Number of live documents that are pending."""
        return int((self.segment.pending & self.live).sum())

    @cached_property
    def total_length(self) -> int:
        """Number of terms of the live documents."""
        if self.deleted is None or self.segment.tokens is None or self.segment.holds_bags:
            return self.segment.total_length
        return self.segment.total_length - int(self.segment.lengths[self.deleted].sum(dtype=np.int64))

    def df(self, term_id: int) -> int:
        """Return the document frequency of a term among the live documents."""
        return int(self.segment.df[term_id]) - self._deleted_df.get(term_id, 0)

    @cached_property
    def _deleted_df(self) -> Mapping[int, int]:
        tokens = self.segment.tokens
        if self.deleted is None or tokens is None:
            return {}
        with self.segment.naming_damage():
            _, entries = row_entries(tokens.indptr, np.flatnonzero(self.deleted))
            term_ids, counts = np.unique(tokens.term_ids[entries], return_counts=True)
        return dict(zip(term_ids.tolist(), counts.tolist(), strict=True))

    def searchable(self, branch: Branch, matching: Mask | None) -> Allowed:
        """Return the bitmap of the documents that a branch may return.

        Args:
            branch: branch to search.
            matching: (n,) bool, documents that match a filter; None for all.
        """
        mask = None if self.deleted is None else self.live
        if branch == "dense" and self.n_pending:
            mask = self.live & ~self.segment.pending
        if matching is not None:
            mask = matching if mask is None else mask & matching
        return None if mask is None else kernel.pack_bitmap(mask)
