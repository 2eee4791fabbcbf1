"""A view: an immutable state of an index. Later changes appear in later views."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from lightir.analysis import BAG, OF_A_MODEL, Analyzer
from lightir.contract import Contract, from_json
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.index import metadata_filters
from lightir.index.bm25 import K1, B, mean_length
from lightir.index.index_options import IndexOptions
from lightir.index.index_record import checked_record
from lightir.index.metadata_filters import Filter
from lightir.index.passages.naming import document_of, passage_ids_range, whole_document
from lightir.index.phrases import WORDS_ALONE, Phrase
from lightir.index.schema import Schema
from lightir.index.segments.columns import Mask, MetadataSource
from lightir.index.segments.graph import walk_costs
from lightir.index.segments.layout import SEGMENTS_FOLDER, StoredSegment
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.segment import Segment
from lightir.index.shared_property import shared_property
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE
from lightir.index.stored_documents import DocKeys, DocumentFields
from lightir.index.view_words import ViewWords
from lightir.kernel.segments import DenseSegments, DocumentIds, SparseRows, SparseSegments
from lightir.text import check_text
from lightir.types import BRANCHES, Branch, Document, require_list

if TYPE_CHECKING:
    from lightir.index.collection import CollectionCounts

Stored = TypeVar("Stored")

FILTERS_KEPT = 16
"""Maximum number of filters, and of phrases, whose bitmaps a view caches."""


class View:
    """An immutable state of an index: its segments, tombstones and counts. A search uses one view from start to end.

    Every document has a number in the view, its doc_ord, which counts through the segments, deleted documents included.
    Within a segment doc_ords ascend with doc_ids; across segments they do not, see `break_ties`.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        *,
        before: View | None = None,
        skip_damaged: bool = False,
        exact: bool = False,
        collection: CollectionCounts | None = None,
    ) -> None:
        """Open the state of a store; the view owns the store's connection.

        Args:
            folder: index folder.
            store: snapshot of the store, or the connection of the writer.
            before: earlier view, whose open segments are reused if it belongs to this process and this store. Another
                store may use the same numbers for other segments and other metadata.
            skip_damaged: skip segments that cannot be opened, and list them in `damaged`.
            exact: ignore graphs over dense rows.
            collection: counts of all shards if the index is one of several; None if it is alone.

        Raises:
            FormatError: a file is missing, damaged or of another version; the message names the file.
        """
        self.folder = folder
        self.store = store
        self.exact = exact
        self.collection = collection
        self.record = checked_record(folder / STORE_FILE, store.record())
        self.generation = store.generation()
        where = str(folder / STORE_FILE)
        contract, analyzer = self.record["contract"], self.record["analyzer"]
        self.contract: Contract | None = None if contract is None else from_json(Contract, contract, where)
        self.analyzer: Analyzer | None = None if analyzer is None else from_json(Analyzer, analyzer, where)
        self.options = _stored_options(self.record, where)
        self.damaged: list[str] = []
        """Error message of each segment that was skipped."""
        opened: dict[int, LiveSegment] = {}
        if before is not None and not before.store.inherited and store.is_same(before.store):
            opened = {live.number: live for live in before.segments}
        self.segments: tuple[LiveSegment, ...] = tuple(self._open(store.segments(), opened, skip_damaged))
        self._first_ords = np.array([live.first_ord for live in self.segments], dtype=np.int64)
        self._matching: OrderedDict[metadata_filters.Node, list[Mask]] = OrderedDict()
        self._phrases: OrderedDict[str, list[Mask]] = OrderedDict()
        self.n_scans = 0
        """Number of names that were looked for in all metadata, see lightir.index.names."""
        self.prepared: dict[Any, Any] = {}
        """Prepared searches by key, cached for the life of the view."""

    def _open(
        self, stored: Sequence[StoredSegment], opened: Mapping[int, LiveSegment], skip_damaged: bool
    ) -> Iterator[LiveSegment]:
        first_ord = 0
        for entry in stored:
            known = opened.get(entry.number)
            try:
                folder = self.folder / SEGMENTS_FOLDER / entry.name
                segment = Segment(folder, entry.manifest_sha256) if known is None else known.segment
            except FormatError as error:
                if not skip_damaged:
                    raise
                self.damaged.append(str(error))
                continue
            live = LiveSegment(entry.number, segment, entry.deleted, first_ord)
            # An unchanged segment keeps what an earlier view has counted.
            yield live if known is None or not known.equals(live) else known
            first_ord += entry.documents

    def missing(self) -> list[str]:
        """Return the ids of the documents of skipped segments; their texts are still in the store."""
        if not self.damaged:
            return []
        readable = set(self.live_keys().tolist())
        return [doc_id for key, doc_id in self.store.documents.ids_by_key() if key not in readable]

    def live_keys(self) -> DocKeys:
        """Return the keys of the live documents, segment by segment."""
        return np.concatenate([np.zeros(0, np.int64), *(live.segment.doc_keys[live.places] for live in self.segments)])

    def problems(self) -> list[str]:
        """Return the error messages of skipped segments, and then the number of documents that are missing."""
        if not self.damaged:
            return []
        return [
            *self.damaged,
            f"{len(self.missing()):,} of {len(self.store.documents.ids_by_key()):,} documents are missing",
        ]

    def __len__(self) -> int:
        """Number of stored documents; a passage counts as one."""
        return sum(live.n_live for live in self.segments)

    @shared_property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched: those with vectors of at least one document, and tokens."""
        if self.collection is not None:
            return self.collection.branches
        branches = [branch for branch in BRANCHES if any(_fills(live, branch) for live in self.segments)]
        if self.analyzer is not None and "tokens" not in branches:
            branches.append("tokens")
        return tuple(branches)

    @property
    def schema(self) -> Schema | None:
        """The types of the metadata fields; None for an index without a schema."""
        return self.options.schema

    @property
    def counts_model_terms(self) -> bool:
        """Whether the terms of the tokens branch are term ids of the model, counted or as bags."""
        return self.analyzer is not None and self.analyzer.name in OF_A_MODEL

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch holds bags of the model's terms, for queries weighted by the encoder."""
        return self.analyzer is not None and self.analyzer.name == BAG

    @shared_property
    def dense_dim(self) -> int | None:
        """Width of the dense rows; None without dense rows."""
        widths = [live.segment.dense[0].shape[1] for live in self.segments if live.segment.dense is not None]
        return int(widths[0]) if widths else None

    @shared_property
    def n_pending(self) -> int:
        """Number of pending documents."""
        return sum(live.n_pending for live in self.segments)

    @shared_property
    def is_whole(self) -> bool:
        """Whether no document of any segment is deleted or pending, so that every branch may return each of them."""
        return self.n_pending == 0 and all(live.deleted is None for live in self.segments)

    @shared_property
    def waits(self) -> Mask:
        """(n,) bool by doc_ord, whether a document is pending, deleted documents included."""
        return np.concatenate([np.zeros(0, np.bool_), *(live.segment.pending for live in self.segments)])

    @shared_property
    def mean_length(self) -> float:
        """Mean number of terms per document; that of all shards if the index is one of several."""
        if self.collection is not None:
            return mean_length(self.collection.total_length, self.collection.n_documents)
        return mean_length(sum(live.total_length for live in self.segments), len(self))

    @shared_property
    def n_counted(self) -> int:
        """Number of documents by which words are weighted: those of all shards if the index is one of several."""
        return len(self) if self.collection is None else self.collection.n_documents

    @property
    def any_pending(self) -> bool:
        """Whether a document is pending, in any shard if the index is one of several."""
        return (self.n_pending if self.collection is None else self.collection.n_pending) > 0

    def require(self, branch: Branch) -> None:
        """Raise InvalidInput if the branch cannot be searched."""
        if branch not in self.branches:
            raise InvalidInput(f"{self.folder} has no {branch} branch; it has {', '.join(self.branches)}")

    # Rows, for the scores of given documents

    @shared_property
    def dense_rows(self) -> DenseSegments:
        """The dense rows of all segments, which are scanned."""
        return DenseSegments([live.segment.dense_rows for live in self.segments], self._sizes)

    @shared_property
    def graphed_rows(self) -> DenseSegments | None:
        """The dense rows of all segments, which are searched by their graphs; None if no segment has one.

        Raises:
            FormatError: a graph is damaged.
        """
        graphs = [live.segment.graph for live in self.segments]
        if all(graph is None for graph in graphs):
            return None
        rows = [live.segment.dense_rows for live in self.segments]
        parts = [part and part._replace(graph=graph) for part, graph in zip(rows, graphs, strict=True)]
        return DenseSegments(parts, self._sizes, costs=walk_costs())

    @shared_property
    def sparse_rows(self) -> SparseSegments:
        """The learned sparse rows of all segments."""
        branches = [live.segment.sparse for live in self.segments]
        rows = [
            None if branch is None else SparseRows(branch.indptr, branch.term_ids, branch.weights, branch.postings)
            for branch in branches
        ]
        return SparseSegments(rows, self._sizes)

    @shared_property
    def token_rows(self) -> SparseSegments:
        """The term counts, or bags, of all segments."""
        rows: list[SparseRows | None] = []
        for live in self.segments:
            tokens, bags = live.segment.tokens, live.segment.holds_bags
            if tokens is None:
                rows.append(None)
                continue
            parts = tokens.indptr, tokens.term_ids, tokens.weights, tokens.postings
            rows.append(
                SparseRows(*parts, binary=True)
                if bags
                else SparseRows(*parts, live.segment.lengths, live.segment.mean_length)
            )
        return SparseSegments(rows, self._sizes, k1=K1, b=B)

    @property
    def _sizes(self) -> list[int]:
        return [len(live.segment) for live in self.segments]

    # Documents

    def locate(self, doc_ords: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the segment of each document, and its row number there."""
        segment_of = np.searchsorted(self._first_ords, doc_ords, side="right") - 1
        return segment_of, doc_ords - self._first_ords[segment_of]

    def doc_ids(self, doc_ords: npt.NDArray[np.uint32]) -> list[str]:
        """Return the ids of documents."""
        return self.ids.texts(doc_ords)

    def doc_ord(self, doc_id: str) -> int | None:
        """Return the doc_ord of a document, or None.

        Raises:
            InvalidInput: the id is not a string.
        """
        if not isinstance(doc_id, str):
            raise InvalidInput(f"a doc_id is {type(doc_id).__name__}; expected str")
        for live in self.segments:
            row = live.segment.doc_ids.find(doc_id)
            if row is not None and live.live[row]:
                return live.first_ord + row
        return None

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the stored documents and passages with the given ids, in the order of the ids.

        Raises:
            NotFound: a document does not exist.
        """
        return self.store.documents.named(doc_ids)

    def documents_at(self, doc_ords: npt.NDArray[np.uint32]) -> list[Document]:
        """Return the stored documents and passages with the given doc_ords, in that order.

        Raises:
            FormatError: the store lacks a document that a segment lists.
        """
        keys = self._keys_at(doc_ords)
        return self._all_stored(doc_ords, keys, self.store.documents.of(keys))

    def fields_at(self, doc_ords: npt.NDArray[np.uint32]) -> list[DocumentFields]:
        """Return the fields of the documents that `documents_at` returns; for a few documents."""
        keys = self._keys_at(doc_ords)
        return self._all_stored(doc_ords, keys, self.store.documents.fields_of(keys))

    def _all_stored(
        self, doc_ords: npt.NDArray[np.uint32], keys: Sequence[int], stored: Mapping[int, Stored]
    ) -> list[Stored]:
        try:
            return [stored[key] for key in keys]
        except KeyError as error:
            (doc_id,) = self.doc_ids(doc_ords[[keys.index(error.args[0])]])
            raise FormatError(f"{self.store.path} is damaged: it has no text of document {doc_id!r}") from None

    def _keys_at(self, doc_ords: npt.NDArray[np.uint32]) -> list[int]:
        if len(self.segments) == 1:
            keys: list[int] = self.segments[0].segment.doc_keys[doc_ords].tolist()
            return keys
        at, rows = self.locate(doc_ords)
        located = zip(at.tolist(), rows.tolist(), strict=True)
        return [int(self.segments[segment].segment.doc_keys[row]) for segment, row in located]

    # Documents that are stored as passages

    @property
    def has_passages(self) -> bool:
        """Whether long documents are stored as passages."""
        return self.options.passages is not None

    @shared_property
    def n_passages(self) -> int:
        """Number of stored passages."""
        return sum(document_of(doc_id) != doc_id for doc_id in self._stored_ids) if self.has_passages else 0

    @shared_property
    def n_documents(self) -> int:
        """Number of documents, whether they are stored as passages or not."""
        if not self.has_passages:
            return len(self)
        live = [numbers[live.places] for numbers, live in zip(self.document_numbers, self.segments, strict=True)]
        return len(np.unique(np.concatenate([np.zeros(0, np.int64), *live])))

    @shared_property
    def document_numbers(self) -> list[npt.NDArray[np.int64]]:
        """(n,) for each segment: a number of each row's document, which all passages of a document share."""
        numbers: dict[str, int] = {}
        return [
            np.array(
                [numbers.setdefault(document_of(doc_id), len(numbers)) for doc_id in live.segment.doc_ids],
                dtype=np.int64,
            )
            for live in self.segments
        ]

    @property
    def _stored_ids(self) -> Iterator[str]:
        return (live.segment.doc_ids[row] for live in self.segments for row in live.places.tolist())

    def document_of(self, doc_id: str) -> str:
        """Return the id of the document that a stored id belongs to: another one only for a passage."""
        return document_of(doc_id) if self.has_passages else doc_id

    def stored_keys(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """Return the keys of the stored documents with the given ids, and of the passages of such documents, by id."""
        ids = list(doc_ids)
        keys = self.store.documents.keys(ids)
        if self.has_passages:
            for doc_id in ids:
                between = self.store.documents.keys_between(*passage_ids_range(doc_id))
                keys |= {stored: key for stored, key in between.items() if document_of(stored) == doc_id}
        return keys

    def existing(self, doc_ids: Sequence[str]) -> list[str]:
        """Return the ids of documents and passages that exist, without repetitions, in the given order."""
        stored = self.stored_keys(doc_ids)
        known = {self.document_of(doc_id) for doc_id in stored} | stored.keys()
        return [doc_id for doc_id in dict.fromkeys(doc_ids) if doc_id in known]

    def doc_ords(self, doc_id: str) -> list[int]:
        """Return the doc_ord of a document, or those of its passages; [] if there is no such document.

        Raises:
            InvalidInput: the id is not a string.
        """
        whole = self.doc_ord(doc_id)
        if whole is not None or not self.has_passages:
            return [] if whole is None else [whole]
        keys = self.stored_keys([doc_id])
        return [doc_ord for stored in keys if (doc_ord := self.doc_ord(stored)) is not None]

    def whole_documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """Return the documents with the given ids, in the order of the ids; those of passages are put together.

        Raises:
            NotFound: a document does not exist.
        """
        if not self.has_passages:
            return self.documents(doc_ids)
        require_list(doc_ids, "doc_ids")
        whole = []
        for doc_id in doc_ids:
            keys = self.stored_keys([check_text(doc_id, "a doc_id")])
            if not keys:
                raise NotFound(f"there is no document {doc_id!r}")
            stored = [*self.store.documents.of(keys.values()).values()]
            whole.append(stored[0] if doc_id in keys else whole_document(stored))
        return whole

    def pending(self) -> Iterator[str]:
        """Yield the ids of the pending documents, segment by segment."""
        for live in self.segments:
            if live.n_pending:
                for row in np.flatnonzero(live.segment.pending & live.live).tolist():
                    yield live.segment.doc_ids[row]

    def break_ties(self, doc_ords: npt.NDArray[np.uint32], scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the total order, score descending then doc_id ascending, of documents whose scores already descend.

        Args:
            doc_ords: (n,) uint32, documents.
            scores: (n,) scores, descending.

        Returns:
            (n,) positions.
        """
        if self.ids_ascend or len(doc_ords) < 2:
            return np.arange(len(doc_ords))
        return self.ids.order(doc_ords, scores)

    @shared_property
    def ids_ascend(self) -> bool:
        """Whether ids ascend with doc_ords across all segments, so that ties in doc_ord order are in id order."""
        ends = [live.segment.doc_ids.ends() for live in self.segments]
        return all(before[1] < after[0] for before, after in itertools.pairwise(ends))

    @shared_property
    def ids(self) -> DocumentIds:
        """The ids of all documents, deleted ones included."""
        return DocumentIds([live.segment.doc_ids.arrays for live in self.segments])

    # Searching

    def matching(self, wanted: Filter | None) -> list[Mask] | None:
        """Return for each segment the mask of the live documents that match a filter; None without a filter.

        Raises:
            InvalidInput: the filter is malformed.
        """
        if wanted is None:
            return None
        tree = metadata_filters.parse(wanted, self.schema)
        masks = self._matching.get(tree)
        if masks is None:
            masks = [live.segment.columns.matching(tree, self.metadata_source) & live.live for live in self.segments]
            self._matching[tree] = masks
            while len(self._matching) > FILTERS_KEPT:
                self._matching.popitem(last=False)
        return masks

    def with_phrase(self, phrase: str) -> list[Mask]:
        """Return for each segment the mask of the live documents whose title, text or other counted field has a phrase.

        See lightir.index.phrases. A phrase of stop words alone is in every document.
        """
        masks = self._phrases.get(phrase)
        if masks is None:
            masks = self._phrases[phrase] = Phrase(phrase, self.word_analyzer).documents(self)
            while len(self._phrases) > FILTERS_KEPT:
                self._phrases.popitem(last=False)
        return masks

    @shared_property
    def words(self) -> ViewWords:
        """The terms of the tokens branch, and queries for it.

        Raises:
            InvalidInput: the index has no tokens branch.
        """
        self.require("tokens")
        return ViewWords(self.segments, self.analyzer, self.n_counted, self.collection)

    @property
    def word_analyzer(self) -> Analyzer:
        """The analyzer of words in texts that are shown or compared: of an index that counts none, WORDS_ALONE."""
        return WORDS_ALONE if self.analyzer is None or self.counts_model_terms else self.analyzer

    @property
    def metadata_source(self) -> MetadataSource:
        """The reader of the metadata of this state."""
        documents = self.store.documents
        return MetadataSource(documents.values_of, documents.described(), self.generation, documents.metadata_hashes)

    def matching_keys(self, wanted: Filter) -> DocKeys:
        """Return the keys of the documents that match a filter, ascending.

        Raises:
            InvalidInput: the filter is malformed.
        """
        masks = self.matching(wanted) or []
        keys = [live.segment.doc_keys[mask] for live, mask in zip(self.segments, masks, strict=True)]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *keys]))


def _stored_options(record: Mapping[str, Any], where: str) -> IndexOptions:
    sizes, analyzer = record["sizes"], record["analyzer"]
    if not isinstance(sizes, dict):
        raise FormatError(f"{where} is damaged: its sizes are {type(sizes).__name__}, not an object")
    name = None if analyzer is None else analyzer["name"]
    values = {**sizes, "analyzer": name, "segment_documents": record["segment_documents"]}
    values |= {name: record[name] for name in ("schema", "passages", "boosts", "word_weight") if name in record}
    if "schema" in values:
        values["schema"] = _without_unused(values["schema"])
    options: IndexOptions = from_json(IndexOptions, values, where)
    return options


def _without_unused(schema: Any) -> Any:
    """Return a stored schema without the boosts that earlier builds of this format stored, and never used."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, dict):
        return schema  # reading it as a schema names the damage
    kept = {
        name: {part: value for part, value in known.items() if part != "boost"} if isinstance(known, dict) else known
        for name, known in fields.items()
    }
    return {**schema, "fields": kept}


def _fills(live: LiveSegment, branch: Branch) -> bool:
    return live.segment.has(branch) and (branch == "tokens" or live.n_pending < live.n_live)
