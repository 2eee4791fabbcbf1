"""A lane runs work in the event loop while it is fast, and in threads once it is slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from lightir.serve.problems import RETRY_AFTER_S, Problem

INLINE_S = 0.01
"""Mean CPU time up to which work runs in the event loop. Threads that run Python take turns, which costs more than it
gains until most of the time is the kernel's, where they run at once."""

_KEPT = 0.8  # share of the mean that the next measurement leaves

T = TypeVar("T")


class Lane:
    """Runs work of several kinds, and measures how long each takes."""

    def __init__(self, threads: int, timeout_s: float, *, inline: bool = True) -> None:
        """Start without measurements.

        Args:
            threads: number of threads for slow work.
            timeout_s: maximum time to wait for a thread's answer.
            inline: whether fast work runs in the event loop; work that waits without CPU time must not.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lightir-search")
        self._timeout_s = timeout_s
        self._inline = inline
        self._means: dict[str, float] = {}

    async def run(self, kind: str, work: Callable[[], T]) -> T:
        """Return what work returns.

        Raises:
            Problem: the time is over (503); a thread cannot be stopped, so the work goes on without a reader.
        """
        if self.is_fast(kind):
            return self.run_here(kind, work)
        future = asyncio.get_running_loop().run_in_executor(self._pool, self.run_here, kind, work)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._timeout_s)
        except TimeoutError:
            future.add_done_callback(lambda done: done.exception())  # nobody else reads it
            detail = f"the answer took longer than {self._timeout_s:g} s; ask for less, or again later"
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, retry_after_s=RETRY_AFTER_S) from None

    def is_fast(self, kind: str) -> bool:
        """Return whether work of a kind is fast enough for the event loop."""
        return self._inline and self._means.get(kind, 0.0) < INLINE_S

    def run_here(self, kind: str, work: Callable[[], T]) -> T:
        """Return what work returns, and measure it."""
        started = time.thread_time()
        try:
            return work()
        finally:
            took = time.thread_time() - started
            self._means[kind] = _KEPT * self._means.get(kind, took) + (1 - _KEPT) * took

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()
