"""Demand: how often searches list each pending document high, counted in memory and added to the index's queue."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput, StorageError
from lightir.index.connections import is_busy
from lightir.index.view import View
from lightir.pending.keys import keys_of_pending
from lightir.pending.queue import Queue

DEMAND_TOP = 20
"""Number of a query's best documents whose demand it raises: SiDR's m."""

FLUSH_EVERY_S = 1.0

logger = logging.getLogger(__name__)


class Demand:
    """Counts which pending documents searches list high, and adds the counts to the index's queue.

    Searches do not wait for the queue: counts are written after a ranking is made, at most once a second, in one small
    transaction. If the queue is busy, a later search tries again; `close` writes the rest. If the queue is damaged or
    cannot be written, one warning is logged and nothing more is counted.
    """

    def __init__(self, index: Path | str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Count the demand of an index folder.

        Args:
            index: index folder.
            clock: function that returns the time in seconds.
        """
        self._index = Path(index)
        self._clock = clock
        self._flushed_at = -math.inf
        self._queue: Queue | None = None
        self._disabled = False
        self._reset()
        _all_demands.add(self)

    def _reset(self) -> None:
        """Start counting from zero; also in a forked process, whose parent writes its own counts and may hold locks."""
        self._counts: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._flushing = threading.Lock()

    def note(self, view: View, doc_ords: npt.NDArray[np.uint32]) -> None:
        """Count those of a search's best documents that are pending."""
        if self._disabled or not view.n_pending:
            return
        with self._counting:
            self._counts.update(keys_of_pending(view, doc_ords).tolist())
        if self._counts and self._clock() - self._flushed_at >= FLUSH_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Add the counts to the queue; do nothing if another thread is doing so or the queue is busy."""
        if self._disabled or not self._counts or not self._flushing.acquire(blocking=False):
            return
        try:
            self._flushed_at = self._clock()
            with self._counting:
                counts, self._counts = self._counts, Counter()
            self._open_queue().add_demand(counts)
        except (OSError, FormatError, InvalidInput) as error:
            if isinstance(error, StorageError) and is_busy(error):
                with self._counting:
                    self._counts.update(counts)
                return
            self._disabled = True
            logger.warning("the demand of queries is not recorded, so workers encode the oldest first: %s", error)
        finally:
            self._flushing.release()

    def _open_queue(self) -> Queue:
        """Return the index's queue; open it again after a fork or when the index was replaced."""
        if self._queue is not None and (self._queue.inherited or not self._queue.is_current):
            self._queue.close()
            self._queue = None
        if self._queue is None:
            self._queue = Queue.open(self._index, busy_s=0.0)
        return self._queue

    def close(self) -> None:
        """Write the remaining counts and close the queue."""
        self.flush()
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def __enter__(self) -> Demand:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_all_demands: weakref.WeakSet[Demand] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for demand in list(_all_demands):
        demand._reset()


os.register_at_fork(after_in_child=_after_fork_in_child)
