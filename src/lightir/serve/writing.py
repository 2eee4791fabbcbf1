"""Changes of the index: a bounded queue, and one thread that commits them in order."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from lightir.errors import InvalidInput, LightirError
from lightir.index import Filter, IndexWriter
from lightir.types import Document

MAX_JOBS = 1000
"""Maximum number of jobs that the service remembers."""

MAX_GROUP = 2000
"""Maximum number of documents that one commit joins from several changes."""

State: TypeAlias = Literal["queued", "running", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Documents to add, or to replace by their ids."""

    documents: Sequence[Document]

    def apply(self, writer: IndexWriter) -> int:
        """Make the change and return the number of documents."""
        writer.upsert(self.documents)
        return len(self.documents)


@dataclass(frozen=True, slots=True)
class Delete:
    """Ids of documents to delete."""

    doc_ids: Sequence[str]

    def apply(self, writer: IndexWriter) -> int:
        """Make the change and return the number of documents that existed."""
        return writer.delete(self.doc_ids)


@dataclass(frozen=True, slots=True)
class DeleteWhere:
    """A filter of documents to delete."""

    filter: Filter

    def apply(self, writer: IndexWriter) -> int:
        """Make the change and return the number of deleted documents."""
        return writer.delete_where(self.filter)


@dataclass(frozen=True, slots=True)
class SetMetadata:
    """Metadata fields to change: doc_id -> field -> value."""

    changes: Mapping[str, Mapping[str, Any]]

    def apply(self, writer: IndexWriter) -> int:
        """Make the change and return the number of changed documents."""
        return writer.set_metadata(self.changes)


Change: TypeAlias = Upsert | Delete | DeleteWhere | SetMetadata


@dataclass(slots=True)
class Job:
    """A change and its state.

    Attributes:
        number: number of the job in this process.
        change: the change.
        state: queued, running, done (durable) or failed (nothing was changed).
        documents: number of documents that were added, replaced, changed or deleted; None before that.
        error: message of the failure.
        queued_at: time of the request, seconds since 1970.
        finished_at: time of the commit or failure.
        result: number of documents, or the error.
    """

    number: int
    change: Change
    state: State = "queued"
    documents: int | None = None
    error: str | None = None
    queued_at: float = field(default_factory=time.time)
    finished_at: float | None = None
    result: Future[int] = field(default_factory=Future)

    def as_json(self) -> dict[str, Any]:
        """Return the job as an object."""
        kinds = {Upsert: "upsert", Delete: "delete", DeleteWhere: "delete", SetMetadata: "metadata"}
        return {
            "id": self.number,
            "kind": kinds[type(self.change)],
            "state": self.state,
            "documents": self.documents,
            "error": self.error,
            "queued_at": self.queued_at,
            "finished_at": self.finished_at,
        }


class QueueFull(LightirError):
    """A change that was refused because too many others wait."""


class ServiceStops(LightirError):
    """A change that was refused because the service stops."""


