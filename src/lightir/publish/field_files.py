"""The files of metadata fields, one per field, by which a page filters documents and counts values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.index.exchange.varints import encode_number, encode_numbers
from lightir.index.metadata_filters import Among, json_path
from lightir.index.schema import Field, span
from lightir.index.segments.columns import Column
from lightir.publish.live_rows import LiveRows
from lightir.publish.parts import PartWriter

MAX_FACET_VALUES = 1000
"""Number of distinct values of a keyword field up to which a page counts them; it reads the whole file for that."""


@dataclass(frozen=True, slots=True)
class FieldValues:
    """The values of a field.

    Attributes:
        values: distinct values, ascending: numbers, False and True, or strings, also of dates.
        documents: (n_entries,) int64, number of the document of each entry, ascending.
        ranks: (n_entries,) int64, position of its value in `values`, ascending for a document.
        exists: (n_documents,) bool, whether a document has the field.
        is_null: (n_documents,) bool, whether its value, or an element of a list, is null.
    """

    values: list[Any]
    documents: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    exists: npt.NDArray[np.bool_]
    is_null: npt.NDArray[np.bool_]


def write_fields(writer: PartWriter, rows: LiveRows) -> dict[str, Any]:
    """Write the fields of all types but text; return for each its file, its type and whether the page shows it."""
    schema = rows.view.schema
    fields: dict[str, Any] = {}
    for name, known in ({} if schema is None else schema.fields).items():
        if known.type == "text" or name.startswith("passage."):
            continue
        field = field_values(rows, name, known)
        file = f"field-{len(fields)}"
        writer.write(file, _content(field, known), packed=True)
        is_facet = not known.key and (known.type != "keyword" or len(field.values) <= MAX_FACET_VALUES)
        fields[name] = {"file": file, "type": known.type, "is_facet": is_facet}
    return fields


def field_values(rows: LiveRows, name: str, known: Field) -> FieldValues:
    """Return the values of a field of all documents."""
    kind = "keyword" if known.type == "date" else known.type
    entries: list[tuple[int, Any]] = []
    exists, is_null = np.zeros((2, len(rows)), dtype=np.bool_)
    for number, live in enumerate(rows.view.segments):
        mine, at = rows.of_segment(number)
        column: Column = live.segment.columns.column(json_path(name, name), rows.view.metadata_source)
        exists[mine] = column.exists[at]
        is_null[mine] = column.matching(Among(("null",), (), ()))[at]
        document_of = np.full(len(column.exists), -1)
        document_of[at] = mine
        typed = column.typed(kind)
        pairs = zip(document_of[typed.rows].tolist(), typed.ranks.tolist(), strict=True)
        entries += [(document, typed.distinct[rank]) for document, rank in pairs if document >= 0]
    values = sorted({value for _, value in entries})
    rank_of = {value: rank for rank, value in enumerate(values)}
    ordered = np.array(sorted((document, rank_of[value]) for document, value in entries), dtype=np.int64).reshape(-1, 2)
    return FieldValues(values, ordered[:, 0], ordered[:, 1], exists, is_null)


def _content(field: FieldValues, known: Field) -> bytes:
    """Return the bytes of a field: the length of the values as JSON, these, and the entries of each document.

    A document has its number of entries times 4, plus 1 if the field exists and 2 if it is null. The ranks follow, each
    as the distance from the one before. The times of dates are microseconds since 1970 as texts, of each the first of
    its span; null stands for texts that are no dates.
    """
    described: dict[str, Any] = {"values": field.values}
    if known.type == "date":
        spans = [span(text) for text in field.values]
        described["times"] = [None if one is None else str(one.start) for one in spans]
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    counts = np.bincount(field.documents, minlength=len(field.exists))
    starts = np.cumsum(counts) - counts
    before = np.append(0, field.ranks[:-1])[: len(field.ranks)]
    before[starts[counts > 0]] = 0
    heads = 4 * counts + field.exists + 2 * field.is_null
    numbers = np.insert(field.ranks - before, starts, heads)
    return encode_number(len(text)) + text + encode_numbers(numbers)[0]
