"""IndexWriter: documents come, change and go, one transaction a change; segments merge as they gather."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from lightir.addresses import QUERY_ENCODER
from lightir.analysis import OF_A_MODEL
from lightir.contract import Contract, Fusion, to_json
from lightir.errors import InvalidInput, LightirError, WriteFailed
from lightir.index.bm25 import mean_length
from lightir.index.build import build_index
from lightir.index.intake import GATHERED_DOCUMENTS, Intake, refuse_repeated, require_shard, selected, sliced
from lightir.index.lock import BRIEF_WAIT_S, WriterLock
from lightir.index.merging import (
    absorbed_segments,
    joining_bar,
    packed,
    with_stored_tokens,
    with_tombstones,
)
from lightir.index.metadata_filters import Filter
from lightir.index.options import IndexOptions
from lightir.index.reader import IndexInfo, view_info
from lightir.index.segments.join import Join, Part
from lightir.index.segments.layout import SEGMENTS_FOLDER
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.rows import DocumentRows
from lightir.index.segments.segment_writer import write_segment
from lightir.index.store import STORE_FILE, DocKeys, Store, require_writable
from lightir.index.store_row import store_row
from lightir.index.view import View
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard
from lightir.text import check_text
from lightir.types import Document, require_list
from lightir.vectors import SparseVectors


@dataclass(slots=True)
class _Change:
    """What one transaction does to the segments.

    Attributes:
        buried: keys of documents that get tombstones in the segments that hold them.
        added: documents for new segments, at most GATHERED_DOCUMENTS each.
        compact: write all segments again.
    """

    buried: list[DocKeys] = field(default_factory=list)
    added: list[DocumentRows] = field(default_factory=list)
    compact: bool = False


class IndexWriter:
    """The one writer of an index. When a method returns, its change is on the disk; when it fails, nothing changed.

    A change is: new segments are written aside, flushed and renamed; then one SQLite transaction lists them, drops
    others, and sets tombstones. Segments that a crash left unlisted are ignored by readers and removed by the next
    writer. Readers that have a segment mapped go on with it after it was removed, as Linux keeps mapped files.

    A new segment absorbs those that are not larger than itself, so their number grows with the logarithm of the number
    of changes; `compact` is for the rest: tombstones, and BM25's mean length (see lightir.search.branches).
    """

    def __init__(self, folder: Path, lock: WriterLock, store: Store, view: View) -> None:
        """For `open`."""
        self.folder = folder
        self._lock = lock
        self._store = store
        self._view = view
        self._threads = threading.RLock()
        encoder = None
        if view.analyzer is not None and view.analyzer.name in OF_A_MODEL:
            encoder = CachedQueryEncoder.load(folder / QUERY_ENCODER)
        self._intake = Intake(view.contract, view.analyzer, encoder, view.options)

    @classmethod
    def create(
        cls,
        folder: Path | str,
        *,
        options: IndexOptions | None = None,
        contract: Contract | None = None,
        query_encoder: Path | str | None = None,
        overwrite: bool = False,
    ) -> IndexWriter:
        """Make an empty index and open it; arguments and errors are those of `build_index`."""
        build_index(
            (),
            folder,
            options=options,
            contract=contract,
            query_encoder=query_encoder,
            progress=False,
            overwrite=overwrite,
        )
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path | str, *, brief: bool = False, wait_s: float = BRIEF_WAIT_S) -> IndexWriter:
        """Become the writer of an index, and remove what a crashed one left behind.

        Args:
            folder: the index.
            brief: it is for one short change, so that others who want to write meanwhile wait for it.
            wait_s: how long to wait for another writer that is brief.

        Raises:
            NotFound: the folder is no index.
            IndexLocked: another writer has it; the text names the process.
            FormatError: a file is missing, damaged or of another version; the file is named.
            WriteFailed: the folder or its medium is read-only.
        """
        folder = Path(folder)
        require_writable(folder / STORE_FILE)
        # First the lock, without which nobody replaces the index: the store is then the one that lies in the folder.
        lock = WriterLock(folder, brief=brief, wait_s=wait_s)
        try:
            store = Store.open_for_writing(folder / STORE_FILE)
            try:
                view = View(folder, store)
                _sweep(folder, view)
                return cls(folder, lock, store, view)
            except BaseException:
                store.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Let the next writer in."""
        with self._threads:
            self._store.close()
            self._lock.release()

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._view)

    @property
    def view(self) -> View:
        """The index as this writer last left it; a view that was taken before a change is stale after it."""
        return self._view

    def info(self) -> IndexInfo:
        """Counts, sizes and the contract."""
        return view_info(self._view)

    def add(
        self,
        documents: Iterable[Document],
        *,
        dense: npt.NDArray[np.float16] | None = None,
        sparse: SparseVectors | None = None,
    ) -> int:
        """Put new documents in; returns their number.

        Without vectors a document is found by the tokens branch at once, and waits for `set_vectors` where the index
        has a contract. Vectors of zeros are taken: dense, they score 0 for every query; sparse, they are never found.

        Args:
            documents: n documents, all of which go in by one change; a doc_id must not be there yet, nor twice in the
                batch. For a stream that is larger than memory there is `add_shards`.
            dense: (n, dim) float16, as the contract says.
            sparse: n rows of uint8 impacts.

        Raises:
            InvalidInput: a doc_id that is there, comes twice, is empty or too long; text that is not UTF-8; vectors
                with NaN or infinity, of another number, or not of the kinds that the index has.
            ContractMismatch: vectors of another width or vocabulary.
            WriteFailed: the disk is full or broken.
        """
        return self._put(Shard(_listed(documents), dense, sparse), replace=False)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        dense: npt.NDArray[np.float16] | None = None,
        sparse: SparseVectors | None = None,
    ) -> int:
        """Put documents in, each in place of the whole document that has its id; see `add`.

        A document that comes without vectors, and whose title and text are there already, keeps those that it has: its
        metadata alone are replaced. So a whole corpus may be put in again after a few of its documents have changed.

        Returns:
            The number of documents that are new or changed; all of them where they come with vectors.
        """
        return self._put(Shard(_listed(documents), dense, sparse), replace=True)

    def add_shards(self, shards: Iterable[Shard], *, replace: bool = False, size: int, progress: bool = True) -> int:
        """Put the documents of all shards in, `size` at a time, each time one change.

        Args:
            shards: documents with vectors or without, see `add`.
            replace: as `upsert` does; otherwise as `add`.
            size: the most documents of a change.
            progress: show a bar when standard error is a terminal.

        Returns:
            Their number; with replace, that of those that are new or changed, see `upsert`.

        Raises:
            As `add`; and InvalidInput for what is no shard, or a size below 1. Changes before that one stay.
        """
        if size < 1:
            raise InvalidInput(f"size is {size}; at least 1 is needed")
        n_put = 0
        with tqdm(desc="add", unit=" documents", disable=None if progress else True) as bar:
            for shard in shards:
                require_shard(shard)
                for piece in sliced(shard, size):
                    n_put += self._put(piece, replace=replace)
                    bar.update(len(piece.documents))
        return n_put

    def delete(self, doc_ids: Iterable[str]) -> int:
        """Take documents out; returns how many of them were there.

        Raises:
            InvalidInput: an id is no text.
        """
        wanted = _checked_ids(doc_ids)
        with self._threads:
            known = self._store.keys(wanted)
            return self._remove(np.array(sorted(known.values()), dtype=np.int64))

    def keep_only(self, doc_ids: Collection[str]) -> int:
        """Take out all documents but those with the given ids; returns how many they were.

        Raises:
            InvalidInput: an id is no text.
        """
        kept = _checked_ids(doc_ids)
        with self._threads:
            gone = [key for key, doc_id in self._store.documents_by_key() if doc_id not in kept]
            return self._remove(np.array(gone, dtype=np.int64))

    def delete_where(self, wanted: Filter) -> int:
        """Take out the documents whose metadata match a filter; returns how many they were.

        Raises:
            InvalidInput: the filter is malformed.
        """
        with self._threads:
            return self._remove(self._view.matching_keys(wanted))

    def set_vectors(
        self,
        documents: Iterable[Document],
        *,
        dense: npt.NDArray[np.float16] | None = None,
        sparse: SparseVectors | None = None,
    ) -> list[str]:
        """Give documents that are in the index their vectors; returns the ids of those that were left alone.

        A document is left alone when it is gone, or when its title or text is no longer the one that was encoded.

        Args:
            documents: n documents as they were encoded, each once.
            dense: see `add`.
            sparse: see `add`.

        Raises:
            As `add`; and InvalidInput without any vectors.
        """
        shard = Shard(_listed(documents), dense, sparse)
        if dense is None and sparse is None:
            raise InvalidInput("set_vectors was given no vectors")
        refuse_repeated(shard)
        with self._threads:
            _require_same_kinds(self._view, shard)
            same, left = self._unchanged(shard.documents)
            pieces = [self._intake.vectors(piece) for piece in sliced(selected(shard, same), self._added_documents)]
            if same:
                keys = self._store.keys(shard.documents[i].doc_id for i in same)
                with self._changing() as change:
                    change.added += [with_stored_tokens(self._view.segments, rows, keys) for rows in pieces]
                    change.buried.append(np.array(list(keys.values()), dtype=np.int64))
            return left

    def set_fusion(self, fusion: Fusion) -> None:
        """Make this the index's default fusion, for searches that name none.

        Raises:
            InvalidInput: the index has no contract, which holds it: it has tokens alone.
        """
        with self._threads:
            if self._view.contract is None:
                raise InvalidInput(f"{self.folder} has no model's contract, so there is nothing to join")
            contract = dataclasses.replace(self._view.contract, fusion=fusion)
            with self._changing():
                self._store.set_record({**self._store.record(), "contract": to_json(contract)})

    def compact(self, *, progress: bool = True) -> IndexInfo:
        """Write all segments again, full and without tombstones; readers search on meanwhile. Returns what is there.

        Memory holds GATHERED_DOCUMENTS documents and their graph, if there is one; the disk for a while both the old
        and the new segments. An index that is compact already is left as it is.
        """
        with self._threads:
            segments = self._view.segments
            fewest = -(-len(self._view) // self._view.options.segment_documents)
            exact = all(each.segment.mean_length == self._view.mean_length for each in segments)
            if len(segments) > fewest or any(each.deleted is not None for each in segments) or not exact:
                with self._changing(progress=progress) as change:
                    change.compact = True
            return self.info()

    @property
    def _added_documents(self) -> int:
        """The most documents of a segment that a change other than compaction writes."""
        return min(self._view.options.segment_documents, GATHERED_DOCUMENTS)

    # One change

    def _put(self, shard: Shard, *, replace: bool) -> int:
        refuse_repeated(shard)
        stored = [store_row(document) for document in shard.documents]
        with self._threads:
            _require_same_kinds(self._view, shard)
            known = self._store.keys(row[0] for row in stored)
            if known and not replace:
                there = next(iter(known))
                raise InvalidInput(f"document {there!r} is in the index already; upsert (add --replace) replaces it")
            described: dict[int, str] = {}
            if known and shard.dense is None and shard.sparse is None:
                same, described = self._store.same_texts(stored, known)
                known = {doc_id: key for doc_id, key in known.items() if doc_id not in same}
                shard = Shard([each for each in shard.documents if each.doc_id not in same], None, None)
                stored = [row for row in stored if row[0] not in same]
            rows = [self._intake.rows(piece) for piece in sliced(shard, self._added_documents)] if stored else []
            if not stored and not described:
                return 0
            with self._changing() as change:
                self._store.describe(described)
                gone = np.array(sorted(known.values()), dtype=np.int64)
                self._store.remove(gone)
                change.buried.append(gone)
                first = 0
                for each in rows:
                    keys = self._store.insert(stored[first : first + len(each)])
                    change.added.append(dataclasses.replace(each, doc_keys=keys))
                    first += len(each)
            return len(stored) + len(described)

    def _remove(self, keys: DocKeys) -> int:
        if len(keys):
            with self._changing() as change:
                self._store.remove(keys)
                change.buried.append(keys)
        return len(keys)

    def _unchanged(self, documents: Sequence[Document]) -> tuple[list[int], list[str]]:
        """The positions of the documents that are stored with this title and text, and the ids of the others."""
        known = self._store.keys(document.doc_id for document in documents)
        same, left = [], []
        for i, document in enumerate(documents):
            stored = self._store.documents([document.doc_id])[0] if document.doc_id in known else None
            if stored is not None and (stored.title, stored.text) == (document.title, document.text):
                same.append(i)
            else:
                left.append(document.doc_id)
        return same, left

    @contextmanager
    def _changing(self, *, progress: bool = False) -> Iterator[_Change]:
        change = _Change()
        try:
            with self._store.transaction():
                if not self._lock.is_current:
                    raise WriteFailed(f"{self.folder} was removed or replaced by another index; open it again")
                yield change
                self._apply(change, progress)
        except OSError as error:
            if isinstance(error, LightirError):
                raise
            raise WriteFailed(f"{self.folder} cannot be changed: {error}; it is as it was before") from error
        finally:
            # Also after a failure: what was written for nothing goes, what is listed stays, whatever went wrong.
            self._view = View(self.folder, self._store, before=self._view)
            if self._lock.is_current:
                _sweep(self.folder, self._view)

    def _apply(self, change: _Change, progress: bool) -> None:
        buried = np.concatenate([np.zeros(0, np.int64), *change.buried])
        segments = [with_tombstones(each, buried) for each in self._view.segments]
        n_documents = sum(each.n_live for each in segments) + sum(map(len, change.added))
        total = sum(each.total_length for each in segments) + sum(each.total_length for each in change.added)
        mean = mean_length(total, n_documents)
        kept: list[LiveSegment] = []
        if change.compact:
            self._join(segments, mean, progress)
        else:
            absorbed = absorbed_segments(segments, change.added, self._added_documents)
            kept = [each for each in segments if each.n_live and each not in absorbed]
            new: list[list[Part]] = [[(rows, np.arange(len(rows)))] for rows in change.added]
            for live in absorbed:
                live.segment.verify()  # written again, its damage would have a good checksum
                new[-1].append((live.segment.rows(), live.places))
            for parts in new:
                self._write(parts, mean)
        staying = {each.number for each in kept}
        self._store.remove_segments(each.number for each in segments if each.number not in staying)
        before = {each.number: each.deleted for each in self._view.segments}
        for each in kept:
            if each.deleted is not None and each.deleted is not before[each.number]:
                self._store.set_deleted(each.number, each.deleted)

    def _join(self, segments: Sequence[LiveSegment], mean: float, progress: bool) -> None:
        """Write the documents of all segments as few new ones.

        Raises:
            FormatError: a segment is damaged; written again, its damage would have a good checksum.
        """
        for each in segments:
            each.segment.verify()
        groups = packed([(each.segment.rows(), each.places) for each in segments], self._view.options.segment_documents)
        with joining_bar("compact", progress) as bar:
            for parts in groups:
                self._write(parts, mean, on_bytes=bar.update)

    def _write(self, parts: Sequence[Part], mean: float, *, on_bytes: Callable[[int], object] = lambda _: None) -> None:
        number, options = self._store.next_segment(), self._view.options
        documents = Join(parts)
        written = write_segment(self.folder, documents, number=number, mean=mean, options=options, on_bytes=on_bytes)
        self._store.add_segment(written)


def _listed(documents: Iterable[Document]) -> list[Document]:
    """The documents as a list, for they are looked at more than once, which a generator would not bear."""
    if isinstance(documents, Document):
        raise InvalidInput(f"documents is one Document, {documents.doc_id!r}; expected a list of them")
    require_list(documents, "documents")
    return list(documents)


def _checked_ids(doc_ids: Iterable[str]) -> frozenset[str]:
    require_list(doc_ids, "doc_ids")
    return frozenset(check_text(doc_id, "a doc_id") for doc_id in doc_ids)


def _require_same_kinds(view: View, shard: Shard) -> None:
    """Refuse vectors of other branches than the index's encoded documents have."""
    has = (shard.dense is not None, shard.sparse is not None)
    if view.contract is None or not any(has):
        return
    encoded = [each.segment for each in view.segments if each.n_pending < each.n_live]
    kinds = {(segment.has("dense"), segment.has("sparse")) for segment in encoded}
    if kinds - {has}:
        raise InvalidInput(f"the documents have (dense, sparse) = {has}, but those of the index {kinds.pop()}")


def _sweep(folder: Path, view: View) -> None:
    """Remove the segments that the store does not list, and what was half-written."""
    live = {each.segment.folder.name for each in view.segments}
    for path in (folder / SEGMENTS_FOLDER).iterdir():
        if path.name not in live:
            shutil.rmtree(path, ignore_errors=True)
