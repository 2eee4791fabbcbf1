"""Records (a line or row number with named fields) from JSON lines, CSV, TSV, Parquet and stdin."""

from __future__ import annotations

import csv
import datetime
import decimal
import importlib
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from lightir.errors import InvalidInput, MissingExtra
from lightir.lines import ReadOptions, limit_error, read_lines, read_options, read_stdin_lines
from lightir.types import Cells

Record: TypeAlias = tuple[int, dict[str, Any]]
"""A line or row number, from 1, and the fields by name."""

ROW_SUFFIXES = (".parquet", ".arrow", ".sqlite", ".sqlite3", ".db")
"""Suffixes of files that have rows instead of lines."""


def json_records(name: str, lines: Iterable[tuple[int, str]]) -> Iterator[Record]:
    """Parse JSON lines that are objects.

    Raises:
        InvalidInput: a line is not a JSON object; the message names file and line.
    """
    for number, line in lines:
        try:
            record = json.loads(line, parse_constant=_no_number, parse_float=_finite)
        except (ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
            hint = "" if line.lstrip().startswith("{") else "; expected one object per line"
            raise InvalidInput(f"{name}, line {number}: invalid JSON: {error}{hint}") from None
        if not isinstance(record, dict):
            raise InvalidInput(f"{name}, line {number}: {type(record).__name__}; expected an object")
        yield number, record


def list_field(record: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """Return the list in a record's field, [] if the field is missing.

    Raises:
        InvalidInput: the field is not a list; the message begins with `where`.
    """
    value = record.get(name, [])
    if not isinstance(value, list):
        raise InvalidInput(f"{where}: {name} is {type(value).__name__}; expected a list")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number; omit the field or write null")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:20])


def table_records(path: Path, kind: str, options: ReadOptions | None = None) -> Iterator[Record]:
    """Read the rows of a CSV (quoted) or TSV (unquoted) file with a header; a row's number is that of its first line.

    Raises:
        InvalidInput: invalid header or row, or a row that is too large; the message names file and line.
    """
    # The csv module's limit of 131,072 characters per field is global, and documents exceed it.
    csv.field_size_limit(sys.maxsize)
    lines = _LinesOfRow(path, read_options(options))
    rows = (
        csv.reader(lines, strict=True) if kind == "csv" else csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    )
    header: list[str] | None = None
    while True:
        number = lines.start_row()
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise InvalidInput(f"{path}, line {number}: {error}") from None
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = _checked_header(row, path, kind)
        elif len(row) != len(header):
            raise InvalidInput(f"{path}, line {number}: {len(row)} fields; the header has {len(header)}")
        else:
            yield number, Cells(zip(header, row, strict=True))


class _LinesOfRow:
    """Iterator over the lines of a table that limits the bytes of a row, which may have any number of lines."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self._path, self._lines = path, read_lines(path, options)
        self._limit = options.max_document_bytes
        self._number, self._first, self._n_bytes = 0, 1, 0

    def start_row(self) -> int:
        """Return the number of the next line, which begins a row."""
        self._first, self._n_bytes = self._number + 1, 0
        return self._first

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        self._number, line = next(self._lines)
        self._n_bytes += len(line.encode())
        if self._n_bytes > self._limit:
            raise limit_error(f"{self._path}, line {self._first}", "the row", "document", self._limit)
        return line


def _checked_header(row: Sequence[str], path: Path, kind: str) -> list[str]:
    header = [name.strip() for name in row]
    if len(header) == 1 and (other := re.search("[;\\t|,]", header[0])):
        separators = "tabs in a .tsv file" if kind == "tsv" else "commas in a .csv file"
        raise InvalidInput(
            f"{path}, line 1: the header {header[0]!r} is one field that contains {other[0]!r}; expected {separators}"
        )
    if len(set(header)) < len(header):
        raise InvalidInput(f"{path}, line 1: duplicate column in the header {header}")
    return header


def parquet_file(path: Path) -> Any:
    """Open a Parquet file.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidInput: not a Parquet file.
    """
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise MissingExtra("pyarrow is needed to read Parquet: pip install 'lightir[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
        raise InvalidInput(f"{path} is not a Parquet file: {error}") from None


def parquet_records(path: Path) -> Iterator[Record]:
    """Read the rows of a Parquet file, numbered from 1, with their values converted to JSON values."""
    for number, row in enumerate(parquet_rows(path), 1):
        yield number, {name: json_value(value, f"{path}, row {number}: {name}") for name, value in row.items()}


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Read the rows of a Parquet file with Python's values, a batch at a time."""
    batches, n_read = parquet_file(path).iter_batches(batch_size=1024), 0
    while True:
        try:
            rows = next(batches).to_pylist()
        except StopIteration:
            return
        except (ValueError, OSError) as error:  # ArrowInvalid is a ValueError
            raise InvalidInput(f"{path}, after row {n_read}: the file is damaged: {error}") from None
        n_read += len(rows)
        yield from rows


def json_value(value: Any, where: str) -> Any:
    """Convert a value to a JSON value, so that metadata survive a round trip."""
    if isinstance(value, dict):
        return {str(key): json_value(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [json_value(item, where) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} is {value}, which JSON cannot represent; write null")
    if value is None or isinstance(value, str | int | float):
        return value
    raise InvalidInput(f"{where} is {type(value).__name__}, which JSON cannot represent")


def stdin_records(id_field: str, text_field: str, options: ReadOptions | None = None) -> Iterator[Record]:
    """Read JSON lines from stdin, or plain lines as records whose id is the line number."""
    lines = read_stdin_lines(options)
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        yield from json_records("stdin", _chain(first, lines))
    else:
        for number, line in _chain(first, lines):
            yield number, {id_field: str(number), text_field: line}


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def record_location(name: str, number: int) -> str:
    """Name a line or row for error messages."""
    return f"{name}, {'row' if Path(name).suffix in ROW_SUFFIXES else 'line'} {number}"
