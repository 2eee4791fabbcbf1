"""The words of a view: all dictionaries of its tokens branch, for words that are misspelled or still being typed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index.segments.dictionary import SortedStrings

NEAR_KEPT = 10_000
"""Maximum number of misspelled words whose near words a dictionary keeps; they come again on every page of a search."""

Frequencies = npt.NDArray[np.uint32]


class WordDictionary:
    """The words of several dictionaries, with their document frequencies, which count deleted documents too."""

    def __init__(self, parts: Sequence[tuple[SortedStrings, Frequencies]]) -> None:
        """Wrap dictionaries.

        Args:
            parts: the words of each segment, and their (n,) document frequencies.

        Attributes:
            related: word -> what a search keeps about it, until the next change of the index.
        """
        self._parts = parts
        self._near: dict[tuple[str, int], dict[str, int]] = {}
        self.related: dict[str, Any] = {}

    def near(self, word: str, *, distance: int) -> Mapping[str, int]:
        """Return the words within an edit distance (`lightir.kernel.near_terms`), each with its distance."""
        kept = self._near.get((word, distance))
        if kept is not None:
            return kept
        distances: dict[str, int] = {}
        for terms, _ in self._parts:
            positions, far = kernel.near_terms(*terms.arrays, word, distance=distance)
            distances |= {terms[i]: n for i, n in zip(positions.tolist(), far.tolist(), strict=True)}
        if len(self._near) >= NEAR_KEPT:
            self._near.clear()
        self._near[word, distance] = distances
        return distances

    def frequency(self, word: str) -> int:
        """Return the number of documents that have a word."""
        positions = [(terms.find(word), df) for terms, df in self._parts]
        return sum(int(df[position]) for position, df in positions if position is not None)

    def longer(self, word: str) -> tuple[set[str], set[str]]:
        """Return the longer words that begin with a word, and those that end with it."""
        beginning = {terms[i] for terms, _ in self._parts for i in terms.beginning(word)}
        return beginning, {terms[i] for terms, _ in self._parts for i in terms.ending(word)}

    def completions(self, prefix: str, k: int) -> list[str]:
        """Return the k most frequent words that begin with a prefix and are longer; ties go to the smaller word.

        Each dictionary gives its most frequent words. As long as a word that none of them gave could be among the k
        best, because the frequencies of their last ones add up to that of the k-th best or more, each gives twice as
        many.
        """
        spans = [terms.beginning(prefix) for terms, _ in self._parts]
        if len(self._parts) == 1:
            ((terms, df),), (span,) = self._parts, spans
            return [terms[span.start + i] for i in _most_frequent(df[span.start : span.stop], k).tolist()]
        asked = k
        while True:
            given: set[str] = set()
            unseen = 0  # upper bound of the frequency of a word that no dictionary gave
            for (terms, df), span in zip(self._parts, spans, strict=True):
                positions = span.start + _most_frequent(df[span.start : span.stop], asked)
                given.update(terms[i] for i in positions.tolist())
                unseen += int(df[positions[-1]]) if len(positions) < len(span) else 0
            frequencies = Counter({word: self.frequency(word) for word in given})
            best = sorted(given, key=lambda word: (-frequencies[word], word))[:k]
            if not unseen or (len(best) == k and frequencies[best[-1]] > unseen):
                return best
            asked *= 2


def _most_frequent(df: Frequencies, k: int) -> npt.NDArray[np.int64]:
    """Return the positions of the k largest frequencies, largest first; ties go to the smaller position."""
    if len(df) > k:
        least = np.partition(df, len(df) - k)[len(df) - k]
        above = np.flatnonzero(df > least)
        chosen = np.concatenate([above, np.flatnonzero(df == least)[: k - len(above)]])
    else:
        chosen = np.arange(len(df))
    return chosen[np.argsort(-df[chosen].astype(np.int64), kind="stable")]
