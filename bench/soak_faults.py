"""The soak's faults: failing file-system calls by tests/index/failing_calls.c, files that cannot grow, and kills."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "tests" / "index" / "failing_calls.c"
LIBRARY = "failing_calls.so"
KILL = 0
"""The injector's errno that kills the process."""

FOR_GOOD = 2**40
ERRORS = {"writes": (errno.EIO, errno.ENOSPC, errno.EDQUOT), "reads": (errno.EIO, errno.EMFILE, errno.ENFILE)}
FIRST_GUESS = 20


def compiled(folder: Path) -> Path | None:
    """Compile the injector; return the library, or None without a C compiler or its source."""
    compiler = shutil.which("cc")
    if compiler is None or not SOURCE.is_file():
        return None
    library = folder / LIBRARY
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True, timeout=60)
    return library


def is_loaded() -> bool:
    """Return whether the injector is loaded into this process."""
    return LIBRARY in os.environ.get("LD_PRELOAD", "")


@dataclass(frozen=True, slots=True)
class Fault:
    """Calls that fail during one operation.

    Attributes:
        kind: "none", "calls" (file-system calls below a folder fail), "kill" (the process is killed at a call), or
            "size" (no file of the process can grow beyond a size, as on a disk that becomes full).
        error: name of the errno.
        first: number of the first failing call, from 1; the number of bytes if the kind is "size".
        for_good: whether all later calls fail too.
    """

    kind: str = "none"
    error: str = ""
    first: int = 0
    for_good: bool = False

    @property
    def is_none(self) -> bool:
        """Whether nothing fails."""
        return self.kind == "none"


NO_FAULT = Fault()


@dataclass(slots=True)
class Faults:
    """Draws faults and makes them happen.

    Attributes:
        folder: calls below this folder fail.
        rate: share of the operations during which something fails.
        rng: random numbers.
        calls: number of calls of each operation the last time that none failed.
    """

    folder: Path
    rate: float
    rng: random.Random
    calls: dict[str, int] = field(default_factory=dict)

    def draw(self, operation: str, *, reads: bool = False, alone: bool = True) -> Fault:
        """Return a fault for an operation.

        Args:
            operation: name of the operation.
            reads: whether it only reads; then it is not killed, and its files may grow.
            alone: whether no other thread of the process does anything.
        """
        if not is_loaded() or self.rng.random() >= self.rate:
            return NO_FAULT
        first = self.rng.randint(1, self.calls.get(operation, FIRST_GUESS) + 2)
        kind = self.rng.choice(["calls"] if reads or not alone else ["calls", "calls", "calls", "kill", "size"])
        if kind == "kill":
            return Fault(kind, "SIGKILL", first)
        if kind == "size":
            return Fault(kind, "EFBIG", self.rng.choice((1, 1000, 10_000, 100_000, self.rng.randrange(1, 1_000_000))))
        number = self.rng.choice(ERRORS["reads" if reads else "writes"])
        return Fault(kind, errno.errorcode[number], first, self.rng.random() < 0.5)

    @contextmanager
    def during(self, operation: str, fault: Fault) -> Iterator[None]:
        """Let a fault happen inside the block."""
        if not is_loaded():
            yield
            return
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if fault.kind == "size":
            resource.setrlimit(resource.RLIMIT_FSIZE, (fault.first, limits[1]))
        failing = fault.first if fault.kind in ("calls", "kill") else FOR_GOOD
        last = FOR_GOOD if fault.for_good else failing
        number = KILL if fault.kind in ("none", "kill", "size") else getattr(errno, fault.error)
        injector = _injector()
        injector.faults_start(os.fsencode(self.folder), failing, last, number)
        try:
            yield
        finally:
            letters = injector.faults_stop().decode()
            if fault.kind == "size":
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            if fault.is_none and letters:
                self.calls[operation] = len(letters)


def _injector() -> Any:
    library = ctypes.CDLL(None)
    library.faults_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
    library.faults_stop.restype = ctypes.c_char_p
    return library
