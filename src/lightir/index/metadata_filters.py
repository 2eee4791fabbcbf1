"""Metadata filters: a JSON object becomes a tree of tests, which lightir.index.segments.columns evaluates.

    {"lang": "en", "year": {"gte": 2000, "lt": 2010}, "not": {"tags": {"in": ["draft", "old"]}}}

A field is a key of the metadata, or a path of keys joined by dots. Its test is a value (equality) or an object of
`gt`, `gte`, `lt`, `lte` (numbers with numbers exactly, strings with strings by code point), `in` (a list of values) and
`exists` (true or false; a null exists). `and` and `or` take a list of filters, `not` takes one filter. All keys of an
object must match. A list in the metadata matches a test if one of its elements does. A field that is missing, or has
another type, matches no test, so it matches `not` of the test. The empty filter matches every document.

A field with a type in the index's schema is compared by it, and a value of another type is an error. Dates and
date-times are compared as spans of time: a date without a time is the whole day in UTC, so `lte` includes the day and
`gt` excludes it, and equality matches every time of the day.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lightir.errors import InvalidInput
from lightir.index.schema import Field, Schema, Span, span

Filter: TypeAlias = Mapping[str, Any]

RANGES = ("gt", "gte", "lt", "lte")
TESTS = (*RANGES, "in", "exists")
MAX_DEPTH, MAX_TESTS = 8, 500


@dataclass(frozen=True, slots=True)
class Among:
    """Test of whether a value is one of several.

    Attributes:
        constants: any of "null", "true" and "false".
        numbers: integers and floats, finite as float64.
        texts: strings.
        spans: spans of time, for date fields.
    """

    constants: tuple[str, ...]
    numbers: tuple[int | float, ...]
    texts: tuple[str, ...]
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """Comparison of a number with a number, of a string with a string, or of a date with a span of time.

    Attributes:
        operator: one of RANGES.
        value: right-hand side.
    """

    operator: str
    value: int | float | str | Span


@dataclass(frozen=True, slots=True)
class Exists:
    """Test of whether a field exists, or is missing."""

    exists: bool


@dataclass(frozen=True, slots=True)
class FieldTest:
    """Test of a field.

    Attributes:
        path: JSON path of the field, as SQLite writes it.
        test: test of its values.
    """

    path: str
    test: Among | Compared | Exists


@dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    part: Node


Node: TypeAlias = AllOf | AnyOf | Not | FieldTest


def parse(wanted: Filter, schema: Schema | None = None) -> Node:
    """Return the tree of a filter.

    Args:
        wanted: the filter.
        schema: types of fields; None if no field has one.

    Raises:
        InvalidInput: the filter is malformed, or compares a field with a value of another type; the message names the
            position, such as `and[1].price.gte`.
    """
    tree = _conjunction(wanted, "", 0, {} if schema is None else schema.fields)
    if sum(1 for _ in field_tests(tree)) > MAX_TESTS:
        raise _malformed("", f"more than {MAX_TESTS} tests; `in` takes any number of values")
    return tree


def field_tests(tree: Node) -> Iterator[FieldTest]:
    """Yield all tests of a tree in order."""
    if isinstance(tree, FieldTest):
        yield tree
    else:
        for part in (tree.part,) if isinstance(tree, Not) else tree.parts:
            yield from field_tests(part)


def _conjunction(wanted: Any, position: str, depth: int, types: Mapping[str, Field]) -> Node:
    if not isinstance(wanted, Mapping):
        raise _malformed(position, f"expected an object, got {_shown(wanted)}")
    if depth > MAX_DEPTH:
        raise _malformed(position, f"nested deeper than {MAX_DEPTH}")
    return _all_of([_entry(key, value, position, depth, types) for key, value in wanted.items()])


def _all_of(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _entry(key: Any, value: Any, position: str, depth: int, types: Mapping[str, Field]) -> Node:
    if not isinstance(key, str):
        raise _malformed(position, f"a field is a string, got {_shown(key)}")
    position = f"{position}.{key}" if position else key
    if key in ("and", "or"):
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _malformed(position, f"expected a list of filters, got {_shown(value)}")
        parts = [_conjunction(part, f"{position}[{i}]", depth + 1, types) for i, part in enumerate(value)]
        return _all_of(parts) if key == "and" else AnyOf(tuple(parts))
    if key == "not":
        return Not(_conjunction(value, position, depth + 1, types))
    return _field(json_path(key, position), value, position, types.get(key))


def _field(path: str, test: Any, position: str, known: Field | None) -> Node:
    if not isinstance(test, Mapping):
        return FieldTest(path, _by_type(_equals(test, position), known, position))
    if not test:
        raise _malformed(position, f"expected a value or one of {', '.join(TESTS)}, got {{}}")
    tests = [(f"{position}.{name}", _test(name, value, f"{position}.{name}")) for name, value in test.items()]
    return _all_of([FieldTest(path, _by_type(parsed, known, inner)) for inner, parsed in tests])


def _by_type(test: Among | Compared | Exists, known: Field | None, position: str) -> Among | Compared | Exists:
    """Return a test of a field of a known type, in which dates are spans of time.

    Raises:
        InvalidInput: a value of another type.
    """
    if known is None or isinstance(test, Exists):
        return test
    if isinstance(test, Compared):
        if known.type == "boolean":
            raise _malformed(position, "a boolean field has no order; compare it with true or false")
        value = test.value
        return Compared(test.operator, _value_of_type(value, known, position))
    booleans = [name == "true" for name in test.constants if name != "null"]
    values = [_value_of_type(value, known, position) for value in (*test.numbers, *test.texts, *booleans)]
    if known.type == "date":
        return Among(test.constants, (), (), tuple(value for value in values if isinstance(value, Span)))
    return test


def _value_of_type(value: Any, known: Field, position: str) -> Any:
    """Return a value of a filter, a date as a span of time."""
    if known.type == "number" and _is_number(value):
        return value
    if known.type == "boolean" and isinstance(value, bool):
        return value
    if known.type in ("keyword", "text") and isinstance(value, str):
        return value
    if known.type == "date" and isinstance(value, str) and (named := span(value)) is not None:
        return named
    expected = {
        "number": "a number",
        "boolean": "true or false",
        "date": 'an ISO 8601 date or date-time, such as "2024-05-31" or "2024-05-31T08:00:00Z"',
    }.get(known.type, "a string")
    raise _malformed(position, f"this {known.type} field is compared with {expected}, got {_shown(value)}")


def _test(name: Any, value: Any, position: str) -> Among | Compared | Exists:
    if name in RANGES:
        if isinstance(value, str):
            return Compared(name, _checked(value, position))
        if _is_number(value):
            return Compared(name, _number(value, position))
        raise _malformed(position, f"expected a number or a string, got {_shown(value)}")
    if name == "in":
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _malformed(position, f"expected a list of values, got {_shown(value)}")
        return _among(value, [f"{position}[{i}]" for i in range(len(value))])
    if name == "exists":
        if not isinstance(value, bool):
            raise _malformed(position, f"expected true or false, got {_shown(value)}")
        return Exists(value)
    raise _malformed(position, f"unknown test; expected one of {', '.join(TESTS)} (write a nested field with dots)")


def _equals(value: Any, position: str) -> Among:
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise _malformed(position, f"expected a value or a test, got {_shown(value)}; for one of several use `in`")
    return _among([value], [position])


def _among(values: Sequence[Any], positions: Sequence[str]) -> Among:
    constants, numbers, texts = [], [], []
    for value, position in zip(values, positions, strict=True):
        if value is None or isinstance(value, bool):
            constants.append(json.dumps(value))
        elif isinstance(value, str):
            texts.append(_checked(value, position))
        elif _is_number(value):
            numbers.append(_number(value, position))
        else:
            raise _malformed(position, f"expected a string, a number, true, false or null, got {_shown(value)}")
    return Among(tuple(constants), tuple(numbers), tuple(texts))


def json_path(field: str, position: str) -> str:
    """Return the JSON path of a field, as SQLite writes it.

    Raises:
        InvalidInput: the name is malformed; the message names the position.
    """
    keys = _checked(field, position).split(".")
    if not all(keys) or '"' in field or "\0" in field:
        raise _malformed(position, 'a field is one key or several joined by ".", without double quotes and NUL')
    # SQLite compares a key with its JSON text, in which backslashes and control characters are escaped.
    return "$" + "".join(f".{json.dumps(key, ensure_ascii=False)}" for key in keys)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: int | float, position: str) -> int | float:
    try:
        nearest = float(value)
    except OverflowError:
        nearest = math.inf
    if not math.isfinite(nearest):
        shown = value if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
        raise _malformed(position, f"expected a finite number below 1.8e308, got {shown}")
    return value


def _checked(value: str, position: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _malformed(position, f"{value[:40]!r} cannot be written as UTF-8") from None
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _malformed(position: str, problem: str) -> InvalidInput:
    return InvalidInput(f"the filter is malformed at {position or 'its top'}: {problem}")
