"""Documents of a view in the order of their ids or of a field, and counts of a field's values: array operations.

A sort by a field puts documents without a value last, and equal values in the order of ids. In ascending order a list
counts as its least value, in descending order as its greatest. Fields are compared by their types in the schema.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightir.errors import InvalidInput
from lightir.index.metadata_filters import Filter, json_path
from lightir.index.schema import Field
from lightir.index.segments.columns import Mask, TypedValues, least
from lightir.index.view import View
from lightir.kernel import DocOrds


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of documents by a field.

    Attributes:
        field: name of the field, which has a type in the schema.
        descending: whether the greatest value comes first.
    """

    field: str
    descending: bool = False

    @classmethod
    def parse(cls, text: str) -> Sort:
        """Return the order that "price", "price:asc" or "price:desc" names.

        Raises:
            InvalidInput: the text is not a name.
        """
        if not isinstance(text, str) or not text.removesuffix(":desc").removesuffix(":asc"):
            raise InvalidInput(f"the sort is {text!r}; expected a field, as in 'price' or 'price:desc'")
        return cls(text.removesuffix(":asc").removesuffix(":desc"), text.endswith(":desc"))


@dataclass(frozen=True, slots=True)
class FacetCount:
    """A value of a field and the number of documents that have it.

    Attributes:
        value: number, boolean or string; dates are strings.
        count: number of documents.
    """

    value: Any
    count: int


