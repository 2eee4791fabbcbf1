"""The store of an index, store.sqlite: its record, live segments and tombstones, transactions; documents and checksums.

What concerns documents is in stored_documents.py, checksums in store_checksums.py, the connection in store_session.py.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import (
    FormatError,
    InvalidInput,
    LightirError,
    OutcomeUnknown,
    StorageError,
    WriteFailed,
    storage_errors,
)
from lightir.index.connections import (
    IMMUTABLE,
    Connection,
    File,
    connect,
    first_allowed,
    is_refusal,
    log_bytes,
    refusal,
    use_log,
    writable,
)
from lightir.index.index_record import INDEX_VERSION
from lightir.index.segments.layout import StoredSegment
from lightir.index.store_checksums import StoreChecksums
from lightir.index.store_file import named, require_store, require_writable, require_writable_header
from lightir.index.store_schema import ADD_CHECKSUMS, SCHEMA
from lightir.index.store_session import StoreSession
from lightir.index.stored_documents import StoredDocuments
from lightir.index.write_ahead_log import limit_log, move_log, shorten_log


class Store:
    """One connection to a store; safe to use from several threads.

    Attributes:
        path: path of the file.
        is_settled: whether this connection has committed, so that no earlier unfinished commit can take effect any
            more.
        documents: documents and metadata.
        checksums: checksums of documents and of all else.
    """

    def __init__(self, path: Path, connection: Connection) -> None:
        """Wrap a connection; use `create`, `open_snapshot` or `open_for_writing`."""
        self.path = path
        self.is_settled = False
        self.session = StoreSession(path, connection)
        self.documents = StoredDocuments(self.session)
        self.checksums = StoreChecksums(self.session)

    @property
    def inherited(self) -> bool:
        """Whether the store was opened before this process was forked, so that it cannot be used here."""
        return self.session.opened.inherited

    @property
    def file(self) -> File | None:
        """Device and inode of the file."""
        return self.session.opened.file

    @property
    def is_current(self) -> bool:
        """Whether the path still names this file: the index was neither removed nor replaced."""
        return self.session.opened.is_current

    def is_same(self, other: Store) -> bool:
        """Return whether both stores have the same file open."""
        return self.file == other.file

    def renew(self, newer: Store) -> None:
        """Take over the connection of another snapshot of the same state, so that the writer can shorten the log."""
        self.session.renew(newer.session)

    @classmethod
    def create(cls, path: Path) -> Store:
        """Create an empty store inside a block of `new_index`. It is lost on a crash before `finish`."""
        connection = connect(path, "rwc")
        # The folder is temporary until it is complete, so a journal would protect nothing.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(SCHEMA)
        connection.execute("BEGIN")
        for statement in ADD_CHECKSUMS:
            connection.execute(statement)
        return cls(path, connection)

    @classmethod
    def open_snapshot(cls, path: Path) -> Store:
        """Open the present state of the store; later changes are not visible.

        Raises:
            NotFound: the store does not exist.
            FormatError: the file is not a store.
            StorageError: the system refuses to open or read the file in each of `reading_modes`.
        """
        with storage_errors(f"cannot open {path}"):
            while True:
                require_store(path)
                # If the index is replaced after the file is opened and before the first read, that read opens SQLite's
                # log by its path, so the log may belong to the other file.
                if (store := first_allowed(path, lambda mode: cls._present(path, mode))) is not None:
                    return store

    @classmethod
    def _present(cls, path: Path, mode: str) -> Store | None:
        """Open a snapshot in one of the `reading_modes`; return None if the file has changed meanwhile."""
        connection = None
        try:
            with named(path):
                connection = connect(path, mode)
            store = cls._snapshot(path, connection)
        except (FormatError, StorageError, InvalidInput):
            if connection is not None and not (connection.is_current and connection.is_unchanged):
                return None
            raise
        if connection.is_current:
            return store
        connection.close()
        return None

    @classmethod
    def open_unshared(cls, path: Path) -> Store:
        """Open a store that no other connection changes, without locks and files beside it.

        Raises:
            FormatError: the file is not a store.
        """
        require_store(path)
        with named(path):
            connection = connect(path, IMMUTABLE)
        return cls._snapshot(path, connection)

    @classmethod
    def _snapshot(cls, path: Path, connection: Connection) -> Store:
        connection.reads = True
        store = cls(path, connection)
        try:
            with named(path):
                connection.execute("PRAGMA query_only = ON")
                move_log(connection)
                connection.execute("BEGIN")
                store.record()  # the first read takes the snapshot
        except BaseException:
            connection.close()
            raise
        return store

    @classmethod
    def open_for_writing(cls, path: Path) -> Store:
        """Open the store for changes by transactions; requires the writer lock.

        Raises:
            NotFound: the store does not exist.
            WriteFailed: the folder or its medium is read-only.
        """
        require_writable(path)
        with named(path, WriteFailed):
            connection = connect(path, "rw")
            try:
                connection.execute("PRAGMA synchronous = FULL")  # what is committed survives a power failure
                connection.execute("PRAGMA fullfsync = ON")  # on macOS too; no other system has it
                limit_log(connection)
                # If the system refuses to open a file for writing, SQLite opens it for reading without an error. Then
                # this statement, which changes nothing, fails.
                connection.execute("UPDATE record SET value = value WHERE FALSE")
            except BaseException:
                connection.close()
                raise
            return cls(path, connection)

    def finish(self, record: dict[str, Any]) -> None:
        """Store the record of the index, and switch to the mode in which readers and a writer share the file.

        Raises:
            WriteFailed: the mode could not be changed.
        """
        self.session.connection.execute("INSERT INTO record VALUES (?)", (json.dumps(record, ensure_ascii=False),))
        self.checksums.renew_state()
        self.session.connection.execute("COMMIT")
        use_log(self.session.connection, self.path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside the block, or none.

        Raises:
            WriteFailed: the disk is full or broken; nothing has changed.
            OutcomeUnknown: the disk failed while the changes were committed, and nothing can be committed now.
        """
        logged = log_bytes(self.path) or 0
        with self.session.opened.lock:
            try:
                self.session.connection.execute("BEGIN IMMEDIATE")
                if self.checksums.add():
                    self.set_record({**self.record(), "format_version": INDEX_VERSION})
                yield
                self._count_commit()
            except BaseException as error:
                self._roll_back()
                if is_refusal(error):
                    raise self._unchanged(error) from error
                with named(self.path):
                    raise
            self._commit()
        shorten_log(self.session.opened, logged)

    def _unchanged(self, error: BaseException) -> StorageError:
        return refusal(f"cannot change {self.path}", error, kind=WriteFailed, outcome="it is unchanged")

    def _commit(self) -> None:
        """Commit; if that fails, commit nothing but a new generation, which overwrites the failed commit.

        A failed commit may have written its whole transaction to the log, for example if only the flush failed. SQLite
        ignores the transaction now, but would recover it after all processes have ended.
        """
        try:
            self.session.connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            self.is_settled = False
            self._roll_back()
            if self.settle():
                raise self._unchanged(error) from error
            failed = f"the outcome of a change of {self.path} is unknown"
            then = "open the index again to see whether the change was made"
            raise refusal(failed, error, kind=OutcomeUnknown, outcome=then) from error
        self.is_settled = True

    def settle(self) -> bool:
        """Commit nothing but a new generation, so that an earlier unfinished commit never takes effect.

        Returns:
            Whether it was committed.
        """
        with self.session.opened.lock:
            try:
                self.session.connection.execute("BEGIN IMMEDIATE")
                self._count_commit()
                self.session.connection.execute("COMMIT")
            except (sqlite3.Error, MemoryError, LightirError):
                self._roll_back()
                return False
            self.is_settled = True
            return True

    def _count_commit(self) -> None:
        self.session.connection.execute("UPDATE generation SET number = number + 1")
        if self.checksums.exist():
            self.checksums.renew_state()

    def _roll_back(self) -> None:
        if self.session.connection.in_transaction:
            with suppress(sqlite3.Error, MemoryError):  # the transaction has ended nevertheless
                self.session.connection.execute("ROLLBACK")

    # Record and segments

    def record(self) -> dict[str, Any]:
        """Return the record of the index."""
        rows = self.session.select("SELECT value FROM record")
        if len(rows) != 1:
            raise FormatError(f"{self.path} has {len(rows)} index records; expected one")
        try:
            value: dict[str, Any] = json.loads(rows[0][0])
        except (ValueError, TypeError) as error:
            raise FormatError(f"{self.path} is damaged: its record is not JSON: {error}") from error
        return value

    def set_record(self, record: dict[str, Any]) -> None:
        """Replace the record of the index."""
        self.session.connection.execute("UPDATE record SET value = ?", (json.dumps(record, ensure_ascii=False),))

    def generation(self) -> int:
        """Return the number of commits so far."""
        rows = self.session.select("SELECT number FROM generation")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise FormatError(f"{self.path} is damaged: it has no number of changes")
        return int(rows[0][0])

    def segments(self) -> list[StoredSegment]:
        """Return the live segments in the order of creation."""
        rows = self.session.select("SELECT number, documents, manifest_sha256, deleted FROM segments ORDER BY number")
        try:
            return [
                StoredSegment(number, int(n), checksum, _unpack(mask, int(n))) for number, n, checksum, mask in rows
            ]
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise FormatError(f"{self.path} is damaged: its list of segments cannot be read: {error}") from error

    def next_segment(self) -> int:
        """Return the number of the next segment."""
        rows = self.session.select("SELECT seq FROM sqlite_sequence WHERE name = 'segments'")
        return int(rows[0][0]) + 1 if rows else 1

    def add_segment(self, segment: StoredSegment) -> None:
        """Add a segment to the list of live segments."""
        row = (segment.number, segment.documents, segment.manifest_sha256, _pack(segment.deleted))
        self.session.connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", row)

    def remove_segments(self, numbers: Iterable[int]) -> None:
        """Remove segments from the list of live segments."""
        self.session.connection.executemany("DELETE FROM segments WHERE number = ?", [(number,) for number in numbers])

    def set_deleted(self, number: int, deleted: npt.NDArray[np.bool_]) -> None:
        """Replace the tombstones of a segment."""
        self.session.connection.execute("UPDATE segments SET deleted = ? WHERE number = ?", (_pack(deleted), number))

    def check(self) -> None:
        """Run SQLite's integrity check, and check that the file's header lets readers and a writer share the file.

        Raises:
            FormatError: the file is damaged.
        """
        if self.session.opened.unlocked is None and self.session.select("PRAGMA journal_mode") != [("wal",)]:
            raise FormatError(f"{self.path} is damaged: its header does not ask for a write-ahead log")
        if writable(self.path):
            require_writable_header(self.path)
        problems = self.session.select("PRAGMA integrity_check")
        if problems != [("ok",)]:
            raise FormatError(f"{self.path} is damaged: {problems[0][0]}")

    def backup(self, path: Path) -> None:
        """Write the state that this connection sees to another file, in a block of `new_index`."""
        with self.session.in_use() as connection:
            target = sqlite3.connect(path)
            try:
                connection.backup(target)
                connection.check_unchanged()
            finally:
                target.close()

    def close(self) -> None:
        """Close the file. An unfinished new store is lost."""
        self.session.close()


def _pack(deleted: npt.NDArray[np.bool_] | None) -> bytes | None:
    return None if deleted is None else np.packbits(deleted).tobytes()


def _unpack(packed: bytes | None, n: int) -> npt.NDArray[np.bool_] | None:
    if packed is None:
        return None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    if not n <= len(bits) < n + 8:
        raise ValueError(f"{len(bits)} tombstones of {n} documents")
    return bits[:n].astype(np.bool_)
