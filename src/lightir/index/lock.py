"""One writer at a time: a lock that names its holder and that dies with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from lightir.errors import IndexLocked

LOCK_FILE = "writer.lock"


class WriterLock:
    """Held from its making until `release`, or until the process dies, however it dies.

    The kernel keeps the lock with the open file, so a holder that was killed leaves none behind; the file itself stays
    and says who came last.
    """

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            IndexLocked: another writer, in this process or another, has it.
        """
        self._file: IO[str] = (folder / LOCK_FILE).open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = _described(self._file.read())
            self._file.close()
            raise IndexLocked(f"{folder} is being written by {holder}; an index has one writer at a time") from None
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._file.truncate(0)
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": since}, self._file)
        self._file.flush()

    def release(self) -> None:
        """Let the next writer in."""
        self._file.close()


def _described(content: str) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        holder = json.loads(content)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return "a process that has not said who it is"
