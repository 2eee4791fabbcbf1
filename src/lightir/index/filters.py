"""Metadata filters: a JSON object becomes one SQL condition with parameters; what is wrong is named by its place.

    {"lang": "en", "year": {"gte": 2000, "lt": 2010}, "not": {"tags": {"in": ["draft", "old"]}}}

A field is a key of the metadata, or a path of keys joined by dots. Its test is a value (equality) or an object of
`gt`, `gte`, `lt`, `lte` (numbers with numbers, strings with strings by code point), `in` (a list of values) and
`exists` (true or false; null is there). `and` and `or` take a list of filters, `not` takes one; several keys in one
object must all hold. A list in the metadata meets a test when one of its elements does. A field that a document lacks,
or that holds another type, meets no test, so its `not` does. The empty filter matches everything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
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


def condition(wanted: Filter) -> Condition:
    """The SQL condition of a filter.

    Raises:
        InvalidInput: the filter is malformed; the text names the place, as in `and[1].price.gte`.
    """
    sql, arguments = _all_of(wanted, "", 0)
    if sql.count("json_type(") > MAX_TESTS:
        raise _malformed("", f"more than {MAX_TESTS} tests; `in` takes any number of values")
    return sql, arguments


def _all_of(wanted: Any, place: str, depth: int) -> Condition:
    if not isinstance(wanted, Mapping):
        raise _malformed(place, f"expected an object, got {_shown(wanted)}")
    if depth > MAX_DEPTH:
        raise _malformed(place, f"nested deeper than {MAX_DEPTH}")
    parts = [_part(key, each, place, depth) for key, each in wanted.items()]
    return _joined(parts, " AND ", "1")


def _part(key: Any, each: Any, place: str, depth: int) -> Condition:
    if not isinstance(key, str):
        raise _malformed(place, f"a field is a string, got {_shown(key)}")
    here = f"{place}.{key}" if place else key
    if key in ("and", "or"):
        if not isinstance(each, Sequence) or isinstance(each, str | bytes):
            raise _malformed(here, f"expected a list of filters, got {_shown(each)}")
        parts = [_all_of(one, f"{here}[{i}]", depth + 1) for i, one in enumerate(each)]
        return _joined(parts, f" {key.upper()} ", "1" if key == "and" else "0")
    if key == "not":
        sql, arguments = _all_of(each, here, depth + 1)
        return f"NOT ({sql})", arguments
    return _field(_path(key, here), each, here)


def _field(path: str, test: Any, place: str) -> Condition:
    if not isinstance(test, Mapping):
        return _any_element(path, _equals(test, place))
    if not test:
        raise _malformed(place, f"expected a value or one of {', '.join(TESTS)}, got {{}}")
    return _joined([_test(path, name, value, f"{place}.{name}") for name, value in test.items()], " AND ", "1")


def _test(path: str, name: Any, value: Any, place: str) -> Condition:
    if name in RANGES:
        return _any_element(path, _compares(RANGES[name], value, place))
    if name == "in":
        if not isinstance(value, Sequence) or isinstance(value, str | bytes):
            raise _malformed(place, f"expected a list of values, got {_shown(value)}")
        return _any_element(path, _is_in(value, place))
    if name == "exists":
        if not isinstance(value, bool):
            raise _malformed(place, f"expected true or false, got {_shown(value)}")
        return f"json_type(metadata.value, ?) IS {'NOT ' if value else ''}NULL", [path]
    raise _malformed(place, f"unknown test; expected one of {', '.join(TESTS)} (a nested field is written with dots)")


def _any_element(path: str, test: Condition) -> Condition:
    """The test, which speaks of `type` and `atom`, over a single value or over a list's elements."""
    sql, arguments = test
    # json_each gives a single value as one row, a list's elements as many, and an object's members, which are refused.
    return (
        "CASE json_type(metadata.value, ?) WHEN 'object' THEN 0 ELSE "
        f"EXISTS (SELECT 1 FROM json_each(metadata.value, ?) WHERE {sql}) END",
        [path, path, *arguments],
    )


def _equals(value: Any, place: str) -> Condition:
    if value is None:
        return "type = 'null'", []
    if isinstance(value, bool):
        return f"type = '{str(value).lower()}'", []
    if isinstance(value, Sequence) and not isinstance(value, str):
        raise _malformed(place, f"expected a value or a test, got {_shown(value)}; one of several values is `in`")
    return _compares("=", value, place)


def _compares(operator: str, value: Any, place: str) -> Condition:
    if isinstance(value, str):
        return f"type = 'text' AND atom {operator} ?", [_checked(value, place)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"type IN {_NUMBER} AND atom {operator} ?", [_number(value, place)]
    raise _malformed(place, f"expected a number or a string, got {_shown(value)}")


def _is_in(values: Sequence[Any], place: str) -> Condition:
    parts, numbers, texts = [], [], []
    for i, value in enumerate(values):
        here = f"{place}[{i}]"
        if value is None or isinstance(value, bool):
            parts.append(_equals(value, here))
        elif isinstance(value, str):
            texts.append(_checked(value, here))
        elif isinstance(value, int | float):
            numbers.append(_number(value, here))
        else:
            raise _malformed(here, f"expected a string, a number, true, false or null, got {_shown(value)}")
    for types, members in (("('text')", texts), (_NUMBER, numbers)):
        if members:
            chosen = "(SELECT each.atom FROM json_each(?) AS each)"
            parts.append((f"type IN {types} AND atom IN {chosen}", [json.dumps(members)]))
    return _joined(parts, " OR ", "0")


def _joined(parts: Sequence[Condition], operator: str, empty: str) -> Condition:
    if len(parts) < 2:
        return parts[0] if parts else (empty, [])
    return operator.join(f"({sql})" for sql, _ in parts), [each for _, arguments in parts for each in arguments]


def _path(field: str, place: str) -> str:
    keys = _checked(field, place).split(".")
    if not all(keys) or '"' in field or "\0" in field:
        raise _malformed(place, 'a field is one key or several joined by ".", without double quotes and NUL')
    # SQLite looks for a key as it stands in the JSON text, backslashes and control characters escaped.
    return "$" + "".join(f".{json.dumps(key, ensure_ascii=False)}" for key in keys)


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
