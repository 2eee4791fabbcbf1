"""Documents' vectors by themselves: on their way to a commit, and parked as bytes until there can be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.shards import Shard
from lightir.vectors import SparseVectors, row_starts

Blobs = tuple[bytes | None, bytes | None, bytes | None]
"""A document's dense row, term ids and impacts; None for a kind that it lacks."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Documents' vectors without the documents.

    Attributes:
        dense: (n, dim) float16, or None.
        sparse: n rows of uint8 impacts, or None.
    """

    dense: npt.NDArray[np.float16] | None
    sparse: SparseVectors | None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Vectors:
        """Those of the documents of all shards, which have the same kinds."""
        dense = [shard.dense for shard in shards if shard.dense is not None]
        rows = [shard.sparse for shard in shards if shard.sparse is not None]
        return cls(np.concatenate(dense) if dense else None, SparseVectors.concatenate(rows) if rows else None)

    @classmethod
    def from_blobs(cls, rows: Sequence[Blobs], vocab_size: int) -> Vectors:
        """Those that `blobs` gave, row by row.

        Raises:
            TypeError, ValueError: the rows are no bytes, or not of one width.
            InvalidInput: term ids that do not ascend or are outside the vocabulary.
        """
        if not rows:
            return cls(None, None)
        if len({None if row[0] is None else len(row[0]) for row in rows}) > 1:
            raise ValueError("dense rows differ in width")
        if any(
            (row[1] is None) != (rows[0][1] is None) or len(row[1] or b"") != 4 * len(row[2] or b"") for row in rows
        ):
            raise ValueError("term ids and impacts differ in number")
        dense = sparse = None
        if rows[0][0] is not None:
            dense = np.frombuffer(b"".join(row[0] or b"" for row in rows), np.float16).reshape(len(rows), -1)
        if rows[0][1] is not None:
            impacts = [np.frombuffer(row[2] or b"", np.uint8) for row in rows]
            indptr = row_starts([len(each) for each in impacts])
            term_ids = np.frombuffer(b"".join(row[1] or b"" for row in rows), np.uint32)
            sparse = SparseVectors(indptr, term_ids, np.concatenate(impacts), vocab_size)
        return cls(dense, sparse)

    def blobs(self, place: int) -> Blobs:
        """The bytes of one row."""
        terms, impacts = (None, None) if self.sparse is None else self.sparse.row(place)
        dense = None if self.dense is None else self.dense[place].astype(np.float16, copy=False)
        return _bytes(dense), _bytes(terms), _bytes(impacts)

    def take(self, places: npt.NDArray[np.int64]) -> Vectors:
        """Some rows, in the given order."""
        dense = None if self.dense is None else self.dense[places]
        return Vectors(dense, None if self.sparse is None else self.sparse.take(places))


def _bytes(array: npt.NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()
