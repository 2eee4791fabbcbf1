"""Metadata filters by definition: a plain recursion over the metadata of one document."""

from __future__ import annotations

import operator
from typing import Any

RANGES = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}


def kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def equal(value: Any, wanted: Any) -> bool:
    return kind(value) == kind(wanted) and value == wanted


def look_up(metadata: Any, field: str) -> list[Any]:
    """Return the value of a field in a list, or an empty list."""
    for key in field.split("."):
        if not isinstance(metadata, dict) or key not in metadata:
            return []
        metadata = metadata[key]
    return [metadata]


def passes(metadata: Any, field: str, name: str, wanted: Any) -> bool:
    values = look_up(metadata, field)
    if name == "exists":
        return bool(values) == wanted
    values = values[0] if values and isinstance(values[0], list) else values
    if name in RANGES:
        return any(kind(v) == kind(wanted) and RANGES[name](v, wanted) for v in values)
    return any(equal(v, one) for v in values for one in (wanted if name == "in" else [wanted]))


def matches(metadata: Any, wanted: dict[str, Any]) -> bool:
    """Evaluate a filter on one document's metadata, by plain recursion."""
    for key, value in wanted.items():
        if key == "and":
            holds = all(matches(metadata, one) for one in value)
        elif key == "or":
            holds = any(matches(metadata, one) for one in value)
        elif key == "not":
            holds = not matches(metadata, value)
        elif isinstance(value, dict):
            holds = all(passes(metadata, key, name, operand) for name, operand in value.items())
        else:
            holds = passes(metadata, key, "eq", value)
        if not holds:
            return False
    return True
