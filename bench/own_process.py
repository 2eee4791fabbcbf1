"""Variants of a measurement, each in a process of its own, and the memory and time that such a process takes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Found = TypeVar("Found")


class ExtraMemory:
    """The resident bytes that are added while something runs, at their highest."""

    def __init__(self) -> None:
        """Begin here."""
        self._before = _resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM

    def peak(self) -> int:
        """Bytes, until now."""
        return _resident("VmHWM") - self._before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def cpu_seconds() -> float:
    """The processor's time that this process and those that it waited for have taken so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def in_own_process(measure: Callable[P, Found], *args: P.args, **settings: P.kwargs) -> Found:
    """What a function gives in a fork of this process, which should have imported everything and computed nothing."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(measure, *args, **settings).result()
