"""Push the documents and vectors of an index to an engine.

A push keeps no state of its own. Each row in the engine has a version, which depends on its document, its vectors and
its model. A push reads all versions first and sends the rows that are missing or differ. So it continues after it was
stopped, a second one sends nothing, and after changes of the index it sends those alone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract
from lightir.engines.engine import CollectionRecord, Engine, EngineFailed, EngineRows
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput
from lightir.index import Index, View
from lightir.index.segments.live_segment import LiveSegment
from lightir.kernel import DocOrds
from lightir.progress import Progress
from lightir.quantities import counted
from lightir.types import Document
from lightir.vectors import SparseVectors, row_entries

logger = logging.getLogger(__name__)

MAX_WAIT_S = 30.0
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class PushOptions:
    """Settings of a push.

    Attributes:
        batch: maximum number of rows per request.
        prune: delete rows of the engine whose documents are not in the index.
        overwrite: remove the collection first, whatever it holds.
        index: "hnsw" for approximate dense search in the engine, "flat" for exact search.
        attempts: number of times that a request is sent before the push fails.
        wait_s: seconds before the second attempt; doubled before each further one.
    """

    batch: int = 256
    prune: bool = False
    overwrite: bool = False
    index: Literal["hnsw", "flat"] = "hnsw"
    attempts: int = 5
    wait_s: float = 1.0

    def __post_init__(self) -> None:
        if self.batch < 1 or self.attempts < 1 or self.wait_s < 0:
            raise InvalidInput(
                f"a push has the batch {self.batch}, {self.attempts} attempts and the wait {self.wait_s}; expected 1 "
                "or more, 1 or more, and 0 or more"
            )


@dataclass(frozen=True, slots=True)
class PushReport:
    """Numbers of rows of a push.

    Attributes:
        sent: number of rows that were sent.
        unchanged: number of rows that the engine had already.
        deleted: number of rows that were deleted.
        surplus: number of rows in the engine that are not in the index.
        pending: number of documents without vectors, which are not pushed.
    """

    sent: int
    unchanged: int
    deleted: int
    surplus: int
    pending: int


def push_index(index: Index, engine: Engine, options: PushOptions | None = None) -> PushReport:
    """Send the documents and vectors of an index to an engine, except for rows that it has already.

    Pending documents are left out. Of a document with passages each passage is a row.

    Raises:
        InvalidInput: an index without vectors.
        AlreadyExists: the collection was made by another program.
        ContractMismatch: the collection has vectors of another model.
        EngineFailed: the engine failed; the same push continues.
    """
    options = options or PushOptions()
    view = index.view
    wanted = collection_of(view, options.index)
    stored = _versions(engine, wanted, options)
    n_rows = len(view) - view.n_pending
    sent = unchanged = 0
    with Progress("push", unit="row", total=n_rows) as progress:
        for rows in index_rows(view, options.batch):
            keep = [
                at
                for at, (document, version) in enumerate(zip(rows.documents, rows.versions, strict=True))
                if stored.pop(document.doc_id, None) != version
            ]
            if keep:
                changed = _taken(rows, keep)
                _again(lambda changed=changed: engine.upsert(changed), options)  # type: ignore[misc]
            sent, unchanged = sent + len(keep), unchanged + len(rows) - len(keep)
            progress.update(len(rows))
    deleted = 0
    if options.prune:
        surplus = list(stored)
        for first in range(0, len(surplus), options.batch):
            batch = surplus[first : first + options.batch]
            _again(lambda batch=batch: engine.delete(batch), options)  # type: ignore[misc]
        deleted = len(surplus)
    _again(engine.finish, options)
    return PushReport(sent, unchanged, deleted, len(stored) - deleted, view.n_pending)


def collection_of(view: View, index: Literal["hnsw", "flat"]) -> CollectionRecord:
    """Return the collection that an index's rows make.

    Raises:
        InvalidInput: the index has neither dense nor sparse vectors.
    """
    contract = view.contract
    if contract is None or not {"dense", "sparse"} & {*view.branches}:
        raise InvalidInput(
            f"{view.folder} has no vectors to push; build it of encoded documents (lightir encode, lightir index)"
        )
    similarity = "cosine" if contract.dense is None else contract.dense.similarity
    fields = {} if view.schema is None else view.schema.fields
    vocab_size = contract.backbone.vocab_size if "sparse" in view.branches else None
    return CollectionRecord(
        view.dense_dim,
        vocab_size,
        similarity,
        contract.document_fingerprint,
        contract.backbone.address,
        index,
        view.has_passages,
        tuple(name for name, field in fields.items() if field.type == "date"),
    )


def index_rows(view: View, size: int) -> Iterator[EngineRows]:
    """Yield the encoded documents and passages of a view in batches, with their vectors as the index has them."""
    contract = view.contract
    assert contract is not None
    for live in view.segments:
        places = np.flatnonzero(live.live & ~live.segment.pending)
        for first in range(0, len(places), size):
            batch = places[first : first + size]
            doc_ords: DocOrds = (batch + live.first_ord).astype(np.uint32)
            yield _rows(view.documents_at(doc_ords), live, batch, contract)


def _rows(
    documents: list[Document], live: LiveSegment, places: npt.NDArray[np.int64], contract: Contract
) -> EngineRows:
    stored, branch = live.segment.dense, live.segment.sparse
    dense = sparse = None
    if stored is not None:
        values, scales = stored
        dense = values[places].astype(np.float32)
        if scales is not None:
            dense *= scales[places][:, None]
    if branch is not None:
        indptr, entries = row_entries(branch.indptr, places)
        weights = branch.weights[entries].astype(np.float32)
        sparse = SparseVectors(indptr, branch.term_ids[entries], weights, contract.backbone.vocab_size)
    rows = EngineRows(documents, [""] * len(documents), dense, sparse)
    fingerprint = contract.document_fingerprint
    versions = [_version(rows, at, fingerprint) for at in range(len(rows))]
    return EngineRows(documents, versions, dense, sparse)


def _version(rows: EngineRows, at: int, fingerprint: str) -> str:
    """Return the version of a row, 16 hexadecimal digits."""
    document = rows.documents[at]
    digest = hashlib.blake2b(digest_size=8)
    content = [fingerprint, document.title, document.text, dict(document.metadata)]
    digest.update(json.dumps(content, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass"))
    if rows.dense is not None:
        digest.update(rows.dense[at].tobytes())
    if rows.sparse is not None:
        for array in rows.sparse.row(at):
            digest.update(array.tobytes())
    return digest.hexdigest()


def _versions(engine: Engine, wanted: CollectionRecord, options: PushOptions) -> dict[str, str]:
    """Return the versions of the rows that the engine has; the collection is created if there is none."""
    if options.overwrite:
        engine.drop()
    present = None if options.overwrite else engine.collection()
    if present is None:
        engine.create(wanted)
        return {}
    where = str(engine.address)
    if not present.fingerprint:
        raise AlreadyExists(
            f"{where} was made by another program; choose another name, or remove it with all its rows (--overwrite)"
        )
    if (present.fingerprint, present.branches) != (wanted.fingerprint, wanted.branches) or (
        present.dense_dim,
        present.vocab_size,
    ) != (wanted.dense_dim, wanted.vocab_size):
        raise ContractMismatch(
            f"{where} has vectors of {present.model} ({present.fingerprint}, width {present.dense_dim}), but the index "
            f"those of {wanted.model} ({wanted.fingerprint}, width {wanted.dense_dim}); choose another name, or remove "
            "it with all its rows (--overwrite)"
        )
    if present.index != wanted.index:
        raise ContractMismatch(
            f"{where} was made for {present.index} search; push with --index {present.index}, or make it anew "
            "(--overwrite)"
        )
    return dict(engine.versions())


def _taken(rows: EngineRows, keep: list[int]) -> EngineRows:
    if len(keep) == len(rows):
        return rows
    at = np.array(keep, dtype=np.int64)
    return EngineRows(
        [rows.documents[i] for i in keep],
        [rows.versions[i] for i in keep],
        None if rows.dense is None else rows.dense[at],
        None if rows.sparse is None else rows.sparse.take(at),
    )


def _again(request: Callable[[], Answer], options: PushOptions) -> Answer:
    """Send a request, again after a wait if the engine fails."""
    wait_s = options.wait_s
    for attempt in range(1, options.attempts):
        try:
            return request()
        except EngineFailed as error:
            logger.warning("attempt %d of %d: %s", attempt, options.attempts, error)
            time.sleep(min(wait_s, MAX_WAIT_S))
            wait_s *= 2
    try:
        return request()
    except EngineFailed as error:
        attempts = counted(options.attempts, "attempt")
        raise EngineFailed(f"{error} (after {attempts}; the same push continues)") from error
