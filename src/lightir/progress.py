"""Progress of long tasks: a bar if stderr is a terminal, otherwise a log message every ten seconds and one at the end.

The bars have a lock of this process, which no other process can hold. tqdm's own lock is a semaphore that forked
processes share, and stays locked if its holder is killed.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

from lightir.quantities import counted, format_duration, format_size, plural

logger = logging.getLogger(__name__)

MESSAGE_EVERY_S = 10.0
"""Seconds between two messages where stderr is no terminal."""

BYTE = "B"
"""Unit of tasks that count bytes."""

Item = TypeVar("Item")


class _Bar(tqdm):  # type: ignore[misc]  # tqdm ships no types
    """Progress bar without tqdm's shared lock and without its thread, which might hold the lock at a fork."""

    monitor_interval = 0


def _renew_lock() -> None:
    _Bar.set_lock(threading.RLock())


_renew_lock()
os.register_at_fork(after_in_child=_renew_lock)


def write_line(line: str) -> None:
    """Print a line to stderr above the progress bars."""
    _Bar.write(line, file=sys.stderr)


class Progress:
    """Progress of one task, to be used as a context manager.

    On a terminal it is a bar. Elsewhere it is INFO messages of this module's logger: one every MESSAGE_EVERY_S, and if
    there was one, another at the end. A shorter task logs nothing. Messages appear when the task advances.

    Attributes:
        done: number of units done.
        total: number of units of the whole task; None if unknown.
    """

    def __init__(
        self, task: str, *, unit: str, total: int | None = None, done: int = 0, shown: bool = True, smooth: bool = False
    ) -> None:
        """Start the task.

        Args:
            task: name of the task, such as "encode".
            unit: noun of one unit, such as "document"; or BYTE.
            total: number of units of the whole task; None if unknown.
            done: number of units done before, by an interrupted run.
            shown: False to show nothing.
            smooth: show the average speed of many steps on the bar, for steps of unequal size.
        """
        self.done, self.total = done, total
        self._task, self._unit, self._shown = task, unit, shown
        self._figures: dict[str, str] = {}
        self._first = done
        self._start = self._last = time.monotonic()
        self._has_message = False
        self._bar = self._new_bar(smooth) if shown and sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._has_message:
            logger.info("%s", self.message())

    def update(self, n: int = 1) -> None:
        """Count n more units."""
        self.done += n
        if self._bar is not None:
            self._bar.total = self.total
            self._bar.update(n)
        elif self._shown and time.monotonic() - self._last >= MESSAGE_EVERY_S:
            self._last, self._has_message = time.monotonic(), True
            logger.info("%s", self.message())

    def note(self, **figures: str) -> None:
        """Show figures of the latest step, such as its loss, in place of the earlier ones."""
        self._figures = figures
        if self._bar is not None:
            self._bar.set_postfix(figures)

    def message(self) -> str:
        """Return the state in one line: "encode: 200 of 500 documents, 20.0 s, about 30.0 s left, loss 1.2"."""
        seconds = time.monotonic() - self._start
        parts = [f"{self._task}: {self._amount()}", format_duration(seconds)]
        n_new = self.done - self._first
        if self.total is not None and n_new > 0 and self.done < self.total:
            parts.append(f"about {format_duration(seconds / n_new * (self.total - self.done))} left")
        return ", ".join([*parts, *(f"{name} {value}" for name, value in self._figures.items())])

    def _amount(self) -> str:
        part = self.total is not None and self.done < self.total
        if self._unit == BYTE:
            return f"{format_size(self.done)} of {format_size(self.total or 0)}" if part else format_size(self.done)
        return f"{self.done:,} of {counted(self.total or 0, self._unit)}" if part else counted(self.done, self._unit)

    def _new_bar(self, smooth: bool) -> _Bar:
        is_bytes = self._unit == BYTE
        return _Bar(
            desc=self._task,
            total=self.total,
            initial=self.done,
            unit=BYTE if is_bytes else f" {plural(self._unit)}",
            unit_scale=is_bytes,
            miniters=1,  # a slow step after fast ones is shown too, without tqdm's thread
            smoothing=0.05 if smooth else 0.3,
            file=sys.stderr,
        )


def followed(
    items: Iterable[Item], task: str, *, unit: str, total: int | None = None, shown: bool = True
) -> Iterator[Item]:
    """Yield the items and show their progress; an item counts when the next one is asked for.

    Args:
        items: items of the task.
        task: name of the task.
        unit: noun of one item, such as "query".
        total: number of items; None if unknown.
        shown: False to show nothing.
    """
    with Progress(task, unit=unit, total=total, shown=shown) as progress:
        for item in items:
            yield item
            progress.update()
