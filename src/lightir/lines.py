"""Numbered lines of UTF-8 files, plain or gzipped, and of stdin, with limits on what is read into memory."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

from lightir.errors import InvalidInput, storage_errors

Opener: TypeAlias = Callable[[str, int], int]
"""Function from a path and flags to a descriptor, as Python's `open` takes it."""

MAX_BYTES = 1_000_000_000
"""Largest limit of a record: the size of the longest text that SQLite stores."""

JsonNumbers: TypeAlias = dict[str, dict[str, Any]]
"""Numbers by query id and document id."""

NUMBERS = {int: "a whole number", float: "a finite number"}
_PARTS = {"line": "max_line_bytes", "document": "max_document_bytes", "field": "max_field_bytes"}


@dataclass(slots=True)
class SkippedFiles:
    """Files of folders that were not read.

    Attributes:
        unreadable: doc_id -> the reason why the file could not be read.
        other_types: suffix in lower case -> number of files of a type that is not read.
        n_links: number of symbolic links that were not followed.
        n_excluded: number of files and folders that patterns exclude.
    """

    unreadable: dict[str, str] = field(default_factory=dict)
    other_types: dict[str, int] = field(default_factory=dict)
    n_links: int = 0
    n_excluded: int = 0

    def add(self, others: SkippedFiles) -> None:
        """Add the files of another folder."""
        self.unreadable |= others.unreadable
        for suffix, count in others.other_types.items():
            self.other_types[suffix] = self.other_types.get(suffix, 0) + count
        self.n_links += others.n_links
        self.n_excluded += others.n_excluded


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading files, folders and stdin.

    Attributes:
        max_line_bytes: maximum number of bytes of a line, with its end.
        max_document_bytes: maximum number of bytes of a document: of a text file, of all fields of a table's row, and
            of a document's text in UTF-8.
        max_field_bytes: maximum number of bytes in UTF-8 of an id, a title, and a metadata value written as JSON.
        follow_links: read the files and folders that symbolic links inside a folder lead to.
        exclude: patterns, in the syntax of .gitignore, of files and subfolders of a folder to leave out.
        ignore_files: also leave out what a folder's .gitignore, .ignore and .lightirignore files name.
        table: table or view of an SQLite database; None for the only one.
        sql: query of an SQLite database, whose rows are read instead of a table's.
        strict: a file of a folder that cannot be read is an error; otherwise it is skipped, and a log message says so.
        skipped: counts the skipped files, if it is given.
    """

    max_line_bytes: int = 64_000_000
    max_document_bytes: int = 64_000_000
    max_field_bytes: int = 16_000_000
    follow_links: bool = False
    exclude: tuple[str, ...] = ()
    ignore_files: bool = True
    strict: bool = False
    table: str | None = None
    sql: str | None = None
    skipped: SkippedFiles | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse limits that nothing could pass or that the index could not store."""
        for name in _PARTS.values():
            limit = getattr(self, name)
            if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_BYTES:
                raise InvalidInput(f"{name} is {limit!r}; expected a whole number from 1 to {MAX_BYTES}")
        if self.table is not None and self.sql is not None:
            raise InvalidInput("table and sql exclude each other; name the table in the query")


_DEFAULT = ReadOptions()
_CURRENT: ContextVar[ReadOptions] = ContextVar("read_options", default=_DEFAULT)


@contextmanager
def reading_with(options: ReadOptions) -> Iterator[None]:
    """Make options the default of every function that starts to read inside the block, in this thread."""
    token = _CURRENT.set(options)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def read_options(options: ReadOptions | None = None) -> ReadOptions:
    """Return the given options, or the default of the present block."""
    return _CURRENT.get() if options is None else options


def limit_error(where: str, what: str, part: str, limit: int) -> InvalidInput:
    """Return the error of something that is too large.

    Args:
        where: file and line.
        what: name of the oversized part, such as "the line".
        part: limit that it exceeds: "line", "document" or "field".
        limit: value of the limit in bytes.
    """
    return InvalidInput(
        f"{where}: {what} has more than {limit:,} bytes. Raise the limit with --limits {part}=SIZE "
        f"(in Python: ReadOptions({_PARTS[part]}=...)); the maximum is {MAX_BYTES:,}"
    )


