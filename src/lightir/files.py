"""Atomic writes of files and folders (temporary name, fsync, rename), checksums, and JSON with clear errors."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from lightir.errors import (
    AlreadyExists,
    FormatError,
    NotFound,
    OutcomeUnknown,
    StorageError,
    WriteFailed,
    is_exhaustion,
    storage_error,
    storage_errors,
)

_NO_FULL_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
"""What macOS answers where a file system has no F_FULLFSYNC."""


def flush_to_disk(descriptor: int) -> None:
    """Flush a file to disk; on macOS, whose fsync leaves it in the drive's cache, by F_FULLFSYNC.

    Raises:
        OSError: the system refuses.
    """
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_FLUSH:
                raise
    os.fsync(descriptor)


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_to_disk(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and flush their names to disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_path(folder.parent)


_temporary: dict[Path, None] = {}
"""Temporary files and folders of this process that are not yet complete or not yet removed."""


os.register_at_fork(after_in_child=_temporary.clear)


def remove_temporary() -> None:
    """Remove the unfinished files and folders of this process, before it ends without unwinding."""
    while _temporary:
        path, _ = _temporary.popitem()
        _remove(path)


def _claim(path: Path) -> None:
    """Take a temporary file or folder that is about to get its final name away from `remove_temporary`.

    Raises:
        WriteFailed: `remove_temporary` has removed it.
    """
    try:
        del _temporary[path.absolute()]
    except KeyError:
        raise WriteFailed(f"{path} was removed, because the program is ending") from None


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Create a folder that is removed when the block ends, or when an interrupted program does.

    Args:
        parent: folder to create it in; None for the system's folder for temporary files.
    """
    folder = Path(parent or tempfile.gettempdir(), f".lightir-{secrets.token_hex(8)}").absolute()
    _temporary[folder] = None
    try:
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        _remove(folder)
        _temporary.pop(folder, None)


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[BinaryIO]:
    """Open a temporary binary file that replaces `path` when the block succeeds and is removed when it fails.

    Readers see the complete old or the complete new content. A symbolic link is kept and its target replaced. Pipes and
    devices such as /dev/null are written directly.

    Raises:
        WriteFailed: the path is not writable (raised before the block) or the disk is full (after it); it names the
            path. OutcomeUnknown if the content was replaced but its folder could not be flushed.
    """
    if _is_stream(path):
        with Path(path).open("wb") as stream:
            yield stream
        return
    with _naming(path):
        target = _target(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    _temporary[temporary.absolute()] = None
    with _naming(path):
        file = temporary.open("xb")
    try:
        yield file
        with _naming(path):
            file.flush()
            flush_to_disk(file.fileno())
            file.close()
        _claim(temporary)
        with _naming(path):
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk cannot store the buffered content
            file.close()
        temporary.unlink(missing_ok=True)
        _temporary.pop(temporary.absolute(), None)
        raise
    _flush_replacement(target)


def _is_stream(path: Path | str) -> bool:
    """Return whether the path is a pipe, a terminal or another device."""
    return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()


def _target(path: Path | str) -> Path:
    """Return the file that a write replaces: the path, or the target of a link."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return target


@contextlib.contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """Turn system errors of the block into WriteFailed, which names the path instead of the temporary file."""
    try:
        yield
    except OSError as error:
        named = OSError(error.errno, error.strerror or str(error), str(path))
        raise storage_error(f"cannot write {path}", named, kind=WriteFailed) from error


def _flush_replacement(path: Path) -> None:
    """Flush the entry of a file or folder that was just renamed.

    Raises:
        OutcomeUnknown: a power failure may undo the rename.
    """
    try:
        fsync_path(path.parent)
    except OSError as error:
        failed = f"{path} was written, but {path.parent} could not be flushed, so a power failure may undo that"
        raise storage_error(failed, error, kind=OutcomeUnknown) from error


def check_writable(path: Path | str) -> None:
    """Raise the errors of `write_bytes` before long work: missing folder, missing permission, …"""
    if _is_stream(path):
        return  # closing a pipe would signal its end to the reader
    with _naming(path):
        target = _target(path)
    with _naming(path), tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
        pass


def check_new_folder(path: Path | str, *, overwrite: bool = False) -> None:
    """Raise the errors of `atomic_folder` before long work: a folder that exists, a missing permission.

    Args:
        path: folder that will be written.
        overwrite: whether an existing folder may be replaced.

    Raises:
        AlreadyExists: the folder exists, is not empty, and overwrite is off.
        WriteFailed: the nearest existing folder above it is no folder, or is read-only.
    """
    path = Path(path)
    if not overwrite:
        _refuse_existing(path)
    above = next((folder for folder in path.absolute().parents if folder.exists()), Path(os.sep))
    code = errno.ENOTDIR if not above.is_dir() else 0 if os.access(above, os.W_OK) else errno.EACCES
    if code:
        with _naming(path):
            raise OSError(code, os.strerror(code))


def _refuse_existing(path: Path) -> None:
    if path.exists() and not _is_empty(path):
        raise AlreadyExists(f"{path} exists; choose another name or remove it")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file's content atomically; see `atomic_file`."""
    with atomic_file(path) as file, _naming(path):
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Replace a file's content by a value as indented JSON in UTF-8, atomically."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read the JSON value in a file.

    Raises:
        NotFound: the file does not exist.
        FormatError: the content is not JSON in UTF-8.
        StorageError: the system refuses to read the file.
    """
    try:
        with storage_errors(f"cannot read {path}"):
            content = path.read_bytes()
    except StorageError as error:
        if error.errno == errno.ENOENT:
            raise NotFound(f"{path} does not exist") from None
        raise
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error


def child_path(folder: Path, name: object) -> Path:
    """Return the path of a file or folder directly inside a folder, for a name read from a manifest.

    Raises:
        FormatError: the name is not a plain file name, so it could refer to something outside.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FormatError(f"invalid file name {str(name)[:80]!r} in {folder}; expected the plain name of a file inside")
    return folder / name


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file as 64 hexadecimal digits."""
    with storage_errors(f"cannot read {path}"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksums_of_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and checksum of every file in a folder and its subfolders, by relative path; empty without a folder.

    Raises:
        StorageError: the system refuses to read a file.
    """
    with storage_errors(f"cannot read {folder}"):
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in paths
        }


