"""Pending documents get their vectors: claimed hottest first, encoded in batches of like lengths, committed at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lightir.contract import Contract, require_same_documents
from lightir.errors import ContractMismatch, IndexLocked, InvalidInput
from lightir.index.reader import Index
from lightir.index.view import View
from lightir.index.writer import IndexWriter
from lightir.pending.keys import pending_keys
from lightir.pending.parked import Vectors
from lightir.pending.queue import Queue
from lightir.shards import DocumentEncoder, Shard
from lightir.types import Document

PIECE = 16

COMMIT_EVERY_S = 5.0
"""A worker claims about this much work at a time: what a kill costs, and how soon a hot document has its turn."""

PATIENCE_S = 10.0
"""How long a worker waits for another writer before it parks its vectors and goes on encoding."""

LONGEST_PAUSE_S = 0.5
MOST_FAILURES_IN_A_ROW = 100

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkReport:
    """What one worker did.

    Attributes:
        committed: documents that have their vectors now.
        dropped: documents that were encoded in vain: changed, deleted or encoded by others meanwhile.
        failed: doc_id -> error of the documents that were set aside.
        pending: documents without vectors when it ended, failed ones too.
        seconds: from the first claim on, without the waiting for more documents.
    """

    committed: int = 0
    dropped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    pending: int = 0
    seconds: float = 0.0

    @property
    def documents_per_s(self) -> float:
        """0 when nothing was committed."""
        return self.committed / self.seconds if self.committed else 0.0


@dataclass(slots=True)
class Encoded:
    """Claimed documents that went through an encoder.

    Attributes:
        keys: of n documents that have vectors.
        shards: n documents all in all, in the order of the keys.
        errors: key -> why a document could not be encoded.
    """

    keys: list[int] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def extend(self, other: Encoded) -> None:
        """Put other documents behind these."""
        self.keys += other.keys
        self.shards += other.shards
        self.errors |= other.errors


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of encoded documents, those that were parked before included.

    Attributes:
        committed: keys of the documents that have their vectors now.
        dropped: keys of those that were not pending any more.
        parked: keys of those that wait for the writer's lock.
    """

    committed: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    parked: tuple[int, ...] = ()


def work(
    folder: Path | str,
    encoder: DocumentEncoder,
    *,
    once: bool = False,
    batch_size: int = 256,
    piece: int = PIECE,
    retry_failed: bool = False,
    idle_wait_s: float = 2.0,
    stop: threading.Event | None = None,
    progress: bool = True,
) -> WorkReport:
    """Give pending documents their vectors until there are none, or for ever; returns what was done.

    Any number of workers may share an index, with searches, additions and deletions going on. Each document is
    claimed, encoded and committed by one of them; a killed worker's claims are free at once. Vectors of a document
    that was replaced or deleted meanwhile are dropped. A document that cannot be encoded is set aside with its error.

    Args:
        folder: an index with a model's contract.
        encoder: of that model.
        once: end when nothing is left to claim; otherwise wait for new documents.
        batch_size: the most documents of a commit; a slow encoder commits fewer, about every COMMIT_EVERY_S.
        piece: documents that go to the encoder together; `stop` is looked at between two pieces.
        retry_failed: try those again that failed before.
        idle_wait_s: how long to wait before looking again when there is nothing to do.
        stop: when it is set, what is encoded is committed, the rest given up, and the work ends.
        progress: show a bar when standard error is a terminal.

    Raises:
        ContractMismatch: the encoder is of another model than the index; each differing field with both values.
        InvalidInput: the index has no contract; a batch_size below 1; MOST_FAILURES_IN_A_ROW documents failed; the
            index was replaced by another meanwhile, which gets none of the vectors.
        WriteFailed: the folder cannot be written.
    """
    if batch_size < 1 or piece < 1:
        raise InvalidInput(f"batch_size is {batch_size} and piece {piece}; both must be at least 1")
    with Index.open(folder) as index, Queue.open(folder) as queue:
        require_fit(index.view, encoder.contract)
        if retry_failed:
            queue.retry_failed()
        with tqdm(desc="encode", unit="doc", disable=None if progress else True, smoothing=0.05) as bar:
            worker = _Worker(index, queue, encoder, min(piece, batch_size), stop or threading.Event(), bar)
            return worker.run(once=once, batch_size=batch_size, idle_wait_s=idle_wait_s)


