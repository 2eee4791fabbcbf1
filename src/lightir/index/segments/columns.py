"""The metadata of a segment's documents as columns, one per field, on which filters, facets and sorting are array
operations.

A column is read from the store when a filter first names its field. It is kept with the segment, so a later view reads
only the columns of new segments. A value takes at most twelve bytes; each distinct text is kept once as a string.
"""

from __future__ import annotations

import bisect
import copy
import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from lightir.index.metadata_filters import AllOf, Among, Compared, Exists, FieldTest, Node, Not
from lightir.index.schema import FieldType, Span, span

Mask: TypeAlias = npt.NDArray[np.bool_]
Value: TypeAlias = tuple[int, str, Any]
"""Row number of a document, SQLite's name for the type of a value, and the value."""

Rows: TypeAlias = npt.NDArray[np.int32]
Values = TypeVar("Values", npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.float64])

COLUMNS_KEPT = 16
"""Maximum number of columns kept with a segment."""

HASHES_KEPT = 4
"""Maximum number of states of which a segment keeps the hashes of its documents' metadata."""

KINDS = ("null", "true", "false", "integer", "real", "text", "array", "object")
"""JSON types by SQLite's names."""

LARGE = "integer beyond 64 bits"
"""Type of integers that no array holds; they are compared one by one."""

EXACT_INT = 2**53
"""Largest integer up to which float64 represents all integers."""

