"""Vectors in memory: ragged lists of term ids, sparse vectors in CSR form, and query vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput

IntArray = npt.NDArray[np.int64]
TermIds = npt.NDArray[np.uint32]
Floats = npt.NDArray[np.float32]


def row_starts(lengths: Sequence[int] | npt.NDArray[np.integer[Any]]) -> IntArray:
    """Return the offsets (n + 1,) int64 of n rows of given lengths in a flat array; the last one is the total."""
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def row_entries(indptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the positions of some rows' entries in a flat array.

    Args:
        indptr: (n + 1,) int64 offsets of n rows.
        rows: (m,) int64 row numbers, in any order, repeats allowed.

    Returns:
        (m + 1,) int64 offsets of these rows when concatenated; and the int64 positions of their entries in the flat
        array, in the same order.
    """
    lengths = indptr[rows + 1] - indptr[rows]
    starts = row_starts(lengths)
    return starts, np.arange(starts[-1]) + np.repeat(indptr[rows] - starts[:-1], lengths)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of term ids of different lengths in two flat arrays.

    Attributes:
        term_ids: (total,) uint32 term ids of all rows, concatenated.
        indptr: (n + 1,) int64 offsets; row i is term_ids[indptr[i]:indptr[i + 1]].
    """

    term_ids: TermIds
    indptr: IntArray

    @classmethod
    def from_lists(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Copy lists of ids."""
        indptr = row_starts([len(row) for row in rows])
        term_ids = np.fromiter((term_id for row in rows for term_id in row), dtype=np.uint32, count=int(indptr[-1]))
        return cls(term_ids, indptr)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, position: int) -> TermIds:
        """Return the term ids of a row."""
        return self.term_ids[self.indptr[position] : self.indptr[position + 1]]

    @property
    def lengths(self) -> IntArray:
        """Lengths of the rows, (n,) int64."""
        return np.diff(self.indptr)

    def first(self, n: int) -> Ragged:
        """Return the first n term ids of each row."""
        places = np.arange(len(self.term_ids)) - np.repeat(self.indptr[:-1], self.lengths)
        return Ragged(self.term_ids[places < n], row_starts(np.minimum(self.lengths, n)))

    def without(self, drop: TermIds) -> Ragged:
        """Return the rows without the given term ids."""
        keep = ~np.isin(self.term_ids, drop)
        kept_before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        return Ragged(self.term_ids[keep], kept_before[self.indptr])


