"""One writer at a time: a lock that names its holder and that dies with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from lightir.errors import IndexLocked, WriteFailed

LOCK_FILE = "writer.lock"
BRIEF_WAIT_S = 10.0
POLL_S = 0.01


class WriterLock:
    """Held from its construction until `release`, or until the process ends, however it ends.

    The system keeps the lock with the open file, so a holder that was killed leaves no lock behind. The file itself
    stays and says who held it last.
    """

    def __init__(self, folder: Path, *, brief: bool = False, wait_s: float = BRIEF_WAIT_S) -> None:
        """Take the lock; wait for it where its holder said that it will be brief.

        Args:
            folder: the index.
            brief: say that it is held for one commit only, so that others wait for it.
            wait_s: how long to wait for such holders; there may be several, one after the other.

        Raises:
            IndexLocked: another writer, in this process or another, has it.
            WriteFailed: the disk is full or broken, or the file may not be written.
        """
        self._holder = os.getpid()
        self._path = folder / LOCK_FILE
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "pid": os.getpid(), "since": since, "brief": brief}
        try:
            self._file = self._taken(time.monotonic() + wait_s)
            try:
                self._file.truncate(0)
                self._file.write(json.dumps(holder))
                self._file.flush()
            except BaseException:
                with contextlib.suppress(OSError):  # what could not be written is tried again
                    self._file.close()
                raise
        except OSError as error:
            raise WriteFailed(f"{self._path} cannot be written: {error}") from error

    def _taken(self, deadline: float) -> IO[str]:
        """The file, locked; that of the index which is in the folder by then, if it is replaced meanwhile."""
        file, before = self._path.open("a+", encoding="utf-8"), None
        while not (locked := _locked(file)) or not _leads_to(self._path, file):
            if locked:
                file.close()
                file, before = self._path.open("a+", encoding="utf-8"), None
                continue
            holder = _read(file)
            # Read twice: a holder takes the lock before it writes who it is; until then the file names the last one.
            stays = holder == before and not holder.get("brief", not holder)
            if stays or time.monotonic() > deadline:
                file.close()
                folder = self._path.parent
                raise IndexLocked(f"{folder} is being written by {_said(holder)}; an index has one writer at a time")
            before = holder
            time.sleep(POLL_S)
        return file

    @property
    def is_current(self) -> bool:
        """Whether the folder's lock is still this one; not where the index was removed, or replaced by another."""
        return _leads_to(self._path, self._file)

    def release(self) -> None:
        """Let the next writer in.

        A process that was forked meanwhile keeps the file open, and with it the lock: so it is given up by name, but
        not by such a process, whose lock it isn't.
        """
        if os.getpid() == self._holder and not self._file.closed:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _leads_to(path: Path, file: IO[str]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _read(file: IO[str]) -> dict[str, Any]:
    """What the holder wrote about itself; empty while it has not written yet."""
    file.seek(0)
    with contextlib.suppress(ValueError):
        holder = json.loads(file.read())
        if isinstance(holder, dict):
            return holder
    return {}


def _said(holder: dict[str, Any]) -> str:
    with contextlib.suppress(KeyError):
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return "a process that has not said who it is"