class Listing:
    """Selected documents of a view, to be counted and listed."""

    def __init__(self, view: View, masks: Sequence[Mask]) -> None:
        """Put a view and a selection together.

        Args:
            view: the view.
            masks: (n,) bool per segment, the selected documents, which are live.
        """
        self._view = view
        self._masks = masks

    @classmethod
    def of(cls, view: View, wanted: Filter | None) -> Listing:
        """Return the documents that match a filter; None for all.

        Raises:
            InvalidInput: the filter is malformed.
        """
        return cls(view, view.matching(wanted) or [live.live for live in view.segments])

    def __len__(self) -> int:
        """Number of selected rows: documents and passages."""
        return sum(int(np.count_nonzero(mask)) for mask in self._masks)

    def n_documents(self) -> int:
        """Return the number of documents, each of which may have several selected passages."""
        return len(self.one_per_document()) if self._view.has_passages else len(self)

    def one_per_document(self) -> Listing:
        """Return a selection of the whole documents, and of one passage of each document that has selected ones.

        It is the selected passage with the least id, whatever the segments.
        """
        if not self._view.has_passages:
            return self
        numbers = self._view.document_numbers
        n_documents = 1 + max((int(of_segment.max(initial=-1)) for of_segment in numbers), default=0)
        segment_of, row_of = np.full(n_documents, -1), np.full(n_documents, -1)
        ids = [live.segment.doc_ids for live in self._view.segments]
        for position, (of_segment, mask) in enumerate(zip(numbers, self._masks, strict=True)):
            rows = np.flatnonzero(mask)[::-1]
            first = np.full(n_documents, -1)
            first[of_segment[rows]] = rows  # the last assignment is that of the first row
            chosen = first >= 0
            for document in np.flatnonzero(chosen & (segment_of >= 0)).tolist():
                known = ids[segment_of[document]][int(row_of[document])]
                chosen[document] = ids[position][int(first[document])] < known
            segment_of[chosen], row_of[chosen] = position, first[chosen]
        masks = [np.zeros_like(mask) for mask in self._masks]
        for position, mask in enumerate(masks):
            mask[row_of[segment_of == position]] = True
        return Listing(self._view, masks)

    def first(self, n: int, *, after: str | None = None) -> DocOrds:
        """Return the doc_ords of the first n documents in the order of their ids.

        Args:
            n: maximum number of documents.
            after: id that all ids are above; None for no limit.
        """
        parts = []
        for live, mask in zip(self._view.segments, self._masks, strict=True):
            start = 0 if after is None else live.segment.doc_ids.first_above(after)
            rows = np.flatnonzero(mask[start:])[:n] + start
            parts.append((rows + live.first_ord).astype(np.uint32))
        doc_ords = np.concatenate([np.zeros(0, np.uint32), *parts])
        if len([part for part in parts if len(part)]) > 1:
            doc_ords = doc_ords[self._view.ids.order(doc_ords, np.zeros(len(doc_ords)))]
        return doc_ords[:n]

    def sorted(self, order: Sort, n: int) -> DocOrds:
        """Return the doc_ords of the first n documents in the order of a field.

        Raises:
            InvalidInput: the field has no type.
        """
        return np.array([doc_ord for *_, doc_ord in self.sorted_entries(order, n)], dtype=np.uint32)

    def sorted_entries(self, order: Sort, n: int) -> list[tuple[bool, Any, str, int]]:
        """Return the first n documents in the order of a field with what they are ordered by.

        Returns:
            For each document whether it lacks a value, its value as a sort key, its id and its doc_ord.

        Raises:
            InvalidInput: the field has no type.
        """
        self._known(order.field)
        parts = [self._first_of_segment(position, order, n) for position in range(len(self._masks))]
        return [*itertools.islice(heapq.merge(*parts, key=lambda entry: entry[:3]), n)]

    def _first_of_segment(self, position: int, order: Sort, n: int) -> list[tuple[bool, Any, str, int]]:
        """Return whether each document lacks a value, its value as a sort key, its id and its doc_ord, in order."""
        live, values = self._view.segments[position], self.values(order.field, position)
        rows = np.flatnonzero(self._masks[position])
        ranks = (values.greatest if order.descending else values.least)[rows]
        n_values = len(values.distinct)
        keys = np.where(ranks < 0, n_values, n_values - 1 - ranks if order.descending else ranks)
        chosen = rows[least(keys, n)]
        entries = []
        for row in chosen.tolist():
            rank = int((values.greatest if order.descending else values.least)[row])
            key: Any = 0 if rank < 0 else values.distinct[rank]
            if rank >= 0 and order.descending:
                key = _Reversed(key)
            entries.append((rank < 0, key, live.segment.doc_ids[row], live.first_ord + row))
        return entries

    def groups_of(self, doc_ords: Sequence[int], field: str) -> Iterator[Any]:
        """Yield the group of each document: its value of a field, of a list the least; None without a value.

        Raises:
            InvalidInput: the field has no type.
        """
        self._known(field)
        tables = [self.values(field, position) for position in range(len(self._masks))]
        at, rows = self._view.locate(np.asarray(doc_ords, dtype=np.uint32))
        for segment, row in zip(at.tolist(), rows.tolist(), strict=True):
            rank = int(tables[segment].least[row])
            yield None if rank < 0 else tables[segment].distinct[rank]

    def facet(self, field: str, n: int) -> tuple[FacetCount, ...]:
        """Return the n values of a field that most documents have; ties go to the smaller value.

        Raises:
            InvalidInput: the field has no type.
        """
        kind = self._known(field).type
        totals: Counter[Any] = Counter()
        for position, mask in enumerate(self._masks):
            values = self.values(field, position, as_text=kind == "date")
            counts = values.counts(mask)
            if len(self._masks) == 1:
                best = least(-counts, n)
                return tuple(FacetCount(values.distinct[i], int(counts[i])) for i in best.tolist() if counts[i])
            for rank in np.flatnonzero(counts).tolist():
                totals[values.distinct[rank]] += int(counts[rank])
        best_values = heapq.nsmallest(n, totals.items(), key=lambda item: (-item[1], item[0]))
        return tuple(FacetCount(value, count) for value, count in best_values)

    def values(self, field: str, position: int, *, as_text: bool = False) -> TypedValues:
        """Return the values of a field in a segment.

        Args:
            field: name of the field.
            position: position of the segment.
            as_text: whether dates are strings.

        Raises:
            InvalidInput: the field has no type.
        """
        known, view = self._known(field), self._view
        column = view.segments[position].segment.columns.column(json_path(field, field), view.metadata_source)
        return column.typed("keyword" if as_text else known.type)

    def _known(self, field: str) -> Field:
        schema = self._view.schema
        if schema is None:
            raise InvalidInput(
                f"{self._view.folder} has no schema, so its fields have no types to sort, count or group by; build it "
                "again with lightir index (in Python: IndexOptions(schema=...))"
            )
        return schema.require(field)


class _Reversed:
    """A value that compares in the opposite order."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]
