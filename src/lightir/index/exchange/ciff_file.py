"""Read a CIFF file as a stream (see `lightir.index.exchange.ciff_export` for the format)."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput, NotFound, storage_errors
from lightir.index.exchange.ciff_export import BYTES, FIXED32, FIXED64, MAX_INT32, VARINT
from lightir.index.exchange.varints import MAX_BYTES, decode_number, decode_numbers

CIFF_VERSION = 1
CHUNK_BYTES = 1 << 20
"""Number of bytes of a posting list that are read at once."""

MAX_RECORD_BYTES = 1 << 24
"""Maximum size of a header, of a document record, and of a posting list without its postings."""

GapsAndWeights = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Gaps and frequencies of consecutive postings."""


@dataclass(frozen=True, slots=True)
class CiffHeader:
    """The header of a CIFF file: its description, and the numbers that a reader needs."""

    description: str
    n_lists: int
    n_documents: int


class CiffTerm(NamedTuple):
    """A posting list after its postings: the term and the number of its postings."""

    term: str
    n_postings: int


class CiffDocument(NamedTuple):
    """A document record."""

    doc_id: str
    length: int


FEWEST_FIELDS, MOST_FIELDS = 8, 4096
"""Numbers of fields that are read one by one before usual postings are expected again."""

FEW_BYTES = 200
"""Size below which postings are read one by one."""

WireField = tuple[int, int, int | bytes]
"""Number, wire type and value of a protobuf field; bytes for strings and fixed widths."""


class CiffFile:
    """A CIFF file, plain or gzipped, to be read once from start to end: `term` n_lists times, then `documents`.

    Attributes:
        header: the header.
        name: name of the file, for messages.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Read the header.

        Raises:
            InvalidInput: not a CIFF file of version 1.
        """
        self._file, self.name = file, name
        with self._place("the header"):
            values = dict.fromkeys(range(1, 4), 0)
            texts = {8: ""}
            for number, _, value in _fields(self._message()):
                if number in values:
                    values[number] = _int32(value)
                elif number == 8:
                    texts[8] = _decoded(value)
            if values[1] != CIFF_VERSION:
                raise ValueError(f"it has the version {values[1]}; expected {CIFF_VERSION}")
        self.header = CiffHeader(texts[8], values[2], values[3])

    def read_list(self, number: int, take: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], None]) -> CiffTerm:
        """Read the next posting list.

        Args:
            number: number of the list, from 0, for messages.
            take: function that is called with some documents and their frequencies, in order.

        Raises:
            InvalidInput: the file ends, or the list is no valid PostingsList; the message names it.
        """
        with self._place(f"posting list {number + 1} of {self.header.n_lists}"):
            return self._read_list(take)

    def _read_list(self, take: Callable[[npt.NDArray[np.int64], npt.NDArray[np.int64]], None]) -> CiffTerm:
        term, df, n_postings, last = "", 0, 0, 0
        for part in self._list_parts(self._length()):
            if len(part) == 3:
                field, _, value = part
                term = _decoded(value) if field == 1 else term
                df = _int32(value) if field == 2 else df
                continue
            gaps, weights = part
            repeats = gaps[1:] if n_postings == 0 else gaps
            if np.any(repeats == 0):
                raise ValueError("a document is repeated")
            documents = last + np.cumsum(gaps)
            if len(documents) and documents[-1] >= self.header.n_documents:
                raise ValueError(f"document {documents[-1]} is beyond the {self.header.n_documents} of the header")
            last = int(documents[-1]) if len(documents) else last
            n_postings += len(documents)
            take(documents, weights)
        if not term:
            raise ValueError("it has no term")
        if df != n_postings:
            raise ValueError(f"term {term[:40]!r} has {n_postings} postings, but a document frequency of {df}")
        return CiffTerm(term, n_postings)

    def documents(self) -> Iterator[CiffDocument]:
        """Yield the document records in the order of their numbers, and check that the file ends after them.

        Raises:
            InvalidInput: the file ends early or late, a record is invalid, or records are not in order.
        """
        for number in range(self.header.n_documents):
            with self._place(f"document record {number + 1} of {self.header.n_documents}"):
                integers, doc_id = {1: 0, 3: 0}, ""
                for field, _, value in _fields(self._message()):
                    if field in integers:
                        integers[field] = _int32(value)
                    elif field == 2:
                        doc_id = _decoded(value)
                if integers[1] != number:
                    raise ValueError(f"it has the number {integers[1]}; expected {number}, since records ascend")
                if not doc_id:
                    raise ValueError("it has no collection_docid")
            yield CiffDocument(doc_id, integers[3])
        with self._place("the end"):
            if self._file.read(1):
                raise ValueError("more bytes follow the records that the header counts")

    def _list_parts(self, n_left: int) -> Iterator[WireField | GapsAndWeights]:
        """Yield the fields of a PostingsList of n_left bytes, and most of its postings in groups."""
        content, at, n_fields, others = b"", 0, FEWEST_FIELDS, 0
        while True:
            if n_left and len(content) - at < CHUNK_BYTES:
                part = self._read(min(n_left, CHUNK_BYTES))
                content, at, n_left = content[at:] + part, 0, n_left - len(part)
            if at == len(content):
                return
            if (usual := usual_postings(content, at)) is not None:
                gaps, weights, at = usual
                n_fields = FEWEST_FIELDS
                yield gaps, weights
                continue
            for _ in range(n_fields):  # more each time: usual postings may follow, but not among damaged ones
                if (field := _field_at(content, at)) is None:
                    break
                number, wire, value, at = field
                if number == 4 and wire == BYTES:
                    yield _posting(cast(bytes, value))
                else:
                    others += len(value) if isinstance(value, bytes) else 1
                    yield number, wire, value
            n_fields = min(2 * n_fields, MOST_FIELDS)
            if others > MAX_RECORD_BYTES or len(content) - at > MAX_RECORD_BYTES:
                raise ValueError(f"fields other than postings have more than {MAX_RECORD_BYTES:,} bytes")
            if field is None and at < len(content):
                if not n_left:
                    raise ValueError("a field is longer than the list")
                part = self._read(min(n_left, CHUNK_BYTES))
                content, at, n_left = content[at:] + part, 0, n_left - len(part)

    def _message(self) -> bytes:
        length = self._length()
        if length > MAX_RECORD_BYTES:
            raise ValueError(f"it has {length:,} bytes; the limit is {MAX_RECORD_BYTES:,}")
        return self._read(length)

    def _length(self) -> int:
        content = b""
        while len(content) < MAX_BYTES:
            content += self._read(1)
            if content[-1] < 128:
                length, _ = cast(tuple[int, int], decode_number(content, 0))
                if length > MAX_INT32:
                    raise ValueError(f"it has {length:,} bytes; protobuf's limit is {MAX_INT32:,}")
                return length
        raise ValueError("its length has more than 64 bits")

    def _read(self, n_bytes: int) -> bytes:
        content = self._file.read(n_bytes)
        if len(content) < n_bytes:
            raise ValueError("the file ends within it")
        return content

    @contextlib.contextmanager
    def _place(self, part: str) -> Iterator[None]:
        """Turn errors of the block into InvalidInput that names the file and the place."""
        try:
            yield
        except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{self.name} is not a complete CIFF file, or it is damaged: {part}: {error}") from None


