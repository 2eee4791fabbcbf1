"""Hints for a filter that matches no document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lightir.cli.terminal import suggest

if TYPE_CHECKING:
    from lightir.index.view import View
    from lightir.types import Document

SAMPLE = 100
"""Number of documents to read field names from."""
FIELDS_SHOWN = 10


def why_nothing(view: View, conditions: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield why a filter matches no document: fields that no document has, and values of another type."""
    if conditions is None or _matching(view, conditions, 1):
        return
    known = {name for document in _matching(view, {}, SAMPLE) for name in _field_names(document.metadata)}
    for field, values in _required_fields(conditions):
        examples = _matching(view, {field: {"exists": True}}, 1)
        if not examples:
            fields = f"fields are {', '.join(sorted(known)[:FIELDS_SHOWN])}" if known else "documents have no metadata"
            yield f"no document has the field {field!r}; {fields}{suggest(field, known)}"
            continue
        stored = _value_at(examples[0].metadata, field.split("."))
        kinds = {_kind(value) for value in (stored if isinstance(stored, list) else [stored])}
        if values and not kinds & {_kind(value) for value in values}:
            expected, actual = (json.dumps(value, ensure_ascii=False)[:60] for value in (values[0], stored))
            yield (
                f"the filter compares the field {field!r} with {_kind(values[0])}, {expected}, but its values have "
                f"another type: {actual} in document {examples[0].doc_id!r}"
            )


def _required_fields(conditions: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the fields that a matching document needs, with the values that they are compared with; skips `not`."""
    for key, condition in conditions.items():
        if key in ("and", "or"):
            for part in condition:
                yield from _required_fields(part)
        elif key != "not" and condition != {"exists": False}:
            tests = condition if isinstance(condition, Mapping) else {"eq": condition}
            lists = [value if test == "in" else [value] for test, value in tests.items() if test != "exists"]
            yield key, [value for values in lists for value in values]


def _field_names(metadata: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the names of a document's fields as in filters: "author.name" for a nested one."""
    for key, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _field_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _matching(view: View, conditions: Mapping[str, Any], limit: int) -> list[Document]:
    """Return the first documents that a filter matches."""
    keys = view.matching_keys(conditions)[:limit]
    return list(view.store.documents.of(keys.tolist()).values())


def _value_at(metadata: Any, path: list[str]) -> Any:
    for key in path:
        metadata = metadata[key]
    return metadata


def _kind(value: Any) -> str:
    """Name the type of a value as far as filters distinguish types."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return "a string" if isinstance(value, str) else "a number" if isinstance(value, int | float) else "an object"
