"""Verification of an index: the store, the segments and the query encoder against their checksums and each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lightir.addresses import QUERY_ENCODER
from lightir.errors import FormatError, LightirError, StorageError, is_exhaustion
from lightir.files import damaged_files
from lightir.index.index_record import ENCODER_FILES
from lightir.index.lock import LOCK_FILE, noted_commits
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE
from lightir.index.view import View
from lightir.quantities import counted
from lightir.query import CachedQueryEncoder

NAMED = 10
"""Maximum number of damaged documents that a message names."""


def verify_view(view: View) -> list[str]:
    """Verify the checksums of a view, and compare its store with its segments.

    Returns:
        A sentence for each part that could not be verified: an earlier release wrote it without checksums, or another
        index has replaced the folder.

    Raises:
        FormatError: names everything that is damaged.
        StorageError: the process lacks a resource or a permission to read the index.
    """
    problems, gaps = view.problems(), []
    for live in view.segments:
        problems += _problems_of(live.segment.verify)
    segments_are_whole = not problems
    problems += _problems_of(view.store.check) + _problems_of(view.store.checksums.verify_state)
    problems += _problems_of(lambda: require_all_commits(view))
    try:
        keys, n_without = view.store.checksums.verify_rows()
        problems += _named_documents(view, keys)
        if n_without:
            gaps.append(f"no checksum of {counted(n_without, 'document')}")
    except FormatError as error:
        problems.append(str(error))
    if segments_are_whole:
        problems += _problems_of(lambda: _compare_with_store(view))
    encoder = view.folder / QUERY_ENCODER
    files = view.record.get(ENCODER_FILES)
    if not view.store.is_current:
        gaps.append("the query encoder was replaced with the folder")
    elif isinstance(files, dict):
        problems += damaged_files(encoder, files)
    else:
        gaps.append("the query encoder has no checksums")
        problems += _problems_of(lambda: CachedQueryEncoder.load(encoder)) if encoder.is_dir() else []
    if problems:
        raise FormatError("; ".join(dict.fromkeys(problems)))
    return gaps


def require_all_commits(view: View) -> None:
    """Check that the store has all commits that its writers have noted; a folder that was replaced passes.

    Raises:
        FormatError: the store has lost commits.
    """
    noted, lost = noted_commits(view.folder)  # before the store is read: the note follows the commit
    if not noted or not view.store.is_current:
        return
    store = Store.open_snapshot(view.store.path)
    try:
        lost += max(0, noted - store.generation())
    finally:
        store.close()
    if lost:
        changes = "change" if lost == 1 else f"{lost:,} changes"
        raise FormatError(
            f"{view.store.path} has lost its last {changes}: its log was damaged or removed, or an older file has "
            f"replaced it. Restore a backup; to accept the present state, remove {LOCK_FILE} while no process writes"
        )


def verify_copy(folder: Path, original: Path) -> None:
    """Verify an index folder that was just copied and that no other process uses.

    Args:
        folder: folder of the copy.
        original: folder that it was copied from, which messages name.

    Raises:
        FormatError: names everything that is damaged.
    """
    try:
        store = Store.open_unshared(folder / STORE_FILE)
        try:
            verify_view(View(folder, store))
        finally:
            store.close()
    except FormatError as error:
        raise FormatError(
            f"{original} is damaged and was not copied: {str(error).replace(str(folder), str(original))}"
        ) from error


def _problems_of(check: Callable[[], object]) -> list[str]:
    """Return the message of a failing check as a list; an empty list if it succeeds.

    Raises:
        StorageError: the process lacks a resource or a permission.
    """
    try:
        check()
    except LightirError as error:
        if isinstance(error, StorageError) and is_exhaustion(error):
            raise
        return [str(error)]
    return []


def _named_documents(view: View, keys: Sequence[int]) -> list[str]:
    """Return an error message that names damaged documents, by their ids in the segments; nothing without any."""
    if not keys:
        return []
    live_keys = view.live_keys()
    names = []
    for key in keys[:NAMED]:
        doc_ords = np.flatnonzero(live_keys == key)
        names.append(_id_of(view, int(doc_ords[0])) if len(doc_ords) else f"key {key}")
    others = f" and {counted(len(keys) - NAMED, 'other')}" if len(keys) > NAMED else ""
    documents = "document" if len(keys) == 1 else counted(len(keys), "document")
    return [f"{view.store.path} is damaged: text or metadata of {documents} {', '.join(names)}{others}"]


def _id_of(view: View, position: int) -> str:
    """Return the id of a live document as a literal, given its position among those of all segments."""
    for live in view.segments:
        if position < live.n_live:
            return repr(live.segment.doc_ids[int(live.places[position])])
        position -= live.n_live
    raise AssertionError("the position is below the number of live documents")


def _compare_with_store(view: View) -> None:
    stored = view.store.documents.ids_by_key()
    keys = view.live_keys()
    ids = [live.segment.doc_ids[row] for live in view.segments for row in live.places.tolist()]
    if len(stored) != len(ids):
        raise FormatError(f"{view.store.path} holds {len(stored)} documents, but the segments hold {len(ids)}")
    for i, (key, doc_id) in zip(np.argsort(keys).tolist(), stored, strict=True):
        if keys[i] != key or ids[i] != doc_id:
            other = f"but the segments hold {ids[i]!r} under {keys[i]}"
            raise FormatError(f"{view.store.path} holds document {doc_id!r} under key {key}, {other}")
