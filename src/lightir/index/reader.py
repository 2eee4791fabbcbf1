"""Index: an index folder, opened for searching while it may be changed by a writer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER
from lightir.contract import Contract
from lightir.errors import FormatError, InvalidInput
from lightir.files import copy_folder
from lightir.index.segments.graph import mean_recall
from lightir.index.segments.layout import SEGMENTS_FOLDER
from lightir.index.segments.segment import Segment
from lightir.index.store import STORE_FILE, Store, new_index
from lightir.index.view import View, checked_record
from lightir.query import CachedQueryEncoder
from lightir.types import BRANCHES, Branch, Document

OPEN_TRIES = 10


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What an index holds.

    Attributes:
        documents: number of documents.
        encoded: documents with vectors.
        pending: documents that wait for vectors, failed ones too.
        deleted: documents that are gone but not compacted away.
        segments: number of segments.
        branches: what can be searched.
        bytes: on the disk: dense, sparse, tokens, store.
        contract: fingerprint, document_fingerprint, method and backbone; None in an index without a model.
        analyzer: of the tokens branch; None without one.
        dense_dim: width of the dense rows; None without them.
        dense_graph: of the graphs over dense rows, how many documents are in them, and which share of the exact ten
            best they find for documents' own vectors; None without graphs.
    """

    documents: int
    encoded: int
    pending: int
    deleted: int
    segments: int
    branches: tuple[Branch, ...]
    bytes: Mapping[str, int]
    contract: Mapping[str, str] | None
    analyzer: str | None
    dense_dim: int | None
    dense_graph: Mapping[str, float] | None = None


class Index:
    """An index folder for reading: one view of it, until `refresh` moves on to the newest.

    Any number of processes and threads may read while one writer changes the index. Arrays are memory-mapped, so
    opening is quick whatever the size. A view that is held for long keeps SQLite's log from shrinking, and the disk
    space of segments that were merged away from being given back.
    """

    def __init__(self, folder: Path, view: View, *, skip_damaged: bool) -> None:
        """For `open`."""
        self.folder = folder
        self._view = view
        self._skip_damaged = skip_damaged
        self._refreshing = threading.Lock()

    @classmethod
    def open(cls, folder: Path | str, *, skip_damaged: bool = False, exact: bool = False) -> Index:
        """Open an index and check versions and file sizes; `verify` checks every byte.

        Args:
            folder: the index.
            skip_damaged: open it without the segments that cannot be opened; `view.damaged` says what is wrong with
                them, and `view.missing` which documents are not found for it.
            exact: scan the dense rows also where the index has graphs over them.

        Raises:
            NotFound: the folder is no index.
            FormatError: a file is missing, damaged or of another version; the file is named.
        """
        folder = Path(folder)
        return cls(folder, _newest(folder, None, skip_damaged, exact), skip_damaged=skip_damaged)

    @property
    def view(self) -> View:
        """The state of the index that this reader sees; a search takes it once and keeps to it.

        In a process that was forked since, the newest state: the one that was seen is its parent's.
        """
        if self._view.store.inherited:
            self._refreshing = threading.Lock()  # another thread of the parent may have had it
            self.refresh()
        return self._view

    def refresh(self) -> bool:
        """Move on to the newest state; returns whether there was a newer one. Searches under way keep theirs.

        So too where the folder was replaced as a whole, by `build_index(overwrite=True)` or a snapshot; a Searcher goes
        on with its query encoder, and refuses an index of another model.
        """
        with self._refreshing:
            newest = _newest(self.folder, self._view, self._skip_damaged, self._view.exact)
            changed = newest is not self._view
            self._view = newest
            return changed

    def close(self) -> None:
        """Close the store; arrays go when nothing uses them any more."""
        self._view.store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refused: what is open cannot be sent to another process.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"an index is open files; open it in each process: Index.open({str(self.folder)!r})")

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.view)

    @property
    def contract(self) -> Contract | None:
        """The model's contract; None in an index without a model."""
        return self.view.contract

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched now."""
        return self.view.branches

    @property
    def counts_model_terms(self) -> bool:
        """Whether the tokens branch is over the model's term ids, counted or as bags."""
        return self.view.counts_model_terms

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch holds bags of the model's terms, for queries that the encoder weights."""
        return self.view.holds_bags

    def query_encoder(self, *, threads: int = 1) -> CachedQueryEncoder | None:
        """The query encoder that the index carries, or None."""
        folder = self.folder / QUERY_ENCODER
        return CachedQueryEncoder.load(folder, threads=threads) if folder.is_dir() else None

    def doc_ids(self, doc_ords: npt.NDArray[np.uint32]) -> list[str]:
        """The ids of documents that this view numbers."""
        return self.view.doc_ids(doc_ords)

    def doc_ord(self, doc_id: str) -> int | None:
        """A document's number in this view, or None."""
        return self.view.doc_ord(doc_id)

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """The documents with the given ids, in the order of the ids; NotFound where one is not there."""
        return self.view.documents(doc_ids)

    def info(self) -> IndexInfo:
        """Counts, sizes and the contract."""
        return view_info(self.view)

    def verify(self) -> None:
        """Read every byte against its checksum, and the store against the segments.

        Raises:
            FormatError: names what is damaged.
        """
        verify_view(self.view)

    def snapshot(self, out: Path | str, *, overwrite: bool = False) -> None:
        """Write this view of the index to another folder: a backup that shares nothing with the original.

        Raises:
            AlreadyExists: `out` is there and overwrite is off.
            InvalidInput: `out` is the index itself, or lies in it.
            IndexLocked: the index that would be replaced has a writer; the text names the process.
            WriteFailed: the disk is full or broken; nothing is left behind.
        """
        if Path(out).resolve().is_relative_to(self.folder.resolve()):
            which = "is" if Path(out).resolve() == self.folder.resolve() else "lies in"
            raise InvalidInput(f"{out} {which} the index itself; a snapshot goes to another folder")
        view = self.view
        with new_index(Path(out), overwrite=overwrite) as folder:
            view.store.backup(folder / STORE_FILE)
            (folder / SEGMENTS_FOLDER).mkdir()
            for each in view.segments:
                each.segment.copy(folder / SEGMENTS_FOLDER / each.segment.folder.name)
            if (self.folder / QUERY_ENCODER).is_dir():
                copy_folder(self.folder / QUERY_ENCODER, folder / QUERY_ENCODER)


