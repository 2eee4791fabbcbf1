"""SQLite connections that threads share, and that a forked process does not inherit.

SQLite's locks belong to a process. A forked child does not hold the locks of its parent, but its copy of SQLite's
memory says that it does. So the snapshot of the child is not protected, and when the parent closes the file, SQLite may
remove the log that the child writes to. A child therefore closes inherited connections at once and opens its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from lightir.errors import InvalidInput, StorageError, WriteFailed, storage_error

BUSY_S = 30.0
"""Maximum time to wait for a short lock of another process, such as during a checkpoint."""

FORK_WAIT_S = 2.0
"""Maximum time that a fork waits for a thread that uses a connection. Compaction may take minutes."""

LOG_HEADER_BYTES = 32
"""Size of the header of SQLite's log; a log without frames is not larger."""

CLOCK_TICK_NS = 20_000_000
"""Upper bound of the step in which a file system counts the time of changes, in nanoseconds."""

IMMUTABLE = "ro&immutable=1"
"""Mode of reading a file without locks, whose log is not read."""

OWN_MEMORY = "ro&readonly_shm=1"
"""Mode of reading a file and its log without changing the shared memory; SQLite uses its own if no writer runs."""

REFUSED = ("FULL", "IOERR", "CANTOPEN", "BUSY", "LOCKED", "READONLY", "PERM", "NOMEM", "PROTOCOL")
"""SQLite's errors that concern the machine, not the content of the file."""

_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")

_SYSTEM_ERRORS = (
    ("SQLITE_FULL", errno.ENOSPC),
    ("SQLITE_IOERR_SHMSIZE", errno.ENOSPC),
    ("SQLITE_IOERR_NOMEM", errno.ENOMEM),
    ("SQLITE_NOMEM", errno.ENOMEM),
    ("SQLITE_IOERR_LOCK", errno.ENOLCK),
    ("SQLITE_IOERR_RDLOCK", errno.ENOLCK),
    ("SQLITE_IOERR_UNLOCK", errno.ENOLCK),
    ("SQLITE_IOERR", errno.EIO),
    ("SQLITE_READONLY", errno.EROFS),
    ("SQLITE_PERM", errno.EACCES),
)

T = TypeVar("T")

File = tuple[int, int]
"""Device and inode of a file, which are unique while the file is open."""


