"""Encoding claimed documents, and committing their vectors or parking them while another writer has the lock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lightir.contract import Contract, require_same_documents
from lightir.errors import ContractMismatch, FormatError, IndexLocked, InvalidInput, NotFound
from lightir.index.view import View
from lightir.index.writer import IndexWriter
from lightir.pending.keys import pending_keys
from lightir.pending.parked import read_parked
from lightir.pending.queue import Queue
from lightir.shards import DocumentEncoder, Shard
from lightir.types import Document

LONGEST_PAUSE_S = 0.5

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Encoded:
    """Claimed documents that went through an encoder.

    Attributes:
        keys: keys of the n documents that have vectors.
        shards: the n documents with their vectors, in the order of the keys.
        errors: error message for the key of each document that could not be encoded.
    """

    keys: list[int] = field(default_factory=list)
    shards: list[Shard] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)

    def extend(self, other: Encoded) -> None:
        """Append the documents of another record."""
        self.keys += other.keys
        self.shards += other.shards
        self.errors |= other.errors

    @property
    def doc_ids(self) -> list[str]:
        """Ids of the documents that have vectors."""
        return [document.doc_id for shard in self.shards for document in shard.documents]


@dataclass(slots=True)
class Delivery:
    """Outcome of a delivery: ids of the encoded documents and of those that were parked earlier.

    Attributes:
        committed: documents that have their vectors now.
        dropped: documents that were changed, deleted or committed by another process meanwhile.
        parked: documents whose vectors are parked until the writer's lock is free.
    """

    committed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)


def encode_documents(encoder: DocumentEncoder, documents: Mapping[int, Document]) -> Encoded:
    """Encode documents; halve a batch that fails until each faulty document is found."""
    batch = list(documents.values())
    try:
        vectors = encoder.encode(batch)
        return Encoded(list(documents), [Shard(batch, vectors.dense, vectors.sparse)])
    except Exception as error:  # noqa: BLE001 - whatever a document does to an encoder, the others are encoded
        if len(batch) == 1:
            return Encoded(errors=dict.fromkeys(documents, f"{type(error).__name__}: {error}"))
    items, middle = list(documents.items()), len(batch) // 2
    encoded = encode_documents(encoder, dict(items[:middle]))
    encoded.extend(encode_documents(encoder, dict(items[middle:])))
    return encoded


def deliver(
    folder: Path,
    queue: Queue,
    contract: Contract,
    encoded: Encoded,
    *,
    wait_s: float,
    stop: threading.Event | None = None,
) -> Delivery:
    """Commit the vectors of claimed documents and all parked ones, or park them if another writer has the lock.

    If the index was replaced by another one, which has other documents under the same keys, the vectors are dropped.
    A parked batch that cannot be read is removed with a logged warning, and its documents are encoded again.

    Args:
        folder: index folder.
        queue: queue of the index.
        contract: contract of the encoder.
        encoded: claimed documents and their errors, which are recorded.
        wait_s: maximum number of seconds to wait for the writer's lock; 0 tries once.
        stop: event that ends the wait.

    Raises:
        ContractMismatch: the index was replaced by one of another model.
        WriteFailed: the disk is full or broken; the claims stay.
        InvalidInput: the encoder's vectors lack a branch of its contract.
    """
    queue.record_failures(encoded.errors)
    for shard in encoded.shards:
        _require_branches(contract, shard)
    writer = _open_writer(folder, wait_s, stop or threading.Event())
    if writer is None:
        if not queue.is_current:
            return Delivery(dropped=encoded.doc_ids)
        if encoded.keys:
            queue.park(encoded.keys, contract, Shard.concatenate(encoded.shards))
        return Delivery(parked=encoded.doc_ids)
    with writer:
        require_fit(writer.view, contract)
        if not queue.is_current:
            return Delivery(dropped=encoded.doc_ids)
        delivery = Delivery()
        for batch in queue.parked():
            _commit_parked(writer, batch, contract, delivery)
            queue.remove_parked(batch)
        if encoded.keys:
            _commit(writer, Shard.concatenate(encoded.shards), delivery)
            queue.finish(encoded.keys)
        return delivery


def _open_writer(folder: Path, wait_s: float, stop: threading.Event) -> IndexWriter | None:
    """Open the writer as soon as the lock is free; return None if it is not free in time."""
    deadline, pause = time.monotonic() + wait_s, 0.01
    while True:
        try:
            return IndexWriter.open(folder, brief=True, wait_s=max(deadline - time.monotonic(), 0.0))
        except IndexLocked as error:
            if time.monotonic() >= deadline or stop.wait(pause):
                logger.info("%s; the encoded vectors are parked until then", error)
                return None
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _commit_parked(writer: IndexWriter, batch: Path, contract: Contract, delivery: Delivery) -> None:
    """Commit a parked batch; skip it, with a warning, if it is damaged or of another model."""
    try:
        stored_contract, shard = read_parked(batch)
        require_same_documents(contract, stored_contract, names=("the index", "the parked vectors"))
        _require_branches(contract, shard)
        _commit(writer, shard, delivery)
    except (FormatError, NotFound, ContractMismatch, InvalidInput) as error:
        logger.warning("parked vectors %s are removed and their documents encoded again: %s", batch, error)


def _commit(writer: IndexWriter, shard: Shard, delivery: Delivery) -> None:
    """Give those documents their vectors that are still pending and unchanged; add the outcome to the delivery."""
    doc_ids = [document.doc_id for document in shard.documents]
    keys = writer.view.store.documents.keys(doc_ids)
    key_of_each = np.array([keys.get(doc_id, -1) for doc_id in doc_ids], dtype=np.int64)
    is_pending = np.isin(key_of_each, pending_keys(writer.view))
    left = {doc_id for doc_id, pending in zip(doc_ids, is_pending.tolist(), strict=True) if not pending}
    if is_pending.any():
        pending = shard.take(np.flatnonzero(is_pending))
        left.update(writer.set_vectors(pending.documents, dense=pending.dense, sparse=pending.sparse))
    delivery.committed += [doc_id for doc_id in doc_ids if doc_id not in left]
    delivery.dropped += [doc_id for doc_id in doc_ids if doc_id in left]


def _require_branches(contract: Contract, shard: Shard) -> None:
    """Refuse vectors that lack a branch of their model: no later ones would fit what the index holds by then."""
    expected = (contract.dense is not None, contract.sparse is not None)
    actual = (shard.dense is not None, shard.sparse is not None)
    if actual != expected:
        raise InvalidInput(f"encoded vectors have (dense, sparse) = {actual}, but the model's have {expected}")


def require_fit(view: View, contract: Contract) -> None:
    """Refuse an encoder of another model than the index.

    Raises:
        InvalidInput: the index has no contract.
        ContractMismatch: each differing field with both values.
    """
    if view.contract is None:
        raise InvalidInput(
            f"{view.folder} has no model's contract, so its documents cannot get vectors; "
            "build it with `lightir index CORPUS --model MODEL`"
        )
    require_same_documents(view.contract, contract, names=("the index", "the model"))
