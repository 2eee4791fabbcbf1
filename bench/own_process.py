"""Measurements in processes of their own, with their memory and CPU time."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class ExtraMemory:
    """The peak of additional resident memory since the object was made."""

    def __init__(self) -> None:
        """Reset the peak."""
        self._before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM

    def peak(self) -> int:
        """Return the peak so far in bytes."""
        return _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the child processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def in_own_process(measure: Callable[P, Result], *args: P.args, **settings: P.kwargs) -> Result:
    """Run a function in a fork of this process, which should have imported everything and computed nothing."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(measure, *args, **settings).result()
