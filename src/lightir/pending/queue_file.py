"""The SQLite file of the queue: creation, versions, and errors that name the file and say what to do."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from lightir.errors import FormatError, WriteFailed, storage_errors
from lightir.files import fsync_path
from lightir.index.connections import BUSY_S, Connection, connect, first_allowed, is_refusal, refusal, use_log

QUEUE_FOLDER = "queue"
QUEUE_FILE = "queue.sqlite"
QUEUE_VERSION = 2

DEMAND_TABLE = """
CREATE TABLE demand (doc_key INTEGER PRIMARY KEY, queries INTEGER NOT NULL);
CREATE INDEX most_asked ON demand (queries DESC, doc_key);
"""
SCHEMA = f"""
PRAGMA user_version = {QUEUE_VERSION};
CREATE TABLE claims (doc_key INTEGER PRIMARY KEY, holder TEXT NOT NULL);
CREATE TABLE failures (doc_key INTEGER PRIMARY KEY, error TEXT NOT NULL, at REAL NOT NULL);
{DEMAND_TABLE}"""

# Version 1 kept parked vectors in a table, and a demand that halved every hour.
FROM_VERSION_1 = f"""
ALTER TABLE claims RENAME COLUMN worker TO holder;
ALTER TABLE demand RENAME TO old_demand;
{DEMAND_TABLE}
INSERT INTO demand SELECT doc_key, 1 FROM old_demand;
DROP TABLE old_demand;
DROP TABLE parked;
PRAGMA user_version = {QUEUE_VERSION};
"""

logger = logging.getLogger(__name__)


def create_queue_file(folder: Path) -> None:
    """Create the file under another name and link it: others see it complete, and an existing one stays.

    Raises:
        WriteFailed: its header could not be written.
    """
    unfinished = folder / f".{QUEUE_FILE}.{secrets.token_hex(8)}"
    connection = sqlite3.connect(unfinished)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # flushed once, when it is complete
        connection.executescript(SCHEMA)
        use_log(connection, unfinished)
        connection.close()
        fsync_path(unfinished)
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, folder / QUEUE_FILE)
    finally:
        connection.close()
        unfinished.unlink(missing_ok=True)


def open_queue_file(path: Path, mode: str, busy_s: float) -> Connection:
    """Open the file; migrate a file of version 1 if it is opened for writing.

    Args:
        path: the file.
        mode: "rw", or one of `lightir.index.connections.reading_modes`.
        busy_s: seconds to wait for a lock that another process holds.

    Raises:
        WriteFailed: the system refuses to use the file.
        FormatError: the file is damaged or of an unsupported version.
    """
    with naming_file(path):
        connection = connect(path, mode, busy_s=busy_s)
        try:
            version = _version(connection)
            if version == 1 and mode == "rw":
                version = _migrate(connection)
        except BaseException:
            connection.close()
            raise
    if version not in (1, QUEUE_VERSION):
        connection.close()
        raise FormatError(
            f"{path} has format {version}; this release reads {QUEUE_VERSION}. Remove {path.parent}: the documents and "
            "their vectors are elsewhere"
        )
    return connection


def check_queue_file(path: Path) -> None:
    """Run SQLite's integrity check on the file.

    Raises:
        WriteFailed: the file cannot be used.
        FormatError: the file is damaged.
    """
    with naming_file(path):
        connection = open_queue_to_read(path)
        try:
            problems = connection.execute("PRAGMA integrity_check").fetchall()
        finally:
            connection.close()
        if problems != [("ok",)]:
            raise sqlite3.DatabaseError(problems[0][0])


def _version(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migrate(connection: Connection) -> int:
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _version(connection) == 1:  # no other process has migrated it meanwhile
            (n_parked,) = connection.execute("SELECT count(*) FROM parked").fetchone()
            for statement in FROM_VERSION_1.split(";"):
                connection.execute(statement)
            if n_parked:
                logger.warning(
                    "%s: %d documents had vectors parked by an earlier release; they are encoded again",
                    connection.path,
                    n_parked,
                )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return _version(connection)


def open_queue_to_read(path: Path) -> Connection:
    """Open the file for reading, in the first mode that the system allows.

    Raises:
        StorageError: the system refuses to use the file.
        FormatError: the file is damaged or of an unsupported version.
    """
    with storage_errors(f"cannot open {path}"):
        return first_allowed(path, lambda mode: open_queue_file(path, mode, BUSY_S))


class naming_file(AbstractContextManager[None]):  # noqa: N801 - used as a function
    """Turn errors of SQLite and of the system into errors of this package that name the file and say what to do.

    As `lightir.index.store_file.named`, this is no generator of @contextmanager.
    """

    def __init__(self, path: Path) -> None:
        """Name a file."""
        self._path = path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error of this package in place of another one."""
        if isinstance(error, sqlite3.Error):
            if is_refusal(error) or isinstance(error, sqlite3.OperationalError):
                raise refusal(f"{self._path} cannot be used", error, kind=WriteFailed) from error
            raise _damaged(self._path, error) from error
        if isinstance(error, UnicodeDecodeError):
            raise _damaged(self._path, error) from error
        storage_errors(f"cannot use {self._path}", kind=WriteFailed).__exit__(kind, error, trace)


def _damaged(path: Path, error: Exception) -> FormatError:
    then = f"Remove {path.parent}: the documents and their vectors are elsewhere"
    return FormatError(f"{path} is damaged: {error}. {then}")
