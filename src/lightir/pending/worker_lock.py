"""Worker locks: one locked file per worker shows other processes that the worker is alive.

The operating system releases the lock when the process ends, however it ends. Process ids would not do: they are
reused, and two containers that share a folder have the same ones.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import IO

WORKERS_FOLDER = "workers"
WORKER_NAME = re.compile(r"\d+-[0-9a-f]{16}")
"""A worker's name and that of its file: process id and random digits."""


class WorkerLock:
    """The locked file of a live worker.

    Attributes:
        name: the worker's name.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        """Wrap a locked file; use `create` instead."""
        self.name = path.name
        self._path = path
        self._file = file

    @classmethod
    def create(cls, folder: Path) -> WorkerLock:
        """Create and lock a file with a new name, and remove the files of dead workers."""
        for path in folder.iterdir():
            if WORKER_NAME.fullmatch(path.name):
                remove_if_dead(path)
        path = folder / f"{os.getpid()}-{secrets.token_hex(8)}"
        while True:  # another worker that starts now may lock the new file first and remove it as a dead worker's
            path.touch()
            if (file := _locked(path)) is not None:
                return cls(path, file)

    def release(self) -> None:
        """Remove the file and release the lock."""
        try:
            self._path.unlink(missing_ok=True)
        finally:
            self._file.close()


def remove_if_dead(path: Path) -> bool:
    """Remove a worker's file unless the worker is alive; return whether the file is gone."""
    file = _locked(path)
    if file is not None:
        WorkerLock(path, file).release()
        return True
    return not path.exists()


def _locked(path: Path) -> IO[bytes] | None:
    """Open and lock a file; return None if another process has locked it or it does not exist (any more)."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:  # the file system has no locks
        file.close()
        raise
    file.close()
    return None
