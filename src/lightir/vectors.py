"""Vectors in memory: ragged lists of term ids, sparse vectors in CSR form, and what a query encoder returns."""

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
    """(n + 1,) int64: where each of n rows of these lengths begins in a flat array, and where the last one ends."""
    indptr = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=indptr[1:])
    return indptr


def row_entries(indptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Where the entries of some rows stand in a flat array.

    Args:
        indptr: (n + 1,) int64, where each of the n rows begins.
        rows: (m,) int64 row numbers, in any order, repeats allowed.

    Returns:
        (m + 1,) int64, where each row begins once these rows are put one after the other; and the positions, int64, of
        their entries in the old array, in the new order.
    """
    lengths = indptr[rows + 1] - indptr[rows]
    starts = row_starts(lengths)
    return starts, np.arange(starts[-1]) + np.repeat(indptr[rows] - starts[:-1], lengths)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of term ids of different lengths in two flat arrays.

    Attributes:
        term_ids: (total,) uint32, all rows one after the other.
        indptr: (n + 1,) int64; row i is term_ids[indptr[i]:indptr[i + 1]].
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
        """The term ids of one row."""
        return self.term_ids[self.indptr[position] : self.indptr[position + 1]]

    @property
    def lengths(self) -> IntArray:
        """(n,) int64."""
        return np.diff(self.indptr)

    def without(self, drop: TermIds) -> Ragged:
        """The rows without the given term ids."""
        keep = ~np.isin(self.term_ids, drop)
        kept_before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        return Ragged(self.term_ids[keep], kept_before[self.indptr])


@dataclass(frozen=True, slots=True)
class SparseVectors:
    """Sparse vectors over a vocabulary, row by row (CSR); within a row term ids ascend, each at most once.

    Attributes:
        indptr: (n + 1,) int64.
        term_ids: (nnz,) uint32.
        weights: (nnz,) float32, or uint8 where they are quantised impacts.
        vocab_size: the width; every term id is below it.
    """

    indptr: IntArray
    term_ids: TermIds
    weights: npt.NDArray[np.float32] | npt.NDArray[np.uint8]
    vocab_size: int

    def __post_init__(self) -> None:
        if self.indptr.ndim != 1 or len(self.indptr) == 0 or self.indptr[0] != 0 or np.any(np.diff(self.indptr) < 0):
            raise InvalidInput("indptr must start at 0 and never fall")
        if not self.indptr[-1] == len(self.term_ids) == len(self.weights):
            raise InvalidInput(
                f"indptr ends at {self.indptr[-1]}, but there are {len(self.term_ids)} term ids "
                f"and {len(self.weights)} weights"
            )
        if len(self.term_ids) and int(self.term_ids.max()) >= self.vocab_size:
            raise InvalidInput(f"term id {self.term_ids.max()} is outside the vocabulary of {self.vocab_size}")

    @classmethod
    def count(cls, rows: Ragged, *, vocab_size: int) -> SparseVectors:
        """Each row's distinct term ids with their counts, float32."""
        row_of = np.repeat(np.arange(len(rows), dtype=np.int64), rows.lengths)
        keys, counts = np.unique(row_of * vocab_size + rows.term_ids, return_counts=True)
        indptr = np.searchsorted(keys, np.arange(len(rows) + 1, dtype=np.int64) * vocab_size).astype(np.int64)
        return cls(indptr, (keys % max(vocab_size, 1)).astype(np.uint32), counts.astype(np.float32), vocab_size)

    @classmethod
    def empty(cls, n_rows: int, *, vocab_size: int, dtype: npt.DTypeLike = np.float32) -> SparseVectors:
        """Rows without any term; `dtype` is that of their weights."""
        return cls(np.zeros(n_rows + 1, dtype=np.int64), np.zeros(0, np.uint32), np.zeros(0, dtype), vocab_size)

    @classmethod
    def concatenate(cls, parts: Sequence[SparseVectors]) -> SparseVectors:
        """The rows of all parts, one part after the other.

        Args:
            parts: at least one; all over the same vocabulary and with weights of the same dtype.
        """
        indptr = row_starts(np.concatenate([np.diff(part.indptr) for part in parts]))
        term_ids = np.concatenate([part.term_ids for part in parts])
        return cls(indptr, term_ids, np.concatenate([part.weights for part in parts]), parts[0].vocab_size)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, position: int) -> tuple[TermIds, npt.NDArray[np.float32] | npt.NDArray[np.uint8]]:
        """Term ids and weights of one row."""
        span = slice(self.indptr[position], self.indptr[position + 1])
        return self.term_ids[span], self.weights[span]

    def take(self, rows: IntArray) -> SparseVectors:
        """Some rows, by their numbers (m,) int64, in the given order."""
        indptr, entries = row_entries(self.indptr, rows)
        return SparseVectors(indptr, self.term_ids[entries], self.weights[entries], self.vocab_size)

    def with_weights(self, weights: npt.NDArray[np.float32] | npt.NDArray[np.uint8]) -> SparseVectors:
        """The same terms with other weights."""
        return SparseVectors(self.indptr, self.term_ids, weights, self.vocab_size)

    def without_zeros(self) -> SparseVectors:
        """The same vectors without stored zeros."""
        keep = self.weights != 0
        kept_before = np.concatenate([[0], np.cumsum(keep)]).astype(np.int64)
        return SparseVectors(kept_before[self.indptr], self.term_ids[keep], self.weights[keep], self.vocab_size)

    def to_dense(self) -> npt.NDArray[np.float32] | npt.NDArray[np.uint8]:
        """(n, vocab_size) in the weights' dtype; for tests and small things."""
        dense = np.zeros((len(self), self.vocab_size), dtype=self.weights.dtype)
        dense[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.term_ids] = self.weights
        return dense


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """A batch of encoded queries; a branch that the encoder lacks is None.

    Attributes:
        term_ids: the queries' term ids, for the tokens branch over the model's vocabulary and for explain.
        dense: (n, dim) float32, L2-normalised; an empty query's row is zero.
        sparse: one row a query.
    """

    term_ids: Ragged
    dense: Floats | None
    sparse: SparseVectors | None

    def __len__(self) -> int:
        return len(self.term_ids)


class QueryEncoder(Protocol):
    """Text in, query vectors out, without any model at query time."""

    @property
    def document_fingerprint(self) -> str:
        """The fingerprint of the document side that the vectors are made for."""
        ...

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Encode a batch; `task` picks one of the encoder's tables, None its default."""
        ...
