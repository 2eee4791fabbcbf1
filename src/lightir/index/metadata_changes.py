"""Changes of single metadata fields of a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightir.errors import InvalidInput
from lightir.index.schema import Schema, require_name
from lightir.types import Cells, Document


def with_changes(document: Document, changes: Mapping[str, Any], schema: Schema | None) -> dict[str, Any]:
    """Return the metadata of a document with some fields changed.

    Args:
        document: document with its metadata.
        changes: field -> new value; None removes the field. Names are those of filters: "author.name" is the field
            "name" of the object "author". Empty values of `Cells` change nothing.
        schema: types of the fields; None to take values as they are.

    Raises:
        InvalidInput: a value of another type, a malformed name, or a field inside a value that is no object.
    """
    metadata = dict(document.metadata)
    for name, value in changes.items():
        require_name(name, f"document {document.doc_id!r}")
        if value == "" and isinstance(changes, Cells):
            continue
        typed = value if schema is None else schema.value(name, value, document.doc_id)
        _set(metadata, name.split("."), typed, document.doc_id)
    return metadata


def _set(values: dict[str, Any], path: list[str], value: Any, doc_id: str) -> None:
    for key in path[:-1]:
        if value is None and key not in values:
            return
        inner = values.get(key, {})
        if not isinstance(inner, dict):
            raise InvalidInput(
                f"document {doc_id!r}: the field {'.'.join(path)!r} cannot be set, because {key!r} is no object"
            )
        values[key] = dict(inner)
        values = values[key]
    if value is None:
        values.pop(path[-1], None)
    else:
        values[path[-1]] = value
