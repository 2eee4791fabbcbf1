"""The lock of the writer, which names its holder and is released when the holder's process ends."""

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

from lightir.errors import IndexLocked, WriteFailed, storage_error

LOCK_FILE = "writer.lock"
BRIEF_WAIT_S = 10.0
POLL_S = 0.01
DESCRIPTION_CHARACTERS = 4096
NOTES = ("commits", "lost")
"""Fields that later holders keep: the number of commits in the store, and of those that it has lost."""


class WriterLock:
    """Lock held from construction until `release`, or until the process ends for any reason.

    The operating system ties the lock to the open file, so a killed holder leaves no lock behind. The file remains and
    names the last holder.
    """

    def __init__(self, folder: Path, *, brief: bool = False, wait_s: float = BRIEF_WAIT_S) -> None:
        """Acquire the lock, and wait for a brief holder.

        Args:
            folder: index folder.
            brief: announce that the lock is held for one commit only, so that other writers wait.
            wait_s: maximum time to wait for brief holders, of which there may be several in turn.

        Raises:
            IndexLocked: another writer, in this process or another, holds the lock.
            WriteFailed: the disk is full or broken, or the file is read-only.
        """
        self._holder = os.getpid()
        self._path = folder / LOCK_FILE
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._description: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": since,
            "brief": brief,
        }
        existed = self._path.exists()
        try:
            self._file = self._taken(time.monotonic() + wait_s)
            try:
                before = _read(self._file)
                self.was_abandoned = (existed or bool(before)) and not before.get("closed", False)
                """Whether the last holder did not close the index cleanly, so that its last commit may be undecided."""
                self._description |= {name: _number(before, name) for name in NOTES if _number(before, name)}
                self._describe(self._description)
            except BaseException:
                with contextlib.suppress(OSError):  # closing flushes the text that could not be written
                    self._file.close()
                raise
        except OSError as error:
            raise storage_error(f"cannot write {self._path}", error, kind=WriteFailed) from error

    def _taken(self, deadline: float) -> IO[str]:
        """Return the locked file; if the index is replaced meanwhile, that of the new index."""
        file, before = self._path.open("a+", encoding="utf-8"), None
        while not (locked := _locked(file)) or not _leads_to(self._path, file):
            if locked:
                file.close()
                file, before = self._path.open("a+", encoding="utf-8"), None
                continue
            holder = _read(file)
            holder = {} if holder.get("closed") else {name: holder[name] for name in holder if name not in NOTES}
            # Read twice: a holder locks the file before it writes its name; until then the file names the last holder.
            stays = holder == before and not holder.get("brief", not holder)
            if stays or time.monotonic() > deadline:
                file.close()
                folder = self._path.parent
                raise IndexLocked(f"{folder} is being written by {_name(holder)}; an index has one writer at a time")
            before = holder
            time.sleep(POLL_S)
        return file

    @property
    def is_current(self) -> bool:
        """Whether the folder still has this lock: the index was neither removed nor replaced."""
        return _leads_to(self._path, self._file)

    def note_commits(self, n: int) -> None:
        """Record the number of commits in the store, for `lost_commits`; without effect if the disk fails.

        Call it when the store is opened and after every commit. The note is not flushed to disk: a power failure may
        lose it, but it never precedes its commit.
        """
        noted = self._description.get("commits", 0)
        if n < noted:
            self._description["lost"] = self._description.get("lost", 0) + noted - n
        self._description["commits"] = n
        with contextlib.suppress(OSError):
            self._describe(self._description)

    def _describe(self, holder: dict[str, Any]) -> None:
        self._file.truncate(0)
        self._file.write(json.dumps(holder))
        self._file.flush()

    def release(self, *, clean: bool = False) -> None:
        """Release the lock.

        Args:
            clean: record that no commit of this or an earlier holder is undecided.

        A forked process keeps the file open and with it the lock, so the file is unlocked explicitly, but only by the
        process that holds the lock.
        """
        if os.getpid() == self._holder and not self._file.closed:
            if clean:
                with contextlib.suppress(OSError):  # the next holder then settles what is not undecided
                    self._describe({**self._description, "closed": True})
            with contextlib.suppress(OSError):  # closing unlocks it unless a forked process has it open
                fcntl.flock(self._file, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):  # closing flushes what could not be written
            self._file.close()


def noted_commits(folder: Path) -> tuple[int, int]:
    """Return the number of commits that the last writer has noted, and of those lost before it; 0 if unknown.

    A store with fewer commits than noted has lost some: its write-ahead log was damaged or removed, or an older file
    has replaced the store.
    """
    try:
        with (folder / LOCK_FILE).open(encoding="utf-8") as file:
            holder = _read(file)
    except OSError:
        return 0, 0
    return _number(holder, "commits"), _number(holder, "lost")


def _number(holder: dict[str, Any], name: str) -> int:
    number = holder.get(name, 0)
    return number if type(number) is int else 0


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # the file system has no locks
        file.close()
        raise
    return True


def _leads_to(path: Path, file: IO[str]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _read(file: IO[str]) -> dict[str, Any]:
    """Return the description of the holder; empty before the holder has written it."""
    file.seek(0)
    with contextlib.suppress(ValueError):
        holder = json.loads(file.read(DESCRIPTION_CHARACTERS))
        if isinstance(holder, dict):
            return holder
    return {}


def _name(holder: dict[str, Any]) -> str:
    with contextlib.suppress(KeyError):
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return "an unknown process"
