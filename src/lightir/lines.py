"""Numbered lines of UTF-8 files, plain or gzipped, and of stdin."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from lightir.errors import InvalidInput


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield all lines of a file with their numbers, from 1, and their line ends.

    Raises:
        InvalidInput: invalid UTF-8, or a damaged gzip stream; the message names the line.
    """
    yield from _decoded(_raw_lines(path), str(path))


def read_nonblank_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a file with their numbers, without line ends."""
    return _without_blank(read_lines(path))


def read_stdin_lines() -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of stdin with their numbers, without line ends; UTF-8 in any locale."""
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else io.BytesIO(sys.stdin.read().encode())
    return _without_blank(_decoded(stream, "stdin"))


def read_text(path: Path) -> str:
    """Return the whole content of a file."""
    return "".join(line for _, line in read_lines(path))


def count_lines(path: Path) -> int:
    """Return the number of non-blank lines, without decoding them."""
    return sum(1 for line in _raw_lines(path) if line.strip())


def _without_blank(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((number, line.rstrip("\r\n")) for number, line in lines if line.strip())


def _raw_lines(path: Path) -> Iterator[bytes]:
    number = 0
    with _open(path) as file:
        try:
            for number, line in enumerate(file, 1):  # noqa: B007 (used in the error message)
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInput(f"{path}, after line {number}: the gzip stream is damaged: {error}") from error


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def _decoded(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark is not part of the text
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            utf_16 = number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff"))
            hint = "; it looks like UTF-16, convert it with: iconv -f UTF-16 -t UTF-8" * utf_16
            raise InvalidInput(
                f"{name}, line {number}: invalid UTF-8 (byte {line[error.start]:#04x} at position {error.start}){hint}"
            ) from None
