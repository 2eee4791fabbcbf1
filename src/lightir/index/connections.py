"""SQLite connections that several threads use in turn, and that stay behind when the process forks.

SQLite keeps its locks on a file by process. A forked child does not have its parent's, but SQLite, whose memory came
along, believes that it does: what the child reads is not kept for it, and once the parent has closed the file, SQLite
may clear away the log that the child writes to. So a child closes the connections that it inherits, at once, and
opens its own.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import weakref
from pathlib import Path

from lightir.errors import InvalidInput

BUSY_S = 30.0
"""How long to wait for a moment's lock of another process, as at a checkpoint."""

FORK_WAIT_S = 2.0
"""How long a fork waits for a thread that uses a connection; a search takes milliseconds, a compaction minutes."""


File = tuple[int, int]
"""A file's device and its number there, which no other file has while this one is open."""


class Connection(sqlite3.Connection):
    """A connection with its file and a lock for the threads that share it.

    Attributes:
        path: the file.
        file: which file that was when it was opened, see `file_at`.
        unlocked: size and time of the file's last change, where it is read without locks (SQLite's "immutable").
        lock: held while the connection is used.
        reads: it changes nothing.
        inherited: it is the parent's; in this process it is closed.
        is_closed: it was closed here or, before the fork, there.
    """

    path: Path
    file: File | None
    unlocked: tuple[int, int] | None = None
    lock: threading.RLock
    reads = False
    inherited = False
    is_closed = False

    def close(self) -> None:
        """Close it, if it is not closed yet."""
        self.is_closed = True
        super().close()

    @property
    def is_current(self) -> bool:
        """Whether the path still leads to this file; not where its folder was removed, or exchanged for another."""
        return self.file is not None and self.file == file_at(self.path)

    def check_unchanged(self) -> None:
        """Nothing, or that what was just read without locks may be of two states of the file.

        Raises:
            InvalidInput: somebody who may write the file has changed it since it was opened.
        """
        if self.unlocked is not None and self.unlocked != _last_change(self.path):
            raise InvalidInput(
                f"{self.path} was changed since it was opened, and it is read without locks, for this process may not "
                "write there; refresh, or open it again"
            )

    def usable(self) -> Connection:
        """Itself.

        Raises:
            InvalidInput: it is the parent's, or closed.
        """
        if self.inherited:
            raise InvalidInput(f"{self.path} was opened before this process was forked; open it again in this process")
        if self.is_closed:
            raise InvalidInput(f"{self.path} was closed; open it again")
        return self


def connect(path: Path, mode: str, *, busy_s: float = BUSY_S) -> Connection:
    """A connection that begins no transaction by itself.

    Args:
        path: the file.
        mode: "rw", "rwc", or what `read_mode` says.
        busy_s: how long to wait for another process' lock.

    Raises:
        InvalidInput: the process was forked while a thread was changing the file.
    """
    if os.path.realpath(path) in _lost:
        raise InvalidInput(
            f"this process was forked while {path} was being changed, so it cannot be opened here; fork first, or "
            "start processes by spawn"
        )
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    while True:
        before = file_at(path)
        unlocked = _last_change(path) if "immutable" in mode else None
        connection = sqlite3.connect(
            uri, uri=True, check_same_thread=False, isolation_level=None, timeout=busy_s, factory=Connection
        )
        connection.path, connection.file, connection.lock = path, file_at(path), threading.RLock()
        connection.unlocked = unlocked
        if before in (None, connection.file):  # otherwise either of two files was opened
            _all.add(connection)
            return connection
        connection.close()


def file_at(path: Path) -> File | None:
    """Which file a path leads to; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _last_change(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


_all: weakref.WeakSet[Connection] = weakref.WeakSet()
_held: list[Connection] = []
_lost: set[str] = set()
"""Files that a change was under way to when this process was forked: SQLite's memory of them is of no use here."""


def _before_fork() -> None:
    """Hold every connection, so that none is in the middle of something."""
    _held.extend(each for each in list(_all) if each.lock.acquire(timeout=FORK_WAIT_S))


def _after_fork_in_parent() -> None:
    for each in _held:
        each.lock.release()
    _held.clear()


def _after_fork_in_child() -> None:
    held = {id(each) for each in _held}
    _held.clear()
    for each in list(_all):
        each.inherited, each.lock = True, threading.RLock()
        if id(each) in held and (each.reads or each.is_closed or not each.in_transaction):
            each.close()
        else:  # to end the parent's transaction here would write into memory that is shared with the parent
            _lost.add(os.path.realpath(each.path))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))  # so that it is never closed, not at the end either
    _all.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
