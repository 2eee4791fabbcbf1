"""Stopping of a training run by Ctrl-C or a scheduler's SIGTERM, after the current step."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lightir.train.run.processes import anywhere

logger = logging.getLogger(__name__)


SIGNALS = (signal.SIGINT, signal.SIGTERM)

ONE_PRESS = 1.0
"""Seconds within which two signals count as one: torchrun's processes get Ctrl-C from the terminal and torchrun."""


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Record a first Ctrl-C (SIGINT) or SIGTERM, which the yielded function reports; a later signal acts as usual.

    Signals are handled in the main thread only, and only if they are not ignored. With several processes, an interrupt
    of any one is reported on all, so every process must call the function equally often.
    """
    noted: list[float] = []
    heeded = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        heeded = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(time.monotonic())
        if len(noted) == 1:
            logger.warning("interrupted: stopping after this step; interrupt again to stop at once")
        elif noted[-1] - noted[0] >= ONE_PRESS:
            signal.signal(number, heeded[signal.Signals(number)])
            signal.raise_signal(number)

    for number in heeded:
        signal.signal(number, note)
    try:
        yield lambda: anywhere(bool(noted))
    finally:
        for number, before in heeded.items():
            signal.signal(number, before)
