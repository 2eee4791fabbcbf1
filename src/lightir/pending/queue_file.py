"""The queue's SQLite file: made whole or not at all, opened with its version checked, its errors under our names."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightir.errors import FormatError, WriteFailed
from lightir.files import fsync_path
from lightir.index.connections import Connection, connect

QUEUE_FOLDER = "queue"
QUEUE_FILE = "queue.sqlite"
QUEUE_VERSION = 1

# auto_vacuum gives the space of parked vectors back.
SCHEMA = f"""
PRAGMA auto_vacuum = FULL;
PRAGMA user_version = {QUEUE_VERSION};
CREATE TABLE claims (doc_key INTEGER PRIMARY KEY, worker TEXT NOT NULL);
CREATE TABLE failures (doc_key INTEGER PRIMARY KEY, error TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE demand (doc_key INTEGER PRIMARY KEY, heat REAL NOT NULL);
CREATE INDEX hottest ON demand (heat DESC, doc_key);
CREATE TABLE parked (doc_key INTEGER PRIMARY KEY, dense BLOB, term_ids BLOB, impacts BLOB);
"""


def create(folder: Path) -> None:
    """A new file, made aside and linked to its place: others see it whole; one that was there first stays."""
    aside = folder / f".{QUEUE_FILE}.{secrets.token_hex(8)}"
    connection = sqlite3.connect(aside)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # flushed once, when it is whole
        connection.executescript(SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        fsync_path(aside)
        with contextlib.suppress(FileExistsError):
            os.link(aside, folder / QUEUE_FILE)
    finally:
        connection.close()
        aside.unlink(missing_ok=True)


def opened(path: Path, mode: str, busy_s: float) -> Connection:
    """A connection; `mode` and `busy_s` as `connect` takes them.

    Raises:
        WriteFailed: the file cannot be used.
        FormatError: it is damaged or of another version.
    """
    with named(path):
        connection = connect(path, mode, busy_s=busy_s)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != QUEUE_VERSION:
        connection.close()
        raise FormatError(
            f"{path} has format {version}; this release reads {QUEUE_VERSION}. Remove {path.parent}: the documents and "
            "their vectors are elsewhere"
        )
    return connection


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Inside, SQLite's errors become ours, with the file's name and what to do."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WriteFailed(f"{path} cannot be used: {error}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> FormatError:
    """What to say of a queue whose file holds what no queue wrote."""
    return FormatError(
        f"{path} is damaged: {error}. Remove {path.parent}: the documents and their vectors are elsewhere"
    )


def is_busy(error: WriteFailed) -> bool:
    """Whether a change failed only because another process held the file for too long."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode == sqlite3.SQLITE_BUSY
