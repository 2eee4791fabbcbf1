"""The queue beside an index: which pending documents are claimed, failed or asked for, and what waits to be committed.

    queue/queue.sqlite    claims, failures, demand, parked vectors
    queue/workers/        a locked file for each worker that lives

Nothing here is needed to search, and nothing is true of the index because it stands here: the store and the segments
say which documents have vectors. An index without the folder has a queue in which nothing has happened yet.

Documents are named by their keys in the store, which are never given twice: a document whose text was replaced has
another key, so what is said here of its old text is not taken for the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, WriteFailed
from lightir.files import fsync_path
from lightir.index.rows import take
from lightir.index.store import BUSY_S, Keys, connect, read_mode
from lightir.index.view import View
from lightir.shards import Shard
from lightir.vectors import SparseVectors

QUEUE_FOLDER = "queue"
QUEUE_FILE = "queue.sqlite"
WORKERS_FOLDER = "workers"
QUEUE_VERSION = 1

HALF_LIFE_S = 3600.0
"""A query of an hour ago counts half as much as one of now."""

DEMAND_TOP = 20
"""A query asks for the pending documents among so many of its best: SiDR's m."""

TELL_EVERY_S = 1.0
MAX_ERROR_CHARACTERS = 500

# auto_vacuum gives the space of parked vectors back.
_SCHEMA = f"""
PRAGMA auto_vacuum = FULL;
PRAGMA user_version = {QUEUE_VERSION};
CREATE TABLE claims (doc_key INTEGER PRIMARY KEY, worker TEXT NOT NULL);
CREATE TABLE failures (doc_key INTEGER PRIMARY KEY, error TEXT NOT NULL, at REAL NOT NULL);
CREATE TABLE demand (doc_key INTEGER PRIMARY KEY, heat REAL NOT NULL);
CREATE INDEX hottest ON demand (heat DESC, doc_key);
CREATE TABLE parked (doc_key INTEGER PRIMARY KEY, dense BLOB, term_ids BLOB, impacts BLOB);
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that could not be encoded.

    Attributes:
        doc_id: the document, which is still pending, and found by its tokens.
        error: what the encoder said.
        at: seconds since 1970.
    """

    doc_id: str
    error: str
    at: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Pending documents that one worker alone encodes.

    Attributes:
        keys: the documents, hottest first, then oldest.
        view: the state of the index in which they are pending.
        free: pending documents that nobody has claimed after this claim, failed ones not counted.
    """

    keys: tuple[int, ...]
    view: View
    free: int


@dataclass(frozen=True, slots=True)
class Vectors:
    """Documents' vectors without the documents.

    Attributes:
        dense: (n, dim) float16, or None.
        sparse: n rows of uint8 impacts, or None.
    """

    dense: npt.NDArray[np.float16] | None
    sparse: SparseVectors | None

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Vectors:
        """Those of the documents of all shards, which have the same kinds."""
        dense = [shard.dense for shard in shards if shard.dense is not None]
        rows = [shard.sparse for shard in shards if shard.sparse is not None]
        sparse = None
        if rows:
            indptr = np.concatenate([np.zeros(1, np.int64), *(np.diff(each.indptr) for each in rows)]).cumsum()
            term_ids = np.concatenate([each.term_ids for each in rows])
            weights = np.concatenate([each.weights for each in rows])
            sparse = SparseVectors(indptr, term_ids, weights, rows[0].vocab_size)
        return cls(np.concatenate(dense) if dense else None, sparse)

    def take(self, places: npt.NDArray[np.int64]) -> Vectors:
        """Some rows, in the given order."""
        dense = None if self.dense is None else self.dense[places]
        return Vectors(dense, None if self.sparse is None else take(self.sparse, places))


class Queue:
    """One connection to the queue of an index. Every change is one short transaction; threads may share it.

    A claim dies with its holder, however that dies: each worker holds a lock on a file of its own, which the kernel
    lets go when the process ends. Process ids would not do: they come again, and two containers that share a folder
    have the same ones.
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        """For `open`."""
        self.folder = folder
        self._connection = connection
        self._threads = threading.RLock()
        self._worker: tuple[str, IO[bytes]] | None = None

    @classmethod
    def open(cls, index: Path | str, *, busy_s: float = BUSY_S) -> Queue:
        """The queue of an index folder, which is made when there is none.

        Args:
            index: the index folder.
            busy_s: how long to wait for another process' transaction.

        Raises:
            WriteFailed: the folder cannot be written.
            FormatError: the file is damaged or of another version.
        """
        folder = Path(index) / QUEUE_FOLDER
        try:
            (folder / WORKERS_FOLDER).mkdir(parents=True, exist_ok=True)
            if not (folder / QUEUE_FILE).exists():
                _create(folder)
        except (OSError, sqlite3.OperationalError) as error:
            raise WriteFailed(f"{folder} cannot be made: {error}") from error
        connection = _opened(folder / QUEUE_FILE, "rw", busy_s)
        # After a power failure the file is whole, but its last second may be lost.
        connection.execute("PRAGMA synchronous = NORMAL")
        return cls(folder, connection)

    def close(self) -> None:
        """Give up what is claimed and close the file."""
        with self._threads:
            if self._worker is not None:
                with self._changing() as do:
                    do("DELETE FROM claims WHERE worker = ?", [self._worker[0]])
                _end(self._worker[1], self.folder / WORKERS_FOLDER / self._worker[0])
                self._worker = None
            self._connection.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Work

    def claim(self, newest: Callable[[], View], n: int, *, wanted: Sequence[int] | None = None) -> Claim:
        """Take up to n pending documents that no living worker has, and that neither failed nor wait to be committed.

        The newest view is taken while the queue is locked. A worker commits before it gives its claim up, so whatever
        this view shows as pending and nobody claims, nobody has encoded.

        Args:
            newest: gives the newest view of the index.
            n: the most documents.
            wanted: keys of the only documents to take, in this order; None takes the hottest, then the oldest.
        """
        with self._threads, self._changing() as do:
            worker = self._become_worker()
            self._bury_the_dead()
            view = newest()  # after the burial: what the dead had committed is in it
            pending = pending_keys(view)
            taken = [row[0] for table in ("claims", "failures", "parked") for row in do(f"SELECT doc_key FROM {table}")]
            free = np.setdiff1d(pending, np.array(taken, dtype=np.int64), assume_unique=True)
            if wanted is None:
                keys = self._hottest(pending, free, n)
                rest = free[~np.isin(free, keys)] if keys else free
                keys += rest[: n - len(keys)].tolist()
            else:
                keys = [key for key in wanted if _has(free, key)][:n]
            self._connection.executemany("INSERT INTO claims VALUES (?, ?)", [(key, worker) for key in keys])
            return Claim(tuple(keys), view, len(free) - len(keys))

    def release(self, keys: Sequence[int]) -> None:
        """Give claimed documents up as they were."""
        self._each("DELETE FROM claims WHERE doc_key = ?", keys)

    def finish(self, keys: Sequence[int]) -> None:
        """Forget documents: they have their vectors, or are gone."""
        with self._threads, self._changing():
            for table in ("claims", "failures", "demand", "parked"):
                self._connection.executemany(f"DELETE FROM {table} WHERE doc_key = ?", [(key,) for key in keys])

    def set_aside(self, errors: Mapping[int, str], *, at: float | None = None) -> None:
        """Note that documents could not be encoded, and why; they are not claimed again before `retry_failed`."""
        now = time.time() if at is None else at
        rows = [(key, error[:MAX_ERROR_CHARACTERS], now) for key, error in errors.items()]
        with self._threads, self._changing():
            self._connection.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE doc_key = ?", [row[:1] for row in rows])

    def retry_failed(self) -> int:
        """Let the documents that failed be claimed again; returns their number."""
        with self._threads, self._changing() as do:
            return do("DELETE FROM failures").rowcount

    def failures(self, view: View) -> list[Failure]:
        """The pending documents that could not be encoded, by key."""
        rows = self._select("SELECT doc_key, error, at FROM failures ORDER BY doc_key")
        pending = pending_keys(view)
        kept = [row for row in rows if _has(pending, row[0])]
        documents = view.store.documents_of(row[0] for row in kept)
        return [Failure(documents[key].doc_id, error, at) for key, error, at in kept]

    def park(self, keys: Sequence[int], vectors: Vectors) -> None:
        """Keep claimed documents' vectors until somebody who has the writer's lock commits them."""
        rows = []
        for i, key in enumerate(keys):
            terms, impacts = (None, None) if vectors.sparse is None else vectors.sparse.row(i)
            dense = None if vectors.dense is None else vectors.dense[i].astype(np.float16, copy=False)
            rows.append((key, _bytes(dense), _bytes(terms), _bytes(impacts)))
        with self._threads, self._changing():
            self._connection.executemany("INSERT OR REPLACE INTO parked VALUES (?, ?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE doc_key = ?", [(key,) for key in keys])

    def parked(self, vocab_size: int) -> tuple[list[int], Vectors]:
        """The keys and vectors of all that is parked, by key."""
        rows = self._select("SELECT doc_key, dense, term_ids, impacts FROM parked ORDER BY doc_key")
        return [row[0] for row in rows], _parked([row[1:] for row in rows], vocab_size)

    @property
    def n_parked(self) -> int:
        """Number of documents whose vectors wait to be committed."""
        return int(self._select("SELECT count(*) FROM parked")[0][0])

    # Demand

    def note(self, asked: Mapping[int, int], *, at: float | None = None) -> None:
        """Note how often queries asked for documents; every HALF_LIFE_S a query counts half.

        What is stored is log2 of the number with the decay taken out: it keeps its order as time goes by, so that
        nothing has to be written for documents to cool.
        """
        now = (time.time() if at is None else at) / HALF_LIFE_S
        with self._threads, self._changing() as do:
            for key, count in asked.items():
                row = do("SELECT heat FROM demand WHERE doc_key = ?", [key]).fetchone()
                before = 0.0 if row is None else 2.0 ** min(row[0] - now, 1000.0)
                do("INSERT OR REPLACE INTO demand VALUES (?, ?)", [key, now + math.log2(before + count)])

    def _hottest(self, pending: Keys, free: Keys, n: int) -> list[int]:
        """Up to n free documents, hottest first; those that are not pending any more are forgotten."""
        found: list[int] = []
        gone: list[tuple[int]] = []
        for (key,) in self._connection.execute("SELECT doc_key FROM demand ORDER BY heat DESC, doc_key"):
            if _has(free, key):
                found.append(key)
                if len(found) == n:
                    break
            elif not _has(pending, key):
                gone.append((key,))
        self._connection.executemany("DELETE FROM demand WHERE doc_key = ?", gone)
        return found

    # Workers

    def _become_worker(self) -> str:
        if self._worker is None:
            folder = self.folder / WORKERS_FOLDER
            for path in folder.iterdir():  # of workers that died without a claim
                if (dead := _taken(path)) is not None:
                    _end(dead, path)
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
            lock = None
            while lock is None:  # until the sweep of another worker does not take it for a dead one's
                (folder / name).touch()
                lock = _taken(folder / name)
            self._worker = name, lock
        return self._worker[0]

    def _bury_the_dead(self) -> None:
        own = self._worker[0] if self._worker else ""
        for (name,) in self._select("SELECT DISTINCT worker FROM claims WHERE worker != ?", [own]):
            path = self.folder / WORKERS_FOLDER / name
            dead = _taken(path)
            if dead is None and path.exists():
                continue  # it lives
            self._connection.execute("DELETE FROM claims WHERE worker = ?", [name])
            if dead is not None:
                _end(dead, path)

    # SQLite

    def _each(self, statement: str, keys: Sequence[int]) -> None:
        with self._threads, self._changing():
            self._connection.executemany(statement, [(key,) for key in keys])

    def _select(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._threads, _named(self.folder / QUEUE_FILE):
            return self._connection.execute(statement, arguments).fetchall()

    @contextmanager
    def _changing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection.execute
            self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise WriteFailed(f"{self.folder / QUEUE_FILE} cannot be changed: {error}") from error
            raise


class Demand:
    """What searches ask for of an index's pending documents, told to its queue.

    Searching never waits for it: after a ranking is made, and at most once a second, what was counted since goes out in
    one small transaction; where the queue is busy, with a search of a later second. `close` tells the rest. On a medium
    that cannot be written nothing is told, which the log says once.
    """

    def __init__(self, index: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        """For an index folder."""
        self._index = Path(index)
        self._clock = clock
        self._asked: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._told_at = -math.inf
        self._telling = threading.Lock()
        self._queue: Queue | None = None
        self._refused = False

    def note(self, view: View, doc_ords: npt.NDArray[np.uint32]) -> None:
        """Count the pending ones among documents that a search listed high."""
        if self._refused or not view.n_pending:
            return
        with self._counting:
            self._asked.update(keys_of_pending(view, doc_ords).tolist())
        if self._asked and self._clock() - self._told_at >= TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell what is not told yet, unless another thread is about it or the queue is busy."""
        if self._refused or not self._asked or not self._telling.acquire(blocking=False):
            return
        try:
            self._told_at = self._clock()
            with self._counting:
                asked, self._asked = self._asked, Counter()
            if self._queue is None:
                self._queue = Queue.open(self._index, busy_s=0.0)
            self._queue.note(asked, at=self._told_at)
        except WriteFailed as error:
            if is_busy(error):
                with self._counting:
                    self._asked.update(asked)
                return
            self._refused = True
            logger.warning("what queries ask for is not noted, so a worker goes by age alone: %s", error)
        finally:
            self._telling.release()

    def close(self) -> None:
        """Tell the rest and close the queue."""
        self.tell()
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def __enter__(self) -> Demand:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def failures_of(view: View) -> list[Failure]:
    """The pending documents that could not be encoded, by key; read without making a queue.

    Raises:
        FormatError: the queue is damaged or of another version.
    """
    path = view.folder / QUEUE_FOLDER / QUEUE_FILE
    if not view.n_pending or not path.is_file():
        return []
    queue = Queue(path.parent, _opened(path, read_mode(path), BUSY_S))
    try:
        return queue.failures(view)
    finally:
        queue.close()


def pending_keys(view: View) -> Keys:
    """The keys of the documents that wait for their vectors, ascending: the oldest first."""
    waiting = [each for each in view.segments if each.n_pending]
    found = [each.segment.doc_keys[each.segment.pending & each.live] for each in waiting]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def keys_of_pending(view: View, doc_ords: npt.NDArray[np.uint32]) -> Keys:
    """The keys of those of the documents that wait for their vectors, in the order of the documents."""
    at, places = view.locate(doc_ords)
    keys = np.full(len(doc_ords), -1, dtype=np.int64)
    for i in np.unique(at).tolist():
        here = np.flatnonzero(at == i)
        segment = view.segments[i].segment
        waiting = here[segment.pending[places[here]]]
        keys[waiting] = segment.doc_keys[places[waiting]]
    return keys[keys >= 0]


def is_busy(error: WriteFailed) -> bool:
    """Whether a change failed only since another process was about one for too long."""
    cause = error.__cause__
    return isinstance(cause, sqlite3.OperationalError) and cause.sqlite_errorcode == sqlite3.SQLITE_BUSY


def _has(ascending: Keys, key: int) -> bool:
    place = int(np.searchsorted(ascending, key))
    return place < len(ascending) and int(ascending[place]) == key


def _bytes(array: npt.NDArray[Any] | None) -> bytes | None:
    return None if array is None else array.tobytes()


def _parked(rows: Sequence[tuple[bytes | None, bytes | None, bytes | None]], vocab_size: int) -> Vectors:
    if not rows:
        return Vectors(None, None)
    dense = sparse = None
    if rows[0][0] is not None:
        dense = np.frombuffer(b"".join(row[0] or b"" for row in rows), np.float16).reshape(len(rows), -1)
    if rows[0][1] is not None:
        impacts = [np.frombuffer(row[2] or b"", np.uint8) for row in rows]
        indptr = np.concatenate([[0], np.cumsum([len(each) for each in impacts])]).astype(np.int64)
        term_ids = np.frombuffer(b"".join(row[1] or b"" for row in rows), np.uint32)
        sparse = SparseVectors(indptr, term_ids, np.concatenate(impacts), vocab_size)
    return Vectors(dense, sparse)


def _create(folder: Path) -> None:
    """A new file, made aside and linked to its place: others see it whole; one that was there first stays."""
    aside = folder / f".{QUEUE_FILE}.{secrets.token_hex(8)}"
    connection = sqlite3.connect(aside)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # flushed once, when it is whole
        connection.executescript(_SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        fsync_path(aside)
        with contextlib.suppress(FileExistsError):
            os.link(aside, folder / QUEUE_FILE)
    finally:
        connection.close()
        aside.unlink(missing_ok=True)


def _opened(path: Path, mode: str, busy_s: float) -> sqlite3.Connection:
    with _named(path):
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
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise WriteFailed(f"{path} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise FormatError(
            f"{path} is damaged: {error}. Remove {path.parent}: the documents and their vectors are elsewhere"
        ) from error


def _taken(path: Path) -> IO[bytes] | None:
    """The file, locked; None where another process has it locked, or where it is not there (any more)."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    return None


def _end(lock: IO[bytes], path: Path) -> None:
    path.unlink(missing_ok=True)
    lock.close()
