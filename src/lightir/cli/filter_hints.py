"""Hints for a filter that matches no document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lightir.cli.terminal import meant

if TYPE_CHECKING:
    from lightir.index.view import View
    from lightir.types import Document

SAMPLE = 100
"""Documents whose fields are looked at for a hint."""
FIELDS_SHOWN = 10


def why_nothing(view: View, wanted: Mapping[str, Any] | None) -> Iterator[str]:
    """What keeps a filter from matching any document: fields that none has, and values of another type than theirs."""
    if wanted is None or _having(view, wanted, 1):
        return
    known = {name for document in _having(view, {}, SAMPLE) for name in _names(document.metadata)}
    for field, values in _needed(wanted):
        having = _having(view, {field: {"exists": True}}, 1)
        if not having:
            there = f"there are {', '.join(sorted(known)[:FIELDS_SHOWN])}" if known else "documents have no metadata"
            yield f"no document has the field {field!r}{meant(field, known)}; {there}"
            continue
        value = _at(having[0].metadata, field.split("."))
        kinds = {_kind(each) for each in (value if isinstance(value, list) else [value])}
        if values and not kinds & {_kind(each) for each in values}:
            wants, has = (json.dumps(each, ensure_ascii=False)[:60] for each in (values[0], value))
            yield (
                f"the field {field!r} is compared with {wants}, {_kind(values[0])}; "
                f"document {having[0].doc_id!r} has {has} there"
            )


def _needed(wanted: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The fields that a document has to have, with the values that they are held to; `not` asks for none."""
    for key, each in wanted.items():
        if key in ("and", "or"):
            for one in each:
                yield from _needed(one)
        elif key != "not" and each != {"exists": False}:
            tests = each if isinstance(each, Mapping) else {"eq": each}
            yield key, [one for name, value in tests.items() if name != "exists" for one in _listed(name, value)]


def _names(metadata: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The fields of a document as filters name them; those inside an object in its place."""
    for key, value in metadata.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{before}{key}.")
        else:
            yield before + key


def _listed(test: str, value: Any) -> list[Any]:
    return list(value) if test == "in" else [value]


def _having(view: View, wanted: Mapping[str, Any], most: int) -> list[Document]:
    """The first of the documents that a filter matches."""
    from lightir.index import metadata_filters as filters

    keys = view.store.keys_where(*filters.condition(wanted))[:most]
    return list(view.store.documents_of(keys.tolist()).values())


def _at(metadata: Any, path: list[str]) -> Any:
    for key in path:
        metadata = metadata[key]
    return metadata


def _kind(value: Any) -> str:
    """What a filter's tests tell apart."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return "a text" if isinstance(value, str) else "a number" if isinstance(value, int | float) else "an object"
