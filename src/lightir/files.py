"""Files that are whole or not there: write aside, fsync, rename; checksums; JSON with clear errors."""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lightir.errors import AlreadyExists, FormatError, NotFound, WriteFailed


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path | str) -> Iterator[BinaryIO]:
    """A binary file to fill, which becomes `path` when the block ends well and vanishes when it doesn't.

    A reader sees the old or the new bytes, never a part. A link stays, and what it points to is replaced. What is no
    file, such as a pipe or /dev/null, is written to as it is.

    Raises:
        OSError: before the block, with the path's name, where no file can be written there; after it on a full disk.
    """
    if _is_stream(path):
        with Path(path).open("wb") as stream:
            yield stream
        return
    target = _target(path)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    with _naming(path):
        file = aside.open("xb")
    try:
        yield file
        with _naming(path):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk cannot take what is still in memory
            file.close()
        aside.unlink(missing_ok=True)
        raise
    fsync_path(target.parent)


def _is_stream(path: Path | str) -> bool:
    """Whether there is something that bytes go through: a pipe, a terminal, another device."""
    return Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()


def _target(path: Path | str) -> Path:
    """The file that a write replaces: the path's, or what it links to."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    return target


@contextlib.contextmanager
def _naming(path: Path | str) -> Iterator[None]:
    """A block whose system errors name the path, not the file aside."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_writable(path: Path | str) -> None:
    """Raise before long work what `write_bytes` would raise after it: no such folder, no right to write there, …"""
    if _is_stream(path):
        return  # to open a pipe and close it again would end it for its reader
    target = _target(path)
    with _naming(path), tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}."):
        pass


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file by the content, whole: see `atomic_file`."""
    with atomic_file(path) as file, _naming(path):
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Replace the file by the value as indented JSON in UTF-8, whole."""
    write_bytes(path, (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """The JSON value in the file.

    Raises:
        NotFound: there is no such file.
        FormatError: it is not JSON in UTF-8.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} is not valid JSON: {error}") from error


def child_path(folder: Path, name: object) -> Path:
    """The path of a file or folder that a record of the folder names: directly inside it, never elsewhere.

    Raises:
        FormatError: the name is none, or leads out of the folder.
    """
    if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
        raise FormatError(f"{folder} names a file {str(name)[:80]!r}; expected the plain name of one that lies in it")
    return folder / name


def sha256_file(path: Path) -> str:
    """The file's SHA-256 as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_folder(source: Path | str, target: Path) -> None:
    """Copy a folder's content, subfolders too, into another, which may be there.

    Raises:
        WriteFailed: the disk is full or broken, or a file cannot be read; the first such file is named.
    """
    try:
        shutil.copytree(source, target, dirs_exist_ok=True)
    except shutil.Error as error:
        raise WriteFailed(str(error.args[0][0][2])) from error  # of each file: source, copy, why not


@contextlib.contextmanager
def atomic_folder(path: Path, *, overwrite: bool = False, replaces: str | None = None) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it doesn't.

    Every file in it is flushed before the rename, and as readable as the umask lets a new file be, whatever its writer
    made of it (safetensors writes for the owner alone). With overwrite an existing folder is replaced; its old content
    stays untouched until the new one is whole, and at every moment a reader finds one of them (where the system cannot
    exchange two folders, at all but one). What a killed process left of the same folder is removed first.

    Args:
        path: the folder's place.
        overwrite: replace what is there.
        replaces: the name of a file that a folder must hold to be replaced, so that a wrong path loses nothing else.

    Raises:
        AlreadyExists: `path` is there (and not an empty folder) and overwrite is off, or lacks the file.
    """
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not overwrite:
            raise AlreadyExists(f"{path} exists already; choose another name or remove it")
        if replaces is not None and not (path / replaces).is_file():
            raise AlreadyExists(f"{path} has no {replaces}, so it is something else and is not replaced")
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep_unfinished(path.parent, glob.escape(path.name))
    aside, lock = _locked_folder(path)
    file_mode = aside.stat().st_mode & 0o666  # mkdir went by the umask
    try:
        yield aside
        for folder, _, names in os.walk(aside):
            for name in names:
                os.chmod(Path(folder, name), file_mode)
                fsync_path(Path(folder, name))
            fsync_path(Path(folder))
        _move_into_place(aside, path)
    finally:
        _remove(aside)
        lock.close()


@contextlib.contextmanager
def exclusive_writer(folder: Path) -> Iterator[None]:
    """A block in which nobody else writes the folder, in this process or another. The lock ends with the process.

    Raises:
        AlreadyExists: another has it.
    """
    with _Lock(folder) as lock:
        if not lock.held and lock.known:
            raise AlreadyExists(f"{folder} is being written by another process; let it end, or choose another folder")
        yield


class _Lock(contextlib.AbstractContextManager["_Lock"]):
    """A folder kept open, and locked where nobody else has it locked and the system knows such locks.

    Attributes:
        held: this object has the lock.
        known: locks work there at all (on some network file systems they don't).
    """

    def __init__(self, folder: Path) -> None:
        self.held, self.known, self._opened = False, True, os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held = True
        except BlockingIOError:
            pass
        except OSError:
            self.known = False

    def close(self) -> None:
        os.close(self._opened)

    def __exit__(self, *error: object) -> None:
        self.close()


def _locked_folder(path: Path) -> tuple[Path, _Lock]:
    """A new folder beside the path, locked while its writer lives."""
    while True:
        aside = path.with_name(f".{path.name}.new-{secrets.token_hex(8)}")
        aside.mkdir()
        with contextlib.suppress(FileNotFoundError):  # another's sweep took it before it was locked
            lock = _Lock(aside)
            if (lock.held or not lock.known) and aside.is_dir():
                return aside, lock
            lock.close()


def sweep_unfinished(parent: Path, name: str = "*") -> None:
    """Remove the unfinished folders that killed writers left in a folder; those of living writers are locked and stay.

    Args:
        parent: the folder.
        name: a glob pattern of the names that the folders would have had.
    """
    for left in parent.glob(f".{name}.new-*"):
        with contextlib.suppress(OSError), _Lock(left) as lock:
            if lock.held:
                _remove(left)


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _move_into_place(aside: Path, path: Path) -> None:
    if not path.exists():
        os.replace(aside, path)
    elif not _exchange(aside, path):
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old-"))
        os.replace(path, old / "content")
        os.replace(aside, path)
        shutil.rmtree(old, ignore_errors=True)
    fsync_path(path.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step for whoever looks; False where the system cannot (Linux' renameat2)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
