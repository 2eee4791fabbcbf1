"""Choosing the segments to merge: tombstones, the small segments that a new one absorbs, and compaction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from lightir.index.segments.join import Join, Part
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.rows import DocumentRows, TokenRows
from lightir.index.store import DocKeys
from lightir.vectors import SparseVectors


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


def joining_bar(name: str, progress: bool) -> tqdm[NoReturn]:
    """Return a progress bar of written bytes, shown on a terminal."""
    return tqdm(desc=name, unit="B", unit_scale=True, disable=None if progress else True)


def with_stored_tokens(segments: Sequence[LiveSegment], rows: DocumentRows, keys: Mapping[str, int]) -> DocumentRows:
    """Return rows of vectors with the term counts that the index stores of the same documents.

    Args:
        segments: segments of the index.
        rows: rows without tokens, of live documents.
        keys: key of each document by doc_id.
    """
    wanted = np.array([keys[doc_id] for doc_id in rows.doc_ids], dtype=np.int64)
    parts = []
    with contextlib.ExitStack() as stack:
        for live in segments:
            numbers = np.flatnonzero(np.isin(live.segment.doc_keys, wanted) & live.live)
            if len(numbers):
                stack.enter_context(live.segment.naming_damage())
                parts.append((live.segment.rows(), numbers))
        stored = Join(parts)
        if not stored.has("tokens"):
            return dataclasses.replace(rows, doc_keys=wanted)
        tokens = stored.token_rows()
    by_key = np.argsort(stored.doc_keys)
    order = by_key[np.searchsorted(stored.doc_keys, wanted, sorter=by_key)]
    counts = SparseVectors(tokens.counts.indptr, tokens.counts.term_ids, tokens.counts.weights, len(tokens.terms))
    lengths = None if tokens.lengths is None else tokens.lengths[order]
    return dataclasses.replace(rows, doc_keys=wanted, tokens=TokenRows(tokens.terms, counts.take(order), lengths))
