"""A sorted list of strings in two flat arrays: doc_ids and dictionaries of terms, memory-mapped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError


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
