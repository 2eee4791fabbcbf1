"""LlamaIndex's metadata filters in lightir's form."""

from __future__ import annotations

from typing import Any

from llama_index.core.vector_stores import FilterCondition, FilterOperator, MetadataFilter, MetadataFilters

from lightir.errors import InvalidInput
from lightir.index import Filter

RANGES = {
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "gte",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "lte",
}


def lightir_filter(filters: MetadataFilters) -> Filter:
    """Return the filter of lightir with the meaning of LlamaIndex's.

    "!=" and "nin" match documents without the field. A list in the metadata matches if one of its elements does.

    Raises:
        InvalidInput: "text_match" and "text_match_insensitive", which have no counterpart: search for the words.
    """
    parts = [lightir_filter(part) if isinstance(part, MetadataFilters) else _test(part) for part in filters.filters]
    if filters.condition == FilterCondition.OR:
        return {"or": parts}
    if filters.condition == FilterCondition.NOT:
        return {"not": {"or": parts}}
    return {"and": parts}


def _test(asked: MetadataFilter) -> dict[str, Any]:
    key, value, operator = asked.key, asked.value, asked.operator
    if operator in RANGES:
        return {key: {RANGES[operator]: value}}
    if operator in (FilterOperator.EQ, FilterOperator.CONTAINS):
        return {key: value}
    if operator == FilterOperator.NE:
        return {"not": {key: value}}
    if operator in (FilterOperator.IN, FilterOperator.ANY):
        return {key: {"in": value}}
    if operator == FilterOperator.NIN:
        return {"not": {key: {"in": value}}}
    if operator == FilterOperator.ALL:
        return {"and": [{key: element} for element in _listed(asked)]}
    if operator == FilterOperator.IS_EMPTY:
        return {"or": [{key: None}, {"not": {key: {"exists": True}}}]}
    raise InvalidInput(f"the filter of {key!r} has the operator {operator.value!r}, which lightir does not have")


def _listed(asked: MetadataFilter) -> list[Any]:
    if not isinstance(asked.value, list):
        raise InvalidInput(f"the filter of {asked.key!r} has the value {asked.value!r}; expected a list")
    return asked.value
