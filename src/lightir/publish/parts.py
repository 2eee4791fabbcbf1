"""The files of a publication: bytes in parts of moderate size, numbers in few bytes, sorted dictionaries in blocks.

A page reads most files in ranges. A host that ignores ranges sends a whole part instead, so parts are small.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightir.files import write_bytes
from lightir.index.exchange.varints import Numbers, encode_number, encode_numbers

PART_BYTES = 256 * 1024
"""Number of bytes of every part of a file but the last one."""

BLOCK_WORDS = 64
"""Number of words of a block of a dictionary."""


class PartWriter:
    """Writes the files of a publication into a folder.

    Attributes:
        files: name of each file -> its number of bytes, and whether it is packed (gzip).
    """

    def __init__(self, folder: Path) -> None:
        """Write into an existing folder."""
        self._folder = folder
        self._hash = hashlib.sha256()
        self.files: dict[str, dict[str, Any]] = {}

    def write(self, name: str, content: bytes | memoryview, *, packed: bool = False) -> None:
        """Write a file in parts.

        Args:
            name: name of the file.
            content: its bytes.
            packed: compress it; a page reads it whole.
        """
        stored = memoryview(gzip.compress(content, 9, mtime=0) if packed else content).cast("B")
        self.files[name] = {"bytes": len(stored), "packed": packed}
        self._hash.update(f"{name} {len(stored)}\n".encode())
        self._hash.update(stored)
        for part, start in enumerate(range(0, len(stored), PART_BYTES)):
            write_bytes(self._folder / f"{name}-{part:04d}.bin", bytes(stored[start : start + PART_BYTES]))

    def write_numbers(self, name: str, values: Sequence[int] | Numbers) -> None:
        """Write whole numbers from 0 on as a packed file."""
        self.write(name, encode_numbers(np.asarray(values, dtype=np.int64))[0], packed=True)

    def write_dictionary(self, name: str, words: Sequence[str], values: Sequence[int], held: Sequence[bytes]) -> None:
        """Write a dictionary whose words stand for texts, which its blocks hold."""
        self._write_blocks(name, words, values, [len(text) for text in held], held)

    def write_places(self, name: str, words: Sequence[str], values: Sequence[int], lengths: Sequence[int]) -> None:
        """Write a dictionary whose words stand for adjacent byte spans of another file.

        Args:
            name: name of the dictionary.
            words: n ascending, distinct words.
            values: (n,) number of each word.
            lengths: (n,) number of bytes that each word has in the other file.
        """
        self._write_blocks(name, words, values, lengths, [b""] * len(words))

    def _write_blocks(
        self,
        name: str,
        words: Sequence[str],
        values: Sequence[int],
        lengths: Sequence[int],
        held: Sequence[bytes],
    ) -> None:
        blocks, first_level = bytearray(), bytearray()
        for start in range(0, len(words), BLOCK_WORDS):
            block = bytearray()
            before = b""
            for i in range(start, min(start + BLOCK_WORDS, len(words))):
                word = words[i].encode()
                shared = _n_shared(before, word)
                block += encode_number(shared) + encode_number(len(word) - shared) + word[shared:]
                block += encode_number(values[i]) + encode_number(lengths[i]) + held[i]
                before = word
            first = words[start].encode()
            first_level += encode_number(len(first)) + first + encode_number(len(block))
            first_level += encode_number(sum(lengths[start : start + BLOCK_WORDS]))
            blocks += block
        self.write(f"{name}-blocks", bytes(first_level), packed=True)
        self.write(name, bytes(blocks))

    @property
    def digest(self) -> str:
        """Hash of all files that were written: 16 hexadecimal digits."""
        return self._hash.hexdigest()[:16]


def _n_shared(one: bytes, other: bytes) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