def encode_each(encoder: DocumentEncoder, documents: Mapping[int, Document]) -> Encoded:
    """The documents' vectors; a batch that fails is halved until the faulty documents stand alone."""
    items = list(documents.items())
    try:
        return Encoded([key for key, _ in items], [encoder.encode([document for _, document in items])])
    except Exception as error:  # noqa: BLE001 - whatever a document does to an encoder, the others go on
        if len(items) == 1:
            return Encoded(errors={items[0][0]: f"{type(error).__name__}: {error}"})
    middle = len(items) // 2
    found = encode_each(encoder, dict(items[:middle]))
    found.extend(encode_each(encoder, dict(items[middle:])))
    return found


def deliver(
    folder: Path,
    queue: Queue,
    contract: Contract,
    encoded: Encoded,
    *,
    patience_s: float = PATIENCE_S,
    stop: threading.Event | None = None,
) -> Delivery:
    """Commit claimed documents' vectors, and those that are parked; returns what became of them.

    Where another writer keeps the lock for longer than `patience_s`, or `stop` is set while it has it, they are parked.
    Where the index was replaced by another, which has other documents under the same keys, all are dropped.

    Args:
        folder: the index.
        queue: that of the index.
        contract: of the encoder.
        encoded: what was encoded; its errors are noted.
        patience_s: 0 for one try.
        stop: gives up waiting.

    Raises:
        ContractMismatch: the index was replaced by one of another model.
        WriteFailed: the disk is full or broken; the claims stay.
        FormatError: what is parked are no vectors of the index.
        InvalidInput: the encoder's vectors lack a branch of its contract.
    """
    queue.set_aside(encoded.errors)
    writer = _opened(folder, patience_s, stop or threading.Event())
    if writer is None:
        if encoded.keys:
            queue.park(encoded.keys, Vectors.of(encoded.shards))
        return Delivery(parked=tuple(encoded.keys))
    with writer:
        require_fit(writer.view, contract)
        if not queue.is_current:
            return Delivery(dropped=tuple(encoded.keys))
        for shard in encoded.shards:
            _require_branches(contract, shard)
        parked, vectors = queue.parked(contract.backbone.vocab_size)
        try:
            if parked:
                _require_branches(contract, vectors)
            committed = _commit(writer, parked, vectors)
        except (InvalidInput, ContractMismatch) as error:
            raise queue.damaged(error) from error
        committed += _commit(writer, encoded.keys, Vectors.of(encoded.shards))
        keys = [*parked, *encoded.keys]
        queue.finish(keys)
    return Delivery(tuple(committed), tuple(sorted(set(keys) - set(committed))))


def _opened(folder: Path, patience_s: float, stop: threading.Event) -> IndexWriter | None:
    """The writer as soon as the lock is free; None where it is not in time."""
    deadline, pause = time.monotonic() + patience_s, 0.01
    while True:
        try:
            return IndexWriter.open(folder, brief=True, wait_s=max(deadline - time.monotonic(), 0.0))
        except IndexLocked as busy:
            if time.monotonic() >= deadline or stop.wait(pause):
                logger.info("%s; what was encoded is kept beside it until then", busy)
                return None
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _commit(writer: IndexWriter, keys: list[int], vectors: Vectors) -> list[int]:
    """Give the documents that are still pending their vectors; returns their keys."""
    places = np.flatnonzero(np.isin(np.array(keys, dtype=np.int64), pending_keys(writer.view)))
    if not len(places):
        return []
    kept, rows = [keys[place] for place in places.tolist()], vectors.take(places)
    documents = writer.view.store.documents_of(kept)
    writer.set_vectors([documents[key] for key in kept], dense=rows.dense, sparse=rows.sparse)
    return kept


