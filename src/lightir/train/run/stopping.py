"""Ctrl-C, or a scheduler's SIGTERM, in a training run: the step that is under way is finished first."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from lightir.train.run.processes import world_size

logger = logging.getLogger(__name__)


SIGNALS = (signal.SIGINT, signal.SIGTERM)

ONE_PRESS = 1.0
"""Seconds within which two signals are one: torchrun's processes get a Ctrl-C from the terminal and from torchrun."""


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, a first Ctrl-C (SIGINT) or SIGTERM is only noted, as the function given says; a later one acts as usual.

    Outside of the main thread, and where a signal is ignored, nothing changes. With several processes the answer is the
    same on all: one that was interrupted stops all, so every process has to ask equally often.
    """
    noted: list[float] = []
    heeded = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in SIGNALS}
        heeded = {number: each for number, each in handlers.items() if each not in (signal.SIG_IGN, None)}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(time.monotonic())
        if len(noted) == 1:
            logger.warning("interrupted: stopping after this step; once more to stop without it")
        elif noted[-1] - noted[0] >= ONE_PRESS:
            signal.signal(number, heeded[signal.Signals(number)])
            signal.raise_signal(number)

    for number in heeded:
        signal.signal(number, note)
    try:
        yield lambda: _anywhere(bool(noted))
    finally:
        for number, before in heeded.items():
            signal.signal(number, before)


def _anywhere(noted: bool) -> bool:
    if world_size() == 1:
        return noted
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([float(noted)], device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared.item())