NO_TIME, LAST_TIME = -(2**63), 2**63 - 1
"""Times in microseconds since 1970 before and after all dates, whose years have four digits."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


@dataclass(frozen=True, slots=True)
class TypedValues:
    """The values of one type in a column, as ranks among their distinct values.

    Attributes:
        distinct: distinct values, ascending: numbers, False and True, strings, or microseconds since 1970 of dates.
        rows: (n_entries,) int32, row number of each entry, ascending; a document has one entry per distinct value.
        ranks: (n_entries,) int32, position of each entry's value in `distinct`.
        least: (n_documents,) int32, rank of a document's least value; -1 without values.
        greatest: (n_documents,) int32, rank of a document's greatest value; -1 without values.
    """

    distinct: Sequence[Any]
    rows: npt.NDArray[np.int32]
    ranks: npt.NDArray[np.int32]
    least: npt.NDArray[np.int32]
    greatest: npt.NDArray[np.int32]

    @classmethod
    def of(cls, n: int, rows: npt.NDArray[Any], ranks: npt.NDArray[Any], distinct: Sequence[Any]) -> TypedValues:
        """Sort entries by row and rank, and remove repeated ones.

        Args:
            n: number of documents.
            rows: (n_entries,) row number of each entry.
            ranks: (n_entries,) rank of its value.
            distinct: distinct values, ascending.
        """
        width = max(len(distinct), 1)
        entries = rows.astype(np.int64) * width + ranks
        if np.any(entries[1:] <= entries[:-1]):
            entries = np.unique(entries)
        rows, ranks = (part.astype(np.int32) for part in np.divmod(entries, width))
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]][: len(rows)])
        least, greatest = np.full(n, -1, np.int32), np.full(n, -1, np.int32)
        least[rows[starts]] = ranks[starts]
        greatest[rows] = ranks  # the last assignment to a row holds
        return cls(distinct, rows, ranks, least, greatest)

    def counts(self, mask: Mask) -> npt.NDArray[np.int64]:
        """Return for each distinct value the number of documents of a mask that have it."""
        return np.bincount(self.ranks[mask[self.rows]], minlength=len(self.distinct))


class Column:
    """The values of a field: one entry per value, or per element of a list, of a document.

    Attributes:
        exists: (n_documents,) bool, whether a document has the field.
    """

    def __init__(self, n_documents: int, values: Iterable[Value]) -> None:
        """Group the values by type. Values other than null, true, false, numbers and texts match no test.

        Args:
            n_documents: number of documents of the segment.
            values: values of the field; a list has an entry besides those of its elements.
        """
        by_kind: dict[str, tuple[list[int], list[Any]]] = {kind: ([], []) for kind in (*KINDS, LARGE)}
        for row, kind, value in values:
            rows, kept = by_kind[LARGE if kind == "integer" and not _is_int64(value) else kind]
            rows.append(row)
            kept.append(value)
        arrays = {kind: (np.array(rows, dtype=np.int32), kept) for kind, (rows, kept) in by_kind.items()}
        self.exists = np.zeros(n_documents, dtype=np.bool_)
        for kind in arrays:
            self.exists[arrays[kind][0]] = True
        self._constants = {kind: arrays[kind][0] for kind in ("null", "true", "false")}
        self._ints = arrays["integer"][0], np.array(arrays["integer"][1], dtype=np.int64)
        self._floats = arrays["real"][0], np.array(arrays["real"][1], dtype=np.float64)
        self._large: tuple[npt.NDArray[np.int32], list[int]] = arrays[LARGE]
        self._codes: dict[str, int] = {}
        codes = [self._codes.setdefault(text, len(self._codes)) for text in arrays["text"][1]]
        self._texts = arrays["text"][0], np.array(codes, dtype=np.int32)
        self._typed: dict[FieldType, TypedValues] = {}

    @property
    def texts(self) -> list[str]:
        """The distinct texts among the values, and some that were values before a change."""
        return list(self._codes)

    def texts_like(self, text: str) -> list[str]:
        """Return the texts that equal another one but for case."""
        return self._folded.get(text.casefold(), [])

    @cached_property
    def _folded(self) -> dict[str, list[str]]:
        folded: dict[str, list[str]] = {}
        for text in self._codes:
            folded.setdefault(text.casefold(), []).append(text)
        return folded

    @property
    def is_wasteful(self) -> bool:
        """Whether most of the texts that the column keeps are no longer values, after many patches."""
        return len(self._codes) > 2 * len(self._texts[0]) + 1000

    def patched(self, rows: npt.NDArray[np.int64], fresh: Column) -> Column:
        """Return the column with other values of some documents.

        Args:
            rows: row numbers of documents.
            fresh: column that has values of these documents alone.
        """
        kept = np.ones(len(self.exists), dtype=np.bool_)
        kept[rows] = False
        column = copy.copy(fresh)
        column._typed, column._codes = {}, dict(self._codes)
        column.exists = (self.exists & kept) | fresh.exists
        column._constants = {
            kind: np.concatenate([old[kept[old]], fresh._constants[kind]]) for kind, old in self._constants.items()
        }
        column._ints = _replaced(self._ints, kept, fresh._ints)
        column._floats = _replaced(self._floats, kept, fresh._floats)
        codes = np.array([column._codes.setdefault(text, len(column._codes)) for text in fresh._codes], dtype=np.int32)
        column._texts = _replaced(self._texts, kept, (fresh._texts[0], codes[fresh._texts[1]]))
        large_rows, large = self._large
        still = kept[large_rows]
        values = [value for value, keep in zip(large, still.tolist(), strict=True) if keep]
        column._large = np.concatenate([large_rows[still], fresh._large[0]]), values + fresh._large[1]
        return column

    def typed(self, kind: FieldType) -> TypedValues:
        """Return the values of a type; those of other types are ignored."""
        values = self._typed.get(kind)
        if values is None:
            values = self._typed[kind] = self._values_of(kind)
        return values

    def _values_of(self, kind: FieldType) -> TypedValues:
        n = len(self.exists)
        if kind == "boolean":
            no, yes = self._constants["false"], self._constants["true"]
            return TypedValues.of(n, np.concatenate([no, yes]), np.repeat([0, 1], [len(no), len(yes)]), [False, True])
        if kind in ("keyword", "text"):
            terms, ranks = self._ranked
            return TypedValues.of(n, self._texts[0], ranks[self._texts[1]], terms)
        if kind == "date":
            known = self._times != NO_TIME
            times, codes = np.unique(self._times[known], return_inverse=True)
            return TypedValues.of(n, self._texts[0][known], codes, times.tolist())
        rows = np.concatenate([self._ints[0], self._floats[0]])
        numbers, codes = _ranked_numbers(self._ints[1], self._floats[1])
        return TypedValues.of(n, rows, codes, numbers)

    @cached_property
    def _ranked(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """All texts by code point, the order of Python and of UTF-8 bytes, and the rank of each code."""
        terms = sorted(self._codes)
        ranks = np.zeros(len(terms), dtype=np.int32)
        ranks[[self._codes[term] for term in terms]] = np.arange(len(terms))
        return terms, ranks

    @cached_property
    def _times(self) -> npt.NDArray[np.int64]:
        """Start of each text's span of time; NO_TIME for texts that are no dates."""
        spans = [span(text) for text in self._codes]
        starts = np.array([NO_TIME if known is None else known.start for known in spans], dtype=np.int64)
        return starts[self._texts[1]]

    def _times_between(self, start: int, end: int) -> Mask:
        mask: Mask = (self._times >= start) & (self._times < end)
        return mask

    def _times_compared(self, name: str, wanted: Span) -> Mask:
        """Compare times with a span: after it, from its start on, before it, or up to its end."""
        if name in ("gt", "gte"):
            return self._times_between(wanted.end if name == "gt" else wanted.start, LAST_TIME)
        return self._times_between(NO_TIME + 1, wanted.start if name == "lt" else wanted.end)

    def matching(self, test: Among | Compared) -> Mask:
        """Return the (n_documents,) mask of the documents with a value that passes a test."""
        mask = np.zeros(len(self.exists), dtype=np.bool_)
        if isinstance(test, Among):
            for name in test.constants:
                mask[self._constants[name]] = True
            self._mark_numbers(test.numbers, mask)
            self._mark_texts(test.texts, mask)
            for wanted in test.spans:
                mask[self._texts[0][self._times_between(wanted.start, wanted.end)]] = True
        elif isinstance(test.value, Span):
            mask[self._texts[0][self._times_compared(test.operator, test.value)]] = True
        elif isinstance(test.value, str):
            rows, codes = self._texts
            mask[rows[self._texts_compared(test.operator, test.value)[codes]]] = True
        else:
            rows, ints = self._ints
            mask[rows[_ints_compared(ints, test.operator, test.value)]] = True
            rows, floats = self._floats
            mask[rows[_floats_compared(floats, test.operator, test.value)]] = True
            rows, large = self._large
            mask[rows[np.array([_COMPARE[test.operator](value, test.value) for value in large], dtype=np.bool_)]] = True
        return mask

    def _mark_numbers(self, numbers: Sequence[int | float], mask: Mask) -> None:
        whole = [int(number) for number in numbers if number == math.floor(number) and _is_int64(number)]
        other = [float(number) for number in numbers if number == float(number)]
        for (rows, values), wanted in ((self._ints, whole), (self._floats, other)):
            if wanted and len(values):
                mask[rows[np.isin(values, np.array(wanted, dtype=values.dtype))]] = True
        rows, large = self._large
        if large:
            exact = set(numbers)
            mask[rows[np.array([value in exact for value in large], dtype=np.bool_)]] = True

    def rows_with(self, texts: Iterable[str]) -> Rows:
        """Return the row numbers of the documents with one of some texts, repeated if they have several."""
        codes = [self._codes[text] for text in texts if text in self._codes]
        return self._texts[0][np.isin(self._texts[1], codes)] if codes else np.zeros(0, np.int32)

    def _mark_texts(self, texts: Sequence[str], mask: Mask) -> None:
        mask[self.rows_with(texts)] = True

    def _texts_compared(self, name: str, text: str) -> Mask:
        """Return for each code whether its text compares so with another."""
        terms, ranks = self._ranked
        side = bisect.bisect_left if name in ("gte", "lt") else bisect.bisect_right
        first_above = side(terms, text)
        return ranks >= first_above if name in ("gt", "gte") else ranks < first_above


