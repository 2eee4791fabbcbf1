"""Training examples, in memory or left in their file: what is left there is read when a batch asks for it."""

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
    """One query with the documents that answer it.

    Attributes:
        query_id: unique in its set.
        query: the query's text.
        positive_ids: relevant documents, at least one.
        negative_ids: hard negatives, best first; may be empty.
        dataset: the set's name.
        answers: strings that answer the query, where the data set gives them (`metadata.answers`).
        scores: a teacher's of the positives, then of the negatives, NaN where it gave none; () without a teacher.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    dataset: str
    answers: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()


class TrainingRow(NamedTuple):
    """One line of a file, or row of a table: a query with some of its documents.

    Attributes:
        query_id: rows of one query have the same.
        query: its text.
        positive_ids: at least one.
        negative_ids: may be empty.
        documents: the texts of both, where the row holds them; () where a collection does.
        scores: a teacher's of both, NaN where it gave none; () without any.
    """

    query_id: str
    query: str
    positive_ids: tuple[str, ...]
    negative_ids: tuple[str, ...]
    documents: tuple[Document, ...] = ()
    scores: tuple[float, ...] = ()


class RowSource(Protocol):
    """A file or table of rows that can be read at any place."""

    def rows(self) -> Iterator[tuple[int, TrainingRow]]:
        """All rows in order, each with the place where `row` finds it again."""

    def row(self, place: int) -> TrainingRow:
        """The row at a place."""

    def where(self, place: int) -> str:
        """The place in words, for errors."""


def parse_document(value: Any, where: str) -> Document:
    """A document as examples give it: a text, or an object with "text", perhaps "title", and an id, "_id" or "docid".

    Without an id a hash of title and text is it.

    Raises:
        InvalidInput: it is neither; `where` names the place.
    """
    fields = value if isinstance(value, dict) else {"text": value}
    text = check_text(fields.get("text"), f"{where}: text")
    title = check_text(fields.get("title") or "", f"{where}: title")
    content = hashlib.sha256(f"{title}\0{text}".encode()).hexdigest()[:16]
    name = "docid" if "docid" in fields else "_id"
    return Document(check_text(fields.get(name, content), f"{where}: {name}"), text, title)


def parse_scores(values: Sequence[Any], where: str) -> tuple[float, ...]:
    """A teacher's scores as examples give them: numbers, or None where it gave none, which becomes NaN.

    Raises:
        InvalidInput: something else; `where` names the place.
    """
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidInput(f"{where}: the score {value!r} is no number")
    return tuple(math.nan if value is None else float(value) for value in values)


class LazyExamples(Sequence[TrainingExample]):
    """One example a query, made of all its rows. In memory are 8 bytes a row and 8 a query, and no text.

    Positives and negatives are those of the rows, each once, in their order; a positive of any row is no negative.
    """

    def __init__(self, source: RowSource, starts: Locations, places: Locations, *, name: str) -> None:
        """Example i is of the rows at places[starts[i]:starts[i + 1]]."""
        self._source, self._starts, self._places, self._name = source, starts, places, name

    def __len__(self) -> int:
        """Number of examples."""
        return len(self._starts) - 1

    @overload
    def __getitem__(self, position: int) -> TrainingExample: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[TrainingExample]: ...

    def __getitem__(self, position: int | slice) -> TrainingExample | Sequence[TrainingExample]:
        """The example, read and joined now; of a slice, examples that stay in the file."""
        if isinstance(position, slice):
            return self.select(np.arange(len(self))[position])
        position = range(len(self))[position]
        return self._joined([self._source.row(int(place)) for place in self._row_places(position)])

    @property
    def most_positives(self) -> int:
        """No example has more positives than this."""
        return int(np.diff(self._starts).max(initial=0))

    def queries(self) -> Iterator[Query]:
        """Every example's query, in order."""
        for first in self._starts[:-1]:
            row = self._source.row(int(self._places[first]))
            yield Query(row.query_id, row.query)

    def select(self, positions: npt.NDArray[np.int64]) -> LazyExamples:
        """Some of the examples."""
        lengths = np.diff(self._starts)[positions]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        places = self._places[np.repeat(self._starts[:-1][positions], lengths) + within]
        return LazyExamples(self._source, starts, places, name=self._name)

    def digest(self) -> str:
        """A hash over which rows are taken."""
        return hashlib.sha256(self._starts.tobytes() + self._places.tobytes()).hexdigest()

    def _row_places(self, position: int) -> Locations:
        return self._places[self._starts[position] : self._starts[position + 1]]

    def _joined(self, rows: Sequence[TrainingRow]) -> TrainingExample:
        first = rows[0]
        positives = dict.fromkeys(doc_id for row in rows for doc_id in row.positive_ids)
        negatives = dict.fromkeys(doc_id for row in rows for doc_id in row.negative_ids if doc_id not in positives)
        scores = _joined_scores(rows, [*positives, *negatives])
        return TrainingExample(
            first.query_id, first.query, tuple(positives), tuple(negatives), self._name, scores=scores
        )


