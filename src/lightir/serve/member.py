"""A process of a service that has several: what the processes share, and which of them commits changes."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Member:
    """One of the processes of a service.

    Attributes:
        folder: private folder of the processes, which the service removes when it stops.
        number: number of the process; 0 commits changes, and the others forward them to it.
    """

    folder: Path
    number: int

    @property
    def commits_changes(self) -> bool:
        """Whether this process commits changes."""
        return self.number == 0

    @property
    def socket_path(self) -> Path:
        """Path of the socket on which the process that commits changes receives those of the others."""
        return self.folder / "changes.sock"

    @property
    def metrics_folder(self) -> Path:
        """Folder of the numbers that the processes count, which the one that is asked adds up."""
        return self.folder / "metrics"

    @property
    def counter_path(self) -> Path:
        """Path of the file of the number of commits."""
        return self.folder / "commits"

    def prepare(self) -> None:
        """Create what the processes share, in an empty folder."""
        self.metrics_folder.mkdir()
        self.counter_path.write_bytes(bytes(_NUMBER.size))


class CommitCounter:
    """The number of commits of a service, in memory that its processes share.

    A process compares it with the number that it knows before it searches. So what one process has answered as
    committed is found by all.
    """

    def __init__(self, path: Path) -> None:
        """Map the file that `Member.prepare` has made."""
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _NUMBER.size)

    @property
    def value(self) -> int:
        """The number of commits."""
        number: int = _NUMBER.unpack(self._memory)[0]
        return number

    def increase(self) -> None:
        """Count a commit; one process alone does so."""
        _NUMBER.pack_into(self._memory, 0, self.value + 1)
