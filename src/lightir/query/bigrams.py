"""Pairs of adjacent terms, and longer runs of terms, that have table rows of their own beside the rows of the terms."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.vectors import IntArray, Ragged, TermIds

TermPairs = npt.NDArray[np.uint32]


LONGER = 1 << 31
"""A pair whose first item is LONGER + j continues pair j by one more term: a run of three terms or more."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The pairs and longer runs in texts, repeats included.

    Attributes:
        rows: row numbers of each text.
        starts: (n,) int64, position of each one's first term in the texts' term ids.
        lengths: (n,) int64, its number of terms.
    """

    rows: Ragged
    starts: IntArray
    lengths: IntArray


class Bigrams:
    """The pairs and longer runs that have a row, and their positions in texts."""

    def __init__(self, pairs: TermPairs) -> None:
        """Assign row i to pairs[i].

        Args:
            pairs: (n, 2) uint32, ascending and distinct: two term ids, or LONGER + j and the term id that follows
                pair j, where j < i.

        Raises:
            InvalidInput: unexpected shape or dtype, not ascending, or a run that continues none before it.
        """
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.uint32:
            raise InvalidInput(f"bigrams are {pairs.dtype} of shape {pairs.shape}; expected uint32 of (n, 2)")
        self.pairs = pairs
        self._keys = _keys(pairs[:, 0], pairs[:, 1])
        if np.any(self._keys[1:] <= self._keys[:-1]):
            raise InvalidInput("bigrams must be ascending and distinct")
        longer = pairs[self.n_pairs :, 0].astype(np.int64) - LONGER
        if np.any(longer >= np.arange(self.n_pairs, len(pairs))):
            raise InvalidInput("a run of terms continues one that does not come before it")

    @cached_property
    def n_pairs(self) -> int:
        """Number of pairs of terms, which come before the longer runs."""
        return int(np.searchsorted(self.pairs[:, 0], np.uint32(LONGER)))

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the pairs: 16 hexadecimal digits."""
        return hashlib.sha256(np.ascontiguousarray(self.pairs).tobytes()).hexdigest()[:16]

    def find(self, texts: Ragged) -> FoundRuns:
        """Find the pairs and longer runs in each text, in the order of their first terms, shorter ones first."""
        first, second, starts = adjacent_terms(texts)
        rows, known = self._known(first, second)
        rows, starts = rows[known], starts[known]
        levels = [(rows, starts, np.full(len(rows), 2, dtype=np.int64))]
        ends = np.repeat(texts.indptr[1:], texts.lengths)
        while len(rows) and self.n_pairs < len(self):
            length = int(levels[-1][2][0]) + 1
            inside = starts + length <= ends[starts]
            rows, starts = rows[inside], starts[inside]
            next_rows, known = self._known((rows + LONGER).astype(np.uint32), texts.term_ids[starts + length - 1])
            rows, starts = next_rows[known], starts[known]
            levels.append((rows, starts, np.full(len(rows), length, dtype=np.int64)))
        rows, starts, lengths = (np.concatenate(arrays) for arrays in zip(*levels, strict=True))
        order = np.argsort(starts, kind="stable")
        indptr = np.searchsorted(starts[order], texts.indptr).astype(np.int64)
        return FoundRuns(Ragged(rows[order].astype(np.uint32), indptr), starts[order], lengths[order])

    def _known(self, first: TermIds, second: TermIds) -> tuple[IntArray, npt.NDArray[np.bool_]]:
        """Return the rows of pairs, int64, and which of the pairs have one."""
        if not len(self):
            return np.zeros(len(first), dtype=np.int64), np.zeros(len(first), dtype=np.bool_)
        keys = _keys(first, second)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1).astype(np.int64)
        return rows, self._keys[rows] == keys


def _keys(first: TermIds, second: TermIds) -> npt.NDArray[np.uint64]:
    return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)


def adjacent_terms(texts: Ragged) -> tuple[TermIds, TermIds, IntArray]:
    """Return first terms, second terms and the first terms' positions of all adjacent pairs within a text."""
    is_last = np.zeros(len(texts.term_ids) + 1, dtype=np.bool_)
    is_last[texts.indptr[1:] - 1] = True  # an empty text marks its predecessor again; index -1 is the surplus element
    positions = np.flatnonzero(~is_last[:-1]).astype(np.int64)
    return texts.term_ids[positions], texts.term_ids[positions + 1], positions