class Connection(sqlite3.Connection):
    """A connection with its file and a lock for the threads that share it.

    Attributes:
        path: path of the file.
        mode: "rw", "rwc", or one of `reading_modes`.
        file: device and inode of the file when it was opened.
        unlocked: size and time of the last change of a file that is read without locks (SQLite's "immutable").
        lock: lock held while the connection is used.
        reads: whether the connection only reads.
        inherited: whether the connection belongs to the parent process; it is closed in this one.
        is_closed: whether the connection was closed.
    """

    path: Path
    mode: str
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

    @property
    def is_unchanged(self) -> bool:
        """Whether a file that is read without locks is as it was when it was opened."""
        return self.unlocked is None or self.unlocked == _last_change(self.path)

    def check_unchanged(self) -> None:
        """Raise an error if the file was changed while it was read without locks.

        Raises:
            InvalidInput: the file has changed since it was opened.
        """
        if not self.is_unchanged:
            raise InvalidInput(
                f"{self.path} was changed after it was opened; it is read without locks, because its folder is "
                "read-only for this process or its disk was full. Refresh, or open the index again"
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
        mode: "rw", "rwc", or one of `reading_modes`.
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
        unlocked = _settled_change(path) if "immutable" in mode else None
        connection = sqlite3.connect(
            uri, uri=True, check_same_thread=False, isolation_level=None, timeout=busy_s, factory=Connection
        )
        connection.path, connection.file, connection.lock = path, file_at(path), threading.RLock()
        connection.mode, connection.unlocked = mode, unlocked
        if before in (None, connection.file):  # otherwise the file was replaced meanwhile
            _all.add(connection)
            return connection
        connection.close()


def reading_modes(path: Path) -> Iterator[str]:
    """Yield the modes to read a file in; each is tried if the system refuses the one before.

    A reader shares memory with the writer, in a file that SQLite creates beside the store. On a full disk, without
    descriptors or in a read-only folder it cannot be created. If the log holds nothing, the store is then read without
    the log and without locks; `Connection.check_unchanged` tells if a writer changed it meanwhile. Otherwise SQLite
    reads the log into memory of its own, and holds a lock that keeps writers from moving the log into the store.
    """
    if writable(path):
        yield "rw"
    elif log_bytes(path) is not None:
        yield OWN_MEMORY  # shares the memory of a writer that is running
    if (log_bytes(path) or 0) <= LOG_HEADER_BYTES:
        yield IMMUTABLE
    elif writable(path):
        yield OWN_MEMORY


def first_allowed(path: Path, opened: Callable[[str], T]) -> T:
    """Return what a function returns for the first of the `reading_modes` that the system allows.

    Raises:
        StorageError: the error of the first mode, if the system refuses each of them; or that another process holds the
            file.
    """
    refused: StorageError | None = None
    for mode in reading_modes(path):
        try:
            return opened(mode)
        except StorageError as error:
            if is_busy(error):
                raise
            refused = refused or error
    assert refused is not None  # there is at least one mode
    try:
        raise refused
    finally:
        del refused  # otherwise this frame and the error keep each other alive


def use_log(connection: sqlite3.Connection, path: Path) -> None:
    """Switch a file to the mode in which readers and a writer share it by a log.

    Raises:
        WriteFailed: the file's header could not be written, which SQLite only tells by the mode that it returns.
    """
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != "wal":
        raise WriteFailed(f"cannot write the header of {path}; check that its disk has space and works")


def writable(path: Path) -> bool:
    """Return whether a file and its folder can be changed."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def is_refusal(error: BaseException) -> bool:
    """Return whether an error of SQLite concerns the machine, not the content of the file."""
    name = getattr(error, "sqlite_errorname", "")  # such as SQLITE_IOERR_SHMSIZE
    return isinstance(error, MemoryError) or name.startswith(tuple(f"SQLITE_{code}" for code in REFUSED))


def is_busy(error: StorageError) -> bool:
    """Return whether another process held the file for too long."""
    return getattr(error.__cause__, "sqlite_errorname", "").startswith(_BUSY)


def refusal(
    failed: str, error: BaseException, *, kind: type[StorageError] = StorageError, outcome: str = ""
) -> StorageError:
    """Return a StorageError for an error of SQLite that concerns the machine; its errno is the likely one.

    Args:
        failed: beginning of the message, which says what failed.
        error: error of SQLite, or MemoryError.
        kind: type of the returned error.
        outcome: state after the failure.
    """
    name, then = getattr(error, "sqlite_errorname", ""), [outcome]
    number = next((number for code, number in _SYSTEM_ERRORS if name.startswith(code)), None)
    if name.startswith("SQLITE_CANTOPEN"):
        number = _refused_descriptor()
        then.append("" if number else "check that the folder is there and writable, and that its disk has space")
    if name.startswith("SQLITE_READONLY"):
        then.append("close readers that this process opened on a full disk")
    if name.startswith(_BUSY):
        then.append("another process uses it, or its file system has no locks")
    return storage_error(failed, error, kind=kind, outcome="; ".join(filter(None, then)), number=number)


def _refused_descriptor() -> int | None:
    """Return the errno of opening as many files as SQLite opens (store, log and shared memory), if that fails now.

    The store itself must not be opened: closing it would release SQLite's locks of this process.
    """
    with ExitStack() as opened:
        try:
            for _ in range(3):
                opened.callback(os.close, os.open("/", os.O_RDONLY))
        except OSError as error:
            return error.errno
    return None


def log_bytes(path: Path) -> int | None:
    """Return the size of the log of a file; None without a log."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size
    except FileNotFoundError:
        return None


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


def _settled_change(path: Path) -> tuple[int, int] | None:
    """Return the last change of a file, once any later one has another time."""
    change = _last_change(path)
    while change is not None and 0 <= time.time_ns() - change[1] < CLOCK_TICK_NS:
        time.sleep(CLOCK_TICK_NS / 1e9)
        change = _last_change(path)
    return change


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