@contextlib.contextmanager
def open_ciff(path: Path | str) -> Iterator[CiffFile]:
    """Open a CIFF file, which is decompressed if its name ends in .gz.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: not a CIFF file.
        StorageError: the system refuses to read it.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a CIFF file")
    with storage_errors(f"cannot read {path}"), path.open("rb") as raw:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix.lower() == ".gz" else raw
        yield CiffFile(file, str(path))


def usual_postings(content: bytes, at: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int] | None:
    """Decode the postings at a position that are written in the usual way: a gap of at least 1, then a frequency.

    Returns:
        Gaps, frequencies, and the position after these postings; None if the first one is different or cut off.
    """
    if len(content) - at < FEW_BYTES or content[at] != 4 << 3 | BYTES:
        return None
    decoded = decode_numbers(content[at : at + CHUNK_BYTES])
    if decoded is None:
        return None
    values, ends = decoded
    n = len(values) // 6
    rows = values[: 6 * n].reshape(n, 6)
    after = ends[: 6 * n].reshape(n, 6)
    is_usual = (rows[:, (0, 2, 4)] == (4 << 3 | BYTES, 1 << 3 | VARINT, 2 << 3 | VARINT)).all(axis=1)
    is_usual &= rows[:, 1] == after[:, 5] - after[:, 1]
    is_usual &= (rows[:, (3, 5)] <= MAX_INT32).all(axis=1)
    n_usual = n if is_usual.all() else int(is_usual.argmin())
    if not n_usual:
        return None
    return rows[:n_usual, 3], rows[:n_usual, 5], at + int(after[n_usual - 1, 5])


def _posting(message: bytes) -> GapsAndWeights:
    gap = weight = 0
    for number, _, value in _fields(message):
        gap = _int32(value) if number == 1 else gap
        weight = _int32(value) if number == 2 else weight
    return np.array([gap]), np.array([weight])


def _fields(message: bytes) -> Iterator[WireField]:
    """Yield the fields of a whole message."""
    at = 0
    while at < len(message):
        if (field := _field_at(message, at)) is None:
            raise ValueError("a field ends after its message")
        number, wire, value, at = field
        yield number, wire, value


def _field_at(content: bytes, start: int) -> tuple[int, int, int | bytes, int] | None:
    """Return number, wire type and value of a field, and the position after it; None if it is cut off."""
    if (tag := decode_number(content, start)) is None:
        return None
    key, at = tag
    number, wire = key >> 3, key & 7
    if wire == VARINT:
        value = decode_number(content, at)
        return None if value is None else (number, wire, *value)
    if wire == BYTES:
        if (sized := decode_number(content, at)) is None:
            return None
        size, at = sized
    elif wire in (FIXED32, FIXED64):
        size = 4 if wire == FIXED32 else 8
    else:
        raise ValueError(f"a field has the unknown wire type {wire}")
    return None if at + size > len(content) else (number, wire, content[at : at + size], at + size)


def _int32(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a number is written as text")
    if value > MAX_INT32:
        raise ValueError(f"a number is {value if value < 2**63 else value - 2**64}; expected 0 to {MAX_INT32}")
    return value


def _decoded(value: int | bytes) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a text is written as a number")
    return value.decode()  # UnicodeDecodeError is a ValueError
