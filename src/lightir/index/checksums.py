"""Checksums of what a store holds: one for each document, one for everything else.

A document's checksum is the CRC-32 of its key, id, title, text and metadata, in the row of its metadata. CRC-32 detects
every change of up to 32 adjacent bits, and other damage except one case in 4 billion. The writer computes it when it
stores the document, and copies no stored checksum.

Everything else has one SHA-256, which each transaction renews: the schema, the record, the number of commits, the last
given keys, and the live segments with their tombstones and the checksums of their manifests. A manifest has the
checksums of its segment's files, and the record those of the query encoder's files.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any


def document_checksum(key: int, texts: Sequence[bytes]) -> int:
    """Return the checksum of a stored document.

    Args:
        key: key of the document.
        texts: doc_id, title, text, and metadata as JSON, in UTF-8.

    Returns:
        An integer from 0 to 2^32 - 1.
    """
    lengths = ":".join([str(key), *(str(len(text)) for text in texts), ""])  # texts cannot be divided differently
    return zlib.crc32(b"".join((lengths.encode(), *texts)))


def state_checksum(rows: Sequence[Sequence[Sequence[Any]]]) -> str:
    """Return the SHA-256 of rows of the store, as 64 hexadecimal digits; values of different types differ."""
    content = json.dumps(rows, default=lambda value: {"bytes": hashlib.sha256(value).hexdigest()})
    return hashlib.sha256(content.encode()).hexdigest()