def _joined_scores(rows: Sequence[TrainingRow], doc_ids: Sequence[str]) -> tuple[float, ...]:
    known: dict[str, float] = {}
    for row in rows:
        for doc_id, score in zip((*row.positive_ids, *row.negative_ids), row.scores, strict=False):
            if math.isfinite(score):
                known.setdefault(doc_id, score)
    return tuple(known.get(doc_id, math.nan) for doc_id in doc_ids) if known else ()


@dataclass(frozen=True, slots=True)
class RowSet:
    """What one pass over a source found.

    Attributes:
        examples: one a query, in the order in which the queries first came.
        documents: all that the rows name, or the collection's.
        digest: a hash over all rows, and the collection's documents where there is one.
    """

    examples: LazyExamples
    documents: LazyDocuments
    digest: str


def read_rows(source: RowSource, *, name: str, collection: LazyDocuments | None = None, digest: str = "") -> RowSet:
    """One pass over a source: which rows are of which query, and where documents lie.

    Args:
        source: read once through.
        name: the set's.
        collection: the documents that rows name by id; None where the rows hold the texts.
        digest: the collection's.

    Raises:
        InvalidInput: a row names a document that the collection lacks, or an id has two texts; the place is named.
    """
    queries, texts, places = array("Q"), array("Q"), array("q")
    own = LazyDocumentsBuilder(lambda place: source.row(place).documents, source.where, repeats=True)
    named, named_at = array("Q"), array("q")
    total = hashlib.sha256(digest.encode())
    for place, row in source.rows():
        queries.append(hash_text(row.query_id))
        texts.append(hash_text(row.query))
        places.append(place)
        total.update(repr(row).encode())
        for document in row.documents:
            own.add(document, place)
        if collection is not None:
            for doc_id in (*row.positive_ids, *row.negative_ids):
                named.append(hash_text(doc_id))
                named_at.append(place)
            if len(named) >= ROWS_AT_ONCE:
                _require_known(source, collection, named, named_at)
                named, named_at = array("Q"), array("q")
    if collection is not None:
        _require_known(source, collection, named, named_at)
    starts, order = _by_query(np.asarray(queries, np.uint64))
    ordered = np.asarray(places, np.int64)[order]
    _require_one_text(source, np.asarray(texts, np.uint64)[order], starts, ordered)
    examples = LazyExamples(source, starts, ordered, name=name)
    return RowSet(examples, own.build() if collection is None else collection, total.hexdigest())


def _require_known(source: RowSource, collection: LazyDocuments, keys: array[int], places: array[int]) -> None:
    lacking = np.flatnonzero(collection.lacks(np.asarray(keys, dtype=np.uint64)))
    if len(lacking):
        place, key = places[int(lacking[0])], keys[int(lacking[0])]
        row = source.row(place)
        doc_id = next(each for each in (*row.positive_ids, *row.negative_ids) if hash_text(each) == key)
        raise InvalidInput(f"{source.where(place)}: document {doc_id!r} is not in the collection")


def _by_query(queries: IdHashes) -> tuple[Locations, Locations]:
    """Starts (n + 1,) and the order of the rows: queries by their first row, a query's rows as they came."""
    _, first, group = np.unique(queries, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(first))
    number = rank[group]
    starts = np.concatenate([[0], np.cumsum(np.bincount(number, minlength=len(first)))]).astype(np.int64)
    return starts, np.argsort(number, kind="stable")


def _require_one_text(source: RowSource, texts: IdHashes, starts: Locations, places: Locations) -> None:
    another = np.flatnonzero(texts != np.repeat(texts[starts[:-1]], np.diff(starts)))
    if len(another):
        place = int(places[int(another[0])])
        row = source.row(place)
        raise InvalidInput(
            f"{source.where(place)}: query {row.query_id!r} is {row.query!r}, but came before with another text"
        )
