"""The queue beside an index: which pending documents are claimed, failed or asked for, and what waits to be committed.

    queue/queue.sqlite    claims, failures, demand, parked vectors
    queue/workers/        a locked file for each worker that lives

Nothing here is needed to search, and nothing is true of the index because it stands here: the store and the segments
say which documents have vectors. An index without the folder has a queue in which nothing has happened yet.

Documents are named by their keys in the store, which are never given twice: a document whose text was replaced has
another key, so what is said here of its old text is not taken for the new one.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from lightir.errors import FormatError, InvalidInput, WriteFailed
from lightir.index.connections import BUSY_S, Connection
from lightir.index.store import DocKeys, read_mode
from lightir.index.view import View
from lightir.pending.keys import pending_keys
from lightir.pending.parked import Vectors
from lightir.pending.queue_file import QUEUE_FILE, QUEUE_FOLDER, create, damaged, named, opened

WORKERS_FOLDER = "workers"

HALF_LIFE_S = 3600.0
"""A query of an hour ago counts half as much as one of now."""

MAX_ERROR_CHARACTERS = 500

_WORKER = re.compile(r"\d+-[0-9a-f]{16}")
"""A worker's name, which is that of its file: process id and chance."""


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
        free: how many pending documents nobody has claimed, after this claim; failed ones do not count.
    """

    keys: tuple[int, ...]
    view: View
    free: int


class Queue:
    """One connection to the queue of an index. Every change is one short transaction; threads may share it.

    A claim dies with its holder, however that dies: each worker holds a lock on a file of its own, which the kernel
    lets go when the process ends. Process ids would not do: they come again, and two containers that share a folder
    have the same ones.
    """

    def __init__(self, folder: Path, connection: Connection) -> None:
        """For `open`."""
        self.folder = folder
        self._opened = connection
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
                create(folder)
        except (OSError, sqlite3.OperationalError) as error:
            raise WriteFailed(f"{folder} cannot be made: {error}") from error
        connection = opened(folder / QUEUE_FILE, "rw", busy_s)
        with named(folder / QUEUE_FILE):
            # After a power failure the file is whole, but its last second may be lost.
            connection.execute("PRAGMA synchronous = NORMAL")
        return cls(folder, connection)

    @property
    def inherited(self) -> bool:
        """Whether it was opened before this process was forked, so that it is of no use here."""
        return self._opened.inherited

    @property
    def is_current(self) -> bool:
        """Whether the folder's queue is still this one; not where it was removed, or the index replaced by another.

        Another index has other documents under the same keys.
        """
        return self._opened.is_current

    @property
    def _connection(self) -> Connection:
        return self._opened.usable()

    def close(self) -> None:
        """Give up what is claimed and close the file; what a parent claimed stays the parent's."""
        if self.inherited:
            return
        with self._opened.lock:
            if self._worker is not None:
                with self._changing() as do:
                    do("DELETE FROM claims WHERE worker = ?", [self._worker[0]])
                _end(self._worker[1], self.folder / WORKERS_FOLDER / self._worker[0])
                self._worker = None
            self._opened.close()

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
        with self._opened.lock, self._changing() as do:
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
        """Give claims up; the documents are as free as before."""
        self._each("DELETE FROM claims WHERE doc_key = ?", keys)

    def finish(self, keys: Sequence[int]) -> None:
        """Forget documents, since they have their vectors or are gone."""
        with self._opened.lock, self._changing():
            for table in ("claims", "failures", "demand", "parked"):
                self._connection.executemany(f"DELETE FROM {table} WHERE doc_key = ?", [(key,) for key in keys])

    def set_aside(self, errors: Mapping[int, str], *, at: float | None = None) -> None:
        """Note that documents could not be encoded, and why; they are not claimed again before `retry_failed`."""
        now = time.time() if at is None else at
        rows = [(key, error[:MAX_ERROR_CHARACTERS], now) for key, error in errors.items()]
        with self._opened.lock, self._changing():
            self._connection.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE doc_key = ?", [row[:1] for row in rows])

    def retry_failed(self) -> int:
        """Allow documents that failed to be claimed again; returns their number."""
        with self._opened.lock, self._changing() as do:
            return do("DELETE FROM failures").rowcount

    def failures(self, view: View) -> list[Failure]:
        """The pending documents that could not be encoded, by key."""
        rows = self._select("SELECT doc_key, CAST(error AS TEXT), CAST(at AS REAL) FROM failures ORDER BY doc_key")
        pending = pending_keys(view)
        kept = [row for row in rows if _has(pending, row[0])]
        documents = view.store.documents_of(row[0] for row in kept)
        return [Failure(documents[key].doc_id, error, at) for key, error, at in kept]

    def park(self, keys: Sequence[int], vectors: Vectors) -> None:
        """Keep claimed documents' vectors until somebody who has the writer's lock commits them."""
        rows = [(key, *vectors.blobs(place)) for place, key in enumerate(keys)]
        with self._opened.lock, self._changing():
            self._connection.executemany("INSERT OR REPLACE INTO parked VALUES (?, ?, ?, ?)", rows)
            self._connection.executemany("DELETE FROM claims WHERE doc_key = ?", [(key,) for key in keys])

    def parked(self, vocab_size: int) -> tuple[list[int], Vectors]:
        """The keys and vectors of all that is parked, by key.

        Raises:
            FormatError: they are no vectors.
        """
        rows = self._select("SELECT doc_key, dense, term_ids, impacts FROM parked ORDER BY doc_key")
        try:
            return [row[0] for row in rows], Vectors.from_blobs([row[1:] for row in rows], vocab_size)
        except (TypeError, ValueError, InvalidInput) as error:
            raise self.damaged(error) from error

    def damaged(self, error: Exception) -> FormatError:
        """What to say of a queue that holds what no queue wrote."""
        return damaged(self.folder / QUEUE_FILE, error)

    @property
    def n_parked(self) -> int:
        """Number of documents whose vectors wait to be committed."""
        return int(self._select("SELECT count(*) FROM parked")[0][0])

    # Demand

    def note(self, asked: Mapping[int, int], *, at: float | None = None) -> None:
        """Note how often queries asked for documents; after each HALF_LIFE_S a query counts half as much.

        Stored is the heat log2(sum of 2 ** (t / HALF_LIFE_S)) over the queries' times t. All documents cool at the same
        rate, so this order never changes by itself, and nothing has to be written as time goes by.
        """
        now = (time.time() if at is None else at) / HALF_LIFE_S
        with self._opened.lock, self._changing() as do:
            for key, count in asked.items():
                row = do("SELECT CAST(heat AS REAL) FROM demand WHERE doc_key = ?", [key]).fetchone()
                before = 0.0 if row is None else 2.0 ** min(row[0] - now, 1000.0)
                do("INSERT OR REPLACE INTO demand VALUES (?, ?)", [key, now + math.log2(before + count)])

    def _hottest(self, pending: DocKeys, free: DocKeys, n: int) -> list[int]:
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
            for path in folder.iterdir():  # left by workers that died without a claim
                if _WORKER.fullmatch(path.name) and (dead := _taken(path)) is not None:
                    _end(dead, path)
            name = f"{os.getpid()}-{secrets.token_hex(8)}"
            lock = None
            while lock is None:  # another worker, starting, may take the new file for a dead one's and remove it
                (folder / name).touch()
                lock = _taken(folder / name)
            self._worker = name, lock
        return self._worker[0]

    def _bury_the_dead(self) -> None:
        own = self._worker[0] if self._worker else ""
        for (name,) in self._select("SELECT DISTINCT worker FROM claims WHERE worker != ?", [own]):
            dead = path = None
            if isinstance(name, str) and _WORKER.fullmatch(name):  # anything else would name a file elsewhere
                path = self.folder / WORKERS_FOLDER / name
                dead = _taken(path)
                if dead is None and path.exists():
                    continue  # it lives
            self._connection.execute("DELETE FROM claims WHERE worker = ?", [name])
            if path is not None and dead is not None:
                _end(dead, path)

    # SQLite

    def _each(self, statement: str, keys: Sequence[int]) -> None:
        with self._opened.lock, self._changing():
            self._connection.executemany(statement, [(key,) for key in keys])

    def _select(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._opened.lock, named(self.folder / QUEUE_FILE):
            return self._connection.execute(statement, arguments).fetchall()

    @contextmanager
    def _changing(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with named(self.folder / QUEUE_FILE):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def failures_of(view: View) -> list[Failure]:
    """The pending documents that could not be encoded, by key; read without making a queue.

    Raises:
        FormatError: the queue is damaged or of another version.
    """
    path = view.folder / QUEUE_FOLDER / QUEUE_FILE
    if not view.n_pending or not path.is_file():
        return []
    queue = Queue(path.parent, opened(path, read_mode(path), BUSY_S))
    try:
        return queue.failures(view)
    finally:
        queue.close()


def _has(ascending: DocKeys, key: int) -> bool:
    place = int(np.searchsorted(ascending, key))
    return place < len(ascending) and int(ascending[place]) == key


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
