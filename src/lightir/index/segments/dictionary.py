"""A segment's terms in ascending order: words, or the model's term ids; a term's place is its id inside the segment."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError
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


class SortedStrings:
    """Different strings in ascending order of code points (UTF-8 bytes sort the same way)."""

    def __init__(self, text: npt.NDArray[np.uint8], indptr: npt.NDArray[np.int64]) -> None:
        """Wrap the arrays that `pack` made: string i is text[indptr[i]:indptr[i + 1]] in UTF-8."""
        self.arrays = text, indptr
        self._text = memoryview(text.data)
        self._indptr = memoryview(indptr.data)  # gives Python integers, ten times as fast as numpy's

    @staticmethod
    def pack(strings: Sequence[str]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """The arrays of strings that ascend already."""
        encoded = [string.encode() for string in strings]
        indptr = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(each) for each in encoded], out=indptr[1:])
        return np.frombuffer(b"".join(encoded), dtype=np.uint8), indptr

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def __getitem__(self, position: int) -> str:
        try:
            return self.text(position).decode()
        except UnicodeDecodeError:
            raise FormatError("a stored string is no UTF-8; `lightir verify` says which file of the index") from None

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last one in UTF-8; there must be one."""
        return self.text(0), self.text(len(self) - 1)

    def terms(self) -> list[str]:
        """All of them."""
        return [self[position] for position in range(len(self))]

    def select(self, kept: npt.NDArray[np.bool_]) -> list[str]:
        """Those that the mask keeps."""
        return [self[position] for position in np.flatnonzero(kept).tolist()]

    def find(self, string: str) -> int | None:
        """The string's position, or None."""
        wanted = string.encode(errors="surrogatepass")
        position = bisect_left(range(len(self)), wanted, key=self.text)
        return position if position < len(self) and self.text(position) == wanted else None

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """(n + 1,) where each string begins in the text, and where the last one ends."""
        return self.arrays[1]

    def text(self, position: int) -> bytes:
        """A string in UTF-8."""
        return bytes(self._text[self._indptr[position] : self._indptr[position + 1]])


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
