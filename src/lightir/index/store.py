"""The store of an index, store.sqlite: documents, metadata, the live segments and their tombstones."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import (
    FormatError,
    InvalidInput,
    LightirError,
    NotFound,
    OutcomeUnknown,
    StorageError,
    WriteFailed,
    storage_errors,
)
from lightir.files import atomic_folder
from lightir.index.checksums import document_checksum, state_checksum
from lightir.index.connections import (
    IMMUTABLE,
    Connection,
    File,
    connect,
    is_busy,
    is_refusal,
    log_bytes,
    reading_modes,
    refusal,
    use_log,
    writable,
)
from lightir.index.index_record import INDEX_VERSION
from lightir.index.lock import WriterLock
from lightir.index.segments.layout import StoredSegment
from lightir.index.store_row import StoreRow
from lightir.index.write_ahead_log import limit_log, move_log, shorten_log
from lightir.text import check_text
from lightir.types import Document, require_list

STORE_FILE = "store.sqlite"
KEYS_AT_ONCE = 50_000
"""Maximum number of keys per SQL statement."""

# Metadata has its own table, so that a filter reads no texts. Keys are never reused: a tombstoned document of a segment
# must not be taken for a later one.
_SCHEMA = """
CREATE TABLE record (value TEXT NOT NULL);
CREATE TABLE generation (number INTEGER NOT NULL);
CREATE TABLE segments (
    number INTEGER PRIMARY KEY AUTOINCREMENT, documents INTEGER NOT NULL, manifest_sha256 TEXT NOT NULL, deleted BLOB
);
CREATE TABLE documents (
    doc_key INTEGER PRIMARY KEY AUTOINCREMENT, doc_id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT NOT NULL
);
CREATE TABLE metadata (doc_key INTEGER PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO generation VALUES (0);
"""

# Documents whose keys are smaller than covered_from may lack a checksum, because an earlier release stored them.
_ADD_CHECKSUMS = (
    "ALTER TABLE metadata ADD COLUMN checksum INTEGER",
    "CREATE TABLE state (checksum TEXT NOT NULL, covered_from INTEGER NOT NULL)",
    "INSERT INTO state SELECT '', coalesce(max(seq) + 1, 0) FROM sqlite_sequence WHERE name = 'documents'",
)

# What `Store.state_checksum` covers: everything but the documents and their metadata, which have their own checksums.
_STATE = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name",
    "SELECT value FROM record",
    "SELECT number FROM generation",
    "SELECT covered_from FROM state",
    "SELECT name, seq FROM sqlite_sequence ORDER BY name",
    "SELECT number, documents, manifest_sha256, deleted FROM segments ORDER BY number",
    "PRAGMA user_version",
)

_ROWS = """
SELECT doc_key, typeof(doc_id) || typeof(title) || typeof(text) || typeof(value) = 'texttexttexttext',
    CAST(doc_id AS BLOB), CAST(title AS BLOB), CAST(text AS BLOB), CAST(value AS BLOB), {checksum}
FROM documents LEFT JOIN metadata USING (doc_key) WHERE doc_key > ? ORDER BY doc_key LIMIT ?
"""
ROWS_AT_ONCE = 256

DocKeys = npt.NDArray[np.int64]


class Store:
    """One connection to a store; safe to use from several threads."""

    def __init__(self, path: Path, connection: Connection) -> None:
        """Wrap a connection; use `create`, `open_snapshot` or `open_for_writing`."""
        self.path = path
        self.is_settled = False
        """Whether this connection has committed, so that no earlier unfinished commit can take effect any more."""
        self._opened = connection

    @property
    def inherited(self) -> bool:
        """Whether the store was opened before this process was forked, so that it cannot be used here."""
        return self._opened.inherited

    @property
    def _connection(self) -> Connection:
        return self._opened.usable()

    @classmethod
    def create(cls, path: Path) -> Store:
        """Create an empty store inside a block of `new_index`. It is lost on a crash before `finish`."""
        connection = connect(path, "rwc")
        # The folder is temporary until it is complete, so a journal would protect nothing.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        for statement in _ADD_CHECKSUMS:
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
                _require(path)
                # If the index is replaced after the file is opened and before the first read, that read opens SQLite's
                # log by its path, so the log may belong to the other file.
                if (store := cls._present(path)) is not None:
                    return store

    @classmethod
    def _present(cls, path: Path) -> Store | None:
        """Open a snapshot in the first mode that the system allows; return None if the file has changed meanwhile."""
        refused: StorageError | None = None
        for mode in reading_modes(path):
            connection = None
            try:
                with _named(path):
                    connection = connect(path, mode)
                store = cls._snapshot(path, connection)
            except (FormatError, StorageError, InvalidInput) as error:
                if connection is not None and not (connection.is_current and connection.is_unchanged):
                    return None
                if not isinstance(error, StorageError) or is_busy(error):
                    raise
                refused = refused or error
            else:
                if connection.is_current:
                    return store
                connection.close()
                return None
        assert refused is not None  # there is at least one mode
        try:
            raise refused
        finally:
            del refused  # otherwise this frame and the error keep each other alive

    @classmethod
    def open_unshared(cls, path: Path) -> Store:
        """Open a store that no other connection changes, without locks and files beside it.

        Raises:
            FormatError: the file is not a store.
        """
        _require(path)
        with _named(path):
            connection = connect(path, IMMUTABLE)
        return cls._snapshot(path, connection)

    @classmethod
    def _snapshot(cls, path: Path, connection: Connection) -> Store:
        connection.reads = True
        store = cls(path, connection)
        try:
            with _named(path):
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
        with _named(path, WriteFailed):
            connection = connect(path, "rw")
            try:
                connection.execute("PRAGMA synchronous = FULL")  # what is committed survives a power failure
                limit_log(connection)
                # If the system refuses to open a file for writing, SQLite opens it for reading without an error. Then
                # this statement, which changes nothing, fails.
                connection.execute("UPDATE record SET value = value WHERE FALSE")
            except BaseException:
                connection.close()
                raise
            return cls(path, connection)

    @property
    def file(self) -> File | None:
        """Device and inode of the file."""
        return self._opened.file

    @property
    def is_current(self) -> bool:
        """Whether the path still names this file: the index was neither removed nor replaced."""
        return self._opened.is_current

    def is_same(self, other: Store) -> bool:
        """Return whether both stores have the same file open."""
        return self.file == other.file

    def renew(self, newer: Store) -> None:
        """Take over the connection of another snapshot of the same state, so that the writer can shorten the log.

        The connections differ only in the part of SQLite's log that the writer has to keep for them.
        """
        before = self._opened
        if newer._opened.mode != before.mode:  # another mode may depend on an empty log, or keep the writer from it
            newer.close()
            return
        with before.lock:
            self._opened = newer._opened
            before.close()

    @contextmanager
    def _in_use(self) -> Iterator[Connection]:
        """Hold the connection, which `renew` may replace until then."""
        while True:
            connection = self._opened
            with connection.lock:
                if connection is self._opened:
                    yield connection.usable()
                    return

    def finish(self, record: dict[str, Any]) -> None:
        """Store the record of the index, and switch to the mode in which readers and a writer share the file.

        Raises:
            WriteFailed: the mode could not be changed.
        """
        self._connection.execute("INSERT INTO record VALUES (?)", (json.dumps(record, ensure_ascii=False),))
        self._renew_state_checksum()
        self._connection.execute("COMMIT")
        use_log(self._connection, self.path)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes inside the block, or none.

        Raises:
            WriteFailed: the disk is full or broken; nothing has changed.
            OutcomeUnknown: the disk failed while the changes were committed, and nothing can be committed now.
        """
        logged = log_bytes(self.path) or 0
        with self._opened.lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._add_checksums()
                yield
                self._count_commit()
            except BaseException as error:
                self._roll_back()
                if is_refusal(error):
                    raise self._unchanged(error) from error
                with _named(self.path):
                    raise
            self._commit()
        shorten_log(self._opened, logged)

    def _unchanged(self, error: BaseException) -> StorageError:
        return refusal(f"cannot change {self.path}", error, kind=WriteFailed, outcome="it is unchanged")

    def _commit(self) -> None:
        """Commit; if that fails, commit nothing but a new generation, which overwrites the failed commit.

        A failed commit may have written its whole transaction to the log, for example if only the flush failed. SQLite
        ignores the transaction now, but would recover it after all processes have ended.
        """
        try:
            self._connection.execute("COMMIT")
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
        with self._opened.lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._count_commit()
                self._connection.execute("COMMIT")
            except (sqlite3.Error, MemoryError, LightirError):
                self._roll_back()
                return False
            self.is_settled = True
            return True

    def _count_commit(self) -> None:
        self._connection.execute("UPDATE generation SET number = number + 1")
        if self.has_checksums():
            self._renew_state_checksum()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with suppress(sqlite3.Error, MemoryError):  # the transaction has ended nevertheless
                self._connection.execute("ROLLBACK")

    # Checksums

    def has_checksums(self) -> bool:
        """Return whether the store has checksums; stores of an earlier release get them by their first change."""
        return bool(self._select("SELECT 1 FROM sqlite_master WHERE name = 'state'"))

    def is_covered(self) -> bool:
        """Return whether every document has a checksum."""
        return self._covered_from() == 0

    def _covered_from(self) -> int | None:
        """Return the smallest key from which on every document has a checksum; None for a store without checksums."""
        if not self.has_checksums():
            return None
        rows = self._select("SELECT covered_from FROM state")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise FormatError(f"{self.path} is damaged: it does not say which documents have checksums")
        return int(rows[0][0])

    def _add_checksums(self) -> None:
        """Prepare a store of an earlier release for checksums; `fill_checksums` computes those of present documents."""
        if not self.has_checksums():
            for statement in _ADD_CHECKSUMS:
                self._connection.execute(statement)
            self.set_record({**self.record(), "format_version": INDEX_VERSION})

    def fill_checksums(self) -> None:
        """Compute the checksums of all documents that lack one, inside a `transaction`."""
        update = "UPDATE metadata SET checksum = ? WHERE doc_key = ?"
        for key, _, texts, checksum in self._rows():
            if checksum is None:
                self._connection.execute(update, (document_checksum(key, texts), key))
        self._connection.execute("UPDATE state SET covered_from = 0")

    def verify_state(self) -> None:
        """Verify the checksum of everything but the documents; without effect on a store without checksums.

        Raises:
            FormatError: the record, the schema, the list of segments or a tombstone is damaged.
        """
        if not self.has_checksums():
            return
        if self._select("SELECT checksum FROM state") != [(self._state_checksum(),)]:
            raise FormatError(
                f"{self.path} is damaged: the checksum over its record, schema and list of segments differs"
            )

    def verify_rows(self) -> tuple[list[int], int]:
        """Verify the checksum of every document.

        Returns:
            Keys of damaged documents, and the number of documents without a checksum.

        Raises:
            FormatError: the tables cannot be read, or metadata belong to no document.
        """
        covered_from = self._covered_from()
        damaged, n_rows, n_without = [], 0, 0
        for key, is_text, texts, checksum in self._rows():
            n_rows += 1
            if is_text and checksum is None and (covered_from is None or key < covered_from):
                n_without += 1
                if not _is_readable(texts):
                    damaged.append(key)
            elif not is_text or checksum != document_checksum(key, texts):
                damaged.append(key)
        n_metadata = self._select("SELECT count(*) FROM metadata NOT INDEXED")[0][0]
        if n_metadata != n_rows:
            raise FormatError(f"{self.path} is damaged: it has {n_rows:,} documents and metadata of {n_metadata:,}")
        return damaged, n_without

    def _rows(self) -> Iterator[tuple[int, bool, tuple[bytes, ...], Any]]:
        """Yield key, whether all fields are texts, the fields in UTF-8, and the checksum of each document, by key."""
        statement = _ROWS.format(checksum="checksum" if self.has_checksums() else "NULL")
        last = -(2**63)
        while rows := self._select(statement, (last, ROWS_AT_ONCE)):
            for key, is_text, *texts, checksum in rows:
                if key <= last:
                    raise FormatError(f"{self.path} is damaged: document key {key} follows {last}")
                last = key
                yield key, bool(is_text), tuple(text or b"" for text in texts), checksum

    def _state_checksum(self) -> str:
        return state_checksum([self._select(statement) for statement in _STATE])

    def _renew_state_checksum(self) -> None:
        self._connection.execute("UPDATE state SET checksum = ?", (self._state_checksum(),))

    # Reading

    def record(self) -> dict[str, Any]:
        """Return the record of the index."""
        rows = self._select("SELECT value FROM record")
        if len(rows) != 1:
            raise FormatError(f"{self.path} has {len(rows)} index records; expected one")
        try:
            value: dict[str, Any] = json.loads(rows[0][0])
        except (ValueError, TypeError) as error:
            raise FormatError(f"{self.path} is damaged: its record is not JSON: {error}") from error
        return value

    def generation(self) -> int:
        """Return the number of commits so far."""
        rows = self._select("SELECT number FROM generation")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise FormatError(f"{self.path} is damaged: it has no number of changes")
        return int(rows[0][0])

    def segments(self) -> list[StoredSegment]:
        """Return the live segments in the order of creation."""
        rows = self._select("SELECT number, documents, manifest_sha256, deleted FROM segments ORDER BY number")
        try:
            return [
                StoredSegment(number, int(n), checksum, _unpack(mask, int(n))) for number, n, checksum, mask in rows
            ]
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise FormatError(f"{self.path} is damaged: its list of segments cannot be read: {error}") from error

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order.

        Raises:
            NotFound: a document does not exist.
        """
        require_list(doc_ids, "doc_ids")
        documents = []
        for doc_id in doc_ids:
            rows = self._select(
                "SELECT doc_id, text, title, value FROM documents JOIN metadata USING (doc_key) WHERE doc_id = ?",
                (check_text(doc_id, "a doc_id"),),
            )
            if not rows:
                raise NotFound(f"there is no document {doc_id!r}")
            stored_id, text, title, metadata = rows[0]
            documents.append(Document(stored_id, text, title, self._metadata(stored_id, metadata)))
        return documents

    def _metadata(self, doc_id: str, value: Any) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = json.loads(value)
        except (ValueError, TypeError) as error:
            raise FormatError(f"{self.path} is damaged: the metadata of {doc_id!r} is not JSON: {error}") from error
        return metadata

    def keys(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """Return the keys of the documents that exist, by id."""
        keys = {}
        with self._in_use() as connection, _named(self.path):
            for doc_id in doc_ids:
                row = connection.execute("SELECT doc_key FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
                if row is not None:
                    keys[doc_id] = int(row[0])
            connection.check_unchanged()
        return keys

    def values_of(self, path: str, keys: DocKeys) -> Iterator[tuple[int, str, Any]]:
        """Yield the values of a field, and the elements of lists.

        Args:
            path: JSON path of the field.
            keys: keys of documents.

        Yields:
            The position of the document's key, SQLite's name of the JSON type, and the exact value (None for lists and
            objects).
        """
        # SQLite rounds large integers, some versions round fractions, and NUL ends a text. Such a value is read from
        # the JSON of a list that holds it twice, as a blob.
        value = "json_extract(metadata.value, :path)"
        statement = (
            f"SELECT wanted.key, json_type(metadata.value, :path), CASE WHEN typeof({value}) = 'real' "
            "OR instr(metadata.value, '\\u0000') THEN CAST(json_extract(metadata.value, :path, :path) AS BLOB) "
            f"ELSE {value} END FROM json_each(:keys) AS wanted CROSS JOIN metadata ON metadata.doc_key = wanted.value"
        )
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = json.dumps(keys[first : first + KEYS_AT_ONCE].tolist())
            for i, kind, stored in self._select(statement, {"path": path, "keys": some}):
                if kind == "real":
                    yield first + i, kind, float(stored[1 : stored.index(b",")])
                elif kind is not None:
                    exact = json.loads(stored)[0] if isinstance(stored, bytes) else stored
                    yield first + i, kind, None if kind in ("array", "object") else exact
                    if kind == "array":
                        elements = json.loads(exact) if isinstance(exact, str) else exact
                        yield from ((first + i, *_typed(element)) for element in elements)

    def metadata_hashes(self, keys: DocKeys) -> DocKeys:
        """Return a hash of the metadata of each document, (n,) int64; 0 for a deleted one.

        It is Python's, by the key of this process. Different metadata have the same 64 bits in one case in 2^64, and
        nobody can construct one without the key.
        """
        hashes = np.zeros(len(keys), dtype=np.int64)
        statement = (
            "SELECT wanted.key, metadata.value FROM json_each(:keys) AS wanted "
            "CROSS JOIN metadata ON metadata.doc_key = wanted.value"
        )
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some = json.dumps(keys[first : first + KEYS_AT_ONCE].tolist())
            rows = self._select(statement, {"keys": some})
            hashes[[first + row for row, _ in rows]] = [hash(value) for _, value in rows]
        return hashes

    def described(self) -> int:
        """Return the number of times that the metadata of stored documents were replaced."""
        return int(self._select("PRAGMA user_version")[0][0])

    def documents_of(self, keys: Iterable[int]) -> dict[int, Document]:
        """Return the documents with the given keys, by key; deleted ones are omitted."""
        documents = {}
        for key in keys:
            rows = self._select(
                "SELECT doc_id, text, title, value FROM documents JOIN metadata USING (doc_key) WHERE doc_key = ?",
                (key,),
            )
            for doc_id, text, title, metadata in rows:
                documents[key] = Document(doc_id, text, title, self._metadata(doc_id, metadata))
        return documents

    def documents_by_key(self) -> list[tuple[int, str]]:
        """Return the key and the id of every document, by key."""
        return self._select("SELECT doc_key, doc_id FROM documents JOIN metadata USING (doc_key) ORDER BY doc_key")

    def check(self) -> None:
        """Run SQLite's integrity check, and check that the file's header lets readers and a writer share the file.

        Raises:
            FormatError: the file is damaged.
        """
        if self._opened.unlocked is None and self._select("PRAGMA journal_mode") != [("wal",)]:
            raise FormatError(f"{self.path} is damaged: its header does not ask for a write-ahead log")
        if writable(self.path):
            _require_writable_header(self.path)
        problems = self._select("PRAGMA integrity_check")
        if problems != [("ok",)]:
            raise FormatError(f"{self.path} is damaged: {problems[0][0]}")

    def backup(self, path: Path) -> None:
        """Write the state that this connection sees to another file, in a block of `new_index`."""
        with self._in_use() as connection:
            target = sqlite3.connect(path)
            try:
                connection.backup(target)
                connection.check_unchanged()
            finally:
                target.close()

    # Writing

    def set_record(self, record: dict[str, Any]) -> None:
        """Replace the record of the index."""
        self._connection.execute("UPDATE record SET value = ?", (json.dumps(record, ensure_ascii=False),))

    def insert(self, rows: Sequence[StoreRow]) -> DocKeys:
        """Store documents and return their keys.

        Raises:
            InvalidInput: an id exists.
        """
        keys = np.zeros(len(rows), dtype=np.int64)
        for i, (doc_id, title, text, metadata) in enumerate(rows):
            try:
                cursor = self._connection.execute(
                    "INSERT INTO documents (doc_id, title, text) VALUES (?, ?, ?)", (doc_id, title, text)
                )
            except sqlite3.IntegrityError:
                raise InvalidInput(f"duplicate document {doc_id!r}; doc_ids must be distinct") from None
            assert cursor.lastrowid is not None  # it is after every insert
            keys[i] = cursor.lastrowid
            values = cursor.lastrowid, metadata, _checksum(cursor.lastrowid, rows[i])
            self._connection.execute("INSERT INTO metadata VALUES (?, ?, ?)", values)
        return keys

    def same_texts(self, rows: Sequence[StoreRow], keys: Mapping[str, int]) -> tuple[set[str], dict[int, StoreRow]]:
        """Return the ids of documents whose title and text are stored, and the rows of those with other metadata.

        Args:
            rows: documents.
            keys: keys of the stored documents by id.

        Returns:
            A set of ids, and rows by key.
        """
        same: set[str] = set()
        described: dict[int, StoreRow] = {}
        for row in rows:
            doc_id, title, text, metadata = row
            key = keys.get(doc_id)
            stored = self._select(
                "SELECT value FROM documents JOIN metadata USING (doc_key) "
                "WHERE doc_key = ? AND title = ? AND text = ?",
                (key, title, text),
            )
            if key is not None and stored:
                same.add(doc_id)
                if stored[0][0] != metadata:
                    described[key] = row
        return same, described

    def describe(self, rows: Mapping[int, StoreRow]) -> None:
        """Replace the metadata of stored documents.

        Args:
            rows: documents with new metadata and the stored texts, by key.
        """
        if not rows:
            return
        # The number is part of the transaction, as rows are.
        self._connection.execute(f"PRAGMA user_version = {(self.described() + 1) % 2**31}")
        arguments = [(row[3], _checksum(key, row), key) for key, row in rows.items()]
        self._connection.executemany("UPDATE metadata SET value = ?, checksum = ? WHERE doc_key = ?", arguments)

    def remove(self, keys: DocKeys) -> None:
        """Delete documents and their metadata; unknown keys are ignored."""
        arguments = [(key,) for key in keys.tolist()]
        self._connection.executemany("DELETE FROM documents WHERE doc_key = ?", arguments)
        self._connection.executemany("DELETE FROM metadata WHERE doc_key = ?", arguments)

    def next_segment(self) -> int:
        """Return the number of the next segment."""
        rows = self._select("SELECT seq FROM sqlite_sequence WHERE name = 'segments'")
        return int(rows[0][0]) + 1 if rows else 1

    def add_segment(self, segment: StoredSegment) -> None:
        """Add a segment to the list of live segments."""
        row = (segment.number, segment.documents, segment.manifest_sha256, _pack(segment.deleted))
        self._connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", row)

    def remove_segments(self, numbers: Iterable[int]) -> None:
        """Remove segments from the list of live segments."""
        self._connection.executemany("DELETE FROM segments WHERE number = ?", [(number,) for number in numbers])

    def set_deleted(self, number: int, deleted: npt.NDArray[np.bool_]) -> None:
        """Replace the tombstones of a segment."""
        self._connection.execute("UPDATE segments SET deleted = ? WHERE number = ?", (_pack(deleted), number))

    def close(self) -> None:
        """Close the file. An unfinished new store is lost."""
        with self._opened.lock:
            self._opened.close()

    def _select(self, statement: str, arguments: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with self._in_use() as connection, _named(self.path):
            rows: list[Any] = connection.execute(statement, arguments).fetchall()
            connection.check_unchanged()
            return rows


_JSON_TYPES: dict[type, str] = {int: "integer", float: "real", str: "text", list: "array", dict: "object"}


def _typed(element: Any) -> tuple[str, Any]:
    """Return SQLite's name of the type of a JSON value, and the value; None for lists and objects."""
    if element is None or isinstance(element, bool):
        return json.dumps(element), None
    return _JSON_TYPES[type(element)], None if isinstance(element, list | dict) else element


def _checksum(key: int, row: StoreRow) -> int:
    return document_checksum(key, [text.encode() for text in row])


def _is_readable(texts: Sequence[bytes]) -> bool:
    """Return whether texts are UTF-8 and the last one, the metadata, is JSON."""
    try:
        for text in texts:
            text.decode()
        json.loads(texts[-1])
    except (ValueError, RecursionError):
        return False
    return True


def _require(path: Path) -> None:
    if path.is_file():
        return
    if not path.parent.is_dir():
        problem = "is a file" if path.parent.exists() else "does not exist"
        raise NotFound(f"{path.parent} {problem}; expected an index folder, as `lightir index` writes it")
    raise NotFound(f"{path.parent} is not an index: it has no {path.name}. Create one with `lightir index`")


def require_writable(path: Path) -> None:
    """Raise an error if the store cannot be changed.

    Raises:
        NotFound: the store does not exist.
        WriteFailed: the folder or its medium is read-only.
    """
    with storage_errors(f"cannot open {path}"):
        _require(path)
    if not writable(path):
        raise WriteFailed(f"{path.parent} is read-only; it can be searched but not changed")


def _require_writable_header(path: Path) -> None:
    """Raise FormatError if the header of a store forbids changes; if the write lock is free, hold it for a moment."""
    with _named(path):
        connection = connect(path, "rw", busy_s=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith("SQLITE_READONLY") and not _is_refused(connection):
            raise FormatError(f"{path} is damaged: its header forbids changes ({error})") from error
    finally:
        connection.close()


def _is_refused(connection: Connection) -> bool:
    """Return whether the system, not the header, forbids a connection to write, after a first refusal.

    Connections of a process share memory, which SQLite opens for reading if the system refuses anything else. SQLite
    then refuses each transaction that writes. If the header forbids changes, SQLite refuses only the first one, and
    begins reading transactions in place of the others.
    """
    try:
        connection.execute("BEGIN EXCLUSIVE")  # the first statement was compiled before SQLite had read the header
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    return False


@contextmanager
def _named(path: Path, kind: type[StorageError] = StorageError) -> Iterator[None]:
    """Turn SQLite's errors inside the block into errors that name the file."""
    try:
        yield
    except (sqlite3.DatabaseError, MemoryError) as error:
        if is_refusal(error):
            raise refusal(f"cannot use {path}", error, kind=kind) from error
        raise FormatError(f"{path} is damaged or not an index store: {error}") from error
    except UnicodeDecodeError as error:  # a text, or the name of a table in an error message of SQLite
        raise FormatError(f"{path} is damaged: {error}") from error


@contextmanager
def new_index(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder that becomes an index when the block ends without an error.

    The writer lock of a replaced index is held to the end, because its writer would continue in the new folder.

    Raises:
        AlreadyExists: `out` exists and overwrite is off, or it is not an index.
        IndexLocked: the index to replace has a writer; the message names its process.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    try:
        with ExitStack() as stack:
            if overwrite and (out / STORE_FILE).is_file():
                stack.callback(WriterLock(out).release)
            yield stack.enter_context(atomic_folder(out, overwrite=overwrite, replaces=STORE_FILE))
    except (sqlite3.DatabaseError, MemoryError) as error:
        if is_refusal(error) or isinstance(error, sqlite3.OperationalError):
            raise refusal(f"cannot write {out}", error, kind=WriteFailed, outcome="it is unchanged") from error
        raise FormatError(f"cannot write {out}: the source is damaged: {error}; run `lightir verify` on it") from error


def _pack(deleted: npt.NDArray[np.bool_] | None) -> bytes | None:
    return None if deleted is None else np.packbits(deleted).tobytes()


def _unpack(packed: bytes | None, n: int) -> npt.NDArray[np.bool_] | None:
    if packed is None:
        return None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    if not n <= len(bits) < n + 8:
        raise ValueError(f"{len(bits)} tombstones of {n} documents")
    return bits[:n].astype(np.bool_)
