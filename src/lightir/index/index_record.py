"""The record of an index, which its store keeps: versions, contract, analyzer, options, and checksums of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightir.errors import FormatError

INDEX_VERSION = 3
WITHOUT_CHECKSUMS = 2
"""Version whose stores have no checksums of documents, settings and query encoder; the first change adds them."""

ENCODER_FILES = "query_encoder"
"""Field with size and checksum of each file of query-encoder/; empty without a query encoder, absent if unknown."""

REQUIRED = frozenset({"contract", "analyzer", "sizes", "segment_documents"})


def checked_record(path: Path, record: Any) -> dict[str, Any]:
    """Return the record of an index.

    Args:
        path: file of the store.
        record: content of the store's record.

    Raises:
        FormatError: the format has another version, or the record is damaged.
    """
    if not isinstance(record, dict):
        raise FormatError(f"{path} is damaged: its record is {type(record).__name__}, not an object")
    if (version := record.get("format_version")) not in (WITHOUT_CHECKSUMS, INDEX_VERSION):
        raise FormatError(
            f"{path.parent} has index format {version!r}, written by lightir {record.get('written_by')!r}; "
            f"this release reads {WITHOUT_CHECKSUMS} and {INDEX_VERSION}; rebuild it with `lightir index`"
        )
    if lacking := REQUIRED - record.keys():
        raise FormatError(f"{path} is damaged: its record lacks {', '.join(sorted(lacking))}")
    return record
