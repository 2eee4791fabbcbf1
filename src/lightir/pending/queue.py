"""The queue beside an index: claims, failures and demand of pending documents, and parked vectors.

    queue/queue.sqlite    claims, failures, demand
    queue/workers/        one locked file per live worker (worker_lock.py)
    queue/parked/         encoded documents that are not committed yet (parked.py)

Searching does not need the queue, and the queue decides nothing about the index: the store and the segments say which
documents have vectors. An index without this folder has an empty queue.

The database names documents by their keys in the store. DocKeys are never reused, and a document whose text is replaced
gets a new key, so the claims and failures of the old text do not apply to the new one.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightir.contract import Contract
from lightir.errors import FormatError, InvalidInput, WriteFailed
from lightir.files import make_folder, remove_abandoned
from lightir.index.connections import BUSY_S, Connection, refusal
from lightir.index.reader import Index
from lightir.index.stored_documents import DocKeys
from lightir.index.view import View
from lightir.pending.keys import contains_key, pending_keys
from lightir.pending.parked import (
    PARKED_FOLDER,
    PARKED_NAME,
    parked_folders,
    read_parked,
    remove_parked,
    write_parked,
)
from lightir.pending.queue_file import (
    QUEUE_FILE,
    QUEUE_FOLDER,
    check_queue_file,
    create_queue_file,
    naming_file,
    open_queue_file,
    open_queue_to_read,
)
from lightir.pending.worker_lock import WORKER_NAME, WORKERS_FOLDER, WorkerLock, remove_if_dead
from lightir.shards import Shard

MAX_ERROR_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """A document that could not be encoded.

    Attributes:
        doc_id: id of the document, which is still pending and searchable by the tokens branch.
        error: message of the encoder's exception.
        at: time of the failure, in seconds since 1970.
    """

    doc_id: str
    error: str
    at: float


@dataclass(frozen=True, slots=True)
class Claim:
    """Pending documents reserved for one worker.

    Attributes:
        keys: keys of the claimed documents, the most demanded first, then the oldest.
        view: state of the index in which they are pending.
        n_free: number of pending documents that remain unclaimed after this claim, failed ones not counted.
    """

    keys: tuple[int, ...]
    view: View
    n_free: int


class Queue:
    """A connection to the queue of an index. Every change is one short transaction; threads may share the connection.

    A claim has a holder: a worker, or a batch of parked vectors. The claim is stale, and the next worker releases it,
    once the worker's process has ended or the batch is gone.
    """

    def __init__(self, folder: Path, connection: Connection) -> None:
        """Wrap an opened file; use `open` instead."""
        self.folder = folder
        self._opened = connection
        self._worker: WorkerLock | None = None

    @classmethod
    def open(cls, index: Path | str, *, busy_s: float = BUSY_S) -> Queue:
        """Open the queue of an index folder; create it if there is none.

        Args:
            index: index folder.
            busy_s: maximum number of seconds to wait for another process's transaction.

        Raises:
            WriteFailed: the folder cannot be written.
            FormatError: the file is damaged or of an unsupported version.
        """
        folder = Path(index) / QUEUE_FOLDER
        try:
            make_folder(folder / WORKERS_FOLDER)
            if not (folder / QUEUE_FILE).exists():
                create_queue_file(folder)
        except (OSError, MemoryError, sqlite3.OperationalError) as error:
            raise refusal(f"cannot create {folder}", error, kind=WriteFailed) from error
        connection = open_queue_file(folder / QUEUE_FILE, "rw", busy_s)
        with naming_file(folder / QUEUE_FILE):
            # After a power failure the file is consistent, but its last second may be lost.
            connection.execute("PRAGMA synchronous = NORMAL")
        return cls(folder, connection)

    @property
    def inherited(self) -> bool:
        """Whether the queue was opened before this process was forked and cannot be used here."""
        return self._opened.inherited

    @property
    def is_current(self) -> bool:
        """Whether the folder still holds this queue: False once it was removed or the index was replaced.

        A replaced index has other documents under the same keys.
        """
        return self._opened.is_current

    @property
    def _connection(self) -> Connection:
        return self._opened.usable()

    def close(self) -> None:
        """Release this worker's claims and close the file; in a forked process the parent's claims stay.

        If the claims cannot be deleted they are stale, because the worker's lock is released in any case.
        """
        if self.inherited:
            return
        with self._opened.lock, naming_file(self.folder / QUEUE_FILE), ExitStack() as closing:
            closing.callback(self._opened.close)
            if self._worker is not None:
                worker, self._worker = self._worker, None
                closing.callback(worker.release)
                with self._transaction() as execute:
                    execute("DELETE FROM claims WHERE holder = ?", [worker.name])

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Claims

    def claim(self, index: Index, n: int, *, only: Sequence[int] | None = None) -> Claim:
        """Claim up to n pending documents that are not claimed, parked or failed.

        The index is refreshed while the queue is locked and stale claims are released. Workers commit before they
        release a claim, so a document that this view shows as pending and nobody claims has not been encoded.

        Args:
            index: index of the queue; moved on to its newest view.
            n: maximum number of documents.
            only: keys of the documents to choose from, in order of preference. None chooses from all, the most
                demanded first, then the oldest.
        """
        with self._opened.lock, self._transaction() as execute:
            if self._worker is None:
                self._worker = WorkerLock.create(self.folder / WORKERS_FOLDER)
                remove_abandoned(self.folder / PARKED_FOLDER)  # of workers that were killed while they removed a batch
            self._release_stale_claims(self._worker.name)
            index.refresh()  # after the release: what the dead workers committed is in this view
            view = index.view
            pending = pending_keys(view)
            taken = execute("SELECT doc_key FROM claims UNION SELECT doc_key FROM failures").fetchall()
            free = np.setdiff1d(pending, np.array([key for (key,) in taken], dtype=np.int64), assume_unique=True)
            if only is None:
                keys = self._most_demanded(pending, free, n)
                rest = free[~np.isin(free, keys)] if keys else free
                keys += rest[: n - len(keys)].tolist()
            else:
                keys = [key for key in only if contains_key(free, key)][:n]
            rows = [(key, self._worker.name) for key in keys]
            self._connection.executemany("INSERT INTO claims VALUES (?, ?)", rows)
            return Claim(tuple(keys), view, len(free) - len(keys))

    def release(self, keys: Sequence[int]) -> None:
        """Release claims; the documents can be claimed again."""
        with self._opened.lock, self._transaction():
            self._delete("claims", keys)

    def finish(self, keys: Sequence[int]) -> None:
        """Remove all records of documents that have their vectors or are no longer in the index."""
        with self._opened.lock, self._transaction():
            for table in ("claims", "failures", "demand"):
                self._delete(table, keys)

    def _release_stale_claims(self, own_name: str) -> None:
        for (holder,) in self._select("SELECT DISTINCT holder FROM claims WHERE holder != ?", [own_name]):
            if not self._is_active(holder):
                self._connection.execute("DELETE FROM claims WHERE holder = ?", [holder])

    def _is_active(self, holder: object) -> bool:
        """Return whether a holder is a live worker or a parked batch.

        Only names that this package gives are looked up: another one could name a file outside the folder.
        """
        if not isinstance(holder, str):
            return False
        if PARKED_NAME.fullmatch(holder):
            return (self.folder / PARKED_FOLDER / holder).exists()
        return bool(WORKER_NAME.fullmatch(holder)) and not remove_if_dead(self.folder / WORKERS_FOLDER / holder)

    # Failures

    def record_failures(self, errors: Mapping[int, str], *, at: float | None = None) -> None:
        """Record that documents could not be encoded; they are not claimed again before `retry_failed`.

        Args:
            errors: message for each document's key.
            at: time of the failures in seconds since 1970; None for now.
        """
        now = time.time() if at is None else at
        rows = [(key, error[:MAX_ERROR_CHARACTERS], now) for key, error in errors.items()]
        with self._opened.lock, self._transaction():
            self._connection.executemany("INSERT OR REPLACE INTO failures VALUES (?, ?, ?)", rows)
            self._delete("claims", list(errors))

    def retry_failed(self) -> int:
        """Allow failed documents to be claimed again; return their number."""
        with self._opened.lock, self._transaction() as execute:
            return execute("DELETE FROM failures").rowcount

    def failures(self, view: View) -> list[Failure]:
        """Return the failures of documents that are pending in the view, by key."""
        rows = self._select("SELECT doc_key, CAST(error AS TEXT), CAST(at AS REAL) FROM failures ORDER BY doc_key")
        pending = pending_keys(view)
        kept = [row for row in rows if contains_key(pending, row[0])]
        documents = view.store.documents.of(row[0] for row in kept)
        return [Failure(documents[key].doc_id, error, at) for key, error, at in kept]

    # Parked vectors

    def park(self, keys: Sequence[int], contract: Contract, shard: Shard) -> None:
        """Keep the vectors of claimed documents until a process that has the writer's lock commits them.

        Args:
            keys: keys of the documents; their claims pass from this worker to the parked batch.
            contract: contract of the model that encoded them.
            shard: the documents with their vectors.

        Raises:
            WriteFailed: the disk is full or the folder cannot be written.
        """
        batch = write_parked(self.folder / PARKED_FOLDER, contract, shard)
        with self._opened.lock, self._transaction():
            rows = [(batch.name, key) for key in keys]
            self._connection.executemany("UPDATE claims SET holder = ? WHERE doc_key = ?", rows)

    def parked(self) -> list[Path]:
        """Return the folders of the parked batches of all workers, live or dead."""
        with naming_file(self.folder / QUEUE_FILE):
            return parked_folders(self.folder / PARKED_FOLDER)

    def remove_parked(self, batch: Path) -> None:
        """Remove a parked batch and its claims; call it with the writer's lock held."""
        with naming_file(self.folder / QUEUE_FILE):
            remove_parked(batch)
        with self._opened.lock, self._transaction() as execute:
            execute("DELETE FROM claims WHERE holder = ?", [batch.name])

    # Demand

    def add_demand(self, n_queries: Mapping[int, int]) -> None:
        """Add the number of queries that listed each document to its demand."""
        statement = "INSERT INTO demand VALUES (?, ?) ON CONFLICT DO UPDATE SET queries = queries + excluded.queries"
        with self._opened.lock, self._transaction():
            self._connection.executemany(statement, list(n_queries.items()))

    def _most_demanded(self, pending: DocKeys, free: DocKeys, n: int) -> list[int]:
        """Return up to n free documents, the most demanded first; forget the demand of documents not pending."""
        chosen: list[int] = []
        not_pending: list[int] = []
        for (key,) in self._connection.execute("SELECT doc_key FROM demand ORDER BY queries DESC, doc_key"):
            if contains_key(free, key):
                chosen.append(key)
                if len(chosen) == n:
                    break
            elif not contains_key(pending, key):
                not_pending.append(key)
        self._delete("demand", not_pending)
        return chosen

    # SQLite

    def _delete(self, table: str, keys: Sequence[int]) -> None:
        self._connection.executemany(f"DELETE FROM {table} WHERE doc_key = ?", [(key,) for key in keys])

    def _select(self, statement: str, arguments: Sequence[Any] = ()) -> list[Any]:
        with self._opened.lock, naming_file(self.folder / QUEUE_FILE):
            rows = self._connection.execute(statement, arguments).fetchall()
            self._opened.check_unchanged()
            return rows

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        with naming_file(self.folder / QUEUE_FILE):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection.execute
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def failures_of(view: View) -> list[Failure]:
    """Return the failures of pending documents, by key; an index without a queue does not get one.

    Raises:
        FormatError: the queue is damaged or of an unsupported version.
    """
    path = view.folder / QUEUE_FOLDER / QUEUE_FILE
    if not view.n_pending or not path.is_file():
        return []
    queue = Queue(path.parent, open_queue_to_read(path))
    try:
        return queue.failures(view)
    finally:
        queue.close()


def verify_queue(index: Path) -> None:
    """Run SQLite's integrity check on the queue of an index, and verify the checksums of parked vectors.

    Args:
        index: index folder; one without a queue passes.

    Raises:
        FormatError: names everything that is damaged.
    """
    folder = index / QUEUE_FOLDER
    problems = []
    if (folder / QUEUE_FILE).is_file():
        try:
            check_queue_file(folder / QUEUE_FILE)
        except FormatError as error:
            problems.append(str(error))
    for batch in parked_folders(folder / PARKED_FOLDER):
        try:
            read_parked(batch)
        except (FormatError, InvalidInput) as error:
            if batch.exists():  # otherwise a worker has committed it meanwhile
                problems.append(str(error))
    if problems:
        raise FormatError("; ".join(problems))
