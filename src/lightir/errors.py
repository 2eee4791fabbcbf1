"""Exceptions. Every error that lightir raises deliberately is a LightirError."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Mapping
from types import MappingProxyType, TracebackType


class LightirError(Exception):
    """Base class of lightir's errors; the message says what is wrong and how to fix it."""


class InvalidInput(LightirError, ValueError):
    """An invalid value, file or argument."""


class NotFound(InvalidInput):
    """A file, folder, model, document or task that does not exist."""


class FormatError(LightirError):
    """A stored folder or file that is damaged, incomplete, or of a version that this release cannot read."""


class ContractMismatch(LightirError):
    """A model, query encoder, vectors or index that do not belong together; the message has both values."""


class MissingExtra(LightirError, ImportError):
    """A missing optional dependency; the message has the pip command that installs it."""


class AlreadyExists(LightirError, FileExistsError):
    """A target that exists and would be overwritten."""


class StorageError(LightirError, OSError):
    """A file or folder that the system refused to open, read, write, map or lock; the message says what to do.

    `errno`, `strerror` and `filename` are those of the system's error, None where it has none. Without memory, errno is
    ENOMEM. What is stored is not changed.
    """

    def __str__(self) -> str:
        """Return the message; OSError would put errno and filename before it."""
        return str(self.args[0]) if self.args else ""


class WriteFailed(StorageError):
    """A failed write (full or failing disk, busy file); previously stored data are unchanged."""


class OutcomeUnknown(WriteFailed):
    """A change that failed so late that it may have been made; opening the index or file again shows the outcome.

    Either all of the change was made or nothing of it.
    """


class IndexLocked(LightirError):
    """An index that another writer has locked; the message names its host, process and start time."""


class Terminated(KeyboardInterrupt):
    """A SIGTERM, which stops a command as Ctrl-C does but ends it with exit code 143."""


_REMEDIES: Mapping[int, str] = MappingProxyType(
    {
        errno.ENOSPC: "free space on the disk",
        errno.EDQUOT: "free space, or raise the quota",
        errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
        errno.EMFILE: "close files, or raise the limit on open files (ulimit -n)",
        errno.ENFILE: "close files of other processes, or raise the system's limit (fs.file-max)",
        errno.ENOMEM: "free memory, or raise the limits on memory (ulimit -v) and on mapped files (vm.max_map_count)",
        errno.EIO: "check the disk, the file is not necessarily damaged",
        errno.ENOLCK: "use a file system with locks",
        errno.EROFS: "make the folder writable",
        errno.EACCES: "check the permissions",
        errno.EPERM: "check the permissions",
    }
)
_EXHAUSTED = frozenset(_REMEDIES) - {errno.EIO, errno.EROFS}
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_RUST_ERRNO = re.compile(r"(?:os error|code:) (\d+)")


def storage_errors(
    failed: str,
    *,
    kind: type[StorageError] = StorageError,
    outcome: str = "",
    also: tuple[type[Exception], ...] = (),
) -> contextlib.AbstractContextManager[None]:
    """Turn the system's errors inside a `with` block into an error that says what failed and what to do.

    The block raises StorageError for an OSError or a MemoryError. Other errors of lightir pass, and errors of `kind`.

    Args:
        failed: beginning of the message, which says what failed: "cannot open index".
        kind: type of the error that is raised.
        outcome: state after the failure, such as "the index is unchanged".
        also: further types of errors that report a refusal of the system, such as SafetensorError.
    """
    return _StorageErrors(failed, kind, outcome, (OSError, MemoryError, *also))


class _StorageErrors(contextlib.AbstractContextManager[None]):
    """The block of `storage_errors`.

    A generator of @contextmanager would keep its error alive, with all that the block had opened, until garbage
    collection (from Python 3.12 on).
    """

    def __init__(
        self, failed: str, kind: type[StorageError], outcome: str, refusals: tuple[type[Exception], ...]
    ) -> None:
        self._failed, self._kind, self._outcome, self._refusals = failed, kind, outcome, refusals

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_own = isinstance(error, LightirError) and (
            isinstance(error, self._kind) or not isinstance(error, StorageError)
        )
        if isinstance(error, self._refusals) and not is_own:
            raise storage_error(self._failed, error, kind=self._kind, outcome=self._outcome) from error


def is_exhaustion(error: OSError) -> bool:
    """Return whether the process lacks a resource or a permission, so that the error is no sign of a damaged file."""
    return error.errno in _EXHAUSTED


def storage_error(
    failed: str,
    error: BaseException,
    *,
    kind: type[StorageError] = StorageError,
    outcome: str = "",
    number: int | None = None,
) -> StorageError:
    """Return the error of `storage_errors` for an error of the system or of a library.

    Args:
        failed: beginning of the message, which says what failed.
        error: the cause.
        kind: type of the returned error.
        outcome: state after the failure.
        number: errno, if the cause has none.
    """
    filename = getattr(error, "filename", None)
    number = getattr(error, "errno", None) or number
    if isinstance(error, MemoryError):
        number = errno.ENOMEM
    elif number is None and (told := _RUST_ERRNO.search(str(error))):
        number = int(told[1])
    reason = getattr(error, "strerror", None) or str(error) or (os.strerror(number) if number else repr(error))
    unnamed = "the disk may be full" if isinstance(error, OSError) and issubclass(kind, WriteFailed) else ""
    remedy, text = _REMEDIES.get(number, "") if number else unnamed, reason
    if isinstance(error, LightirError):  # its message says what to do
        remedy, text = "", str(error)
    elif issubclass(kind, WriteFailed) and number in _REFUSED and (folder := _read_only_folder(filename)):
        remedy, text = "choose another folder, or make it writable", f"the folder {folder} is read-only ({reason})"
    elif filename is not None and os.fsdecode(filename) not in failed:
        text += f" ({os.fsdecode(filename)})"
    made = kind("; ".join(filter(None, (f"{failed}: {text}", outcome, remedy))))
    made.errno, made.strerror, made.filename = number, reason, filename
    return made


def _read_only_folder(path: object) -> str:
    """Return the folder of a path, or the nearest folder above it that exists, if it is read-only; else ""."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    folder = os.path.dirname(os.fsdecode(path)) or os.curdir
    while not os.path.exists(folder):
        folder = os.path.dirname(folder) or os.curdir
    return "" if os.access(folder, os.W_OK) else folder
