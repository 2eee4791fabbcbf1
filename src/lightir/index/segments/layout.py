"""Names, versions and alignment of the files of a segment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SEGMENTS_FOLDER = "segments"
MANIFEST = "manifest.json"
SEGMENT_VERSION = 2
ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
CODED_ABOVE = 65_536
"""Maximum number of documents of a segment of dense rows without codes. The pieces of a build, which are joined at its
end, have no more."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """Entry of the store's list of live segments.

    Attributes:
        number: number of the segment, never reused.
        documents: number of documents, deleted ones included.
        manifest_sha256: checksum of the segment's manifest.
        deleted: (documents,) bool, the tombstones; None for a segment without any.
    """

    number: int
    documents: int
    manifest_sha256: str
    deleted: npt.NDArray[np.bool_] | None

    @property
    def name(self) -> str:
        """The name of the segment's folder."""
        return segment_name(self.number)


def segment_name(number: int) -> str:
    """Return the name of a segment's folder."""
    return f"segment-{number:06d}"


def file_of(array_name: str) -> str:
    """Return the file that holds an array: dense.rows and dense.scales are both in dense.bin."""
    return f"{array_name.split('.')[0]}.bin"
