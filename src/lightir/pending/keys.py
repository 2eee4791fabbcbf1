"""The pending documents of a view, by their keys in the store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightir.index.stored_documents import DocKeys
from lightir.index.view import View


def pending_keys(view: View) -> DocKeys:
    """Return the keys of all pending documents, ascending: the oldest document first."""
    keys = [live.segment.doc_keys[live.segment.pending & live.live] for live in view.segments if live.n_pending]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *keys]))


def keys_of_pending(view: View, doc_ords: npt.NDArray[np.uint32]) -> DocKeys:
    """Return the keys of those of the given documents that are pending, in the given order."""
    segment_numbers, rows = view.locate(doc_ords)
    keys = np.full(len(doc_ords), -1, dtype=np.int64)
    for number in np.unique(segment_numbers).tolist():
        in_segment = np.flatnonzero(segment_numbers == number)
        segment = view.segments[number].segment
        pending = in_segment[segment.pending[rows[in_segment]]]
        keys[pending] = segment.doc_keys[rows[pending]]
    return keys[keys >= 0]


def contains_key(ascending: DocKeys, key: int) -> bool:
    """Return whether ascending keys contain a key."""
    position = int(np.searchsorted(ascending, key))
    return position < len(ascending) and int(ascending[position]) == key
