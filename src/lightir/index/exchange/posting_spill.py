"""Postings on their way from the order of documents to that of terms, or back, in buckets on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.errors import WriteFailed, storage_errors

POSTING = np.dtype([("term", "<u4"), ("document", "<u4"), ("weight", "<u4")])
PostingRecords = npt.NDArray[np.void]
"""(n,) records of POSTING: number of the term, number of the document, count or impact."""

HELD_POSTINGS = 1 << 22
"""Number of postings that are held in memory before they are appended to the files of their buckets."""


def make_postings(terms: npt.ArrayLike, documents: npt.ArrayLike, weights: npt.ArrayLike) -> PostingRecords:
    """Return records of three columns; a scalar column holds for all."""
    shape = np.broadcast_shapes(np.shape(terms), np.shape(documents), np.shape(weights))
    postings = np.empty(shape, dtype=POSTING)
    postings["term"], postings["document"], postings["weight"] = terms, documents, weights
    return postings


class PostingSpill:
    """Postings in buckets by ranges of terms or of documents. Few postings never reach the disk.

    A bucket returns its postings in the order in which they were added.
    """

    def __init__(self, folder: Path, by: str, ends: npt.NDArray[np.int64], *, held: int = HELD_POSTINGS) -> None:
        """Start without postings.

        Args:
            folder: existing folder for the files.
            by: field that the buckets are made by, "term" or "document".
            ends: (n,) ascending; bucket i holds the numbers below ends[i] that no earlier bucket holds.
            held: number of postings to hold in memory.
        """
        self._folder, self._by, self._ends, self._held = folder, by, ends, held
        self._waiting: list[PostingRecords] = []
        self._n_waiting = 0
        self._left: dict[int, PostingRecords] = {}

    def add(self, postings: PostingRecords) -> None:
        """Add postings.

        Raises:
            WriteFailed: the disk is full or broken.
        """
        self._waiting.append(postings)
        self._n_waiting += len(postings)
        if self._n_waiting >= self._held:
            for bucket, part in self._taken().items():
                with storage_errors(f"cannot write {self._folder}", kind=WriteFailed):
                    self._append(bucket, part)

    def _append(self, bucket: int, postings: PostingRecords) -> None:
        with self._path(bucket).open("ab") as file:
            file.write(postings.tobytes())

    def read(self, bucket: int) -> PostingRecords:
        """Return the postings of a bucket; nothing may be added afterwards."""
        if self._waiting:
            self._left = self._taken()
        left = self._left.get(bucket)
        path = self._path(bucket)
        with storage_errors(f"cannot read {self._folder}"):
            parts = [np.fromfile(path, dtype=POSTING)] if path.exists() else []
        return np.concatenate([np.zeros(0, POSTING), *parts, *([] if left is None else [left])])

    def _taken(self) -> dict[int, PostingRecords]:
        """Return the waiting postings by bucket, and hold none."""
        postings = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        if not len(postings):
            return {}
        buckets = np.searchsorted(self._ends, postings[self._by], side="right")
        order = np.argsort(buckets, kind="stable")
        numbers, starts = np.unique(buckets[order], return_index=True)
        return dict(zip(numbers.tolist(), np.split(postings[order], starts[1:]), strict=True))

    def _path(self, bucket: int) -> Path:
        return self._folder / f"bucket-{bucket:06d}"
