"""Which pending documents searches would like to have: counted here, told to the index's queue."""

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

from lightir.errors import FormatError, InvalidInput, WriteFailed
from lightir.index.view import View
from lightir.pending.keys import keys_of_pending
from lightir.pending.queue import Queue
from lightir.pending.queue_file import is_busy

DEMAND_TOP = 20
"""A query asks for the pending documents among so many of its best: SiDR's m."""

TELL_EVERY_S = 1.0

logger = logging.getLogger(__name__)


class Demand:
    """Counts which pending documents searches list high, and tells the index's queue.

    Searching never waits for it: after a ranking is made, and at most once a second, what was counted since is written
    in one small transaction. Where the queue is busy, a later search tries again; `close` writes the rest. Where
    the queue cannot be opened or written, or is damaged, nothing is told, which the log says once.
    """

    def __init__(self, index: Path | str, *, clock: Callable[[], float] = time.time) -> None:
        """For an index folder."""
        self._index = Path(index)
        self._clock = clock
        self._told_at = -math.inf
        self._queue: Queue | None = None
        self._refused = False
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Count from nothing; in a forked process too, whose parent tells what it counted and may hold its locks."""
        self._asked: Counter[int] = Counter()
        self._counting = threading.Lock()
        self._telling = threading.Lock()

    def note(self, view: View, doc_ords: npt.NDArray[np.uint32]) -> None:
        """Count those of the documents that are pending; `doc_ords` are the ones that a search listed high."""
        if self._refused or not view.n_pending:
            return
        with self._counting:
            self._asked.update(keys_of_pending(view, doc_ords).tolist())
        if self._asked and self._clock() - self._told_at >= TELL_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Write what was counted, unless another thread is just doing so or the queue is busy."""
        if self._refused or not self._asked or not self._telling.acquire(blocking=False):
            return
        try:
            self._told_at = self._clock()
            with self._counting:
                asked, self._asked = self._asked, Counter()
            self._opened().note(asked, at=self._told_at)
        except (WriteFailed, FormatError, InvalidInput) as error:
            if isinstance(error, WriteFailed) and is_busy(error):
                with self._counting:
                    self._asked.update(asked)
                return
            self._refused = True
            logger.warning("what queries ask for is not noted, so a worker goes by age alone: %s", error)
        finally:
            self._telling.release()

    def _opened(self) -> Queue:
        """The index's queue: a new one where this process was forked since, or the index replaced by another."""
        if self._queue is not None and (self._queue.inherited or not self._queue.is_current):
            self._queue.close()
            self._queue = None
        if self._queue is None:
            self._queue = Queue.open(self._index, busy_s=0.0)
        return self._queue

    def close(self) -> None:
        """Tell the rest and close the queue."""
        self.tell()
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def __enter__(self) -> Demand:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_all: weakref.WeakSet[Demand] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for each in list(_all):
        each._begin()


os.register_at_fork(after_in_child=_after_fork_in_child)