@dataclass(frozen=True, slots=True)
class SparseVectors:
    """Sparse vectors over a vocabulary, row by row (CSR); within a row term ids ascend, each at most once.

    Attributes:
        indptr: (n + 1,) int64 offsets of the rows.
        term_ids: (nnz,) uint32 term ids.
        weights: (nnz,) float32 weights, or uint8 quantized impacts.
        vocab_size: width of the vectors; every term id is smaller.
    """

    indptr: IntArray
    term_ids: TermIds
    weights: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    vocab_size: int

    def __post_init__(self) -> None:
        if (
            self.indptr.ndim != 1
            or len(self.indptr) == 0
            or self.indptr[0] != 0
            or (self.indptr[1:] < self.indptr[:-1]).any()
        ):
            raise InvalidInput("indptr must start at 0 and not decrease")
        if not self.indptr[-1] == len(self.term_ids) == len(self.weights):
            raise InvalidInput(
                f"indptr ends at {self.indptr[-1]}, but there are {len(self.term_ids)} term ids "
                f"and {len(self.weights)} weights"
            )
        if len(self.term_ids) and int(self.term_ids.max()) >= self.vocab_size:
            raise InvalidInput(f"term id {self.term_ids.max()} is outside the vocabulary of {self.vocab_size}")

    @classmethod
    def unchecked(
        cls, indptr: IntArray, term_ids: TermIds, weights: npt.NDArray[np.float32], vocab_size: int
    ) -> SparseVectors:
        """Return vectors of arrays that are right by construction; the checks take longer than to search one query."""
        made = object.__new__(cls)
        for name, value in zip(cls.__slots__, (indptr, term_ids, weights, vocab_size), strict=True):
            object.__setattr__(made, name, value)
        return made

    @classmethod
    def count(cls, rows: Ragged, *, vocab_size: int) -> SparseVectors:
        """Count the term ids of each row; weights are float32 counts."""
        row_of = np.repeat(np.arange(len(rows), dtype=np.int64), rows.lengths)
        keys, counts = np.unique(row_of * vocab_size + rows.term_ids, return_counts=True)
        indptr = np.searchsorted(keys, np.arange(len(rows) + 1, dtype=np.int64) * vocab_size).astype(np.int64)
        return cls(indptr, (keys % max(vocab_size, 1)).astype(np.uint32), counts.astype(np.float32), vocab_size)

    @classmethod
    def empty(cls, n_rows: int, *, vocab_size: int, dtype: npt.DTypeLike = np.float32) -> SparseVectors:
        """Return empty rows; `dtype` is that of the weights."""
        return cls(np.zeros(n_rows + 1, dtype=np.int64), np.zeros(0, np.uint32), np.zeros(0, dtype), vocab_size)

    @classmethod
    def concatenate(cls, parts: Sequence[SparseVectors]) -> SparseVectors:
        """Concatenate the rows of several parts.

        Args:
            parts: one or more parts over the same vocabulary, with weights of the same dtype.
        """
        indptr = row_starts(np.concatenate([np.diff(part.indptr) for part in parts]))
        term_ids = np.concatenate([part.term_ids for part in parts])
        return cls(indptr, term_ids, np.concatenate([part.weights for part in parts]), parts[0].vocab_size)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, position: int) -> tuple[TermIds, npt.NDArray[np.float32] | npt.NDArray[np.uint8]]:
        """Return term ids and weights of a row."""
        span = slice(self.indptr[position], self.indptr[position + 1])
        return self.term_ids[span], self.weights[span]

    def take(self, rows: IntArray) -> SparseVectors:
        """Return the rows with the numbers (m,) int64, in the given order."""
        indptr, entries = row_entries(self.indptr, rows)
        return SparseVectors(indptr, self.term_ids[entries], self.weights[entries], self.vocab_size)

    def with_weights(self, weights: npt.NDArray[np.float32] | npt.NDArray[np.uint8]) -> SparseVectors:
        """Return the same terms with other weights."""
        return SparseVectors(self.indptr, self.term_ids, weights, self.vocab_size)

    def without_zeros(self) -> SparseVectors:
        """Return the vectors without stored zeros."""
        keep = self.weights != 0
        kept_before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        return SparseVectors(kept_before[self.indptr], self.term_ids[keep], self.weights[keep], self.vocab_size)

    def to_dense(self) -> npt.NDArray[np.float32] | npt.NDArray[np.uint8]:
        """Return a dense array (n, vocab_size) in the weights' dtype; for small vectors."""
        dense = np.zeros((len(self), self.vocab_size), dtype=self.weights.dtype)
        dense[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.term_ids] = self.weights
        return dense


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """A batch of encoded queries; a branch that the encoder lacks is None.

    Attributes:
        term_ids: term ids of the queries, used by a lexical branch over the model's vocabulary and by explanations.
        dense: (n, dim) float32 rows of L2 norm 1; zeros for an empty query.
        sparse: one row per query.
    """

    term_ids: Ragged
    dense: Floats | None
    sparse: SparseVectors | None

    def __len__(self) -> int:
        return len(self.term_ids)


class QueryEncoder(Protocol):
    """Encodes texts as query vectors without a model."""

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the document side that the query vectors are comparable with."""
        ...

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Encode a batch; `task` selects one of the encoder's tables, None its default."""
        ...


def normalized(rows: Floats) -> Floats:
    """Return the rows scaled to length 1; a row of zeros is unchanged."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    out: Floats = np.divide(rows, lengths, out=np.zeros(rows.shape, np.float32), where=lengths > 0)
    return out