def _replaced(old: tuple[Rows, Values], kept: Mask, fresh: tuple[Rows, Values]) -> tuple[Rows, Values]:
    """Return the entries of the kept documents, and then the fresh ones."""
    keep = kept[old[0]]
    return np.concatenate([old[0][keep], fresh[0]]), np.concatenate([old[1][keep], fresh[1]])


def _ranked_numbers(
    ints: npt.NDArray[np.int64], floats: npt.NDArray[np.float64]
) -> tuple[list[int | float], npt.NDArray[Any]]:
    """Return the distinct numbers, ascending and whole ones as int, and the rank of each int and then each float."""
    if not len(floats):
        whole, codes = np.unique(ints, return_inverse=True)
        return whole.tolist(), codes
    if not len(ints) or max(-int(ints.min()), int(ints.max())) <= EXACT_INT:
        distinct, codes = np.unique(np.concatenate([ints.astype(np.float64), floats]), return_inverse=True)
        return [int(number) if number.is_integer() else number for number in distinct.tolist()], codes
    every = [*ints.tolist(), *floats.tolist()]
    exact = sorted({int(number) if number == math.floor(number) else number for number in every})  # ints are exact
    rank_of = {number: rank for rank, number in enumerate(exact)}
    return exact, np.array([rank_of[number] for number in every], dtype=np.int64)


def least(keys: npt.NDArray[Any], n: int) -> npt.NDArray[np.int64]:
    """Return the positions of the n smallest keys, smallest first; ties go to the smaller position."""
    positions = np.arange(len(keys))
    if 0 < n < len(keys):
        last = np.partition(keys, n - 1)[n - 1]
        below = np.flatnonzero(keys < last)
        positions = np.sort(np.concatenate([below, np.flatnonzero(keys == last)[: n - len(below)]]))
    return positions[np.argsort(keys[positions], kind="stable")][:n]