def read_lines(path: Path, options: ReadOptions | None = None) -> Iterator[tuple[int, str]]:
    """Yield all lines of a file with their numbers, from 1, and their line ends.

    Args:
        path: file, gzipped if its name ends in .gz.
        options: limit of a line; None for the default of the present block.

    Raises:
        InvalidInput: a line that is too long, invalid UTF-8, or a damaged gzip stream; the message names the line. At
            most the limit is read into memory.
        StorageError: the system refuses to read the file.
    """
    return _decoded(_raw_lines(path, read_options(options).max_line_bytes), str(path))


def read_nonblank_lines(path: Path, options: ReadOptions | None = None) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of a file with their numbers, without line ends."""
    return _without_blank(read_lines(path, options))


def read_stdin_lines(options: ReadOptions | None = None) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines of stdin with their numbers, without line ends; UTF-8 in any locale."""
    stream = sys.stdin.buffer if hasattr(sys.stdin, "buffer") else io.BytesIO(sys.stdin.read().encode())
    lines = _bounded_lines(stream, read_options(options).max_line_bytes, "stdin")
    return _without_blank(_decoded(lines, "stdin"))


def read_bytes(path: Path, limit: int, *, opener: Opener | None = None) -> bytes:
    """Return the whole content of a file of at most `limit` bytes, decompressed if its name ends in .gz.

    Args:
        path: the file.
        limit: maximum number of bytes.
        opener: function that opens the file, as Python's `open` takes it; None for the system's.

    Raises:
        InvalidInput: the file is too large, or a damaged gzip stream.
        StorageError: the system refuses to read the file.
    """
    return b"".join(_raw_lines(path, limit, "document", opener))


def holds_json(path: Path | str) -> bool:
    """Whether a file holds JSON by its name."""
    return str(path).lower().endswith((".json", ".json.gz"))


def read_json_numbers(path: Path, kind: type[int] | type[float]) -> JsonNumbers:
    """Read a JSON object of objects of numbers, such as ranx's runs and qrels, in the file's order.

    Args:
        path: the file, plain or gzipped.
        kind: int for whole numbers, float for finite ones.

    Raises:
        InvalidInput: the content is something else, or a key is repeated; the message names the file.
        StorageError: the system refuses to read the file.
    """
    content = read_bytes(path, MAX_BYTES)
    try:
        table = json.loads(content, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not valid JSON: {error}") from None
    if not isinstance(table, dict):
        raise InvalidInput(f"{path} holds {type(table).__name__}; expected an object of query ids")
    for query_id, row in table.items():
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}: {query_id!r} holds {type(row).__name__}; expected an object of document ids")
        for doc_id, value in row.items():
            if not query_id or not doc_id:
                raise InvalidInput(f"{path}: empty id")
            if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
                raise InvalidInput(f"{path}: {query_id!r}, {doc_id!r} has {value!r}; expected {NUMBERS[kind]}")
            if kind is float and not (abs(value) < 2**1023 and math.isfinite(value)):
                raise InvalidInput(f"{path}: {query_id!r}, {doc_id!r} has {value!r:.40}; expected {NUMBERS[kind]}")
    return cast(JsonNumbers, table)


def _distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; refuse repeated keys, of which Python would keep the last."""
    table = dict(pairs)
    if len(table) < len(pairs):
        repeated = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {repeated!r} is repeated")
    return table


def count_lines(path: Path, options: ReadOptions | None = None) -> int:
    """Return the number of non-blank lines, without decoding them."""
    return sum(1 for line in _raw_lines(path, read_options(options).max_line_bytes) if line.strip())


def _without_blank(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    return ((number, line.rstrip("\r\n")) for number, line in lines if line.strip())


def _raw_lines(path: Path, limit: int, part: str = "line", opener: Opener | None = None) -> Iterator[bytes]:
    number = 0
    with storage_errors(f"cannot read {path}"), open(path, "rb", opener=opener) as raw, _unpacked(raw, path) as file:
        try:
            for number, line in enumerate(_bounded_lines(file, limit, str(path), part), 1):  # noqa: B007 (see below)
                yield line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidInput(f"{path}, after line {number}: the gzip stream is damaged: {error}") from error


def _bounded_lines(stream: BinaryIO, limit: int, name: str, part: str = "line") -> Iterator[bytes]:
    """Yield the lines of a stream; refuse a line, or with part "document" a stream, of more than `limit` bytes."""
    number, left = 0, limit
    while line := stream.readline(left + 1):
        number += 1
        if len(line) > left:
            if part == "line":
                raise limit_error(f"{name}, line {number}", "the line", part, limit)
            raise limit_error(name, "the file", part, limit)
        left -= len(line) if part == "document" else 0
        yield line


def _unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(file, "rb")) if path.suffix.lower() == ".gz" else file


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