def _require_branches(contract: Contract, vectors: Vectors | Shard) -> None:
    """Refuse vectors that lack a branch of their model: no later ones would fit what the index holds by then."""
    wanted = (contract.dense is not None, contract.sparse is not None)
    if (found := (vectors.dense is not None, vectors.sparse is not None)) != wanted:
        raise InvalidInput(f"there are vectors with (dense, sparse) = {found}, but the model's have {wanted}")


def require_fit(view: View, contract: Contract) -> None:
    """Refuse an encoder whose vectors are not those that the index takes.

    Raises:
        InvalidInput: the index has no contract.
        ContractMismatch: each differing field with both values.
    """
    if view.contract is None:
        raise InvalidInput(
            f"{view.folder} has no model's contract, so its documents wait for no vectors; "
            "build it with `lightir index CORPUS --model MODEL`"
        )
    require_same_documents(view.contract, contract, names=("the index", "the model"))


class _Worker:
    def __init__(
        self,
        index: Index,
        queue: Queue,
        encoder: DocumentEncoder,
        piece: int,
        stop: threading.Event,
        bar: tqdm[None],
    ) -> None:
        self.index = index
        self.queue = queue
        self.encoder = encoder
        self.piece = piece
        self.stop = stop
        self.bar = bar
        self.report = WorkReport()
        self._failures_in_a_row = 0

    def run(self, *, once: bool, batch_size: int, idle_wait_s: float) -> WorkReport:
        start, size = time.perf_counter(), self.piece
        while not self.stop.is_set():
            if not self.queue.is_current:
                raise InvalidInput(
                    f"{self.index.folder} was replaced by another index, or its queue removed; start again"
                )
            claim = self.queue.claim(self._newest, size)
            self.bar.total = self.bar.n + len(claim.keys) + claim.free
            self.bar.set_postfix(pending=claim.view.n_pending)
            if claim.keys:
                begun = time.perf_counter()
                encoded = self._encode(claim.keys, claim.view.store.documents_of(claim.keys))
                rate = len(claim.keys) / (time.perf_counter() - begun)
                size = min(batch_size, max(self.piece, int(rate * COMMIT_EVERY_S)))
                self._deliver(encoded)
            elif self.queue.n_parked:
                self._deliver(Encoded())
            elif once:
                break
            else:
                idle_since = time.perf_counter()
                self.stop.wait(idle_wait_s)
                start += time.perf_counter() - idle_since
        self.report.seconds = time.perf_counter() - start
        self.report.pending = self._newest().n_pending
        return self.report

    def _newest(self) -> View:
        self.index.refresh()
        return self.index.view

    def _encode(self, keys: tuple[int, ...], documents: Mapping[int, Document]) -> Encoded:
        """The documents' vectors, piece by piece, until `stop` is set; the rest is given up."""
        by_length = sorted(keys, key=lambda key: (-len(documents[key].text), key))
        found = Encoded()
        for start in range(0, len(by_length), self.piece):
            if self.stop.is_set():
                self.queue.release(by_length[start:])
                break
            piece = {key: documents[key] for key in by_length[start : start + self.piece]}
            encoded = encode_each(self.encoder, piece)
            found.extend(encoded)
            self.report.failed |= {piece[key].doc_id: error for key, error in encoded.errors.items()}
            self._count_failures(piece, encoded)
            self.bar.update(len(piece))
        return found

    def _count_failures(self, piece: Mapping[int, Document], encoded: Encoded) -> None:
        for key in piece:
            self._failures_in_a_row = self._failures_in_a_row + 1 if key in encoded.errors else 0
        if self._failures_in_a_row >= MOST_FAILURES_IN_A_ROW:
            self.queue.set_aside(encoded.errors)
            error = list(encoded.errors.values())[-1]
            raise InvalidInput(
                f"{self._failures_in_a_row} documents failed in a row, the last with: {error}. "
                "The model or the machine is at fault; when it is mended, go on with --retry-failed"
            )

    def _deliver(self, encoded: Encoded) -> None:
        done = deliver(self.index.folder, self.queue, self.encoder.contract, encoded, stop=self.stop)
        self.report.committed += len(done.committed)
        self.report.dropped += len(done.dropped)