def _is_int64(number: int | float) -> bool:
    return -(2**63) <= number < 2**63


def _ints_compared(ints: npt.NDArray[np.int64], name: str, number: int | float) -> Mask:
    """Compare exactly, as SQLite compares a 64-bit integer with a float."""
    if not _is_int64(number):
        return np.full(len(ints), (number > 0) == (name in ("lt", "lte")))
    # An integer is above a number if it is above its floor, and at or above it if it is at or above its ceiling. A
    # float below 2**63 whose ceiling might not be below it is whole.
    whole = math.floor(number) if name in ("gt", "lte") else math.ceil(number)
    mask: Mask = _COMPARE[name](ints, np.int64(whole))
    return mask


def _floats_compared(floats: npt.NDArray[np.float64], name: str, number: int | float) -> Mask:
    """Compare exactly: an int that equals no float is between two floats, and the nearer one decides."""
    nearest = float(number)
    if nearest > number:
        name = "gte" if name in ("gt", "gte") else "lt"
    elif nearest < number:
        name = "gt" if name in ("gt", "gte") else "lte"
    mask: Mask = _COMPARE[name](floats, nearest)
    return mask


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """Reader of the metadata of one state of an index.

    Attributes:
        values: returns the values of a field, given its path and the keys of documents.
        described: number of times that the metadata of stored documents were replaced.
        generation: number of changes of any kind, deletions included.
        hashes: returns a hash of the metadata of each document, given their keys; None to read whole columns always.
    """

    values: Callable[[str, npt.NDArray[np.int64]], Iterable[Value]]
    described: int
    generation: int
    hashes: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]] | None = None


class Columns:
    """The columns of a segment; safe to use from several threads."""

    def __init__(self, doc_keys: npt.NDArray[np.int64]) -> None:
        """Start without columns.

        Args:
            doc_keys: (n,) keys of the documents in the store.
        """
        self._keys = doc_keys
        self._kept: OrderedDict[str, tuple[int, int, Column]] = OrderedDict()
        self._hashes: dict[int, npt.NDArray[np.int64]] = {}
        self._lock = threading.Lock()

    def matching(self, tree: Node, source: MetadataSource) -> Mask:
        """Return the (n,) mask of the documents that match a filter; for deleted documents it is undefined."""
        if isinstance(tree, Not):
            return ~self.matching(tree.part, source)
        if isinstance(tree, FieldTest):
            column = self.column(tree.path, source)
            if isinstance(tree.test, Exists):
                return column.exists if tree.test.exists else ~column.exists
            return column.matching(tree.test)
        mask = np.full(len(self._keys), isinstance(tree, AllOf))
        for part in tree.parts:
            if isinstance(tree, AllOf):
                mask &= self.matching(part, source)
            else:
                mask |= self.matching(part, source)
        return mask

    def column(self, path: str, source: MetadataSource) -> Column:
        """Return the column of a field.

        The kept one is returned unless metadata were replaced or documents deleted since.

        Args:
            path: JSON path of the field.
            source: reader of the metadata.
        """
        with self._lock:
            described, generation, column = self._kept.get(path, (-1, -1, None))
            if column is not None and described == source.described and generation <= source.generation:
                self._kept.move_to_end(path)
                return column
            column = self._read(path, source, described, column if generation < source.generation else None)
            if generation < source.generation:
                self._kept[path] = source.described, source.generation, column
                while len(self._kept) > COLUMNS_KEPT:
                    self._kept.popitem(last=False)
            return column

    def holds(self, path: str) -> bool:
        """Whether a column of the field is kept, perhaps of an earlier state."""
        return path in self._kept

    def _read(self, path: str, source: MetadataSource, described: int, earlier: Column | None) -> Column:
        """Read a column, or only the documents that have changed since an earlier one was read."""
        if source.hashes is None:
            return Column(len(self._keys), source.values(path, self._keys))
        before, now = self._hashes.get(described), self._hashes.get(source.described)
        if now is None:
            now = self._hashes[source.described] = source.hashes(self._keys)
            for other in sorted(self._hashes)[:-HASHES_KEPT]:
                del self._hashes[other]
        if earlier is None or before is None or earlier.is_wasteful:
            return Column(len(self._keys), source.values(path, self._keys))
        changed = np.flatnonzero(before != now)
        values = ((int(changed[i]), kind, value) for i, kind, value in source.values(path, self._keys[changed]))
        return earlier.patched(changed, Column(len(self._keys), values))
