"""Haystack's filters in lightir's form."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from haystack.errors import FilterError

from lightir.index import Filter

RANGES = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
NOTHING: Filter = {"or": []}


def lightir_filter(filters: dict[str, Any] | None) -> Filter:
    """Return the filter of lightir with the meaning of Haystack's; None and {} match every document.

    None stands for a field that is missing or null, as in Haystack. Dates are compared as text, or as dates if the
    index has a type for the field.

    Raises:
        FilterError: a malformed filter, or a field outside the metadata.
    """
    if not filters:
        return {}
    if "field" in filters:
        return _comparison(filters)
    operator = _part(filters, "operator")
    parts = [lightir_filter(condition) for condition in _part(filters, "conditions")]
    if operator == "AND":
        return {"and": parts}
    if operator == "OR":
        return {"or": parts}
    if operator == "NOT":
        return {"not": {"and": parts}}
    raise FilterError(f"the operator {operator!r} is unknown; expected AND, OR or NOT")


def _comparison(condition: dict[str, Any]) -> Filter:
    field = _part(condition, "field")
    if field in ("id", "content", "embedding", "score", "blob", "sparse_embedding"):
        raise FilterError(f"the field {field!r} is not one of the metadata, which filters read")
    key = field.removeprefix("meta.")
    operator, value = _part(condition, "operator"), _part(condition, "value")
    if operator in RANGES:
        return _range(key, operator, value)
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise FilterError(f"{operator!r} compares {field!r} with {type(value).__name__}; expected a list")
        test: Filter = {"or": [_equal(key, element) for element in value]}
    elif operator in ("==", "!="):
        test = _equal(key, value)
    else:
        raise FilterError(f"the operator {operator!r} of {field!r} is unknown")
    return {"not": test} if operator in ("not in", "!=") else test


def _equal(key: str, value: Any) -> Filter:
    if value is None:
        return {"or": [{key: None}, {"not": {key: {"exists": True}}}]}
    if isinstance(value, list | dict):
        raise FilterError(f"the field {key!r} is compared with {value!r}; expected one value, or the operator 'in'")
    return {key: value}


def _range(key: str, operator: str, value: Any) -> Filter:
    if value is None:
        return NOTHING
    if isinstance(value, str):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise FilterError(f"{operator!r} compares {key!r} with {value!r}; expected a number or a date") from None
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise FilterError(f"{operator!r} compares {key!r} with {value!r}; expected a number or a date")
    return {key: {RANGES[operator]: value}}


def _part(filters: dict[str, Any], name: str) -> Any:
    if name not in filters:
        raise FilterError(f"{name!r} is missing in the filter {filters!r}")
    return filters[name]
