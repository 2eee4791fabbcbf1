"""The file of a store: whether it is there and can be changed, errors that name it, and a folder for a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from lightir.errors import FormatError, NotFound, StorageError, WriteFailed, storage_errors
from lightir.files import atomic_folder
from lightir.index.connections import Connection, connect, is_refusal, refusal, writable
from lightir.index.lock import WriterLock

STORE_FILE = "store.sqlite"


def require_store(path: Path) -> None:
    """Raise NotFound if a store does not exist."""
    if path.is_file():
        return
    if not path.parent.is_dir():
        problem = "is a file" if path.parent.exists() else "does not exist"
        raise NotFound(f"{path.parent} {problem}; expected an index folder, as `lightir index` writes it")
    raise NotFound(f"{path.parent} is not an index: it has no {path.name}. Create one with `lightir index`")


def require_writable(path: Path) -> None:
    """Raise an error if the store cannot be changed.

    Raises:
        NotFound: the store does not exist.
        WriteFailed: the folder or its medium is read-only.
    """
    with storage_errors(f"cannot open {path}"):
        require_store(path)
    if not writable(path):
        raise WriteFailed(f"{path.parent} is read-only; it can be searched but not changed")


def require_writable_header(path: Path) -> None:
    """Raise FormatError if the header of a store forbids changes; if the write lock is free, hold it for a moment."""
    with named(path):
        connection = connect(path, "rw", busy_s=0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.startswith("SQLITE_READONLY") and not _is_refused(connection):
            raise FormatError(f"{path} is damaged: its header forbids changes ({error})") from error
    finally:
        connection.close()


def _is_refused(connection: Connection) -> bool:
    """Return whether the system, not the header, forbids a connection to write, after a first refusal.

    Connections of a process share memory, which SQLite opens for reading if the system refuses anything else. SQLite
    then refuses each transaction that writes. If the header forbids changes, SQLite refuses only the first one, and
    begins reading transactions in place of the others.
    """
    try:
        connection.execute("BEGIN EXCLUSIVE")  # the first statement was compiled before SQLite had read the header
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    return False


class named(AbstractContextManager[None]):  # noqa: N801 - used as a function
    """Turn SQLite's errors inside the block into errors that name the file.

    A generator of @contextmanager would keep its error alive, with all that the block had opened, until garbage
    collection (from Python 3.12 on).
    """

    def __init__(self, path: Path, kind: type[StorageError] = StorageError) -> None:
        """Name a file; what the system refuses becomes an error of `kind`."""
        self._path, self._kind = path, kind

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error of this package in place of SQLite's."""
        if isinstance(error, sqlite3.DatabaseError | MemoryError):
            if is_refusal(error):
                raise refusal(f"cannot use {self._path}", error, kind=self._kind) from error
            raise FormatError(f"{self._path} is damaged or not an index store: {error}") from error
        if isinstance(error, UnicodeDecodeError):  # a text, or the name of a table in an error message of SQLite
            raise FormatError(f"{self._path} is damaged: {error}") from error


@contextmanager
def new_index(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder that becomes an index when the block ends without an error.

    The writer lock of a replaced index is held to the end, because its writer would continue in the new folder.

    Raises:
        AlreadyExists: `out` exists and overwrite is off, or it is not an index.
        IndexLocked: the index to replace has a writer; the message names its process.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    try:
        with ExitStack() as stack:
            if overwrite and (out / STORE_FILE).is_file():
                stack.callback(WriterLock(out).release)
            yield stack.enter_context(atomic_folder(out, overwrite=overwrite, replaces=STORE_FILE))
    except (sqlite3.DatabaseError, MemoryError) as error:
        if is_refusal(error) or isinstance(error, sqlite3.OperationalError):
            raise refusal(f"cannot write {out}", error, kind=WriteFailed, outcome="it is unchanged") from error
        raise FormatError(f"cannot write {out}: the source is damaged: {error}; run `lightir verify` on it") from error
