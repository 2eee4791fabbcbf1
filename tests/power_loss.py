"""Losses in a power failure, computed from a journal of file-system calls (index/failing_calls.c).

A file's content is safe once the file is flushed, and a name once its folder is flushed. Nothing else is assumed,
whatever a file system does in addition.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ACKNOWLEDGED = "acknowledged"
"""Kind of the line that a program adds to the journal when a change has been reported as made."""

VOLATILE = re.compile(
    r"""-shm$                                 # SQLite makes it again
    | /writer\.lock$ | /queue/workers/[^/]+$  # a lock ends with its process
    | /queue/queue\.sqlite(-wal)?$            # claims and demand: the last ones may be lost
    | /\.tmp\w{6}$                            # safetensors renames it by a system call that the library does not see
    | \.run/tensorboard($|/)                  # curves of the log
    """,
    re.VERBOSE,
)
UNFINISHED = re.compile(r"/\.[^/]+\.new-[^/]+/")
"""A folder that has no name yet."""


class Journal:
    """The state of the disk after each call of a journal.

    Attributes:
        problems: description of each call that relies on something that a power failure could take.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._unflushed: set[str] = set()
        self._unlisted: set[str] = set()

    def replay(self, lines: Iterable[str]) -> list[str]:
        """Apply the lines of a journal, and return the problems."""
        for line in lines:
            kind, path, new_path = line.rstrip("\n").split("\t")
            if not path.endswith(" (deleted)"):
                self._apply(kind, path, new_path)
        return self.problems

    def _apply(self, kind: str, path: str, new_path: str) -> None:
        match kind:
            case "c":
                self._unflushed.add(path)
                self._unlisted.add(path)
            case "m":
                self._unlisted.add(path)
            case "t" if path.endswith("-wal"):  # a power failure only brings back what the flushed database has
                self._check_database(path)
            case "w" | "t":
                self._check_database(path)
                self._unflushed.add(path)
            case "f":
                self._unflushed.discard(path)
                self._unlisted -= {name for name in self._unlisted if os.path.dirname(name) == path}
            case "u":
                self._check_database(path)
                self._forget(path)
            case "r" | "l" | "x":
                self._name(kind, path, new_path)
            case _:
                assert kind == ACKNOWLEDGED, kind
                self._report(f"{path} was acknowledged before", self._lost())

    def _name(self, kind: str, path: str, new_path: str) -> None:
        """Move, link or exchange a file or folder, which is complete if it gets a name that readers look for."""
        if not os.path.basename(new_path).startswith("."):
            self._report(f"{new_path} was named before", self._lost(inside=path))
        if kind == "r":
            self._forget(new_path)
        if kind == "l":
            self._unflushed |= {new_path} if path in self._unflushed else set()
        else:
            self._move(path, new_path, exchange=kind == "x")
        self._unlisted.add(new_path)

    def _move(self, path: str, new_path: str, *, exchange: bool) -> None:
        def moved(name: str) -> str:
            if name == path or name.startswith(f"{path}/"):
                return new_path + name[len(path) :]
            if exchange and (name == new_path or name.startswith(f"{new_path}/")):
                return path + name[len(new_path) :]
            return name

        self._unflushed = set(map(moved, self._unflushed))
        self._unlisted = set(map(moved, self._unlisted))

    def _forget(self, path: str) -> None:
        for state in (self._unflushed, self._unlisted):
            state -= {name for name in state if name == path or name.startswith(f"{path}/")}

    def _check_database(self, path: str) -> None:
        """Check the order that SQLite's log requires: files of segments, log, database, and then a new log."""
        if UNFINISHED.search(path):
            return
        if path.endswith("-wal"):
            database = path.removesuffix("-wal")
            if database in self._unflushed:
                self.problems.append(f"{path} was overwritten or removed before {database} was flushed")
            if os.path.basename(database) == "store.sqlite":
                own = {name for name in self._lost(inside=os.path.dirname(path)) if name.startswith(database)}
                self._report(f"{path} was written before", self._lost(inside=os.path.dirname(path)) - own)
        elif f"{path}-wal" in self._unflushed:
            self.problems.append(f"{path} was written before {path}-wal was flushed")

    def _lost(self, *, inside: str = "") -> set[str]:
        """Return what a power failure could take now: files, and names of files and folders."""
        lost = self._unflushed | (self._unlisted - {inside})
        return {name for name in lost if f"{name}/".startswith(f"{inside}/") and not VOLATILE.search(name)}

    def _report(self, what: str, lost: set[str]) -> None:
        for name in sorted(lost):
            kinds = [kind for kind, state in (("content", self._unflushed), ("name", self._unlisted)) if name in state]
            self.problems.append(f"{what} the {' and the '.join(kinds)} of {name} was flushed")


@contextmanager
def recorded(folder: Path, journal: Path) -> Iterator[Callable[[str], object]]:
    """Record this process's calls on a folder in a file; failing_calls.c must be preloaded.

    Yields:
        A function that notes in the journal that a change was acknowledged.
    """
    calls = ctypes.CDLL(None)
    with journal.open("wb", buffering=0) as file:
        calls.faults_record(file.fileno())
        calls.faults_start(os.fsencode(folder), ctypes.c_long(-1), ctypes.c_long(-1), 0)
        try:
            yield lambda name: file.write(f"{ACKNOWLEDGED}\t{name}\t\n".encode())
        finally:
            calls.faults_stop()
            calls.faults_record(-1)
