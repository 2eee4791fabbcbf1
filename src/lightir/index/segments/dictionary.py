"""Sorted strings and term ids in flat arrays: the document ids and the dictionary of terms of a segment."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError
from lightir.index.shared_property import shared_property
from lightir.vectors import TermIds, row_starts

KEY_BYTES = 8
"""Number of bytes at the end of a string that strings are looked up by."""

_LOWERED = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8)


class SortedStrings:
    """Distinct strings in ascending order of code points, which is also that of their UTF-8 bytes."""

    def __init__(self, text: npt.NDArray[np.uint8], indptr: npt.NDArray[np.int64]) -> None:
        """Wrap the arrays that `pack` returns: string i is text[indptr[i]:indptr[i + 1]] in UTF-8."""
        self.arrays = text, indptr
        self._text = memoryview(text.data)
        self._indptr = memoryview(indptr.data)  # gives Python integers, ten times as fast as numpy's

    @classmethod
    def pack(cls, strings: Sequence[str]) -> SortedStrings:
        """Return strings that already ascend as flat arrays."""
        encoded = [string.encode() for string in strings]
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), row_starts([len(text) for text in encoded]))

    def __len__(self) -> int:
        return len(self._indptr) - 1

    def __getitem__(self, position: int) -> str:
        try:
            return self.raw(position).decode()
        except UnicodeDecodeError:
            raise FormatError("a stored string is not UTF-8; `lightir verify` names the damaged file") from None

    def __iter__(self) -> Iterator[str]:
        return (self[position] for position in range(len(self)))

    def ends(self) -> tuple[bytes, bytes]:
        """Return the first and the last string in UTF-8; there must be at least one."""
        return self.raw(0), self.raw(len(self) - 1)

    def select(self, kept: npt.NDArray[np.bool_]) -> list[str]:
        """Return the strings that a mask keeps."""
        return [self[position] for position in np.flatnonzero(kept).tolist()]

    def find(self, string: str) -> int | None:
        """Return the position of a string, or None."""
        wanted = string.encode(errors="surrogatepass")
        if len(wanted) > self._longest:
            return None
        position = bisect_left(range(len(self)), wanted, key=self.raw)
        return position if position < len(self) and self.raw(position) == wanted else None

    def like(self, string: str, *, longer: int = 0) -> list[int]:
        """Return the positions of the strings that begin with another one, but for the case of ASCII letters.

        Args:
            string: the beginning.
            longer: number of further bytes that the strings have.
        """
        wanted = string.encode(errors="surrogatepass").lower()
        length = len(wanted) + longer
        if not self.may_hold(string, longer=longer):
            return []
        text, indptr = self.arrays
        rows = np.flatnonzero(np.diff(indptr) == length)
        for i in reversed(range(len(wanted))):  # ids differ at their ends more often
            if not len(rows):
                break
            rows = rows[_LOWERED[text[indptr[rows] + i]] == wanted[i]]
        return rows.tolist()

    def may_hold(self, string: str, *, longer: int = 0) -> bool:
        """Return False if no string is as long as another one and begins like it, but for the case of ASCII letters."""
        wanted = string.encode(errors="surrogatepass")
        return not wanted or _shape(len(wanted) + longer, wanted[:1].lower()[0]) in self._shapes

    def first_above(self, string: str) -> int:
        """Return the position of the first string above another one; the length if there is none."""
        return bisect_right(range(len(self)), string.encode(errors="surrogatepass"), key=self.raw)

    def beginning(self, string: str) -> range:
        """Return the positions of the strings that begin with another one and are longer."""
        wanted = string.encode(errors="surrogatepass")
        start = bisect_left(range(len(self)), wanted + b"\0", key=self.raw)
        return range(start, bisect_left(range(len(self)), wanted + b"\xff", lo=start, key=self.raw))

    def ending(self, string: str) -> list[int]:
        """Return the positions of the strings that end with another one and are longer, in no particular order."""
        wanted = string.encode(errors="surrogatepass")
        keys, order = self._by_ending
        ending = wanted[-KEY_BYTES:]
        low = int.from_bytes(ending[::-1].ljust(KEY_BYTES, b"\0"), "big")
        high = low + 256 ** (KEY_BYTES - len(ending)) - 1
        start = int(np.searchsorted(keys, np.uint64(low)))
        end = int(np.searchsorted(keys, np.uint64(high), side="right"))
        positions = order[start:end].tolist()
        return [i for i in positions if self.raw(i).endswith(wanted) and len(self.raw(i)) > len(wanted)]

    @shared_property
    def _longest(self) -> int:
        """Number of bytes of the longest string: a whole question is looked up as an id, and is longer than all ids."""
        return int(np.diff(self.arrays[1]).max(initial=0))

    @shared_property
    def _shapes(self) -> frozenset[int]:
        """The `_shape` of each string: few words of a query are as long as an id and begin like it."""
        text, indptr = self.arrays
        rows = np.flatnonzero(np.diff(indptr))
        lengths = indptr[rows + 1] - indptr[rows]
        counts = np.bincount(_shape(lengths, _LOWERED[text[indptr[rows]]].astype(np.int64)))
        return frozenset(np.flatnonzero(counts).tolist())

    @shared_property
    def _by_ending(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """The last KEY_BYTES bytes of each string, the last one first, as ascending numbers; and their positions."""
        text, indptr = self.arrays
        keys = np.zeros(len(self), dtype=np.uint64)
        for i in range(KEY_BYTES):
            rows = np.flatnonzero(np.diff(indptr) > i)
            keys[rows] |= text[indptr[rows + 1] - 1 - i].astype(np.uint64) << np.uint64(8 * (KEY_BYTES - 1 - i))
        order = np.argsort(keys, kind="stable")
        return keys[order], order.astype(np.uint32)

    def raw(self, position: int) -> bytes:
        """Return a string in UTF-8."""
        return bytes(self._text[self._indptr[position] : self._indptr[position + 1]])


def _shape(length: Any, first: Any) -> Any:
    """Return a number for the length of a string and its first byte in lower case."""
    return 256 * length + first


class SortedIds:
    """Distinct term ids of the model, in ascending order."""

    def __init__(self, ids: TermIds) -> None:
        """Wrap ascending ids."""
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, position: int) -> int:
        return int(self._ids[position])

    def select(self, kept: npt.NDArray[np.bool_]) -> TermIds:
        """Return the ids that a mask keeps."""
        return self._ids[kept]

    def find(self, term_id: int) -> int | None:
        """Return the position of an id, or None."""
        position = int(np.searchsorted(self._ids, term_id))
        return position if position < len(self) and self._ids[position] == term_id else None

    def positions(self, term_ids: TermIds) -> npt.NDArray[np.int64]:
        """Return the (n,) positions of ids; -1 for an id that does not occur."""
        if not len(self):
            return np.full(len(term_ids), -1, dtype=np.int64)
        positions = np.searchsorted(self._ids, term_ids).astype(np.int64)
        return np.where(self._ids[np.minimum(positions, len(self) - 1)] == term_ids, positions, -1)


Terms: TypeAlias = list[str] | TermIds
"""Distinct terms in ascending order: words, or term ids of the model."""

Dictionary: TypeAlias = Terms | SortedStrings | SortedIds
"""Terms in memory or memory-mapped. The position of a term is its id inside the segment."""


def select(dictionary: Dictionary, kept: npt.NDArray[np.bool_]) -> Terms:
    """Return the terms that a mask keeps."""
    if isinstance(dictionary, SortedStrings | SortedIds):
        return dictionary.select(kept)
    if kept.all():
        return dictionary
    if isinstance(dictionary, np.ndarray):
        return dictionary[kept]
    return [term for term, keep in zip(dictionary, kept.tolist(), strict=True) if keep]


def union(dictionaries: Sequence[Terms]) -> tuple[Terms, list[TermIds]]:
    """Return all terms, and for each dictionary the ascending positions of its terms among them."""
    if all(isinstance(terms, np.ndarray) for terms in dictionaries):
        ids = np.unique(np.concatenate(dictionaries)).astype(np.uint32)
        return ids, [np.searchsorted(ids, terms).astype(np.uint32) for terms in dictionaries]
    words = sorted(set().union(*dictionaries))
    positions = {word: position for position, word in enumerate(words)}
    return words, [np.fromiter((positions[word] for word in terms), np.uint32, len(terms)) for terms in dictionaries]


def dictionary_arrays(terms: Terms) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a dictionary by name."""
    if isinstance(terms, np.ndarray):
        return {"tokens.terms.ids": terms}
    text, indptr = SortedStrings.pack(terms).arrays
    return {"tokens.terms.text": text, "tokens.terms.indptr": indptr}