def _newest(folder: Path, current: View | None, skip_damaged: bool, exact: bool) -> View:
    """The newest view, or the current one where nothing has changed.

    The writer may merge a segment away between the look into the store and the opening of the segment's files. A file
    that is missing is damage only if the store has not changed since.
    """
    seen = -1
    for _ in range(OPEN_TRIES):
        store = Store.open_snapshot(folder / STORE_FILE)
        generation = -1
        try:
            checked_record(folder, store)
            generation = store.generation()
            if current is not None and _shows(current, store, generation):
                store.close()
                return current
            skip = skip_damaged and generation == seen
            view = View(folder, store, before=current, skip_damaged=skip, exact=exact)
        except (FormatError, InvalidInput) as error:
            store.close()
            if seen == generation:
                raise
            seen, failed = generation, error
        except BaseException:
            store.close()
            raise
        else:
            weakref.finalize(view, store.close)
            return view
    raise failed


def _shows(view: View, store: Store, generation: int) -> bool:
    """Whether a view of this process shows what a store does; an index that replaced the view's has another file."""
    return not view.store.inherited and store.is_same(view.store) and generation == view.generation


def view_info(view: View) -> IndexInfo:
    """Counts, sizes and the contract of a view."""
    contract = None
    if view.contract is not None:
        contract = {
            "fingerprint": view.contract.fingerprint,
            "document_fingerprint": view.contract.document_fingerprint,
            "method": view.contract.method,
            "backbone": view.contract.backbone.address,
        }
    segments = [each.segment for each in view.segments]
    n_bytes: dict[str, int] = {branch: sum(each.n_bytes(branch) for each in segments) for branch in BRANCHES}
    n_graph = sum(each.n_bytes("graph") for each in segments)
    n_bytes |= {"graph": n_graph} if n_graph else {}
    path = view.store.path
    files = [path, path.with_name(f"{path.name}-wal")]
    stored = sum(file.stat().st_size for file in files if file.exists())
    return IndexInfo(
        documents=len(view),
        encoded=0 if contract is None else len(view) - view.n_pending,
        pending=view.n_pending,
        deleted=sum(len(each.segment) - each.n_live for each in view.segments),
        segments=len(segments),
        branches=view.branches,
        bytes={**n_bytes, "store": stored + sum(each.n_bytes("documents") for each in segments)},
        contract=contract,
        analyzer=view.analyzer.name if view.analyzer else None,
        dense_dim=view.dense_dim,
        dense_graph=_graph_info(segments),
    )


def _graph_info(segments: Sequence[Segment]) -> Mapping[str, float] | None:
    facts = [each.manifest["graph"] for each in segments if "graph" in each.manifest]
    if not facts:
        return None
    return {"documents": sum(each["documents"] for each in facts), "recall_at_10": mean_recall(facts)}


def verify_view(view: View) -> None:
    """Check a view's store and segments against each other and their checksums.

    Raises:
        FormatError: names everything that is damaged.
    """
    view.store.check()
    problems = view.problems()
    for each in view.segments:
        try:
            each.segment.verify()
        except FormatError as error:
            problems.append(str(error))
    if problems:
        raise FormatError("; ".join(problems))
    _compare_with_store(view)


def _compare_with_store(view: View) -> None:
    stored = view.store.documents_by_key()
    keys = np.concatenate([np.zeros(0, np.int64), *(each.segment.doc_keys[each.places] for each in view.segments)])
    ids = [each.segment.doc_ids[place] for each in view.segments for place in each.places.tolist()]
    if len(stored) != len(ids):
        raise FormatError(f"{view.store.path} holds {len(stored)} documents, but the segments hold {len(ids)}")
    for place, (key, doc_id) in zip(np.argsort(keys).tolist(), stored, strict=True):
        if keys[place] != key or ids[place] != doc_id:
            there = f"but the segments hold {ids[place]!r} under {keys[place]}"
            raise FormatError(f"{view.store.path} holds document {doc_id!r} under key {key}, {there}")
