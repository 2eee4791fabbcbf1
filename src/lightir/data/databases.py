"""Records of SQLite databases, and of Arrow files, of which Hugging Face data sets on disk consist; read-only."""

from __future__ import annotations

import contextlib
import importlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightir.data.records import Record, json_value
from lightir.errors import InvalidInput, MissingExtra
from lightir.lines import ReadOptions

SQLITE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
BATCH = 1024
SAVED, SPLITS = "state.json", "dataset_dict.json"
"""Files by which a folder is recognized that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""


def sqlite_records(path: Path, options: ReadOptions) -> Iterator[Record]:
    """Read the rows of a table, a view or a query, numbered from 1; columns are fields, and values keep their types.

    Raises:
        InvalidInput: no SQLite database, a damaged one, no such table, a statement that is no query, two columns of one
            name, or a value that JSON cannot represent.
    """
    with _opened(path) as connection:
        rows = connection.execute(_query(connection, path, options))
        if rows.description is None:
            raise InvalidInput(f"{path}: --sql is not a query that returns rows: {options.sql!r}")
        names = [column[0] for column in rows.description]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInput(f"{path}: the query has two columns {repeated[0]!r}; rename one with AS")
        for number, row in enumerate(rows, 1):
            values = zip(names, row, strict=True)
            yield number, {name: json_value(value, f"{path}, row {number}: {name}") for name, value in values}


def sqlite_count(path: Path, options: ReadOptions) -> int | None:
    """Return the number of rows of the table; None for a query, which would run twice."""
    if options.sql is not None:
        return None
    with _opened(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM ({_query(connection, path, options)})").fetchone()[0])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database so that nothing can change it, and turn SQLite's errors inside the block into InvalidInput."""
    try:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, check_same_thread=False)) as connection:
            connection.set_authorizer(_allowed)
            yield connection
    except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
        raise InvalidInput(f"{path} cannot be read by SQLite: {error}") from None


def _allowed(action: int, *_: str | None) -> int:
    """Refuse ATTACH, which creates a database that does not exist."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


def _query(connection: sqlite3.Connection, path: Path, options: ReadOptions) -> str:
    """Return the query to run: the given one, or all rows of the given table, or of the only one."""
    if options.sql is not None:
        return options.sql
    listing = (
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    tables = sorted(str(name) for (name,) in connection.execute(listing))
    chosen = tables[0] if options.table is None and len(tables) == 1 else options.table
    if chosen not in tables:
        problem = "no table is chosen" if options.table is None else f"there is no table {options.table!r}"
        listed = f"choose one with --table: {', '.join(tables)}" if tables else "the database has no tables"
        raise InvalidInput(f"{path}: {problem}; {listed}")
    quoted = chosen.replace('"', '""')
    return f'SELECT * FROM "{quoted}"'


def arrow_records(path: Path) -> Iterator[Record]:
    """Read the rows of an Arrow file (stream or file format), numbered from 1, a batch at a time.

    Raises:
        MissingExtra: pyarrow is not installed.
        InvalidInput: no Arrow file, a damaged one, or a value that JSON cannot represent.
    """
    try:
        arrow = importlib.import_module("pyarrow")
        ipc = importlib.import_module("pyarrow.ipc")
    except ImportError:
        raise MissingExtra("pyarrow is needed to read Arrow files: pip install 'lightir[parquet]'") from None
    number = 0
    try:
        with arrow.memory_map(str(path)) as mapped:
            for row in _rows(arrow, ipc, mapped):
                number += 1
                yield number, {name: json_value(value, f"{path}, row {number}: {name}") for name, value in row.items()}
    except (arrow.ArrowException, OSError, UnicodeError) as error:
        raise InvalidInput(f"{path}, after row {number}: no Arrow file, or a damaged one: {error}") from None


def _rows(arrow: Any, ipc: Any, mapped: Any) -> Iterator[dict[str, Any]]:
    try:
        batches = ipc.open_stream(mapped)
    except arrow.ArrowInvalid:
        mapped.seek(0)
        file = ipc.open_file(mapped)
        batches = (file.get_batch(at) for at in range(file.num_record_batches))
    for batch in batches:
        for first in range(0, batch.num_rows, BATCH):
            yield from batch.slice(first, BATCH).to_pylist()


def data_set_files(folder: Path) -> list[Path] | None:
    """Return the Arrow files of a Hugging Face data set that was saved to disk; None for any other folder.

    Raises:
        InvalidInput: several splits, or damaged descriptions of the files.
    """
    name = SPLITS if (folder / SPLITS).is_file() else SAVED
    if not (folder / name).is_file():
        return None
    try:
        saved = json.loads((folder / name).read_text(encoding="utf-8"))
        splits = [str(folder / split) for split in saved["splits"]] if name == SPLITS else []
        files = [] if splits else [folder / Path(file["filename"]).name for file in saved["_data_files"]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidInput(f"{folder / name} does not describe a data set: {error!r}") from None
    if splits:
        raise InvalidInput(f"{folder} is a data set with splits; name one of them: {', '.join(splits)}")
    if missing := [file for file in files if not file.is_file()]:
        raise InvalidInput(f"{folder} lacks {missing[0].name}, which {name} names; save the data set again")
    return files
