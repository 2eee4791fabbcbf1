"""The metadata of a segment's documents as columns, a field each, which filters test by array operations.

A column is read out of the store when a filter first names its field, and kept with the segment, so that what a later
view adds is all that is read for it. A value takes twelve bytes at most, and each different text is there once as a
string. The tests say what those of lightir.index.metadata_filters' SQL say.
"""

from __future__ import annotations

import bisect
import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.index.metadata_filters import AllOf, Among, Compared, Exists, FieldTest, Node, Not

Mask: TypeAlias = npt.NDArray[np.bool_]
Value: TypeAlias = tuple[int, str, Any]
"""The place of a document, SQLite's name of a value's type, and the value."""

COLUMNS_KEPT = 16
"""Columns that are kept with a segment."""

KINDS = ("null", "true", "false", "integer", "real", "text", "array", "object")
"""JSON's types as SQLite names them."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Column:
    """A field's values: an entry for every value, or element of a list, that a document has there.

    Attributes:
        there: (n_documents,) whether a document has the field.
    """

    def __init__(self, n_documents: int, values: Iterable[Value]) -> None:
        """Sort the values by their types; what is neither null, true, false, a number nor a text meets no test.

        Args:
            n_documents: of the segment.
            values: of the field; a list has an entry of its own, beside those of its elements.
        """
        kinds: dict[str, tuple[list[int], list[Any]]] = {each: ([], []) for each in KINDS}
        for place, kind, value in values:
            places, kept = kinds[kind if kind != "integer" or isinstance(value, int) else "real"]
            places.append(place)
            kept.append(value)
        arrays = {kind: (np.array(places, dtype=np.int32), kept) for kind, (places, kept) in kinds.items()}
        self.there = np.zeros(n_documents, dtype=np.bool_)
        for kind in KINDS:
            self.there[arrays[kind][0]] = True
        self._constants = {kind: arrays[kind][0] for kind in ("null", "true", "false")}
        self._ints = arrays["integer"][0], np.array(arrays["integer"][1], dtype=np.int64)
        self._floats = arrays["real"][0], np.array(arrays["real"][1], dtype=np.float64)
        self._codes: dict[str, int] = {}
        codes = [self._codes.setdefault(text, len(self._codes)) for text in arrays["text"][1]]
        self._texts = arrays["text"][0], np.array(codes, dtype=np.int32)

    @cached_property
    def _ranked(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """All texts by code point, which is Python's order and that of UTF-8's bytes, and each code's rank."""
        terms = sorted(self._codes)
        ranks = np.zeros(len(terms), dtype=np.int32)
        ranks[[self._codes[term] for term in terms]] = np.arange(len(terms))
        return terms, ranks

    def meets(self, test: Among | Compared) -> Mask:
        """(n_documents,) whether one of a document's values meets a test."""
        found = np.zeros(len(self.there), dtype=np.bool_)
        if isinstance(test, Among):
            for name in test.constants:
                found[self._constants[name]] = True
            self._find_numbers(test.numbers, found)
            self._find_texts(test.texts, found)
        elif isinstance(test.value, str):
            self._order(test.operator, test.value, found)
        else:
            self._compare(test.operator, test.value, found)
        return found

    def _find_numbers(self, numbers: Sequence[int | float], found: Mask) -> None:
        whole = [int(each) for each in numbers if each == math.floor(each) and -(2**63) <= each < 2**63]
        other = [float(each) for each in numbers if each == float(each)]
        for (places, values), wanted in ((self._ints, whole), (self._floats, other)):
            if wanted and len(values):
                found[places[np.isin(values, np.array(wanted, dtype=values.dtype))]] = True

    def _find_texts(self, texts: Sequence[str], found: Mask) -> None:
        codes = [self._codes[text] for text in texts if text in self._codes]
        if codes:
            found[self._texts[0][np.isin(self._texts[1], codes)]] = True

    def _order(self, sign: str, text: str, found: Mask) -> None:
        terms, ranks = self._ranked
        side = bisect.bisect_left if sign in (">=", "<") else bisect.bisect_right
        first_above = side(terms, text)
        chosen = ranks >= first_above if sign in (">", ">=") else ranks < first_above
        found[self._texts[0][chosen[self._texts[1]]]] = True

    def _compare(self, sign: str, number: int | float, found: Mask) -> None:
        places, ints = self._ints
        found[places[_ints_compared(ints, sign, number)]] = True
        places, floats = self._floats
        found[places[_floats_compared(floats, sign, number)]] = True


def _ints_compared(ints: npt.NDArray[np.int64], sign: str, number: int | float) -> Mask:
    """Exactly, as SQLite compares an integer of 64 bits with a float."""
    if not -(2**63) <= number < 2**63:
        return np.full(len(ints), (number > 0) == (sign in ("<", "<=")))
    # Integers are above a number if they are above its floor, and at or above it if they are so to its ceiling. A float
    # below 2**63 that is so large that its ceiling might not be is whole.
    whole = math.floor(number) if sign in (">", "<=") else math.ceil(number)
    found: Mask = _COMPARE[sign](ints, np.int64(whole))
    return found


def _floats_compared(floats: npt.NDArray[np.float64], sign: str, number: int | float) -> Mask:
    """Exactly: an int that no float equals lies between two floats, and is compared by way of the nearer one."""
    nearest = float(number)
    if nearest > number:
        sign = ">=" if sign in (">", ">=") else "<"
    elif nearest < number:
        sign = ">" if sign in (">", ">=") else "<="
    found: Mask = _COMPARE[sign](floats, nearest)
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """Where the metadata of one state of an index are read.

    Attributes:
        values: of a field, by the places of the documents' keys.
        described: how often documents were given other metadata.
        generation: the number of changes of any kind, in which documents may have gone.
    """

    values: Callable[[str, npt.NDArray[np.int64]], Iterable[Value]]
    described: int
    generation: int


class Columns:
    """A segment's columns; safe to use from several threads."""

    def __init__(self, doc_keys: npt.NDArray[np.int64]) -> None:
        """No column is read yet.

        Args:
            doc_keys: (n,) the documents' keys in the store.
        """
        self._keys = doc_keys
        self._kept: OrderedDict[str, tuple[int, int, Column]] = OrderedDict()
        self._lock = threading.Lock()

    def matching(self, tree: Node, source: Source) -> Mask:
        """(n,) which documents a filter matches. What it says of documents that are gone means nothing."""
        if isinstance(tree, Not):
            return ~self.matching(tree.part, source)
        if isinstance(tree, FieldTest):
            column = self._column(tree.path, source)
            if isinstance(tree.test, Exists):
                return column.there if tree.test.there else ~column.there
            return column.meets(tree.test)
        found = np.full(len(self._keys), isinstance(tree, AllOf))
        for part in tree.parts:
            if isinstance(tree, AllOf):
                found &= self.matching(part, source)
            else:
                found |= self.matching(part, source)
        return found

    def _column(self, path: str, source: Source) -> Column:
        """The column that is kept, if no metadata were replaced since and no document had gone before; or a new one."""
        with self._lock:
            described, generation, column = self._kept.get(path, (-1, -1, None))
            if column is not None and described == source.described and generation <= source.generation:
                self._kept.move_to_end(path)
                return column
            column = Column(len(self._keys), source.values(path, self._keys))
            if generation < source.generation:
                self._kept[path] = source.described, source.generation, column
                while len(self._kept) > COLUMNS_KEPT:
                    self._kept.popitem(last=False)
            return column
