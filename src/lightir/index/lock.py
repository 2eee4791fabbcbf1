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

from lightir.errors import IndexLocked

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
        """
        self._holder = os.getpid()
        self._file: IO[str] = (folder / LOCK_FILE).open("a+", encoding="utf-8")
        deadline, before = time.monotonic() + wait_s, None
        while not _locked(self._file):
            holder = _read(self._file)
            # Read twice: a holder takes the lock before it writes who it is; until then the file names the last one.
            stays = holder == before and not holder.get("brief", not holder)
            if stays or time.monotonic() > deadline:
                self._file.close()
                raise IndexLocked(f"{folder} is being written by {_said(holder)}; an index has one writer at a time")
            before = holder
            time.sleep(POLL_S)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._file.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": since, "brief": brief}, self._file)
        self._file.flush()

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
