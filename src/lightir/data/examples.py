"""Training examples, in memory or read from their file when a batch needs them."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from lightir.data.lazy_documents import (
    ROWS_AT_ONCE,
    IdHashes,
    LazyDocuments,
    LazyDocumentsBuilder,
    Locations,
    hash_text,
)
from lightir.errors import InvalidInput
from lightir.text import check_text
from lightir.types import Document, Query


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A query with its relevant documents and hard negatives.

    Attributes:
        query_id: id, unique in the set.
        query: text of the query.
        positive_ids: ids of relevant documents, at least one.
        negative_ids: ids of hard negatives, best first; may be empty.
        dataset: name of the set.
        answers: strings that answer the query, if the data set has them (`metadata.answers`).
        scores: a teacher's scores of the positives, then of the negatives; NaN where one is missing, () without a
            teacher.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    dataset: str
    answers: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


class TrainingRow(NamedTuple):
    """A line of a file, or row of a table: a query with some of its documents.

    Attributes:
        query_id: id of the query; several rows may share it.
        query: text of the query.
        positive_ids: ids of relevant documents, at least one.
        negative_ids: ids of hard negatives; may be empty.
        documents: the documents of both, or () if a separate collection holds them.
        scores: a teacher's scores of both, NaN where one is missing; () without a teacher.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    documents: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()


class RowSource(Protocol):
    """A file or table with random access to its rows; a location is a byte offset or a row number."""

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """Iterate over all rows in order, each with its location."""

    def row(self, location: int) -> TrainingRow:
        """Read the row at a location."""

    def describe(self, location: int) -> str:
        """Name a location for error messages."""


def parse_document(value: Any, where: str) -> Document:
    """Parse a document of an example: a text, or an object with "text", optional "title" and "_id" or "docid".

    A document without an id gets a hash of its title and text as id.

    Raises:
        InvalidInput: the value is neither; the message begins with `where`.
    """
    fields = value if isinstance(value, dict) else {"text": value}
    text = check_text(fields.get("text"), f"{where}: text")
    title = check_text(fields.get("title") or "", f"{where}: title")
    content = hashlib.sha256(f"{title}\0{text}".encode()).hexdigest()[:16]
    name = "docid" if "docid" in fields else "_id"
    return Document(check_text(fields.get(name, content), f"{where}: {name}"), text, title)


def parse_scores(values: Sequence[Any], where: str) -> tuple[float, ...]:
    """Parse a teacher's scores: numbers, or None for a missing one, which becomes NaN.

    Raises:
        InvalidInput: a value is neither; the message begins with `where`.
    """
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidInput(f"{where}: the score {value!r} is not a number")
    return tuple(math.nan if value is None else float(value) for value in values)


class LazyExamples(Sequence[TrainingExample]):
    """One example per query, joined from the query's rows on access; memory holds 8 bytes per row and per query.

    An example has the positives and negatives of its rows in their order, each once. A positive of any row is not a
    negative.
    """

    def __init__(self, source: RowSource, starts: Locations, locations: Locations, *, name: str) -> None:
        """Wrap arrays: example i consists of the rows at locations[starts[i]:starts[i + 1]]."""
        self._source, self._starts, self._locations, self._name = source, starts, locations, name

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._starts) - 1

    @overload
    def __getitem__(self, position: int) -> TrainingExample: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[TrainingExample]: ...

    def __getitem__(self, position: int | slice) -> TrainingExample | Sequence[TrainingExample]:
        """Read an example; a slice gives lazy examples."""
        if isinstance(position, slice):
            return self.select(np.arange(len(self))[position])
        position = range(len(self))[position]
        return self._join([self._source.row(int(location)) for location in self._row_locations(position)])

    @property
    def most_positives(self) -> int:
        """Upper bound of an example's number of positives."""
        return int(np.diff(self._starts).max(initial=0))

    def queries(self) -> Iterator[Query]:
        """Iterate over the examples' queries, in order."""
        for first in self._starts[:-1]:
            row = self._source.row(int(self._locations[first]))
            yield Query(row.query_id, row.query)

    def select(self, positions: npt.NDArray[np.int64]) -> LazyExamples:
        """Return the examples at some positions."""
        lengths = np.diff(self._starts)[positions]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        locations = self._locations[np.repeat(self._starts[:-1][positions], lengths) + within]
        return LazyExamples(self._source, starts, locations, name=self._name)

    def digest(self) -> str:
        """Return a hash of the selection of rows."""
        return hashlib.sha256(self._starts.tobytes() + self._locations.tobytes()).hexdigest()

    def _row_locations(self, position: int) -> Locations:
        return self._locations[self._starts[position] : self._starts[position + 1]]

    def _join(self, rows: Sequence[TrainingRow]) -> TrainingExample:
        first = rows[0]
        positives = dict.fromkeys(doc_id for row in rows for doc_id in row.positive_ids)
        negatives = dict.fromkeys(doc_id for row in rows for doc_id in row.negative_ids if doc_id not in positives)
        scores = _join_scores(rows, [*positives, *negatives])
        return TrainingExample(
            first.query_id, first.query, tuple(positives), tuple(negatives), self._name, scores=scores
        )


