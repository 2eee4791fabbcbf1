"""Metadata filters: a JSON object becomes a tree of tests, and that one SQL condition with parameters, or a bitmap.

    {"lang": "en", "year": {"gte": 2000, "lt": 2010}, "not": {"tags": {"in": ["draft", "old"]}}}

A field is a key of the metadata, or a path of keys joined by dots. Its test is a value (equality) or an object of
`gt`, `gte`, `lt`, `lte` (numbers with numbers, strings with strings by code point), `in` (a list of values) and
`exists` (true or false; null is there). `and` and `or` take a list of filters, `not` takes one; several keys in one
object must all hold. A list in the metadata meets a test when one of its elements does. A field that a document lacks,
or that holds another type, meets no test, so its `not` does. The empty filter matches everything.

What is wrong is named by its place. Searches test columns of values (lightir.index.segments.columns); the SQL, which
says the same, is for changes, and for filters of very many fields.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from lightir.errors import InvalidInput

Filter: TypeAlias = Mapping[str, Any]
Condition: TypeAlias = tuple[str, list[Any]]
"""SQL over the column metadata.value, and its parameters."""

RANGES = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
TESTS = (*RANGES, "in", "exists")
MAX_DEPTH, MAX_TESTS = 8, 500
# SQLite's parser has a stack of 100, its expressions are at most 1,000 deep, and every AND is a level.

_NUMBER = "('integer', 'real')"
_LEAST_INT, _MOST_INT = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Among:
    """Whether a value is one of some.

    Attributes:
        constants: of "null", "true" and "false".
        numbers: ints of 64 bits, and floats.
        texts: strings.
    """

    constants: tuple[str, ...]
    numbers: tuple[int | float, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """Whether a number, or a string, stands as it should to the one that is given; `operator` is one of RANGES'."""

    operator: str
    value: int | float | str


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether the field is there, or is not."""

    there: bool


@dataclass(frozen=True, slots=True)
class FieldTest:
    """A test of a field, which is a JSON path as SQLite has them."""

    path: str
    test: Among | Compared | Exists


@dataclass(frozen=True, slots=True)
class AllOf:
    """What holds if all of its parts do."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """What holds if one of its parts does."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """What holds if its part does not."""

    part: Node


Node: TypeAlias = AllOf | AnyOf | Not | FieldTest


def parse(wanted: Filter) -> Node:
    """A filter's tree.

    Raises:
        InvalidInput: the filter is malformed; the text names the place, as in `and[1].price.gte`.
    """
    tree = _all_of(wanted, "", 0)
    if sum(1 for _ in field_tests(tree)) > MAX_TESTS:
        raise _malformed("", f"more than {MAX_TESTS} tests; `in` takes any number of values")
    return tree


def field_tests(tree: Node) -> Iterator[FieldTest]:
    """All tests of a tree, in its order."""
    if isinstance(tree, FieldTest):
        yield tree
    else:
        for part in (tree.part,) if isinstance(tree, Not) else tree.parts:
            yield from field_tests(part)


def condition(wanted: Filter) -> Condition:
    """The SQL condition of a filter.

    Raises:
        InvalidInput: the filter is malformed.
    """
    return sql_of(parse(wanted))


def sql_of(tree: Node) -> Condition:
    """The SQL condition of a tree."""
    if isinstance(tree, AllOf):
        return _joined([sql_of(part) for part in tree.parts], " AND ", "1")
    if isinstance(tree, AnyOf):
        return _joined([sql_of(part) for part in tree.parts], " OR ", "0")
    if isinstance(tree, Not):
        sql, arguments = sql_of(tree.part)
        return f"NOT ({sql})", arguments
    if isinstance(tree.test, Exists):
        return f"json_type(metadata.value, ?) IS {'NOT ' if tree.test.there else ''}NULL", [tree.path]
    sql, arguments = _sql_of_values(tree.test)
    # json_each gives a single value as one row, a list's elements as many, and an object's members, which are refused.
    return (
        "CASE json_type(metadata.value, ?) WHEN 'object' THEN 0 ELSE "
        f"EXISTS (SELECT 1 FROM json_each(metadata.value, ?) WHERE {sql}) END",
        [tree.path, tree.path, *arguments],
    )


def _sql_of_values(test: Among | Compared) -> Condition:
    """The test of a value, which speaks of `type` and `atom`."""
    if isinstance(test, Compared):
        types = "('text')" if isinstance(test.value, str) else _NUMBER
        return f"type IN {types} AND atom {test.operator} ?", [test.value]
    parts: list[Condition] = [(f"type = '{each}'", []) for each in test.constants]
    for types, members in (("('text')", test.texts), (_NUMBER, test.numbers)):
        if len(members) == 1:
            parts.append((f"type IN {types} AND atom = ?", [members[0]]))
        elif members:
            chosen = "(SELECT each.atom FROM json_each(?) AS each)"
            parts.append((f"type IN {types} AND atom IN {chosen}", [json.dumps(members)]))
    return _joined(parts, " OR ", "0")


def _joined(parts: Sequence[Condition], operator: str, empty: str) -> Condition:
    if len(parts) < 2:
        return parts[0] if parts else (empty, [])
    return operator.join(f"({sql})" for sql, _ in parts), [each for _, arguments in parts for each in arguments]


def _all_of(wanted: Any, place: str, depth: int) -> Node:
    if not isinstance(wanted, Mapping):
        raise _malformed(place, f"expected an object, got {_shown(wanted)}")
    if depth > MAX_DEPTH:
        raise _malformed(place, f"nested deeper than {MAX_DEPTH}")
    return _all([_part(key, each, place, depth) for key, each in wanted.items()])


def _all(parts: Sequence[Node]) -> Node:
    return parts[0] if len(parts) == 1 else AllOf(tuple(parts))


def _part(key: Any, each: Any, place: str, depth: int) -> Node:
    if not isinstance(key, str):
        raise _malformed(place, f"a field is a string, got {_shown(key)}")
    here = f"{place}.{key}" if place else key
    if key in ("and", "or"):
        if not isinstance(each, Sequence) or isinstance(each, str | bytes):
            raise _malformed(here, f"expected a list of filters, got {_shown(each)}")
        parts = [_all_of(one, f"{here}[{i}]", depth + 1) for i, one in enumerate(each)]
        return _all(parts) if key == "and" else AnyOf(tuple(parts))
    if key == "not":
        return Not(_all_of(each, here, depth + 1))
    return _field(_path(key, here), each, here)


def _field(path: str, test: Any, place: str) -> Node:
    if not isinstance(test, Mapping):
        return FieldTest(path, _equals(test, place))
    if not test:
        raise _malformed(place, f"expected a value or one of {', '.join(TESTS)}, got {{}}")
    return _all([FieldTest(path, _test(name, value, f"{place}.{name}")) for name, value in test.items()])


def _test(name: Any, value: Any, place: str) -> Among | Compared | Exists:
    if name in RANGES:
        if isinstance(value, str):
            return Compared(RANGES[name], _checked(value, place))
        if _is_number(value):
            return Compared(RANGES[name], _number(value, place))
        raise _malformed(place, f"expected a number or a string, got {_shown(value)}")
    if name == "in":
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _malformed(place, f"expected a list of values, got {_shown(value)}")
        return _among(value, [f"{place}[{i}]" for i in range(len(value))])
    if name == "exists":
        if not isinstance(value, bool):
            raise _malformed(place, f"expected true or false, got {_shown(value)}")
        return Exists(value)
    raise _malformed(place, f"unknown test; expected one of {', '.join(TESTS)} (a nested field is written with dots)")


def _equals(value: Any, place: str) -> Among:
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise _malformed(place, f"expected a value or a test, got {_shown(value)}; one of several values is `in`")
    return _among([value], [place])


def _among(values: Sequence[Any], places: Sequence[str]) -> Among:
    constants, numbers, texts = [], [], []
    for value, here in zip(values, places, strict=True):
        if value is None or isinstance(value, bool):
            constants.append(json.dumps(value))
        elif isinstance(value, str):
            texts.append(_checked(value, here))
        elif _is_number(value):
            numbers.append(_number(value, here))
        else:
            raise _malformed(here, f"expected a string, a number, true, false or null, got {_shown(value)}")
    return Among(tuple(constants), tuple(numbers), tuple(texts))


def _path(field: str, place: str) -> str:
    keys = _checked(field, place).split(".")
    if not all(keys) or '"' in field or "\0" in field:
        raise _malformed(place, 'a field is one key or several joined by ".", without double quotes and NUL')
    # SQLite looks for a key as it stands in the JSON text, backslashes and control characters escaped.
    return "$" + "".join(f".{json.dumps(key, ensure_ascii=False)}" for key in keys)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: int | float, place: str) -> int | float:
    if not math.isfinite(value):
        raise _malformed(place, f"expected a finite number, got {value}")
    return float(value) if isinstance(value, int) and not _LEAST_INT <= value <= _MOST_INT else value


def _checked(value: str, place: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _malformed(place, f"{value[:40]!r} cannot be written as UTF-8") from None
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _malformed(place: str, what: str) -> InvalidInput:
    return InvalidInput(f"the filter is malformed at {place or 'its top'}: {what}")
