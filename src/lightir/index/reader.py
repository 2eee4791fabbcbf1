"""An index folder opened for reading, while a writer may change it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER
from lightir.contract import Contract
from lightir.errors import FormatError, InvalidInput, LightirError, NotFound, WriteFailed, storage_errors
from lightir.files import copy_folder
from lightir.index.connections import File
from lightir.index.index_record import checked_record
from lightir.index.listing import Listing
from lightir.index.metadata_filters import Filter
from lightir.index.removal import keeping_segments
from lightir.index.schema import Schema
from lightir.index.segments.graph import mean_recall
from lightir.index.segments.layout import SEGMENTS_FOLDER
from lightir.index.segments.segment import Segment
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE, new_index
from lightir.index.verification import require_all_commits, verify_copy, verify_view
from lightir.index.view import View
from lightir.query import CachedQueryEncoder
from lightir.text import check_text
from lightir.types import BRANCHES, Branch, Document, require_list
from lightir.vectors import Floats

if TYPE_CHECKING:
    from lightir.index.collection import CollectionCounts

OPEN_TRIES = 10


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """Counts and properties of an index.

    Attributes:
        documents: number of documents.
        passages: number of passages of those documents that were longer than the model reads.
        encoded: number of documents with vectors; here and below a passage counts as a document.
        pending: number of documents without vectors, those that could not be encoded included.
        deleted: number of deleted documents that compaction has not removed.
        outdated: number of rows that compaction will remove because newer ones replaced them: those of documents that
            were replaced, or got vectors or other words. `deleted` counts a document once; further rows of it are
            outdated.
        segments: number of segments.
        branches: branches that can be searched.
        bytes: size on disk of dense, sparse, tokens and store.
        contract: fingerprint, document_fingerprint, method, backbone and its kind; None for an index without a model.
        analyzer: name of the analyzer of the tokens branch; None without one.
        dense_dim: width of the dense rows; None without dense rows.
        dense_graph: number of documents in the graphs over dense rows, and recall of the exact top ten for queries that
            are documents' own vectors; None without graphs.
        fields: type of each metadata field, such as "number" or "keyword, key"; None for an index without a schema.
        boosts: boost of each field in BM25 (`IndexOptions.boosts`); None if title and text count alike.
        word_weight: weight of documents' own words in dense rows (`IndexOptions.word_weight`); None without.
    """

    documents: int
    passages: int
    encoded: int
    pending: int
    deleted: int
    outdated: int
    segments: int
    branches: tuple[Branch, ...]
    bytes: Mapping[str, int]
    contract: Mapping[str, str] | None
    analyzer: str | None
    dense_dim: int | None
    dense_graph: Mapping[str, float] | None = None
    fields: Mapping[str, str] | None = None
    boosts: Mapping[str, int] | None = None
    word_weight: float | None = None


@dataclass(frozen=True, slots=True)
class _Opening:
    """Options of `Index.open`, which `refresh` keeps."""

    skip_damaged: bool = False
    exact: bool = False
    collection: CollectionCounts | None = None


class Index:
    """An index folder opened for reading. It shows one view until `refresh` opens the newest.

    Any number of processes and threads may read while one writer changes the index. Arrays are memory-mapped, so
    opening is fast for any size. While a view is open, SQLite's log cannot shrink, and the disk space of merged
    segments is not freed.
    """

    def __init__(self, folder: Path, view: View, opening: _Opening) -> None:
        """Take over an opened view; use `open`."""
        self.folder = folder
        self._view: View | None = view
        self._opening = opening
        self._refreshing = threading.Lock()

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        skip_damaged: bool = False,
        exact: bool = False,
        collection: CollectionCounts | None = None,
    ) -> Index:
        """Open an index and check versions and file sizes; `verify` checks every byte.

        Args:
            folder: index folder.
            skip_damaged: skip segments that cannot be opened. `view.damaged` has their errors, and `view.missing`
                returns the ids of their documents.
            exact: scan the dense rows even if the index has graphs over them.
            collection: counts of all shards, by which words are weighted, if the index is one of several.

        Raises:
            NotFound: the folder is not an index.
            FormatError: a file is missing, damaged or of another version; the message names the file.
            StorageError: the system refuses to open a file: too many open files, no memory, a failing disk.
        """
        folder = Path(folder)
        opening = _Opening(skip_damaged, exact, collection)
        return cls(folder, _newest(folder, None, opening), opening)

    @property
    def view(self) -> View:
        """The state of the index that this reader shows. A search uses one view from start to end.

        In a forked process it is the newest state, because the earlier view belongs to the parent.

        Raises:
            InvalidInput: the index was closed.
        """
        view = self._present
        if view.store.inherited:
            self._refreshing = threading.Lock()  # another thread of the parent may have held the lock
            self.refresh()
            view = self._present
        return view

    @property
    def _present(self) -> View:
        view = self._view
        if view is None:
            raise InvalidInput(f"{self.folder} was closed; open it again")
        return view

    def refresh(self, *, same_index: bool = False) -> bool:
        """Open the newest state and return whether it differs. Running searches keep their view.

        The same holds if the folder was replaced by `build_index(overwrite=True)` or a snapshot. A Searcher keeps its
        query encoder, and refuses an index of another model.

        Args:
            same_index: keep the view if another index has replaced this one. `view.store.is_current` is false then.

        Raises:
            FormatError, StorageError: as `open`. The reader keeps its view.
        """
        with self._refreshing:
            before = self._present
            newest = _newest(self.folder, before, self._opening)
            if newest is before or (same_index and not newest.store.is_same(before.store)):
                return False
            self._view = newest
            return True

    def close(self) -> None:
        """Close all files; closing again has no effect. Views and arrays still in use keep their files open."""
        if self._view is not None and self._view.store.inherited:
            self._refreshing = threading.Lock()  # as in `view`
        with self._refreshing:
            view, self._view = self._view, None
            if view is not None:
                view.store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be sent to another process.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"an open index cannot be pickled; open it in each process: Index.open({str(self.folder)!r})")

    def __len__(self) -> int:
        """Number of documents."""
        return self.view.n_documents

    @property
    def contract(self) -> Contract | None:
        """The contract of the model; None for an index without a model."""
        return self.view.contract

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched now."""
        return self.view.branches

    @property
    def counts_model_terms(self) -> bool:
        """Whether the terms of the tokens branch are term ids of the model, counted or as bags."""
        return self.view.counts_model_terms

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch holds bags of the model's terms, for queries weighted by the encoder."""
        return self.view.holds_bags

    @property
    def schema(self) -> Schema | None:
        """The types of the metadata fields; None for an index without a schema."""
        return self.view.schema

    def query_encoder(self, *, threads: int = 1) -> CachedQueryEncoder | None:
        """Load the query encoder that is stored in the index; None without one.

        Raises:
            InvalidInput: the index was removed or replaced by another one, whose query encoder has its path.
        """
        if self.view.contract is None:
            return None
        folder, store = self.folder / QUERY_ENCODER, self.view.store
        try:
            encoder = CachedQueryEncoder.load(folder, threads=threads) if folder.is_dir() else None
        except LightirError:
            if store.is_current:
                raise
        if not store.is_current:  # only now: the folder may be replaced while the files are read
            raise InvalidInput(
                f"{self.folder} was removed or replaced by another index, so its query encoder cannot be loaded with "
                "this view; refresh, or open the index again"
            )
        return encoder

    def doc_ids(self, doc_ords: npt.NDArray[np.uint32]) -> list[str]:
        """Return the ids of documents, given their doc_ords in this view."""
        return self.view.doc_ids(doc_ords)

    def doc_ord(self, doc_id: str) -> int | None:
        """Return the doc_ord of a document in this view, or None."""
        return self.view.doc_ord(doc_id)

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in that order; NotFound if one does not exist."""
        return self.view.whole_documents(doc_ids)

    def count(self, filter: Filter | None = None) -> int:
        """Return the number of documents that match a filter; None for all.

        Raises:
            InvalidInput: the filter is malformed.
        """
        return Listing.of(self.view, filter).n_documents()

    def ids(
        self,
        filter: Filter | None = None,
        *,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """Return the ids of the documents that match a filter, ascending by code point.

        To list an index in parts, pass the last id of a part as `after` for the next one.

        Args:
            filter: condition on the metadata, see lightir.index.metadata_filters; None for all documents.
            after: id above which the list begins, whether a document has it or not; None for all.
            limit: maximum number of ids; None for all.

        Raises:
            InvalidInput: the filter is malformed, or the limit is below 1.
        """
        if limit is not None and (not isinstance(limit, int) or limit < 1):
            raise InvalidInput(f"limit is {limit!r}; expected a whole number of at least 1")
        view = self.view
        if not view.has_passages:
            return view.doc_ids(Listing.of(view, filter).first(len(view) if limit is None else limit, after=after))
        # A document's passages are not always next to its place in the order of ids, so all are listed.
        stored = view.doc_ids(Listing.of(view, filter).one_per_document().first(len(view)))
        ids = sorted(doc_id for doc_id in map(view.document_of, stored) if after is None or doc_id > after)
        return ids[:limit]

    def get(self, doc_ids: Sequence[str]) -> dict[str, Document]:
        """Return the documents with the given ids, by id, in that order; ids without a document are omitted.

        Raises:
            InvalidInput: an id is not a string.
        """
        require_list(doc_ids, "doc_ids")
        view = self.view
        wanted = view.existing([check_text(doc_id, "a doc_id") for doc_id in doc_ids])
        return dict(zip(wanted, view.whole_documents(wanted), strict=True))

    def dense_vectors(self, doc_ids: Sequence[str]) -> Floats:
        """Return the stored dense vectors of documents, (n, dense_dim) float32; zeros for a pending document.

        Raises:
            NotFound: a document does not exist.
            InvalidInput: the index has no dense vectors, or an id is not a string.
        """
        require_list(doc_ids, "doc_ids")
        view = self.view
        if view.dense_dim is None:
            raise InvalidInput(f"{self.folder} has no dense vectors")
        doc_ords = [view.doc_ord(check_text(doc_id, "a doc_id")) for doc_id in doc_ids]
        if None in doc_ords:
            raise NotFound(f"there is no document {doc_ids[doc_ords.index(None)]!r} in {self.folder}")
        vectors: Floats = np.zeros((len(doc_ords), view.dense_dim), np.float32)
        segments, rows = view.locate(np.array(doc_ords, dtype=np.uint32))
        for at, (segment, row) in enumerate(zip(segments.tolist(), rows.tolist(), strict=True)):
            stored = view.segments[segment].segment.dense
            if stored is not None:
                values, scales = stored
                vectors[at] = values[row] * (1 if scales is None else scales[row])
        return vectors

    def info(self) -> IndexInfo:
        """Return counts, sizes and the contract."""
        with storage_errors(f"cannot read {self.folder}"):
            return view_info(self.view)

    def verify(self) -> list[str]:
        """Verify the checksums of every document, segment and file of the query encoder, and compare them.

        Returns:
            A sentence for each part that could not be verified: an earlier release wrote it without checksums, which
            `IndexWriter.compact` adds, or another index has replaced the folder.

        Raises:
            FormatError: names everything that is damaged: files, and documents by their ids.
        """
        return verify_view(self.view)

    def snapshot(self, out: Path | str, *, overwrite: bool = False) -> None:
        """Write this view of the index to another folder, as a backup that shares nothing with the original.

        The copy is verified before it gets its name, so a damaged index never replaces a backup.

        Args:
            out: folder to write.
            overwrite: replace an existing index.

        Raises:
            AlreadyExists: `out` exists and overwrite is off.
            FormatError: the index is damaged; the message names everything that is, as `verify` does.
            InvalidInput: `out` is the index or a folder inside it, or the index was replaced by another one.
            IndexLocked: the index to replace has a writer; the message names its process.
            WriteFailed: the disk is full or broken; nothing is left behind, and an existing index is unchanged.
            OutcomeUnknown: the snapshot is in its place, but a power failure may undo that.
        """
        if Path(out).resolve().is_relative_to(self.folder.resolve()):
            relation = "is" if Path(out).resolve() == self.folder.resolve() else "is inside"
            raise InvalidInput(f"{out} {relation} the index; write the snapshot to another folder")
        view = self.view
        require_all_commits(view)
        with new_index(Path(out), overwrite=overwrite) as folder:
            with storage_errors(f"cannot write {out}", kind=WriteFailed, outcome="it is unchanged"):
                self._copy(view, folder)
            if not view.store.is_current:
                raise InvalidInput(
                    f"{self.folder} was removed or replaced by another index, so its query encoder cannot be copied "
                    "with this view; refresh, or open the index again"
                )
            with storage_errors(f"cannot verify {out}", kind=WriteFailed, outcome="it is unchanged"):
                verify_copy(folder, self.folder)

    def _copy(self, view: View, folder: Path) -> None:
        view.store.backup(folder / STORE_FILE)
        (folder / SEGMENTS_FOLDER).mkdir()
        for live in view.segments:
            live.segment.copy(folder / SEGMENTS_FOLDER / live.segment.folder.name)
        if (self.folder / QUERY_ENCODER).is_dir():
            copy_folder(self.folder / QUERY_ENCODER, folder / QUERY_ENCODER)


def _newest(folder: Path, current: View | None, opening: _Opening) -> View:
    """Return the newest view, or the current one if nothing has changed.

    The writer may remove a segment after the store was read and before the segment's files are opened. So later
    attempts keep it from removing any (see lightir.index.removal). A replaced folder can change even then. So an error
    is damage only if two attempts have read the same state of the same store.
    """
    failed_state: tuple[File | None, int] | None = None
    attempt = 0
    while True:
        attempt += 1
        with nullcontext() if attempt == 1 else keeping_segments(folder), storage_errors(f"cannot open {folder}"):
            store = Store.open_snapshot(folder / STORE_FILE)
            state = store.file, -1
            try:
                checked_record(store.path, store.record())
                state = store.file, store.generation()
                if current is not None and _shows(current, store, state[1]):
                    current.store.renew(store)
                    return current
                skip = opening.skip_damaged and state == failed_state
                view = View(
                    folder,
                    store,
                    before=current,
                    skip_damaged=skip,
                    exact=opening.exact,
                    collection=opening.collection,
                )
            except (FormatError, InvalidInput):
                store.close()
                if state == failed_state or attempt == OPEN_TRIES:
                    raise
                failed_state = state
            except BaseException:
                store.close()
                raise
            else:
                weakref.finalize(view, store.close)
                return view


def _shows(view: View, store: Store, generation: int) -> bool:
    """Return whether a view of this process has the state of a store; an index that replaced it has another file."""
    return not view.store.inherited and store.is_same(view.store) and generation == view.generation


def view_info(view: View) -> IndexInfo:
    """Return counts, sizes and the contract of a view."""
    contract = None
    if view.contract is not None:
        contract = {
            "fingerprint": view.contract.fingerprint,
            "document_fingerprint": view.contract.document_fingerprint,
            "method": view.contract.method,
            "backbone": view.contract.backbone.address,
            "kind": view.contract.backbone.kind,
        }
    segments = [live.segment for live in view.segments]
    n_bytes: dict[str, int] = {branch: sum(segment.n_bytes(branch) for segment in segments) for branch in BRANCHES}
    n_graph = sum(segment.n_bytes("graph") for segment in segments)
    n_bytes |= {"graph": n_graph} if n_graph else {}
    path = view.store.path
    files = [path, path.with_name(f"{path.name}-wal")]
    stored = sum(file.stat().st_size for file in files if file.exists())
    deleted, outdated = _n_removable(view)
    return IndexInfo(
        documents=view.n_documents,
        passages=view.n_passages,
        encoded=0 if contract is None else len(view) - view.n_pending,
        pending=view.n_pending,
        deleted=deleted,
        outdated=outdated,
        segments=len(segments),
        branches=view.branches,
        bytes={**n_bytes, "store": stored + sum(segment.n_bytes("documents") for segment in segments)},
        contract=contract,
        analyzer=view.analyzer.name if view.analyzer else None,
        dense_dim=view.dense_dim,
        dense_graph=_graph_info(segments),
        fields=None if view.schema is None else {name: str(known) for name, known in view.schema.fields.items()},
        boosts=dict(view.options.boosts) or None,
        word_weight=view.options.word_weight or None,
    )


def _n_removable(view: View) -> tuple[int, int]:
    """Return the number of deleted documents with rows, and the number of outdated rows."""
    doc_ids = [
        live.segment.doc_ids[row]
        for live in view.segments
        if live.deleted is not None
        for row in np.flatnonzero(live.deleted).tolist()
    ]
    n_deleted = len(set(doc_ids) - view.store.documents.keys(set(doc_ids)).keys())
    return n_deleted, len(doc_ids) - n_deleted


def _graph_info(segments: Sequence[Segment]) -> Mapping[str, float] | None:
    facts = [segment.manifest["graph"] for segment in segments if "graph" in segment.manifest]
    if not facts:
        return None
    return {"documents": sum(graph["documents"] for graph in facts), "recall_at_10": mean_recall(facts)}
