"""The effect of one transaction of the writer on the segments: tombstones, new segments, merges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from lightir.errors import InvalidInput
from lightir.index.bm25 import mean_length
from lightir.index.index_options import IndexOptions
from lightir.index.intake import GATHERED_DOCUMENTS
from lightir.index.merging import absorbed_segments, joining_bar, packed, with_tombstones
from lightir.index.removal import free_number
from lightir.index.segments.join import Join, Part
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.rows import DocumentRows
from lightir.index.segments.segment_writer import write_segment
from lightir.index.stored_documents import DocKeys
from lightir.index.view import View
from lightir.shards import Shard


@dataclass(slots=True)
class Change:
    """The effect of one transaction on the segments.

    Attributes:
        deleted: keys of documents to mark with tombstones in their segments.
        added: documents of each new segment, at most `added_documents`.
        compact: whether to rewrite all segments.
    """

    deleted: list[DocKeys] = field(default_factory=list)
    added: list[DocumentRows] = field(default_factory=list)
    compact: bool = False

    def replace(self, parts: Iterable[DocumentRows]) -> None:
        """Put other rows in place of those of the same keys."""
        for rows in parts:
            self.deleted.append(rows.doc_keys)
            self.added.append(rows)


def added_documents(options: IndexOptions) -> int:
    """Return the maximum number of documents of a segment written by a change other than compaction."""
    return min(options.segment_documents, GATHERED_DOCUMENTS)


def require_same_kinds(view: View, shard: Shard) -> None:
    """Raise InvalidInput for vectors of other branches than those of the encoded documents of the index."""
    has = (shard.dense is not None, shard.sparse is not None)
    if view.contract is None or not any(has):
        return
    encoded = [live.segment for live in view.segments if live.n_pending < live.n_live]
    kinds = {(segment.has("dense"), segment.has("sparse")) for segment in encoded}
    if kinds - {has}:
        raise InvalidInput(f"the documents have (dense, sparse) = {has}, but those of the index have {kinds.pop()}")


def apply_change(change: Change, view: View, *, progress: bool) -> None:
    """Write the segments of a change and list them in the store, inside a transaction.

    Args:
        change: the change.
        view: state before the change, on the connection of the writer.
        progress: show a progress bar for a compaction.

    Raises:
        FormatError: a segment to rewrite is damaged; rewriting it would give the damage a valid checksum.
    """
    deleted = np.concatenate([np.zeros(0, np.int64), *change.deleted])
    segments = [with_tombstones(live, deleted) for live in view.segments]
    n_documents = sum(live.n_live for live in segments) + sum(map(len, change.added))
    total = sum(live.total_length for live in segments) + sum(rows.total_length for rows in change.added)
    mean = mean_length(total, n_documents)
    kept: list[LiveSegment] = []
    if change.compact:
        _join(view, segments, mean, progress)
    else:
        absorbed = absorbed_segments(segments, change.added, added_documents(view.options))
        kept = [live for live in segments if live.n_live and live not in absorbed]
        new: list[list[Part]] = [[(rows, np.arange(len(rows)))] for rows in change.added]
        for live in absorbed:
            live.segment.verify()
            new[-1].append((live.segment.rows(), live.places))
        for parts in new:
            _write(view, parts, mean)
    kept_numbers = {live.number for live in kept}
    view.store.remove_segments(live.number for live in segments if live.number not in kept_numbers)
    before = {live.number: live.deleted for live in view.segments}
    for live in kept:
        if live.deleted is not None and live.deleted is not before[live.number]:
            view.store.set_deleted(live.number, live.deleted)


def _join(view: View, segments: Sequence[LiveSegment], mean: float, progress: bool) -> None:
    """Write the documents of all segments into as few new ones as possible."""
    for live in segments:
        live.segment.verify()
    groups = packed([(live.segment.rows(), live.places) for live in segments], view.options.segment_documents)
    with joining_bar("compact", progress) as bar:
        for parts in groups:
            _write(view, parts, mean, on_bytes=bar.update, progress=progress)


def _write(
    view: View,
    parts: Sequence[Part],
    mean: float,
    *,
    on_bytes: Callable[[int], object] = lambda _: None,
    progress: bool = False,
) -> None:
    number = free_number(view.folder, view.store.next_segment())
    documents = Join(parts)
    written = write_segment(
        view.folder,
        documents,
        number=number,
        mean=mean,
        options=view.options,
        on_bytes=on_bytes,
        progress=progress,
    )
    view.store.add_segment(written)