class WriteQueue:
    """Commits changes in the order in which they came. What a job's result says has been committed is durable.

    The index is opened for writing only while there are changes, so that other processes can change it too. Documents
    of several requests that wait share a commit, which takes as long as one of them.
    """

    def __init__(
        self, folder: Path, *, max_waiting: int, lock_s: float, committed: Callable[[], object] = lambda: None
    ) -> None:
        """Start the thread.

        Args:
            folder: index folder.
            max_waiting: maximum number of changes that wait.
            lock_s: maximum time to wait for another writer of the index.
            committed: function to call after a commit, before its jobs are done.
        """
        self.folder = folder
        self._lock_s = lock_s
        self._committed = committed
        self._waiting: queue.Queue[Job | None] = queue.Queue(max_waiting + 1)
        self._max_waiting = max_waiting
        self._numbers = itertools.count(1)
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._changing = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="lightir-writer", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Number of changes that wait."""
        return self._waiting.qsize()

    def submit(self, change: Change) -> Job:
        """Queue a change and return its job.

        Raises:
            QueueFull: too many changes wait; nothing was queued.
            ServiceStops: the service stops; nothing was queued.
        """
        with self._changing:
            if self._stopping:
                raise ServiceStops("the service is stopping and takes no further changes; send them again later")
            if self._waiting.qsize() >= self._max_waiting:
                raise QueueFull(
                    f"{self._max_waiting} changes wait for the writer already; send this one again after a second, or "
                    "send more documents per request"
                )
            job = Job(next(self._numbers), change)
            self._jobs[job.number] = job
            while len(self._jobs) > MAX_JOBS:
                self._jobs.popitem(last=False)
            self._waiting.put_nowait(job)
            return job

    def jobs(self) -> list[Job]:
        """Return the jobs that the service remembers, newest first."""
        with self._changing:
            return [*reversed(self._jobs.values())]

    def job(self, number: int) -> Job | None:
        """Return a job; None for one that is unknown or forgotten."""
        with self._changing:
            return self._jobs.get(number)

    def close(self) -> None:
        """Refuse further changes, commit those that wait, and stop the thread."""
        with self._changing:
            if not self._stopping:
                self._stopping = True
                self._waiting.put_nowait(None)  # one place more than changes may take
        self._thread.join()

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            jobs = [job, *self._drained()]
            self._commit([job for job in jobs if job is not None])
            if None in jobs:
                return

    def _drained(self) -> list[Job | None]:
        """Return the jobs that wait; None is last if the thread shall stop."""
        jobs: list[Job | None] = []
        while not self._waiting.empty() and None not in jobs:
            jobs.append(self._waiting.get())
        return jobs

    def _commit(self, jobs: Sequence[Job]) -> None:
        """Make the changes of jobs and finish them."""
        outcomes: list[tuple[Job, int | Exception]] = []
        for job in jobs:
            job.state = "running"
        try:
            with IndexWriter.open(self.folder, brief=True, wait_s=self._lock_s) as writer:
                for group in _groups(jobs):
                    outcomes += _applied(writer, group)
        except Exception as error:  # noqa: BLE001 - every job gets it
            done = {job.number for job, _ in outcomes}
            outcomes += [(job, error) for job in jobs if job.number not in done]
        self._finish(outcomes)

    def _finish(self, outcomes: Sequence[tuple[Job, int | Exception]]) -> None:
        with contextlib.suppress(LightirError):  # the changes are durable; a later look shows them, or why not
            self._committed()
        for job, outcome in outcomes:
            job.finished_at = time.time()
            if isinstance(outcome, Exception):
                job.state, job.error = "failed", str(outcome)
                job.result.set_exception(outcome)
            else:
                job.state, job.documents = "done", outcome
                job.result.set_result(outcome)


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return runs of jobs that one commit can make: upserts of different documents, or one other change."""
    groups: list[list[Job]] = []
    ids: set[str] = set()
    n_documents = 0
    for job in jobs:
        is_upsert = isinstance(job.change, Upsert)
        own = [document.doc_id for document in job.change.documents] if isinstance(job.change, Upsert) else []
        joins = bool(groups) and is_upsert and isinstance(groups[-1][-1].change, Upsert)
        if joins and ids.isdisjoint(own) and n_documents + len(own) <= MAX_GROUP:
            groups[-1].append(job)
        else:
            groups.append([job])
            ids, n_documents = set(), 0
        ids.update(own)
        n_documents += len(own)
    return groups


def _applied(writer: IndexWriter, group: Sequence[Job]) -> list[tuple[Job, int | Exception]]:
    """Make the changes of a group, in one commit if none of them is wrong, and return the outcome of each."""
    if len(group) > 1:
        changes = [job.change for job in group if isinstance(job.change, Upsert)]
        try:
            Upsert([document for change in changes for document in change.documents]).apply(writer)
            return [(job, len(change.documents)) for job, change in zip(group, changes, strict=True)]
        except InvalidInput:
            pass  # nothing was changed; the wrong one fails alone
    outcomes: list[tuple[Job, int | Exception]] = []
    for job in group:
        try:
            outcomes.append((job, job.change.apply(writer)))
        except Exception as error:  # noqa: BLE001 - the job gets it
            outcomes.append((job, error))
    return outcomes
