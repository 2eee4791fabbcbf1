"""Pairs of terms in a row that have a table row of their own, beside the two terms'."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.vectors import IntArray, Ragged, TermIds

TermPairs = npt.NDArray[np.uint32]


class Bigrams:
    """Which pairs have a row, and where they stand in a text."""

    def __init__(self, pairs: TermPairs) -> None:
        """Row i belongs to the terms pairs[i].

        Args:
            pairs: (n, 2) uint32, ascending and different.

        Raises:
            InvalidInput: another shape or dtype, or another order.
        """
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.uint32:
            raise InvalidInput(f"bigrams are {pairs.dtype} of shape {pairs.shape}; expected uint32 of (n, 2)")
        self.pairs = pairs
        self._keys = _keys(pairs[:, 0], pairs[:, 1])
        if np.any(self._keys[1:] <= self._keys[:-1]):
            raise InvalidInput("bigrams must ascend and differ")

    @classmethod
    def most_frequent(cls, texts: Ragged, n: int, *, min_count: int = 2) -> Bigrams:
        """The n most frequent pairs in the texts, ties to the smaller pair; min_count occurrences are needed."""
        first, second, _ = _adjacent(texts)
        keys, counts = np.unique(_keys(first, second), return_counts=True)
        keys, counts = keys[counts >= min_count], counts[counts >= min_count]
        chosen = np.sort(keys[np.lexsort((keys, -counts))[:n]])
        return cls(np.stack([chosen >> np.uint64(32), chosen & np.uint64(2**32 - 1)], axis=1).astype(np.uint32))

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the pairs: 16 hexadecimal digits."""
        return hashlib.sha256(np.ascontiguousarray(self.pairs).tobytes()).hexdigest()[:16]

    def find(self, texts: Ragged) -> tuple[Ragged, IntArray]:
        """The row numbers of the pairs that stand in each text, in its order, repeats each time.

        Returns:
            Row numbers, ragged as the texts are; and for each where its first term stands among all the texts' terms.
        """
        first, second, places = _adjacent(texts)
        if not len(self) or not len(places):
            none = np.zeros(0, dtype=np.uint32)
            return Ragged(none, np.zeros(len(texts) + 1, dtype=np.int64)), np.zeros(0, dtype=np.int64)
        keys = _keys(first, second)
        rows = np.minimum(np.searchsorted(self._keys, keys), len(self) - 1)
        hits = self._keys[rows] == keys
        found = places[hits]
        indptr = np.searchsorted(found, texts.indptr).astype(np.int64)
        return Ragged(rows[hits].astype(np.uint32), indptr), found


def _keys(first: TermIds, second: TermIds) -> npt.NDArray[np.uint64]:
    return (first.astype(np.uint64) << np.uint64(32)) | second.astype(np.uint64)


def _adjacent(texts: Ragged) -> tuple[TermIds, TermIds, IntArray]:
    """Terms with the next one of the same text, and the places of the former."""
    is_last = np.zeros(len(texts.term_ids) + 1, dtype=np.bool_)
    is_last[texts.indptr[1:] - 1] = True  # of an empty text the one before it; of an empty first one the surplus place
    places = np.flatnonzero(~is_last[:-1]).astype(np.int64)
    return texts.term_ids[places], texts.term_ids[places + 1], places
