"""Files that are whole or not there: write aside, fsync, rename; checksums; JSON with clear errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightir.errors import AlreadyExists, FormatError, NotFound, WriteFailed


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the file by the content, whole: a reader sees the old or the new bytes, never a part."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with aside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the name of the file aside
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    fsync_path(path.parent)


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
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends well and vanishes when it doesn't.

    Every file in it is flushed before the rename, and as readable as the umask lets a new file be, whatever its writer
    made of it (safetensors writes for the owner alone). With overwrite an existing folder is replaced; its old content
    stays untouched until the new one is whole.

    Raises:
        AlreadyExists: `path` is there (and not an empty folder) and overwrite is off.
    """
    path = Path(path)
    if path.exists() and not overwrite and not (path.is_dir() and not any(path.iterdir())):
        raise AlreadyExists(f"{path} exists already; choose another name or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.new-{secrets.token_hex(8)}")
    aside.mkdir()
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
        shutil.rmtree(aside, ignore_errors=True)


def _move_into_place(aside: Path, path: Path) -> None:
    if path.exists():
        old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old-"))
        os.replace(path, old / "content")
        os.replace(aside, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(aside, path)
    fsync_path(path.parent)
