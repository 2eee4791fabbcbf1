"""How segments merge: deleted documents are marked, small segments join new ones, compaction packs all anew."""

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


def with_tombstones(each: LiveSegment, keys: DocKeys) -> LiveSegment:
    """The segment with the documents of these keys deleted; the very same object where it holds none of them."""
    hit = np.isin(each.segment.doc_keys, keys) & each.live if len(keys) else np.zeros(0, np.bool_)
    if not hit.any():
        return each
    return LiveSegment(each.number, each.segment, hit if each.deleted is None else hit | each.deleted, each.first_ord)


def absorbed_segments(segments: Sequence[LiveSegment], added: Sequence[DocumentRows], most: int) -> list[LiveSegment]:
    """The segments that the last of the new ones absorbs: the smallest first, each no larger than what has gathered.

    What has gathered is the new segment and what it absorbed before, so the number of segments grows with the logarithm
    of the number of changes.

    Args:
        segments: those of the index.
        added: the new segments' documents.
        most: documents of a segment.
    """
    if not added:
        return []
    size, found = len(added[-1]), []
    for each in sorted(segments, key=lambda each: each.n_live):
        if each.n_live > size or size + each.n_live > most:
            break
        if each.n_live:
            found.append(each)
        size += each.n_live
    return found


def packed(parts: Sequence[Part], size: int) -> list[list[Part]]:
    """All documents in their order as the parts of segments, of `size` documents each but for the last."""
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
    """A bar of the bytes that are written, on a terminal."""
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
