"""Stopping of a training run by Ctrl-C or a scheduler's SIGTERM, after the current step."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lightir.errors import Terminated
from lightir.train.run.processes import anywhere

logger = logging.getLogger(__name__)


SIGNALS = (signal.SIGINT, signal.SIGTERM)

ONE_PRESS = 1.0
"""Seconds within which two signals count as one: torchrun's processes get Ctrl-C from the terminal and torchrun."""


class Interrupts:
    """Signals that were recorded.

    Attributes:
        noted: time and number of each signal of this process.
    """

    def __init__(self) -> None:
        """Start without signals."""
        self.noted: list[tuple[float, int]] = []

    def __call__(self) -> bool:
        """Return whether a signal was recorded in any process."""
        return anywhere(bool(self.noted))

    def error(self) -> KeyboardInterrupt:
        """Return the exception that ends the run."""
        return Terminated() if self.noted and self.noted[0][1] == signal.SIGTERM else KeyboardInterrupt()


@contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Record a first Ctrl-C (SIGINT) or SIGTERM, which the yielded object reports; a later signal acts as usual.

    Signals are handled in the main thread only, and only if they are not ignored. With several processes, an interrupt
    of any one is reported on all, so every process must call the function equally often.
    """
    interrupts = Interrupts()
    heeded = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        heeded = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        noted = interrupts.noted
        noted.append((time.monotonic(), number))
        if len(noted) == 1:
            logger.warning("interrupted: stopping after this step; interrupt again to stop at once")
        elif noted[-1][0] - noted[0][0] >= ONE_PRESS:
            signal.signal(number, heeded[signal.Signals(number)])
            signal.raise_signal(number)

    for number in heeded:
        signal.signal(number, note)
    try:
        yield interrupts
    finally:
        for number, before in heeded.items():
            signal.signal(number, before)
