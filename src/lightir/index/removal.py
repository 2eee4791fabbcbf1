"""Removal of the segments that the store does not list, while readers may be opening them.

A reader first reads the list of live segments and then opens their files. If a file has been removed between these two
steps, it opens the newest view. For this second attempt it holds a shared lock on the folder of segments, from before
it reads the list until all files are open. The writer removes segments only while it holds the exclusive lock, which
it requests without waiting. So the second attempt cannot miss a file, readers that open at once lock nothing, and
neither side waits for long. Where a file system cannot lock folders, every attempt opens the newest view, and a missing
file is damage if the store has not changed between two attempts.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from lightir.index.segments.layout import SEGMENTS_FOLDER
from lightir.index.store import Store

SEGMENT_NAME = re.compile(r"segment-(\d+)")

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def keeping_segments(index: Path) -> Iterator[None]:
    """Keep the writer from removing segments during the block, in which a reader opens a view.

    Args:
        index: index folder.
    """
    with _lock(index, fcntl.LOCK_SH):
        yield


def remove_unlisted(index: Path, listed: Collection[str], store: Store) -> None:
    """Remove the segments that the store does not list, unless a reader is opening a view; the next change tries again.

    An earlier commit that failed, or whose process was killed, may have left a complete transaction in SQLite's log. If
    all processes end, SQLite recovers it. So segments are removed only after a later commit has overwritten it.

    Args:
        index: index folder.
        listed: names of the live segments' folders.
        store: connection of the writer, which holds the writer lock.
    """
    removed: list[Path] = []
    try:
        unfinished, unlisted = _others(index, listed)
        for folder in unfinished:  # no transaction has listed them
            shutil.rmtree(folder, ignore_errors=True)
        if not unlisted:
            return
        with _lock(index, fcntl.LOCK_EX | fcntl.LOCK_NB) as free:
            if not free or not (store.is_settled or store.settle()):
                return
            # Renaming takes the same short time for any size.
            removed.extend(folder.rename(folder.with_name(f".{folder.name}.new-removed")) for folder in unlisted)
    except OSError as error:
        logger.warning("segments of %s are not removed until the next change: %s", index, error)
    for folder in removed:
        shutil.rmtree(folder, ignore_errors=True)


def free_number(index: Path, number: int) -> int:
    """Return the smallest number for a new segment, from a given one on, that no present folder has.

    A failed change may leave a segment whose number the store gives out again.
    """
    names = [SEGMENT_NAME.fullmatch(path.name) for path in (index / SEGMENTS_FOLDER).iterdir()]
    return max([number, *(int(name[1]) + 1 for name in names if name)])


def _others(index: Path, listed: Collection[str]) -> tuple[list[Path], list[Path]]:
    """Return the folders of unfinished segments, and those of complete ones that the store does not list."""
    others = sorted(path for path in (index / SEGMENTS_FOLDER).iterdir() if path.name not in listed)
    return (
        [path for path in others if path.name.startswith(".")],
        [path for path in others if not path.name.startswith(".")],
    )


@contextlib.contextmanager
def _lock(index: Path, operation: int) -> Iterator[bool]:
    """Hold a lock on the folder of segments; yield False if another process or thread holds it.

    Without support by the file system, or without the folder, yield True: readers then rely on further attempts.
    """
    try:
        folder = os.open(index / SEGMENTS_FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield True
        return
    try:
        try:
            fcntl.flock(folder, operation)
            free = True
        except BlockingIOError:
            free = False
        except OSError:
            free = True
        yield free
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(folder, fcntl.LOCK_UN)  # a process that was forked meanwhile has the folder open too
        os.close(folder)
