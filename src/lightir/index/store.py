"""store.sqlite: documents, metadata, the live segments and their tombstones: the one source of truth."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput, NotFound, WriteFailed
from lightir.files import atomic_folder
from lightir.index.connections import Connection, connect
from lightir.index.lock import WriterLock
from lightir.index.segments.layout import StoredSegment
from lightir.index.store_row import StoreRow
from lightir.text import check_text
from lightir.types import Document, require_list

STORE_FILE = "store.sqlite"
KEYS_AT_ONCE = 50_000
"""Keys that a statement is given at a time."""

REFUSED = ("FULL", "IOERR", "CANTOPEN", "BUSY", "LOCKED", "READONLY", "PERM", "NOMEM")
"""SQLite's errors that are about the machine, not about what the file holds."""

# Metadata has a table of its own, so that a filter reads no texts. Keys are never given twice: a segment's tombstoned
# document must not be taken for a later one.
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

DocKeys = npt.NDArray[np.int64]


class Store:
    """One connection to a store; safe to use from several threads."""

    def __init__(self, path: Path, connection: Connection) -> None:
        """For `create`, `open_snapshot` and `open_for_writing`."""
        self.path = path
        self._opened = connection

    @property
    def inherited(self) -> bool:
        """Whether it was opened before this process was forked, so that it is of no use here."""
        return self._opened.inherited

    @property
    def _connection(self) -> Connection:
        return self._opened.usable()

    @classmethod
    def create(cls, path: Path) -> Store:
        """A new, empty store, inside a block of `new_index`. `finish` makes it whole; a crash before that loses it."""
        connection = connect(path, "rwc")
        # The folder is written aside and renamed when it is whole: a journal would guard nothing.
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(_SCHEMA)
        connection.execute("BEGIN")
        return cls(path, connection)

    @classmethod
    def open_snapshot(cls, path: Path) -> Store:
        """The store as it is now; what is written later is not seen, until it is closed.

        Raises:
            NotFound: there is none.
            FormatError: it is no store.
        """
        while True:
            _require(path)
            with _named(path):
                connection = connect(path, read_mode(path))
            try:
                store = cls._snapshot(path, connection)
            except (FormatError, WriteFailed):
                if connection.is_current:
                    raise
            else:
                if connection.is_current:
                    return store
            # The index was exchanged for another between the opening and the first read, which opens SQLite's log by
            # its path: the file may have met the other's log.
            connection.close()

    @classmethod
    def _snapshot(cls, path: Path, connection: Connection) -> Store:
        connection.reads = True
        store = cls(path, connection)
        try:
            with _named(path):
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                store.record()  # the first read takes the snapshot
        except BaseException:
            connection.close()
            raise
        return store

    @classmethod
    def open_for_writing(cls, path: Path) -> Store:
        """The store, to be changed in transactions by whoever holds the writer's lock.

        Raises:
            NotFound: there is none.
            WriteFailed: the folder or its medium is read-only.
        """
        require_writable(path)
        with _named(path):
            connection = connect(path, "rw")
            connection.execute("PRAGMA synchronous = FULL")  # what is committed survives a power failure
            return cls(path, connection)

    def is_same(self, other: Store) -> bool:
        """Whether both have the same file open."""
        return self._opened.file == other._opened.file

    def finish(self, record: dict[str, Any]) -> None:
        """Store the index's record and make the file one that readers and a writer can share."""
        self._connection.execute("INSERT INTO record VALUES (?)", (json.dumps(record, ensure_ascii=False),))
        self._connection.execute("COMMIT")
        self._connection.execute("PRAGMA journal_mode = WAL")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All changes inside, or none.

        Raises:
            WriteFailed: the disk is full or broken; nothing has changed.
        """
        with self._opened.lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("UPDATE generation SET number = number + 1")
                self._connection.execute("COMMIT")
            except BaseException as error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError):
                    raise WriteFailed(f"{self.path} cannot be changed: {error}; it is as it was before") from error
                raise

    # Reading

    def record(self) -> dict[str, Any]:
        """What `finish` stored."""
        rows = self._select("SELECT value FROM record")
        if len(rows) != 1:
            raise FormatError(f"{self.path} has {len(rows)} index records; expected one")
        try:
            value: dict[str, Any] = json.loads(rows[0][0])
        except (ValueError, TypeError) as error:
            raise FormatError(f"{self.path} is damaged: its record is not JSON: {error}") from error
        return value

    def generation(self) -> int:
        """The number of changes so far."""
        rows = self._select("SELECT number FROM generation")
        if len(rows) != 1 or not isinstance(rows[0][0], int):
            raise FormatError(f"{self.path} is damaged: it does not say how often it was changed")
        return int(rows[0][0])

    def segments(self) -> list[StoredSegment]:
        """The live segments in the order they were made."""
        rows = self._select("SELECT number, documents, manifest_sha256, deleted FROM segments ORDER BY number")
        try:
            return [
                StoredSegment(number, int(n), checksum, _unpack(mask, int(n))) for number, n, checksum, mask in rows
            ]
        except (ValueError, TypeError, OverflowError, MemoryError) as error:
            raise FormatError(f"{self.path} is damaged: its list of segments cannot be read: {error}") from error

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """The documents with the given ids, in the order of the ids.

        Raises:
            NotFound: there is no such document.
        """
        require_list(doc_ids, "doc_ids")
        found = []
        for doc_id in doc_ids:
            rows = self._select(
                "SELECT doc_id, text, title, value FROM documents JOIN metadata USING (doc_key) WHERE doc_id = ?",
                (check_text(doc_id, "a doc_id"),),
            )
            if not rows:
                raise NotFound(f"there is no document {doc_id!r}")
            found_id, text, title, metadata = rows[0]
            found.append(Document(found_id, text, title, self._metadata(found_id, metadata)))
        return found

    def _metadata(self, doc_id: str, value: Any) -> dict[str, Any]:
        try:
            metadata: dict[str, Any] = json.loads(value)
        except (ValueError, TypeError) as error:
            raise FormatError(f"{self.path} is damaged: the metadata of {doc_id!r} is not JSON: {error}") from error
        return metadata

    def keys(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """The keys of those documents that are there."""
        found = {}
        with self._opened.lock:
            for doc_id in doc_ids:
                row = self._connection.execute("SELECT doc_key FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
                if row is not None:
                    found[doc_id] = int(row[0])
        return found

    def values_of(self, path: str, keys: DocKeys) -> Iterator[tuple[int, str, Any]]:
        """What a field holds in each document that has it; of a list its elements too.

        Args:
            path: the field's JSON path.
            keys: of the documents.

        Yields:
            The place of the document's key, JSON's name of the type, and the value; of lists and objects None.
        """
        chosen = "json_each(?) AS wanted CROSS JOIN metadata ON metadata.doc_key = wanted.value"
        whole = f"SELECT wanted.key, json_type(metadata.value, ?), json_extract(metadata.value, ?) FROM {chosen}"
        elements = f"SELECT wanted.key, each.type, each.atom FROM {chosen}, json_each(metadata.value, ?) AS each"
        for first in range(0, len(keys), KEYS_AT_ONCE):
            some, lists = keys[first : first + KEYS_AT_ONCE].tolist(), []
            for place, kind, value in self._select(whole, (path, path, json.dumps(some))):
                if kind in ("array", "object"):
                    yield first + place, kind, None
                    lists += [place] if kind == "array" else []
                elif kind is not None:
                    yield first + place, kind, value
            for at, kind, atom in self._select(elements, (json.dumps([some[place] for place in lists]), path)):
                yield first + lists[at], kind, atom

    def described(self) -> int:
        """How often stored documents were given other metadata."""
        return int(self._select("PRAGMA user_version")[0][0])

    def documents_of(self, keys: Iterable[int]) -> dict[int, Document]:
        """The documents with the given keys, by key; those that are gone are left out."""
        found = {}
        for key in keys:
            rows = self._select(
                "SELECT doc_id, text, title, value FROM documents JOIN metadata USING (doc_key) WHERE doc_key = ?",
                (key,),
            )
            for doc_id, text, title, metadata in rows:
                found[key] = Document(doc_id, text, title, self._metadata(doc_id, metadata))
        return found

    def documents_by_key(self) -> list[tuple[int, str]]:
        """Every document's key and id, by key."""
        return self._select("SELECT doc_key, doc_id FROM documents JOIN metadata USING (doc_key) ORDER BY doc_key")

    def check(self) -> None:
        """Let SQLite read everything.

        Raises:
            FormatError: the file is damaged.
        """
        found = self._select("PRAGMA integrity_check")
        if found != [("ok",)]:
            raise FormatError(f"{self.path} is damaged: {found[0][0]}")

    def backup(self, path: Path) -> None:
        """Write the store as this connection sees it to another file, in a block of `new_index`."""
        with self._opened.lock:
            target = sqlite3.connect(path)
            try:
                self._connection.backup(target)
                self._opened.check_unchanged()
            finally:
                target.close()

    # Writing

    def set_record(self, record: dict[str, Any]) -> None:
        """Store another record in place of the index's."""
        self._connection.execute("UPDATE record SET value = ?", (json.dumps(record, ensure_ascii=False),))

    def insert(self, rows: Sequence[StoreRow]) -> DocKeys:
        """Store documents; returns their keys.

        Raises:
            InvalidInput: an id is there already.
        """
        keys = np.zeros(len(rows), dtype=np.int64)
        for i, (doc_id, title, text, metadata) in enumerate(rows):
            try:
                cursor = self._connection.execute(
                    "INSERT INTO documents (doc_id, title, text) VALUES (?, ?, ?)", (doc_id, title, text)
                )
            except sqlite3.IntegrityError:
                raise InvalidInput(f"document {doc_id!r} comes twice; doc_ids must differ") from None
            assert cursor.lastrowid is not None  # it is after every insert
            keys[i] = cursor.lastrowid
            self._connection.execute("INSERT INTO metadata VALUES (?, ?)", (cursor.lastrowid, metadata))
        return keys

    def same_texts(self, rows: Sequence[StoreRow], keys: Mapping[str, int]) -> tuple[set[str], dict[int, str]]:
        """The ids of those rows whose title and text are stored, and those of them with other metadata: these, by key.

        Args:
            rows: documents.
            keys: the stored ones' among them, by id.
        """
        same: set[str] = set()
        described: dict[int, str] = {}
        for doc_id, title, text, metadata in rows:
            key = keys.get(doc_id)
            stored = self._select(
                "SELECT value FROM documents JOIN metadata USING (doc_key) "
                "WHERE doc_key = ? AND title = ? AND text = ?",
                (key, title, text),
            )
            if key is not None and stored:
                same.add(doc_id)
                if stored[0][0] != metadata:
                    described[key] = metadata
        return same, described

    def describe(self, metadata: Mapping[int, str]) -> None:
        """Give stored documents, named by their keys, other metadata."""
        if not metadata:
            return
        # A part of the change, as rows are.
        self._connection.execute(f"PRAGMA user_version = {(self.described() + 1) % 2**31}")
        arguments = [(value, key) for key, value in metadata.items()]
        self._connection.executemany("UPDATE metadata SET value = ? WHERE doc_key = ?", arguments)

    def remove(self, keys: DocKeys) -> None:
        """Take documents and their metadata out; keys that are not there are passed over."""
        arguments = [(key,) for key in keys.tolist()]
        self._connection.executemany("DELETE FROM documents WHERE doc_key = ?", arguments)
        self._connection.executemany("DELETE FROM metadata WHERE doc_key = ?", arguments)

    def next_segment(self) -> int:
        """The number of the segment that is added next."""
        rows = self._select("SELECT seq FROM sqlite_sequence WHERE name = 'segments'")
        return int(rows[0][0]) + 1 if rows else 1

    def add_segment(self, segment: StoredSegment) -> None:
        """List a segment as live."""
        row = (segment.number, segment.documents, segment.manifest_sha256, _pack(segment.deleted))
        self._connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", row)

    def remove_segments(self, numbers: Iterable[int]) -> None:
        """Take segments off the list of the live ones."""
        self._connection.executemany("DELETE FROM segments WHERE number = ?", [(number,) for number in numbers])

    def set_deleted(self, number: int, deleted: npt.NDArray[np.bool_]) -> None:
        """Replace a segment's tombstones."""
        self._connection.execute("UPDATE segments SET deleted = ? WHERE number = ?", (_pack(deleted), number))

    def close(self) -> None:
        """Close the file. A snapshot ends; a new store that was not finished is lost."""
        with self._opened.lock:
            self._opened.close()

    def _select(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._opened.lock, _named(self.path):
            rows = self._connection.execute(statement, arguments).fetchall()
            self._opened.check_unchanged()
            return rows


def _require(path: Path) -> None:
    if path.is_file():
        return
    if not path.parent.is_dir():
        said = "is a file" if path.parent.exists() else "does not exist"
        raise NotFound(f"{path.parent} {said}; expected an index, the folder that `lightir index` writes")
    raise NotFound(f"{path.parent} is not an index: it has no {path.name}; `lightir index` makes one")


def require_writable(path: Path) -> None:
    """Nothing, or why the store cannot be changed.

    Raises:
        NotFound: there is none.
        WriteFailed: the folder or its medium is read-only.
    """
    _require(path)
    if not _writable(path):
        raise WriteFailed(f"{path.parent} is read-only here; it can be searched, not changed")


def read_mode(path: Path) -> str:
    """The mode to read a file in: "rw" joins the writer's shared memory; read-only where nobody can write."""
    if _writable(path):
        return "rw"
    return "ro" if path.with_name(f"{path.name}-wal").exists() else "ro&immutable=1"


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Inside, SQLite's errors become ours, with the file's name."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if _is_refusal(error):
            raise WriteFailed(
                f"{path} cannot be used: {error}; look at the disk, the file need not be damaged"
            ) from error
        raise FormatError(f"{path} is damaged or no index store: {error}") from error


def _is_refusal(error: sqlite3.DatabaseError) -> bool:
    name = getattr(error, "sqlite_errorname", "")  # SQLITE_IOERR_SHMSIZE and its like
    return name.startswith(tuple(f"SQLITE_{each}" for each in REFUSED))


@contextmanager
def new_index(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which becomes an index when the block ends well, in place of one that nobody writes meanwhile.

    Whoever had the replaced index open for writing would go on writing into the new one's folder, so its writer's lock
    is held till the end.

    Raises:
        AlreadyExists: `out` is there and overwrite is off, or it is no index.
        IndexLocked: the index that would be replaced has a writer; the text names the process.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    try:
        with ExitStack() as stack:
            if overwrite and (out / STORE_FILE).is_file():
                stack.callback(WriterLock(out).release)
            yield stack.enter_context(atomic_folder(out, overwrite=overwrite, replaces=STORE_FILE))
    except sqlite3.OperationalError as error:
        raise WriteFailed(f"{out} cannot be written: {error}") from error


def _pack(deleted: npt.NDArray[np.bool_] | None) -> bytes | None:
    return None if deleted is None else np.packbits(deleted).tobytes()


def _unpack(packed: bytes | None, n: int) -> npt.NDArray[np.bool_] | None:
    if packed is None:
        return None
    bits = np.unpackbits(np.frombuffer(packed, np.uint8))
    if not n <= len(bits) < n + 8:
        raise ValueError(f"{len(bits)} tombstones of {n} documents")
    return bits[:n].astype(np.bool_)
