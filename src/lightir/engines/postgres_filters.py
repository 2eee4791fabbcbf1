"""Metadata filters as conditions of SQL over a jsonb column."""

from __future__ import annotations

import json
from typing import Any

from lightir.engines.engine import METADATA
from lightir.engines.filters import keys_of
from lightir.errors import InvalidInput
from lightir.index.metadata_filters import AllOf, Among, Compared, Exists, FieldTest, Node, Not

OPERATORS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

ELEMENTS = (
    "jsonb_array_elements(CASE jsonb_typeof({value}) WHEN 'array' THEN {value} ELSE jsonb_build_array({value}) END)"
)
"""A value, or the elements of a list, one of which has to match."""


def filter_sql(tree: Node) -> tuple[str, list[Any]]:
    """Return the condition of a filter, which is true or false for every row, and the values of its placeholders.

    Numbers are compared as decimal numbers, strings by code point.

    Raises:
        InvalidInput: a string with the character NUL, which PostgreSQL refuses.
    """
    if isinstance(tree, FieldTest):
        return _field_sql(tree)
    if isinstance(tree, Not):
        condition, values = filter_sql(tree.part)
        return f"(NOT {condition})", values
    is_all = isinstance(tree, AllOf)
    parts = [filter_sql(part) for part in tree.parts]
    joined = (" AND " if is_all else " OR ").join(condition for condition, _ in parts)
    return f"({joined})" if parts else str(is_all).lower(), [value for _, values in parts for value in values]


def _field_sql(test: FieldTest) -> tuple[str, list[Any]]:
    keys = [_text(key) for key in keys_of(test.path)]
    value = METADATA + " -> %s::text" * len(keys)
    if isinstance(test.test, Exists):
        return f"(({value}) IS {'NOT ' * test.test.exists}NULL)", keys
    matches, values = _among(test.test) if isinstance(test.test, Among) else _compared(test.test)
    elements = ELEMENTS.replace("{value}", value)
    condition = f"(({value}) IS NOT NULL AND EXISTS (SELECT 1 FROM {elements} AS e(v) WHERE {matches}))"
    return condition, [*keys, *keys, *keys, *keys, *values]


def _among(test: Among) -> tuple[str, list[Any]]:
    listed = [json.dumps(number) for number in test.numbers] + list(test.constants)
    listed += [json.dumps(_text(text), ensure_ascii=False) for text in test.texts]
    return "e.v = ANY(%s::jsonb[])", [listed]


def _compared(test: Compared) -> tuple[str, list[Any]]:
    operator = OPERATORS[test.operator]
    if isinstance(test.value, str):
        compared, kind, value = (
            f'(e.v #>> ARRAY[]::text[]) COLLATE "C" {operator} %s::text',
            "string",
            _text(test.value),
        )
    else:
        assert isinstance(test.value, int | float)
        compared, kind, value = (
            f"(e.v #>> ARRAY[]::text[])::numeric {operator} %s::numeric",
            "number",
            json.dumps(test.value),
        )
    return f"CASE jsonb_typeof(e.v) WHEN '{kind}' THEN {compared} ELSE false END", [value]


def _text(text: str) -> str:
    if "\0" in text:
        raise InvalidInput("a filter has a string with the character NUL, which PostgreSQL cannot compare")
    return text
