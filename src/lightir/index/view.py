"""A view: one state of an index, which never changes; what the writer does meanwhile is seen by later views."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.analysis import BAG, OF_A_MODEL, Analyzer
from lightir.contract import Contract, from_json
from lightir.errors import FormatError, InvalidInput
from lightir.index import metadata_filters
from lightir.index.bm25 import K1, B, idf, mean_length
from lightir.index.metadata_filters import Filter
from lightir.index.options import IndexOptions
from lightir.index.segments.columns import Mask, MetadataSource
from lightir.index.segments.layout import SEGMENTS_FOLDER, StoredSegment
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.segment import Segment
from lightir.index.store import STORE_FILE, DocKeys, Store
from lightir.index.token_queries import TokenQueries
from lightir.kernel.segments import DenseRows, DenseSegments, DocumentIds, SparseRows, SparseSegments
from lightir.types import BRANCHES, Branch, Document
from lightir.vectors import Ragged, SparseVectors

INDEX_VERSION = 2
FILTERS_KEPT = 16
"""Bitmaps of so many filters are kept with a view."""

TERMS_KEPT = 100_000
"""So many query terms' places in the segments are kept with a view."""


class View:
    """One state of an index: its segments, tombstones and counts. It never changes, so a search takes it once.

    Every document has a number in it, its doc_ord, which counts through the segments, deleted documents too. Within a
    segment doc_ords ascend with doc_ids; over several segments they do not, see `break_ties`.
    """

    def __init__(
        self, folder: Path, store: Store, *, before: View | None = None, skip_damaged: bool = False, exact: bool = False
    ) -> None:
        """Open the state that a store shows; the view owns the store's connection.

        Args:
            folder: of the index.
            store: a snapshot, or the writer's connection.
            before: an earlier view, whose segments need not be opened again if it is of this process and this store:
                another index has others by the same numbers, or other metadata for the same ones.
            skip_damaged: leave segments out that cannot be opened, and list them in `damaged`.
            exact: leave graphs over dense rows alone.

        Raises:
            FormatError: a file is missing, damaged or of another version; the file is named.
        """
        self.folder = folder
        self.store = store
        self.exact = exact
        self.record = checked_record(folder, store)
        self.generation = store.generation()
        where = str(folder / STORE_FILE)
        contract, analyzer = self.record["contract"], self.record["analyzer"]
        self.contract: Contract | None = None if contract is None else from_json(Contract, contract, where)
        self.analyzer: Analyzer | None = None if analyzer is None else from_json(Analyzer, analyzer, where)
        self.options = _stored_options(self.record, where)
        self.damaged: list[str] = []
        """What is wrong with each segment that was left out."""
        opened: dict[int, LiveSegment] = {}
        if before is not None and not before.store.inherited and store.is_same(before.store):
            opened = {each.number: each for each in before.segments}
        self.segments: tuple[LiveSegment, ...] = tuple(self._open(store.segments(), opened, skip_damaged))
        self._first_ords = np.array([each.first_ord for each in self.segments], dtype=np.int64)
        self._terms: dict[str | int, tuple[int, tuple[int, ...]]] = {}
        self._matching: OrderedDict[metadata_filters.Node, list[Mask]] = OrderedDict()
        self.prepared: dict[Any, Any] = {}
        """What searches made ready for more of their kind; it goes with the view."""

    def _open(
        self, stored: Sequence[StoredSegment], opened: Mapping[int, LiveSegment], skip_damaged: bool
    ) -> Iterator[LiveSegment]:
        first_ord = 0
        for each in stored:
            known = opened.get(each.number)
            try:
                folder = self.folder / SEGMENTS_FOLDER / each.name
                segment = Segment(folder, each.manifest_sha256) if known is None else known.segment
            except FormatError as error:
                if not skip_damaged:
                    raise
                self.damaged.append(str(error))
                continue
            live = LiveSegment(each.number, segment, each.deleted, first_ord)
            # What an earlier view has counted of a segment that is still the same need not be counted again.
            yield live if known is None or not known.equals(live) else known
            first_ord += each.documents

    def missing(self) -> list[str]:
        """The ids of the documents whose segments were left out as damaged; their texts are still in the store."""
        if not self.damaged:
            return []
        keys = np.concatenate([np.zeros(0, np.int64), *(each.segment.doc_keys[each.places] for each in self.segments)])
        there = set(keys.tolist())
        return [doc_id for key, doc_id in self.store.documents_by_key() if key not in there]

    def problems(self) -> list[str]:
        """What is wrong with the segments that were left out, and then how many documents are missing for it."""
        if not self.damaged:
            return []
        return [
            *self.damaged,
            f"{len(self.missing()):,} of {len(self.store.documents_by_key()):,} documents are missing",
        ]

    def __len__(self) -> int:
        """Number of documents."""
        return sum(each.n_live for each in self.segments)

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched: those with vectors of one document at least, and tokens."""
        found = [branch for branch in BRANCHES if any(_fills(each, branch) for each in self.segments)]
        if self.analyzer is not None and "tokens" not in found:
            found.append("tokens")
        return tuple(found)

    @property
    def counts_model_terms(self) -> bool:
        """Whether the tokens branch is over the model's term ids, counted or as bags."""
        return self.analyzer is not None and self.analyzer.name in OF_A_MODEL

    @property
    def holds_bags(self) -> bool:
        """Whether the tokens branch holds bags of the model's terms, for queries that the encoder weights."""
        return self.analyzer is not None and self.analyzer.name == BAG

    @cached_property
    def dense_dim(self) -> int | None:
        """Width of the dense rows; None where there are none."""
        widths = [each.segment.dense[0].shape[1] for each in self.segments if each.segment.dense is not None]
        return int(widths[0]) if widths else None

    @cached_property
    def n_pending(self) -> int:
        """Number of documents that wait for their vectors."""
        return sum(each.n_pending for each in self.segments)

    @cached_property
    def is_whole(self) -> bool:
        """Whether every document of every segment may be found in every branch: none is deleted, none waits."""
        return self.n_pending == 0 and all(each.deleted is None for each in self.segments)

    @cached_property
    def waits(self) -> Mask:
        """By doc_ord, whether a document waits for its vectors; deleted ones too."""
        return np.concatenate([np.zeros(0, np.bool_), *(each.segment.pending for each in self.segments)])

    @cached_property
    def mean_length(self) -> float:
        """The mean number of terms of the documents."""
        return mean_length(sum(each.total_length for each in self.segments), len(self))

    def require(self, branch: Branch) -> None:
        """Nothing, or InvalidInput where the branch cannot be searched."""
        if branch not in self.branches:
            raise InvalidInput(f"{self.folder} has no {branch} branch; it has {', '.join(self.branches)}")

    # Rows, for the scores of given documents

    @cached_property
    def dense_rows(self) -> DenseSegments:
        """The dense rows of all segments."""
        return DenseSegments([_dense_rows(each.segment) for each in self.segments], self._sizes)

    @cached_property
    def graphless_rows(self) -> DenseSegments | None:
        """The dense rows of the segments without a graph; None where all have one."""
        rows = [None if each.segment.graph is not None else _dense_rows(each.segment) for each in self.segments]
        return DenseSegments(rows, self._sizes) if any(each is not None for each in rows) else None

    @cached_property
    def sparse_rows(self) -> SparseSegments:
        """The learned sparse rows of all segments."""
        found = [each.segment.sparse for each in self.segments]
        rows = [
            None if each is None else SparseRows(each.indptr, each.term_ids, each.weights, each.postings)
            for each in found
        ]
        return SparseSegments(rows, self._sizes)

    @cached_property
    def token_rows(self) -> SparseSegments:
        """The term counts, or bags, of all segments."""
        rows: list[SparseRows | None] = []
        for each in self.segments:
            tokens, bags = each.segment.tokens, each.segment.holds_bags
            if tokens is None:
                rows.append(None)
                continue
            parts = tokens.indptr, tokens.term_ids, tokens.weights, tokens.postings
            rows.append(
                SparseRows(*parts, binary=True)
                if bags
                else SparseRows(*parts, each.segment.lengths, each.segment.mean_length)
            )
        return SparseSegments(rows, self._sizes, k1=K1, b=B)

    @property
    def _sizes(self) -> list[int]:
        return [len(each.segment) for each in self.segments]

    # Documents

    def locate(self, doc_ords: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Each document's segment and its place there."""
        at = np.searchsorted(self._first_ords, doc_ords, side="right") - 1
        return at, doc_ords - self._first_ords[at]

    def doc_ids(self, doc_ords: npt.NDArray[np.uint32]) -> list[str]:
        """The ids of documents."""
        return self.ids.texts(doc_ords)

    def doc_ord(self, doc_id: str) -> int | None:
        """A document's number, or None.

        Raises:
            InvalidInput: the id is no str.
        """
        if not isinstance(doc_id, str):
            raise InvalidInput(f"a doc_id is {type(doc_id).__name__}; expected str")
        for each in self.segments:
            place = each.segment.doc_ids.find(doc_id)
            if place is not None and each.live[place]:
                return each.first_ord + place
        return None

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """The documents with the given ids, in the order of the ids.

        Raises:
            NotFound: there is no such document.
        """
        return self.store.documents(doc_ids)

    def pending(self) -> Iterator[str]:
        """The ids of the documents that wait for their vectors, segment by segment."""
        for each in self.segments:
            if each.n_pending:
                for place in np.flatnonzero(each.segment.pending & each.live).tolist():
                    yield each.segment.doc_ids[place]

    def break_ties(self, doc_ords: npt.NDArray[np.uint32], scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """The order of the total ranking, score down, then doc_id up, for documents whose scores fall already.

        Returns:
            (n,) places.
        """
        if self.ids_ascend or len(doc_ords) < 2:
            return np.arange(len(doc_ords))
        return self.ids.order(doc_ords, scores)

    @cached_property
    def ids_ascend(self) -> bool:
        """Whether ids ascend with doc_ords over all segments, so that ties, whose doc_ords ascend, are in order."""
        ends = [each.segment.doc_ids.ends() for each in self.segments]
        return all(before[1] < after[0] for before, after in itertools.pairwise(ends))

    @cached_property
    def ids(self) -> DocumentIds:
        """The ids of all documents, deleted ones too."""
        return DocumentIds([each.segment.doc_ids.arrays for each in self.segments])

    # Searching

    def matching(self, wanted: Filter | None) -> list[Mask] | None:
        """For each segment which documents a filter matches; None without a filter.

        Raises:
            InvalidInput: the filter is malformed.
        """
        if wanted is None:
            return None
        tree = metadata_filters.parse(wanted)
        masks = self._matching.get(tree)
        if masks is None:
            source = MetadataSource(self.store.values_of, self.store.described(), self.generation)
            masks = [live.segment.columns.matching(tree, source) & live.live for live in self.segments]
            self._matching[tree] = masks
            while len(self._matching) > FILTERS_KEPT:
                self._matching.popitem(last=False)
        return masks

    def matching_keys(self, wanted: Filter) -> DocKeys:
        """Return the keys of the documents that match a filter, ascending.

        Raises:
            InvalidInput: the filter is malformed.
        """
        masks = self.matching(wanted) or []
        keys = [live.segment.doc_keys[mask] for live, mask in zip(self.segments, masks, strict=True)]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *keys]))

    def token_queries(self, rows: Sequence[Sequence[str | int]], *, idfs: bool = True) -> TokenQueries:
        """Queries that were cut into words, or into the model's term ids, for the tokens branch.

        Args:
            rows: each query's terms.
            idfs: weights are count x idf, as BM25 wants them; otherwise counts.

        Raises:
            InvalidInput: the index has no tokens branch.
        """
        self.require("tokens")
        distinct = sorted({term for row in rows for term in row})
        facts = {term: self._facts(term) for term in distinct}
        terms = [term for term in distinct if facts[term][0]]
        at = {term: place for place, term in enumerate(terms)}
        counts = SparseVectors.count(
            Ragged.from_lists([[at[term] for term in row if term in at] for row in rows]), vocab_size=len(terms)
        )
        rarities = np.array([idf(len(self), facts[term][0]) if idfs else 1.0 for term in terms], dtype=np.float64)
        weights = (counts.weights.astype(np.float64) * rarities[counts.term_ids]).astype(np.float32)
        places = np.array([facts[term][1] for term in terms], dtype=np.int64).reshape(len(terms), len(self.segments))
        return TokenQueries(terms, counts.with_weights(weights), list(places.T))

    def bag_queries(self, queries: SparseVectors) -> TokenQueries:
        """Queries with weights over the model's vocabulary, for a tokens branch of bags; they are taken as they are.

        Raises:
            InvalidInput: the index has no tokens branch.
        """
        self.require("tokens")
        distinct, places = np.unique(queries.term_ids, return_inverse=True)
        found = [each.segment.term_positions(distinct) for each in self.segments]
        vectors = SparseVectors(queries.indptr, places.astype(np.uint32), queries.weights, max(len(distinct), 1))
        return TokenQueries(distinct.tolist(), vectors, found)

    def _facts(self, term: str | int) -> tuple[int, tuple[int, ...]]:
        """In how many documents a term occurs, and its place in each segment's dictionary, or -1."""
        found = self._terms.get(term)
        if found is None:
            places = [each.segment.terms.find(term) for each in self.segments]  # type: ignore[arg-type]
            pairs = zip(self.segments, places, strict=True)
            df = sum(each.df(place) for each, place in pairs if place is not None)
            found = df, tuple(-1 if place is None else place for place in places)
            if len(self._terms) >= TERMS_KEPT:
                self._terms.clear()
            self._terms[term] = found
        return found


