"""Which documents of a view wait for their vectors, by their keys in the store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightir.index.store import DocKeys
from lightir.index.view import View


def pending_keys(view: View) -> DocKeys:
    """The keys of the documents that wait for their vectors, ascending: the oldest first."""
    waiting = [each for each in view.segments if each.n_pending]
    found = [each.segment.doc_keys[each.segment.pending & each.live] for each in waiting]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))


def keys_of_pending(view: View, doc_ords: npt.NDArray[np.uint32]) -> DocKeys:
    """The keys of those of the documents that wait for their vectors, in the order of the documents."""
    at, places = view.locate(doc_ords)
    keys = np.full(len(doc_ords), -1, dtype=np.int64)
    for i in np.unique(at).tolist():
        here = np.flatnonzero(at == i)
        segment = view.segments[i].segment
        waiting = here[segment.pending[places[here]]]
        keys[waiting] = segment.doc_keys[places[waiting]]
    return keys[keys >= 0]
