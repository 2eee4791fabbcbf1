"""The worker's loop: claim pending documents, encode them, commit their vectors, until none is left or forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightir.errors import InvalidInput, storage_errors
from lightir.index.reader import Index
from lightir.pending.delivery import Encoded, deliver, encode_documents, require_fit
from lightir.pending.queue import Queue
from lightir.progress import Progress
from lightir.quantities import counted
from lightir.shards import DocumentEncoder
from lightir.types import Document

ENCODE_SIZE = 16
COMMIT_EVERY_S = 5.0
"""Encoding time of one claim: what a kill costs at most, and how soon a document in demand is encoded."""

LOCK_WAIT_S = 10.0
"""Time that a worker waits for another writer before it parks its vectors and continues to encode."""

MOST_FAILURES_IN_A_ROW = 100


@dataclass(frozen=True, slots=True)
class WorkOptions:
    """Sizes of a worker's steps, and when it ends.

    Attributes:
        once: end when no document is left to claim; otherwise wait for new documents.
        batch_size: maximum number of documents per commit. A slow encoder commits fewer, about every COMMIT_EVERY_S.
        encode_size: number of documents that go to the encoder together; None for 16.
        retry_failed: claim documents again that failed before.
        idle_wait_s: seconds to wait before the next look at an empty queue.
    """

    once: bool = False
    batch_size: int = 256
    encode_size: int | None = None
    retry_failed: bool = False
    idle_wait_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse sizes below 1."""
        if self.batch_size < 1 or (self.encode_size is not None and self.encode_size < 1):
            sizes = f"batch_size is {self.batch_size} and encode_size {self.encode_size}"
            raise InvalidInput(f"{sizes}; both must be at least 1")


@dataclass(slots=True)
class WorkReport:
    """Outcome of one worker's run.

    Attributes:
        committed: number of documents that got their vectors.
        dropped: number of documents encoded in vain, because they were changed, deleted or encoded by others meanwhile.
        failed: error message for the id of each document that could not be encoded.
        pending: number of documents without vectors at the end, failed ones included.
        seconds: time from the first claim on, without the waiting for new documents.
    """

    committed: int = 0
    dropped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    pending: int = 0
    seconds: float = 0.0

    @property
    def documents_per_s(self) -> float:
        """Number of documents committed per second; 0 if there are none."""
        return self.committed / self.seconds if self.committed else 0.0


def work(
    folder: Path | str,
    encoder: DocumentEncoder,
    options: WorkOptions | None = None,
    *,
    stop: threading.Event | None = None,
    progress: bool = True,
) -> WorkReport:
    """Encode and commit the pending documents of an index.

    Any number of workers may share an index while others search, add and delete. Each document is claimed, encoded and
    committed by one worker; the claims of a killed worker are released by the next one. Vectors of a document that was
    replaced or deleted meanwhile are dropped. A document that cannot be encoded is recorded with its error and skipped.

    Args:
        folder: index with a model's contract.
        encoder: encoder of that model.
        options: sizes, and when to end; None for the defaults.
        stop: event that ends the work: encoded documents are committed or parked, other claims are released.
        progress: show a progress bar, or log messages if stderr is no terminal.

    Raises:
        ContractMismatch: the encoder is of another model than the index; each differing field with both values.
        InvalidInput: the index has no contract, or was replaced by another one meanwhile, which gets none of the
            vectors; or MOST_FAILURES_IN_A_ROW documents failed.
        WriteFailed: the folder cannot be written. Vectors that were committed before stay.
        StorageError: the system refuses to open a file.
    """
    with (
        storage_errors(f"cannot encode the pending documents of {folder}"),
        Index.open(folder) as index,
        Queue.open(folder) as queue,
    ):
        require_fit(index.view, encoder.contract)
        options = options or WorkOptions()
        if options.retry_failed:
            queue.retry_failed()
        with Progress("encode", unit="document", shown=progress, smooth=True) as bar:
            return _Worker(index, queue, encoder, options, stop or threading.Event(), bar).run()


class _Worker:
    def __init__(
        self,
        index: Index,
        queue: Queue,
        encoder: DocumentEncoder,
        options: WorkOptions,
        stop: threading.Event,
        bar: Progress,
    ) -> None:
        self.index = index
        self.queue = queue
        self.encoder = encoder
        self.options = options
        self.encode_size = min(options.encode_size or ENCODE_SIZE, options.batch_size)
        self.stop = stop
        self.bar = bar
        self.report = WorkReport()
        self._failures_in_a_row = 0

    def run(self) -> WorkReport:
        start, claim_size = time.perf_counter(), self.encode_size
        while not self.stop.is_set():
            if not self.queue.is_current:
                raise InvalidInput(
                    f"{self.index.folder} was replaced by another index, or its queue removed; start the worker again"
                )
            claim = self.queue.claim(self.index, claim_size)
            self.bar.total = self.bar.done + len(claim.keys) + claim.n_free
            self.bar.note(pending=f"{claim.view.n_pending:,}")
            if claim.keys:
                encode_start = time.perf_counter()
                encoded = self._encode(claim.view.store.documents.of(claim.keys))
                rate = len(claim.keys) / (time.perf_counter() - encode_start)
                claim_size = min(self.options.batch_size, max(self.encode_size, int(rate * COMMIT_EVERY_S)))
                self._deliver(encoded)
            elif self.queue.parked():
                self._deliver(Encoded())
            elif self.options.once:
                break
            else:
                idle_start = time.perf_counter()
                self.stop.wait(self.options.idle_wait_s)
                start += time.perf_counter() - idle_start
        self.report.seconds = time.perf_counter() - start
        self.index.refresh()
        self.report.pending = self.index.view.n_pending
        return self.report

    def _encode(self, documents: Mapping[int, Document]) -> Encoded:
        """Encode documents of like lengths together, the longest first; release the rest once `stop` is set."""
        by_length = sorted(documents, key=lambda key: (-len(documents[key].text), key))
        encoded = Encoded()
        for start in range(0, len(by_length), self.encode_size):
            if self.stop.is_set():
                self.queue.release(by_length[start:])
                break
            batch = {key: documents[key] for key in by_length[start : start + self.encode_size]}
            outcome = encode_documents(self.encoder, batch)
            encoded.extend(outcome)
            self.report.failed |= {batch[key].doc_id: error for key, error in outcome.errors.items()}
            self._count_failures(batch, outcome.errors)
            self.bar.update(len(batch))
        return encoded

    def _count_failures(self, batch: Mapping[int, Document], errors: Mapping[int, str]) -> None:
        for key in batch:
            self._failures_in_a_row = self._failures_in_a_row + 1 if key in errors else 0
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            self.queue.record_failures(errors)
            raise InvalidInput(
                f"{counted(self._failures_in_a_row, 'document')} failed in a row, "
                f"the last with: {list(errors.values())[-1]}. "
                "Repair the model or the machine, then continue with --retry-failed"
            )

    def _deliver(self, encoded: Encoded) -> None:
        delivery = deliver(
            self.index.folder, self.queue, self.encoder.contract, encoded, wait_s=LOCK_WAIT_S, stop=self.stop
        )
        self.report.committed += len(delivery.committed)
        self.report.dropped += len(delivery.dropped)