def checked_record(folder: Path, store: Store) -> dict[str, Any]:
    """What the store says of the index as a whole.

    Raises:
        FormatError: it is of a version that this release does not read.
    """
    record = store.record()
    if not isinstance(record, dict):
        raise FormatError(f"{folder / STORE_FILE} is damaged: its record is {type(record).__name__}, not an object")
    if record.get("format_version") != INDEX_VERSION:
        raise FormatError(
            f"{folder} has index format {record.get('format_version')!r}, written by lightir "
            f"{record.get('written_by')!r}; this release reads {INDEX_VERSION}; "
            "build it again with `lightir index`"
        )
    if lacking := {"contract", "analyzer", "sizes", "segment_documents"} - record.keys():
        raise FormatError(f"{folder / STORE_FILE} is damaged: its record lacks {', '.join(sorted(lacking))}")
    return record


def _stored_options(record: Mapping[str, Any], where: str) -> IndexOptions:
    sizes, analyzer = record["sizes"], record["analyzer"]
    if not isinstance(sizes, dict):
        raise FormatError(f"{where} is damaged: its sizes are {type(sizes).__name__}, not an object")
    name = None if analyzer is None else analyzer["name"]
    values = {**sizes, "analyzer": name, "segment_documents": record["segment_documents"]}
    options: IndexOptions = from_json(IndexOptions, values, where)
    return options


def _dense_rows(segment: Segment) -> DenseRows | None:
    return None if segment.dense is None else (*segment.dense, segment.dense_copies)


def _fills(each: LiveSegment, branch: Branch) -> bool:
    return each.segment.has(branch) and (branch == "tokens" or each.n_pending < each.n_live)
