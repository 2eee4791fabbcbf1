"""How segments merge: deleted documents are marked, small segments join new ones, compaction packs all anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np
from tqdm import tqdm

from lightir.index.segments.join import Part
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.rows import DocumentRows, join, of_segment
from lightir.index.store import DocKeys


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


def with_absorbed(added: Sequence[DocumentRows], absorbed: Sequence[LiveSegment]) -> list[DocumentRows]:
    """The new segments' documents, the last with the documents of the segments that it absorbs.

    Raises:
        FormatError: one of these is damaged; written again, its damage would have a good checksum.
    """
    if not absorbed:
        return list(added)
    for each in absorbed:
        each.segment.verify()
    return [*added[:-1], join([added[-1], *(of_segment(each.segment, each.places) for each in absorbed)])]


def packed(parts: Sequence[Part], size: int) -> list[list[Part]]:
    """All documents in their order as the parts of segments, of `size` documents each but for the last."""
    groups: list[list[Part]] = []
    room = 0
    for segment, places in parts:
        first = 0
        while first < len(places):
            if not room:
                groups.append([])
                room = size
            here = places[first : first + room]
            groups[-1].append((segment, here))
            first, room = first + len(here), room - len(here)
    return groups


def joining_bar(name: str, progress: bool) -> tqdm[NoReturn]:
    """A bar of the bytes that are written, on a terminal."""
    return tqdm(desc=name, unit="B", unit_scale=True, disable=None if progress else True)


def with_stored_tokens(segments: Sequence[LiveSegment], vectors: DocumentRows, keys: Mapping[str, int]) -> DocumentRows:
    """Rows of vectors joined with the term counts that the index holds of the same documents.

    Args:
        segments: those of the index.
        vectors: rows without tokens, of documents that are live in the segments.
        keys: each of these documents' key, by doc_id.
    """
    wanted = np.array(list(keys.values()), dtype=np.int64)
    places = [np.flatnonzero(np.isin(each.segment.doc_keys, wanted) & each.live) for each in segments]
    found = join([of_segment(each.segment, here) for each, here in zip(segments, places, strict=True) if len(here)])
    order = {doc_id: i for i, doc_id in enumerate(found.doc_ids)}
    stored = found.take(np.array([order[doc_id] for doc_id in vectors.doc_ids], dtype=np.int64))
    doc_keys = np.array([keys[doc_id] for doc_id in vectors.doc_ids], dtype=np.int64)
    return dataclasses.replace(vectors, doc_keys=doc_keys, tokens=stored.tokens)
