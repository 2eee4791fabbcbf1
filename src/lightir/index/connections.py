"""SQLite connections that threads share, and that a forked process does not inherit.

SQLite's locks belong to a process. A forked child does not hold the locks of its parent, but its copy of SQLite's
memory says that it does. So the snapshot of the child is not protected, and when the parent closes the file, SQLite may
remove the log that the child writes to. A child therefore closes inherited connections at once and opens its own.
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
"""Maximum time to wait for a short lock of another process, such as during a checkpoint."""

FORK_WAIT_S = 2.0
"""Maximum time that a fork waits for a thread that uses a connection. Compaction may take minutes."""

File = tuple[int, int]
"""Device and inode of a file, which are unique while the file is open."""


class Connection(sqlite3.Connection):
    """A connection with its file and a lock for the threads that share it.

    Attributes:
        path: path of the file.
        file: device and inode of the file when it was opened.
        unlocked: size and time of the last change of a file that is read without locks (SQLite's "immutable").
        lock: lock held while the connection is used.
        reads: whether the connection only reads.
        inherited: whether the connection belongs to the parent process; it is closed in this one.
        is_closed: whether the connection was closed.
    """

    path: Path
    file: File | None
    unlocked: tuple[int, int] | None = None
    lock: threading.RLock
    reads = False
    inherited = False
    is_closed = False

    def close(self) -> None:
        """Close the connection; closing it again has no effect."""
        self.is_closed = True
        super().close()

    @property
    def is_current(self) -> bool:
        """Whether the path still names this file: its folder was neither removed nor replaced."""
        return self.file is not None and self.file == file_at(self.path)

    def check_unchanged(self) -> None:
        """Raise an error if the file was changed while it was read without locks.

        Raises:
            InvalidInput: the file has changed since it was opened.
        """
        if self.unlocked is not None and self.unlocked != _last_change(self.path):
            raise InvalidInput(
                f"{self.path} was changed after it was opened; it is read without locks, because its folder is "
                "read-only for this process. Refresh, or open the index again"
            )

    def usable(self) -> Connection:
        """Return the connection.

        Raises:
            InvalidInput: the connection belongs to the parent process, or is closed.
        """
        if self.inherited:
            raise InvalidInput(f"{self.path} was opened before this process was forked; open it again in this process")
        if self.is_closed:
            raise InvalidInput(f"{self.path} was closed; open it again")
        return self


def connect(path: Path, mode: str, *, busy_s: float = BUSY_S) -> Connection:
    """Open a connection that starts no transaction implicitly.

    Args:
        path: path of the file.
        mode: "rw", "rwc", or the result of `read_mode`.
        busy_s: maximum time to wait for a lock of another process.

    Raises:
        InvalidInput: the process was forked while a thread was changing the file.
    """
    if os.path.realpath(path) in _lost:
        raise InvalidInput(
            f"cannot open {path}: this process was forked while a thread was changing it; fork before, or start "
            "processes with spawn"
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
        if before in (None, connection.file):  # otherwise the file was replaced meanwhile
            _all.add(connection)
            return connection
        connection.close()


def file_at(path: Path) -> File | None:
    """Return device and inode of the file at a path; None without a file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _last_change(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_size, status.st_mtime_ns


_all: weakref.WeakSet[Connection] = weakref.WeakSet()
_held: list[Connection] = []
_lost: set[str] = set()
"""Files that were being changed when this process was forked, so that SQLite cannot open them here."""


def _before_fork() -> None:
    """Lock every connection, so that no statement is running."""
    _held.extend(connection for connection in list(_all) if connection.lock.acquire(timeout=FORK_WAIT_S))


def _after_fork_in_parent() -> None:
    for connection in _held:
        connection.lock.release()
    _held.clear()


def _after_fork_in_child() -> None:
    held = {id(connection) for connection in _held}
    _held.clear()
    for connection in list(_all):
        connection.inherited, connection.lock = True, threading.RLock()
        if id(connection) in held and (connection.reads or connection.is_closed or not connection.in_transaction):
            connection.close()
        else:  # ending the parent's transaction would write into memory that is shared with the parent
            _lost.add(os.path.realpath(connection.path))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))  # never closed, not even at exit
    _all.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