def damaged_files(folder: Path, expected: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Compare the files of a folder with recorded sizes and checksums, and return an error message for each difference.

    Further files are ignored, except in a folder of which no file was recorded.

    Args:
        folder: folder, which may be missing.
        expected: result of `checksums_of_files` when the folder was written.

    Raises:
        StorageError: the process lacks a resource or a permission to read a file.
    """
    if not expected and folder.exists():
        return [f"{folder} is unexpected: it was not written with the folder around it"]
    problems = []
    for name, recorded in expected.items():
        path, entry = folder / name, recorded if isinstance(recorded, Mapping) else {}  # the record may be damaged
        try:
            with storage_errors(f"cannot read {path}"):
                if not path.is_file():
                    problems.append(f"{path} is missing")
                elif (n_bytes := path.stat().st_size) != entry.get("bytes"):
                    problems.append(f"{path} has {n_bytes} bytes; expected {entry.get('bytes')}")
                elif sha256_file(path) != entry.get("sha256"):
                    problems.append(f"{path} is damaged: its checksum differs from that in the store")
        except StorageError as error:
            if is_exhaustion(error):
                raise
            problems.append(str(error))
    return problems


def copy_folder(source: Path | str, target: Path) -> None:
    """Copy the content of a folder recursively into another, which may exist.

    Raises:
        WriteFailed: a file cannot be read or written; the message has the first one.
    """
    refused: list[OSError] = []

    def copy(file: str, to: str) -> None:
        try:
            shutil.copy2(file, to)
        except OSError as error:
            refused.append(error)
            raise

    try:
        shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
    except OSError as error:  # shutil.Error has texts instead of errors
        first = refused[0] if refused else error
        raise storage_error(f"cannot copy {source} to {target}", first, kind=WriteFailed) from first


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False, replaces: str | None = None) -> Iterator[Path]:
    """Create a temporary folder that becomes `path` when the block succeeds and is removed when it fails.

    Every file is flushed before the rename and gets the permissions of the umask (safetensors makes files readable for
    the owner only). With overwrite, an existing folder is kept until the new one is complete and then exchanged in one
    step, so that readers always find one of them. Systems without such an exchange have a short gap. Temporary folders
    that killed processes left for the same path are removed first. Errors that the block raises pass unchanged.

    Args:
        path: path of the folder.
        overwrite: replace an existing folder.
        replaces: name of a file that a folder must contain to be replaced, which protects other folders from a wrong
            path; None replaces any folder.

    Raises:
        AlreadyExists: `path` exists, is not an empty folder, and overwrite is off or the folder lacks the file.
        WriteFailed: the disk is full or broken; `path` is unchanged.
        OutcomeUnknown: `path` was replaced, but a power failure may undo that; the content that it had is kept beside
            it until the next write.
    """
    path, unchanged = Path(path), "it is unchanged"
    with storage_errors(f"cannot write {path}", kind=WriteFailed, outcome=unchanged):
        temporary, lock = _aside(path, overwrite, replaces)
    is_settled = True
    try:
        yield temporary
        with storage_errors(f"cannot write {path}", kind=WriteFailed, outcome=unchanged):
            _flush_files(temporary)
            _claim(temporary)
            _move_into_place(temporary, path)
        is_settled = False
        _flush_replacement(path)
        is_settled = True
        _temporary[temporary.absolute()] = None  # it may hold the replaced folder now
    finally:
        if is_settled:
            _remove(temporary)
        _temporary.pop(temporary.absolute(), None)
        lock.close()


def _aside(path: Path, overwrite: bool, replaces: str | None) -> tuple[Path, _Lock]:
    """Check what a write replaces, and return a temporary folder, locked while its writer is alive."""
    if not overwrite:
        _refuse_existing(path)
    elif replaces is not None and path.exists() and not (path / replaces).is_file() and not _is_empty(path):
        raise AlreadyExists(f"{path} has no {replaces}, so it is another kind of folder and is not replaced")
    make_folder(path.parent)
    remove_abandoned(path.parent, glob.escape(path.name))
    return _locked_folder(path)


def _flush_files(folder: Path) -> None:
    """Flush every file of a new folder, and give it the permissions of the folder, to which mkdir applied the umask."""
    file_mode = folder.stat().st_mode & 0o666
    for inside, _, names in os.walk(folder):
        for name in names:
            os.chmod(Path(inside, name), file_mode)
            fsync_path(Path(inside, name))
        fsync_path(Path(inside))


@contextlib.contextmanager
def exclusive_writer(folder: Path) -> Iterator[None]:
    """Hold the exclusive write lock of a folder during the block. The lock ends with the process.

    Raises:
        AlreadyExists: another writer, in this process or another, holds the lock.
        StorageError: the folder cannot be opened.
    """
    with storage_errors(f"cannot open {folder}"):
        lock = _Lock(folder)
    with lock:
        if not lock.held and lock.supported:
            raise AlreadyExists(f"another process is writing {folder}; wait until it ends, or choose another folder")
        yield


class _Lock(contextlib.AbstractContextManager["_Lock"]):
    """A lock on an open folder, if no other process holds it and the file system supports locks.

    Attributes:
        held: whether this object holds the lock.
        supported: whether the file system supports locks (some network file systems do not).
    """

    def __init__(self, folder: Path) -> None:
        self.held, self.supported, self._opened = False, True, os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except BlockingIOError:
            pass
        except OSError:
            self.supported = False

    def close(self) -> None:
        os.close(self._opened)

    def __exit__(self, *error: object) -> None:
        self.close()


def _locked_folder(path: Path) -> tuple[Path, _Lock]:
    """Create a temporary folder next to the path, locked while its writer is alive."""
    while True:
        temporary = path.with_name(f".{path.name}.new-{secrets.token_hex(8)}")
        _temporary[temporary.absolute()] = None
        temporary.mkdir()
        try:
            lock = _Lock(temporary)
        except FileNotFoundError:  # another process removed it before it was locked
            _temporary.pop(temporary.absolute(), None)
            continue
        except OSError:
            _remove(temporary)
            _temporary.pop(temporary.absolute(), None)
            raise
        if (lock.held or not lock.supported) and temporary.is_dir():
            return temporary, lock
        lock.close()


def remove_abandoned(parent: Path, name: str = "*") -> None:
    """Remove the temporary folders of killed writers; those of running writers are locked and kept.

    Args:
        parent: folder that contains the temporary folders.
        name: glob pattern of the final folder names.
    """
    for i, abandoned in enumerate(parent.glob(f".{name}.new-*")):
        if i == 0:
            fsync_path(parent)  # one of them may be the old content of a replacement that was not flushed
        with contextlib.suppress(OSError), _Lock(abandoned) as lock:
            if lock.held:
                _remove(abandoned)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _move_into_place(temporary: Path, path: Path) -> None:
    if not path.exists():
        os.replace(temporary, path)
    elif not _exchange(temporary, path):
        aside = path.with_name(f".{path.name}.old-{secrets.token_hex(8)}")
        os.replace(path, aside)
        try:
            os.replace(temporary, path)
        except OSError:
            os.replace(aside, path)
            raise
        with contextlib.suppress(OSError):
            os.replace(aside, temporary)  # the caller removes what was replaced


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths atomically by Linux' renameat2 or macOS' renamex_np; return False if there is neither."""
    system = ctypes.CDLL(None)
    exchange = 2  # RENAME_EXCHANGE, RENAME_SWAP
    first, second = os.fsencode(one), os.fsencode(other)
    if (rename := getattr(system, "renameat2", None)) is not None:
        here = -100  # AT_FDCWD
        return bool(rename(here, first, here, second, exchange) == 0)
    rename = getattr(system, "renamex_np", None)
    return rename is not None and bool(rename(first, second, exchange) == 0)
