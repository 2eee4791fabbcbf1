"""Adds, updates and deletes of documents, one transaction per change."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER
from lightir.analysis import OF_A_MODEL
from lightir.contract import Contract, Fusion, to_json
from lightir.errors import (
    InvalidInput,
    LightirError,
    NotFound,
    OutcomeUnknown,
    StorageError,
    WriteFailed,
    storage_error,
    storage_errors,
)
from lightir.files import checksums_of_files
from lightir.index.build import build_index
from lightir.index.change import Change, added_documents, apply_change, require_same_kinds
from lightir.index.index_options import IndexOptions
from lightir.index.index_record import ENCODER_FILES, checked_record
from lightir.index.intake import Intake, checked_ids, listed, refuse_repeated, require_shard, selected, sliced
from lightir.index.listing import Listing
from lightir.index.lock import BRIEF_WAIT_S, WriterLock
from lightir.index.metadata_changes import with_changes
from lightir.index.metadata_filters import Filter
from lightir.index.passages.naming import require_no_place
from lightir.index.reader import IndexInfo, view_info
from lightir.index.recounting import recounted, with_other_words
from lightir.index.removal import remove_unlisted
from lightir.index.renaming import renamed, require_renamable
from lightir.index.segments.rows import DocumentRows
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE, require_writable
from lightir.index.store_row import StoreRow, store_row
from lightir.index.stored_documents import DocKeys
from lightir.index.verification import verify_view
from lightir.index.view import View
from lightir.progress import Progress
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard
from lightir.text import check_text
from lightir.types import Document
from lightir.vectors import SparseVectors


class IndexWriter:
    """The only writer of an index. When a method returns, its change is durable; when it fails, nothing has changed.

    Every method that changes the index may raise OutcomeUnknown, if the disk fails during the commit and stays
    unwritable. Then the change was made as a whole or not at all, and the writer refuses further changes: open the
    index again to see the outcome.

    A change writes new segments to temporary folders, flushes and renames them. Then one SQLite transaction adds them
    to the list of live segments, removes merged segments from it, and sets tombstones. Readers ignore segments that a
    crash left unlisted, and the next writer removes them (lightir.index.removal). A reader that has mapped a segment
    keeps it after its removal, because Linux keeps mapped files.

    A new segment is merged with those that are not larger, so the number of segments grows with the logarithm of the
    number of changes. `compact` removes tombstones and updates BM25's mean length (see lightir.search.branches).
    """

    def __init__(self, folder: Path, lock: WriterLock, store: Store, view: View) -> None:
        """Take over the parts of an opened index; use `open`."""
        self.folder = folder
        self._lock = lock
        self._store = store
        self._view = view
        self._threads = threading.RLock()
        self._is_outdated = False
        encoder = None
        counts_tokens = view.analyzer is not None and view.analyzer.name in OF_A_MODEL
        if (
            counts_tokens
            or view.options.word_weight
            or (view.options.passages is not None and view.contract is not None)
        ):
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
        """Create an empty index and open it. Arguments and errors are those of `build_index`."""
        build_index(
            (),
            folder,
            options=options,
            contract=contract,
            query_encoder=query_encoder,
            progress=False,
            overwrite=overwrite,
        )
        try:
            return cls.open(folder)
        except StorageError as error:
            failed = f"{folder} was created, but cannot be opened"
            raise storage_error(failed, error, kind=OutcomeUnknown, outcome="open it again") from error

    @classmethod
    def open(cls, folder: Path | str, *, brief: bool = False, wait_s: float = BRIEF_WAIT_S) -> IndexWriter:
        """Open an index for writing and remove what a crashed writer left behind.

        Args:
            folder: index folder.
            brief: whether the writer makes one short change, so that other writers wait for it.
            wait_s: maximum time to wait for brief writers.

        Raises:
            NotFound: the folder is not an index.
            IndexLocked: another writer has opened the index; the message names its process.
            FormatError: a file is missing, damaged or of another version; the message names the file.
            WriteFailed: the folder or its medium is read-only, or the lock cannot be written.
            StorageError: the system refuses to open a file.
        """
        folder = Path(folder)
        with storage_errors(f"cannot open {folder}"):
            return cls._open(folder, brief, wait_s)

    @classmethod
    def _open(cls, folder: Path, brief: bool, wait_s: float) -> IndexWriter:
        require_writable(folder / STORE_FILE)
        # The lock comes first: replacing the index requires it, so the store opened next is that of this folder.
        lock = WriterLock(folder, brief=brief, wait_s=wait_s)
        try:
            store = Store.open_for_writing(folder / STORE_FILE)
            try:
                checked_record(store.path, store.record())  # before anything is written to another version's store
                lock.note_commits(store.generation())  # before settling, which is a commit too
                if lock.was_abandoned:
                    store.settle()
                view = View(folder, store)
                lock.note_commits(view.generation)
                _remove_unlisted(folder, view)
                return cls(folder, lock, store, view)
            except BaseException:
                store.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Close the index and release the writer lock."""
        with self._threads:
            clean = not self._is_outdated and (self._store.is_settled or not self._lock.was_abandoned)
            self._store.close()
            self._lock.release(clean=clean)

    def __enter__(self) -> IndexWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return self._view.n_documents

    @property
    def view(self) -> View:
        """The state of the index after the last change of this writer."""
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
        """Add new documents in one change and return their number.

        The tokens branch finds a document without vectors at once. If the index has a contract, the document is pending
        until `set_vectors`. Vectors of zeros are valid: a dense one scores 0 for every query, a sparse one never
        matches.

        Args:
            documents: n documents with new, distinct ids. For a stream larger than memory use `add_shards`.
            dense: (n, dim) float16 dense vectors, with the width of the contract.
            sparse: n rows of uint8 impacts, over the vocabulary of the contract.

        Raises:
            InvalidInput: a doc_id exists, is repeated, empty or too long; a text is not UTF-8; vectors contain NaN or
                infinity, or differ in number or kind from the documents and the index.
            ContractMismatch: vectors have another width or vocabulary than the contract.
            WriteFailed: the disk is full or broken.
        """
        return self._put(Shard(listed(documents), dense, sparse), replace=False)

    def upsert(
        self,
        documents: Iterable[Document],
        *,
        dense: npt.NDArray[np.float16] | None = None,
        sparse: SparseVectors | None = None,
    ) -> int:
        """Add documents in one change; each replaces the document with its id. Arguments and errors are those of `add`.

        A document without vectors whose title and text are unchanged keeps its stored vectors; only its metadata are
        replaced, and the words of fields with a boost. So a whole corpus can be upserted after a few of its documents
        have changed.

        Returns:
            The number of new or changed documents; documents with vectors always count.

        Raises:
            FormatError: a segment is damaged, and documents keep its vectors while the words of their metadata change.
        """
        return self._put(Shard(listed(documents), dense, sparse), replace=True)

    def add_shards(self, shards: Iterable[Shard], *, replace: bool = False, size: int, progress: bool = True) -> int:
        """Add the documents of all shards, `size` per change.

        Args:
            shards: documents with or without vectors, see `add`.
            replace: upsert documents instead of adding them.
            size: maximum number of documents per change.
            progress: show a progress bar, or log messages if stderr is no terminal.

        Returns:
            The number of documents; with replace, the number of new or changed ones.

        Raises:
            InvalidInput: an element is not a shard, or size is below 1. Also the errors of `add`. Earlier changes stay.
        """
        if size < 1:
            raise InvalidInput(f"size is {size}; expected at least 1")
        n_put = 0
        with Progress("add", unit="document", shown=progress) as bar:
            for shard in shards:
                require_shard(shard)
                for piece in sliced(shard, size):
                    n_put += self._put(piece, replace=replace)
                    bar.update(len(piece.documents))
        return n_put

    def delete(self, doc_ids: Iterable[str]) -> int:
        """Delete documents and return the number of those that existed.

        Raises:
            InvalidInput: an id is not a string.
        """
        wanted = checked_ids(doc_ids)
        with self._threads:
            stored = self._view.stored_keys(wanted)
            self._remove(stored.values())
            return self._n_documents(stored)

    def keep_only(self, doc_ids: Collection[str]) -> int:
        """Delete all documents except those with the given ids, and return the number of deleted documents.

        Raises:
            InvalidInput: an id is not a string.
        """
        kept = checked_ids(doc_ids)
        with self._threads:
            stored = self._store.documents.ids_by_key()
            others = {key: doc_id for key, doc_id in stored if self._view.document_of(doc_id) not in kept}
            self._remove(others)
            return self._n_documents(others.values())

    def delete_where(self, wanted: Filter) -> int:
        """Delete the documents whose metadata match a filter, and return their number.

        Raises:
            InvalidInput: the filter is malformed.
        """
        with self._threads:
            n_documents = Listing.of(self._view, wanted).n_documents()
            self._remove(self._view.matching_keys(wanted).tolist())
            return n_documents

    def set_metadata(self, changes: Mapping[str, Mapping[str, Any]], *, skip_missing: bool = False) -> int:
        """Change metadata fields of documents in one change, and return the number of documents that changed.

        Titles, texts and vectors stay as they are, so nothing is encoded again. The words of a document are counted
        anew if those of a field with a boost change (`IndexOptions.boosts`). Values are checked and converted as those
        of added documents (`Schema.typed`).

        Args:
            changes: doc_id -> field -> new value. None removes the field. "author.name" is the field "name" of the
                object "author", which is made if it is missing. Of `Cells`, empty values change nothing.
            skip_missing: skip ids that the index does not have; otherwise they are an error.

        Raises:
            NotFound: the index does not have an id.
            InvalidInput: a value of another type, a malformed field, or a field inside a value that is no object.
            FormatError: a segment with vectors to copy is damaged.
        """
        wanted = {check_text(doc_id, "a doc_id"): values for doc_id, values in changes.items()}
        if self._view.has_passages:
            for doc_id, values in wanted.items():
                require_no_place(values, doc_id)
        with self._threads:
            keys = self._view.stored_keys(wanted)
            existing = {*self._view.existing(list(wanted))}
            if not skip_missing and (missing := [doc_id for doc_id in wanted if doc_id not in existing]):
                raise NotFound(
                    f"there is no document {missing[0]!r} in {self.folder} ({len(missing):,} of {len(wanted):,} ids "
                    "are missing); nothing was changed. Skip such ids with --skip-missing (skip_missing=True)"
                )
            rows, described = {}, {}
            for doc_id, key in keys.items():
                (document,) = self._store.documents.of([key]).values()
                values = wanted[doc_id if doc_id in wanted else self._view.document_of(doc_id)]
                metadata = with_changes(document, values, self._view.schema)
                if metadata != document.metadata:
                    described[key] = dataclasses.replace(document, metadata=metadata)
                    rows[key] = store_row(described[key])
            counted = self._recounted(described)
            if rows:
                with self._changing() as change:
                    self._store.documents.describe(rows)
                    change.replace(counted)
            return self._n_documents(row[0] for row in rows.values())

    def rename(self, new_ids: Mapping[str, str]) -> None:
        """Give documents other ids in one change. Title, text, metadata and vectors stay, so nothing is encoded again.

        Args:
            new_ids: new id of each document by its old id.

        Raises:
            NotFound: there is no document with an old id.
            InvalidInput: a new id exists, is given twice, empty or too long.
            FormatError: a segment with vectors to copy is damaged.
        """
        moves = {check_text(old, "a doc_id"): check_text(new, "a doc_id") for old, new in new_ids.items()}
        with self._threads:
            require_renamable(self._view, moves)
            parts = [*renamed(self._view, self._intake, moves)]
            if parts:
                with self._changing() as change:
                    for part in parts:
                        self._store.documents.remove(part.old_keys)
                        change.deleted.append(part.old_keys)
                        keys = self._store.documents.insert(part.stored)
                        change.added.append(dataclasses.replace(part.rows, doc_keys=keys))

    def set_vectors(
        self,
        documents: Iterable[Document],
        *,
        dense: npt.NDArray[np.float16] | None = None,
        sparse: SparseVectors | None = None,
    ) -> list[str]:
        """Store vectors of documents of the index, and return the ids of the documents that were skipped.

        A document is skipped if it was deleted, or if its title or text has changed since it was encoded.

        Args:
            documents: n distinct documents as they were encoded.
            dense: (n, dim) float16 dense vectors, with the width of the contract.
            sparse: n rows of uint8 impacts, over the vocabulary of the contract.

        Raises:
            InvalidInput: no vectors are given. Also the errors of `add`.
        """
        shard = Shard(listed(documents), dense, sparse)
        if dense is None and sparse is None:
            raise InvalidInput("set_vectors requires vectors: dense, sparse or both")
        refuse_repeated(shard)
        with self._threads:
            require_same_kinds(self._view, shard)
            unchanged, stored, skipped = self._unchanged(shard.documents)
            # Terms are counted anew: copying those of a damaged segment would give them a valid checksum. They are
            # those of the stored documents, whose metadata may be others by now.
            encoded = dataclasses.replace(selected(shard, unchanged), documents=stored)
            pieces = [self._intake.rows(piece) for piece in sliced(encoded, added_documents(self._view.options))]
            if unchanged:
                keys = self._store.documents.keys(document.doc_id for document in stored)
                with self._changing() as change:
                    for rows in pieces:
                        row_keys = np.array([keys[doc_id] for doc_id in rows.doc_ids], dtype=np.int64)
                        change.added.append(dataclasses.replace(rows, doc_keys=row_keys))
                    change.deleted.append(np.array(list(keys.values()), dtype=np.int64))
            return skipped

    def set_fusion(self, fusion: Fusion) -> None:
        """Store the default fusion of the index.

        Raises:
            InvalidInput: the index has no contract, so it has the tokens branch alone.
        """
        with self._threads:
            if self._view.contract is None:
                raise InvalidInput(f"{self.folder} has no model contract, so there are no branches to fuse")
            contract = dataclasses.replace(self._view.contract, fusion=fusion)
            with self._changing():
                self._store.set_record({**self._store.record(), "contract": to_json(contract)})

    def compact(self, *, progress: bool = True) -> IndexInfo:
        """Rewrite all segments without tombstones, as few as possible, and return the new info.

        Readers are not blocked. Memory holds GATHERED_DOCUMENTS documents at a time, and the graph of a segment if the
        index has graphs. The disk holds the old and the new segments for a while. A compact index is left unchanged.

        Documents and a query encoder that an earlier release stored without checksums get them, after everything was
        verified as far as it can be.

        Args:
            progress: show a progress bar, or log messages if stderr is no terminal.

        Raises:
            FormatError: the index is damaged; rewriting it would give the damage a valid checksum.
        """
        with self._threads:
            segments = self._view.segments
            fewest = -(-len(self._view) // self._view.options.segment_documents)
            exact = all(live.segment.mean_length == self._view.mean_length for live in segments)
            rewrites = len(segments) > fewest or any(live.deleted is not None for live in segments) or not exact
            gaps = self._checksum_gaps()
            if gaps:
                verify_view(self._view)
            if rewrites or gaps:
                with self._changing(progress=progress) as change:
                    change.compact = rewrites
                    if gaps:
                        self._fill_checksums()
            return self.info()

    def _checksum_gaps(self) -> bool:
        """Return whether documents or the query encoder lack checksums, because an earlier release stored them."""
        return ENCODER_FILES not in self._view.record or not self._store.checksums.is_covered()

    def _fill_checksums(self) -> None:
        self._store.checksums.fill()
        record = self._store.record()
        if ENCODER_FILES not in record:
            self._store.set_record({**record, ENCODER_FILES: checksums_of_files(self.folder / QUERY_ENCODER)})

    # One change

    def _put(self, shard: Shard, *, replace: bool) -> int:
        refuse_repeated(shard)
        given = [document.doc_id for document in shard.documents]
        shard = self._intake.prepared(shard)
        stored = [store_row(document) for document in shard.documents]
        with self._threads:
            require_same_kinds(self._view, shard)
            known = self._view.stored_keys(given)
            if known and not replace:
                existing = self._view.document_of(next(iter(known)))
                raise InvalidInput(
                    f"document id {existing!r} is already in the index; use --replace (upsert) to replace it"
                )
            described: dict[int, StoreRow] = {}
            counted: list[DocumentRows] = []
            changed = {*known}.difference(row[0] for row in stored)  # passages that the documents no longer have
            if known and shard.dense is None and shard.sparse is None:
                same, described = self._store.documents.same_texts(stored, known)
                by_id = {document.doc_id: document for document in shard.documents}
                counted = self._recounted({key: by_id[row[0]] for key, row in described.items()})
                known = {doc_id: key for doc_id, key in known.items() if doc_id not in same}
                shard = Shard([document for document in shard.documents if document.doc_id not in same], None, None)
                stored = [row for row in stored if row[0] not in same]
            intake = self._intake if self._view.segments else self._intake.detecting(shard.documents)
            rows = (
                [intake.rows(piece) for piece in sliced(shard, added_documents(self._view.options))] if stored else []
            )
            changed |= {row[0] for row in (*stored, *described.values())}
            if not changed:
                return 0
            with self._changing() as change:
                if intake.analyzer != self._view.analyzer:
                    self._store.set_record({**self._store.record(), "analyzer": to_json(intake.analyzer)})
                self._store.documents.describe(described)
                replaced = np.array(sorted(known.values()), dtype=np.int64)
                self._store.documents.remove(replaced)
                change.deleted.append(replaced)
                change.replace(counted)
                first = 0
                for piece in rows:
                    keys = self._store.documents.insert(stored[first : first + len(piece)])
                    change.added.append(dataclasses.replace(piece, doc_keys=keys))
                    first += len(piece)
            return self._n_documents(changed)

    def _remove(self, doc_keys: Iterable[int]) -> None:
        keys: DocKeys = np.array(sorted(doc_keys), dtype=np.int64)
        if len(keys):
            with self._changing() as change:
                self._store.documents.remove(keys)
                change.deleted.append(keys)

    def _n_documents(self, doc_ids: Iterable[str]) -> int:
        """Return the number of distinct documents of stored ids."""
        return len({self._view.document_of(doc_id) for doc_id in doc_ids})

    def _recounted(self, documents: Mapping[int, Document]) -> list[DocumentRows]:
        """Return the rows of stored documents whose words change with new metadata, given by key."""
        return [*recounted(self._view, self._intake, with_other_words(self._view, documents))]

    def _unchanged(self, documents: Sequence[Document]) -> tuple[list[int], list[Document], list[str]]:
        """Return the positions of documents that are stored with the same title and text, and the others' ids.

        Returns:
            The positions, the stored documents at these positions, and the ids of the others.
        """
        known = self._store.documents.keys(document.doc_id for document in documents)
        unchanged, same, others = [], [], []
        for i, document in enumerate(documents):
            stored = self._store.documents.named([document.doc_id])[0] if document.doc_id in known else None
            if stored is not None and (stored.title, stored.text) == (document.title, document.text):
                unchanged.append(i)
                same.append(stored)
            else:
                others.append(document.doc_id)
        return unchanged, same, others

    @contextmanager
    def _changing(self, *, progress: bool = False) -> Iterator[Change]:
        if self._is_outdated:
            raise WriteFailed(f"{self.folder} was not changed: an earlier change failed; open the index again")
        change = Change()
        try:
            with self._store.transaction():
                if not self._lock.is_current:
                    raise WriteFailed(f"{self.folder} was removed or replaced by another index; open the index again")
                yield change
                apply_change(change, self._view, progress=progress)
        except (OSError, MemoryError) as error:
            self._is_outdated = isinstance(error, OutcomeUnknown)
            if isinstance(error, WriteFailed):
                raise
            failed = f"cannot change {self.folder}"
            raise storage_error(failed, error, kind=WriteFailed, outcome="the index is unchanged") from error
        finally:
            if not self._is_outdated:
                self._renew()

    def _renew(self) -> None:
        """Show the state after a change, or after a failed one; remove the segments that the store does not list.

        Raises:
            OutcomeUnknown: the state cannot be read. Further changes are refused, because they would start from an
                earlier state.
        """
        self._is_outdated = True
        try:
            self._view = View(self.folder, self._store, before=self._view)
            self._intake.analyzer = self._view.analyzer
        except (LightirError, OSError, MemoryError) as error:
            failed = f"{self.folder} cannot be read after a change"
            then = "open the index again to see whether the change was made"
            raise storage_error(failed, error, kind=OutcomeUnknown, outcome=then) from error
        self._is_outdated = False
        self._lock.note_commits(self._view.generation)
        if self._lock.is_current:
            _remove_unlisted(self.folder, self._view)


def _remove_unlisted(folder: Path, view: View) -> None:
    """Remove the segments that a store does not list; the view is the state of its last commit."""
    remove_unlisted(folder, {live.segment.folder.name for live in view.segments}, view.store)
