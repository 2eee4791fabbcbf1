"""Choosing the segments to merge: tombstones, the small segments that a new one absorbs, and compaction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightir.index.segments.join import Part
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.rows import DocumentRows
from lightir.index.stored_documents import DocKeys
from lightir.progress import BYTE, Progress


def with_tombstones(live: LiveSegment, keys: DocKeys) -> LiveSegment:
    """Return a segment with the documents of these keys deleted; the same object if it has none of them."""
    hit = np.isin(live.segment.doc_keys, keys) & live.live if len(keys) else np.zeros(0, np.bool_)
    if not hit.any():
        return live
    return LiveSegment(live.number, live.segment, hit if live.deleted is None else hit | live.deleted, live.first_ord)


def absorbed_segments(segments: Sequence[LiveSegment], added: Sequence[DocumentRows], limit: int) -> list[LiveSegment]:
    """Return the segments that the last new segment absorbs: smallest first, each no larger than the sum so far.

    The sum counts the new segment and the segments absorbed before. So the number of segments grows with the logarithm
    of the number of changes.

    Args:
        segments: segments of the index.
        added: documents of each new segment.
        limit: maximum number of documents per segment.
    """
    if not added:
        return []
    size, absorbed = len(added[-1]), []
    for live in sorted(segments, key=lambda live: live.n_live):
        if live.n_live > size or size + live.n_live > limit:
            break
        if live.n_live:
            absorbed.append(live)
        size += live.n_live
    return absorbed


def packed(parts: Sequence[Part], size: int) -> list[list[Part]]:
    """Return the parts of new segments of `size` documents each, the last perhaps fewer, in the given order."""
    groups: list[list[Part]] = []
    room = 0
    for rows, numbers in parts:
        first = 0
        while first < len(numbers):
            if not room:
                groups.append([])
                room = size
            taken = numbers[first : first + room]
            groups[-1].append((rows, taken))
            first, room = first + len(taken), room - len(taken)
    return groups


def joining_bar(name: str, progress: bool) -> Progress:
    """Return the progress of written bytes."""
    return Progress(name, unit=BYTE, shown=progress)
