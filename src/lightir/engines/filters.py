"""Metadata filters in searches of an engine that cannot express all of them.

The engine gets a condition that every matching row meets, so that it lists few others. The searcher then tests the
metadata of the rows that are listed. So a filter means what it means in an index, whatever the engine makes of missing
fields, lists, numbers beyond 2^53 or negation.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightir.index.metadata_filters import AllOf, Among, AnyOf, Compared, Exists, FieldTest, Node, Not
from lightir.index.schema import Span, span

KEY = re.compile(r'\."((?:[^"\\]|\\.)*)"')
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
_MISSING = object()


def keys_of(path: str) -> list[str]:
    """Return the keys of the JSON path of a test."""
    return [json.loads(f'"{key}"') for key in KEY.findall(path)]


def matches(tree: Node, metadata: Mapping[str, Any]) -> bool:
    """Whether a document's metadata match a filter."""
    if isinstance(tree, Not):
        return not matches(tree.part, metadata)
    if isinstance(tree, AllOf):
        return all(matches(part, metadata) for part in tree.parts)
    if isinstance(tree, AnyOf):
        return any(matches(part, metadata) for part in tree.parts)
    value: Any = metadata
    for key in keys_of(tree.path):
        value = value.get(key, _MISSING) if isinstance(value, Mapping) else _MISSING
    test, elements = tree.test, value if isinstance(value, list) else [value]
    if isinstance(test, Exists):
        return (value is not _MISSING) == test.exists
    if isinstance(test, Among):
        return any(_is_among(test, element) for element in elements)
    return any(_compares(test, element) for element in elements)


def _is_among(test: Among, value: Any) -> bool:
    if value is None or isinstance(value, bool):
        return json.dumps(value) in test.constants
    if isinstance(value, str):
        return value in test.texts or any(_is_time(value, wanted.start, wanted.end) for wanted in test.spans)
    return isinstance(value, int | float) and value in test.numbers


def _is_time(value: Any, start: float, end: float) -> bool:
    """Whether a value is a date or date-time that begins in a range of microseconds."""
    time = span(value) if isinstance(value, str) else None
    return time is not None and start <= time.start < end


def _compares(test: Compared, value: Any) -> bool:
    if isinstance(test.value, Span):
        if test.operator in ("gt", "gte"):
            return _is_time(value, test.value.end if test.operator == "gt" else test.value.start, math.inf)
        return _is_time(value, -math.inf, test.value.start if test.operator == "lt" else test.value.end)
    if isinstance(test.value, str):
        return isinstance(value, str) and COMPARE[test.operator](value, test.value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and COMPARE[test.operator](value, test.value)


def has_dates(test: Among | Compared | Exists) -> bool:
    """Whether a test compares spans of time, which engines do not know."""
    return bool(test.spans) if isinstance(test, Among) else isinstance(test, Compared) and isinstance(test.value, Span)


def condition(
    tree: Node,
    of_test: Callable[[list[str], Among | Compared], Any],
    joined: Callable[[Sequence[Any], bool], Any],
) -> Any:
    """Return a condition of an engine that all rows meet which match a filter; None if all rows may match.

    Args:
        tree: the filter.
        of_test: gets the keys of a field, all of them letters, digits and _, and its test; returns a condition that all
            matching rows meet, or None.
        joined: gets conditions, and whether all of them or any one must be met; any one of none matches nothing.
    """
    if isinstance(tree, Not):
        return None
    if isinstance(tree, FieldTest):
        if isinstance(tree.test, Exists) or has_dates(tree.test):
            return None
        if isinstance(tree.test, Among) and not (tree.test.constants or tree.test.numbers or tree.test.texts):
            return joined([], False)
        keys = keys_of(tree.path)
        return of_test(keys, tree.test) if all(map(PLAIN_KEY.fullmatch, keys)) else None
    parts = [condition(part, of_test, joined) for part in tree.parts]
    known = [part for part in parts if part is not None]
    if isinstance(tree, AllOf):
        return joined(known, True) if known else None
    return joined(known, False) if len(known) == len(parts) else None
