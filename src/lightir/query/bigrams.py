"""Pairs of adjacent terms that have table rows of their own, in addition to the rows of the two terms."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.vectors import IntArray, Ragged, TermIds

TermPairs = npt.NDArray[np.uint32]


class Bigrams:
    """The pairs that have a row, and their positions in texts."""

    def __init__(self, pairs: TermPairs) -> None:
        """Assign row i to the pair of terms pairs[i].

        Args:
            pairs: (n, 2) uint32 term ids, ascending and distinct.

        Raises:
            InvalidInput: unexpected shape or dtype, or not ascending.
        """
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.uint32:
            raise InvalidInput(f"bigrams are {pairs.dtype} of shape {pairs.shape}; expected uint32 of (n, 2)")
        self.pairs = pairs
        self._keys = _keys(pairs[:, 0], pairs[:, 1])
        if np.any(self._keys[1:] <= self._keys[:-1]):
            raise InvalidInput("bigrams must be ascending and distinct")

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.pairs)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the pairs: 16 hexadecimal digits."""
        return hashlib.sha256(np.ascontiguousarray(self.pairs).tobytes()).hexdigest()[:16]

    def find(self, texts: Ragged) -> tuple[Ragged, IntArray]:
        """Find the pairs in each text, in text order, repeats included.

        Returns:
            Row numbers, one ragged row per text; and for each the position of its first term in texts.term_ids.
        """
        first, second, positions = adjacent_terms(texts)
        if not len(self) or not len(positions):
            none = np.zeros(0, dtype=np.uint32)
            return Ragged(none, np.zeros(len(texts) + 1, dtype=np.int64)), np.zeros(0, dtype=np.int64)
        keys = _keys(first, second)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        known = self._keys[rows] == keys
        starts = positions[known]
        indptr = np.searchsorted(starts, texts.indptr).astype(np.int64)
        return Ragged(rows[known].astype(np.uint32), indptr), starts


def _keys(first: TermIds, second: TermIds) -> npt.NDArray[np.uint64]:
    return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)


def adjacent_terms(texts: Ragged) -> tuple[TermIds, TermIds, IntArray]:
    """Return first terms, second terms and the first terms' positions of all adjacent pairs within a text."""
    is_last = np.zeros(len(texts.term_ids) + 1, dtype=np.bool_)
    is_last[texts.indptr[1:] - 1] = True  # an empty text marks its predecessor again; index -1 is the surplus element
    positions = np.flatnonzero(~is_last[:-1]).astype(np.int64)
    return texts.term_ids[positions], texts.term_ids[positions + 1], positions
