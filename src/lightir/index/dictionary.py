"""A segment's terms in ascending order: words, or the model's term ids; a term's place is its id inside the segment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.index.strings import SortedStrings
from lightir.vectors import TermIds

Terms: TypeAlias = list[str] | TermIds
"""Distinct terms, ascending."""


def pack(terms: Terms) -> dict[str, npt.NDArray[Any]]:
    """The dictionary's arrays by name."""
    if isinstance(terms, np.ndarray):
        return {"tokens.terms.ids": terms}
    text, indptr = SortedStrings.pack(terms)
    return {"tokens.terms.text": text, "tokens.terms.indptr": indptr}


def union(dictionaries: Sequence[Terms]) -> tuple[Terms, list[TermIds]]:
    """All terms, and each dictionary's places among them, ascending too."""
    if all(isinstance(terms, np.ndarray) for terms in dictionaries):
        ids = np.unique(np.concatenate(dictionaries)).astype(np.uint32)
        return ids, [np.searchsorted(ids, terms).astype(np.uint32) for terms in dictionaries]
    words = sorted(set().union(*dictionaries))
    places = {word: place for place, word in enumerate(words)}
    return words, [np.fromiter((places[word] for word in each), np.uint32, len(each)) for each in dictionaries]


def select(terms: Terms, kept: npt.NDArray[np.bool_]) -> Terms:
    """The terms that the mask keeps."""
    if isinstance(terms, np.ndarray):
        return terms[kept]
    return [term for term, keep in zip(terms, kept.tolist(), strict=True) if keep]


class SortedIds:
    """The model's term ids that occur, as SortedStrings is for words."""

    def __init__(self, ids: TermIds) -> None:
        """Wrap ascending ids."""
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, position: int) -> int:
        return int(self._ids[position])

    def select(self, kept: npt.NDArray[np.bool_]) -> Terms:
        """Those that the mask keeps."""
        return self._ids[kept]

    def find(self, term_id: int) -> int | None:
        """The id's position, or None."""
        position = int(np.searchsorted(self._ids, term_id))
        return position if position < len(self) and self._ids[position] == term_id else None

    def places(self, term_ids: TermIds) -> npt.NDArray[np.int64]:
        """(n,) the positions of ids, -1 for one that does not occur."""
        if not len(self):
            return np.full(len(term_ids), -1, dtype=np.int64)
        found = np.searchsorted(self._ids, term_ids).astype(np.int64)
        return np.where(self._ids[np.minimum(found, len(self) - 1)] == term_ids, found, -1)

    def terms(self) -> Terms:
        """All of them."""
        return self._ids