def _join_scores(rows: Sequence[TrainingRow], doc_ids: Sequence[str]) -> tuple[float, ...]:
    known: dict[str, float] = {}
    for row in rows:
        for doc_id, score in zip((*row.positive_ids, *row.negative_ids), row.scores, strict=False):
            if math.isfinite(score):
                known.setdefault(doc_id, score)
    return tuple(known.get(doc_id, math.nan) for doc_id in doc_ids) if known else ()


@dataclass(frozen=True, slots=True)
class RowSet:
    """The result of one pass over a source of rows.

    Attributes:
        examples: one per query, in the order of the queries' first rows.
        documents: documents of the rows, or of the collection.
        digest: hash of all rows, and of the collection if there is one.
    """

    examples: LazyExamples
    documents: LazyDocuments
    digest: str


def read_rows(source: RowSource, *, name: str, collection: LazyDocuments | None = None, digest: str = "") -> RowSet:
    """Read a source once and record which rows belong to which query, and the documents' locations.

    Args:
        source: rows.
        name: name of the set.
        collection: documents that rows name by id; None if the rows hold the texts.
        digest: hash of the collection.

    Raises:
        InvalidInput: a row names a document that the collection lacks, or an id has two texts; the message names the
            location.
    """
    queries, texts, locations = array("Q"), array("Q"), array("q")
    own = LazyDocumentsBuilder(lambda location: source.row(location).documents, source.describe, repeats=True)
    named, named_at = array("Q"), array("q")
    total = hashlib.sha256(digest.encode())
    for location, row in source.rows():
        queries.append(hash_text(row.query_id))
        texts.append(hash_text(row.query))
        locations.append(location)
        total.update(repr(row).encode())
        for document in row.documents:
            own.add(document, location)
        if collection is not None:
            for doc_id in (*row.positive_ids, *row.negative_ids):
                named.append(hash_text(doc_id))
                named_at.append(location)
            if len(named) >= ROWS_AT_ONCE:
                _require_known(source, collection, named, named_at)
                named, named_at = array("Q"), array("q")
    if collection is not None:
        _require_known(source, collection, named, named_at)
    starts, order = _group_by_query(np.asarray(queries, np.uint64))
    ordered = np.asarray(locations, np.int64)[order]
    _require_one_text(source, np.asarray(texts, np.uint64)[order], starts, ordered)
    examples = LazyExamples(source, starts, ordered, name=name)
    return RowSet(examples, own.build() if collection is None else collection, total.hexdigest())


def _require_known(source: RowSource, collection: LazyDocuments, id_hashes: array[int], locations: array[int]) -> None:
    missing = np.flatnonzero(collection.lacks(np.asarray(id_hashes, dtype=np.uint64)))
    if len(missing):
        location, id_hash = locations[int(missing[0])], id_hashes[int(missing[0])]
        row = source.row(location)
        doc_id = next(doc_id for doc_id in (*row.positive_ids, *row.negative_ids) if hash_text(doc_id) == id_hash)
        raise InvalidInput(f"{source.describe(location)}: document {doc_id!r} is not in the collection")


def _group_by_query(queries: IdHashes) -> tuple[Locations, Locations]:
    """Return starts (n + 1,) and the order of the rows: queries by their first row, a query's rows in file order."""
    _, first, group = np.unique(queries, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    number = rank[group]
    starts = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=len(first)))]).astype(np.int64)
    return starts, np.argsort(number, kind="stable")


def _require_one_text(source: RowSource, texts: IdHashes, starts: Locations, locations: Locations) -> None:
    other = np.flatnonzero(texts != np.repeat(texts[starts[:-1]], np.diff(starts)))
    if len(other):
        location = int(locations[int(other[0])])
        row = source.row(location)
        raise InvalidInput(
            f"{source.describe(location)}: query {row.query_id!r} has the text {row.query!r}, but another one earlier"
        )
