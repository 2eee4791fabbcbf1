"""Ctrl-C in a training run: the step that is under way is finished first."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
import torch.distributed as dist

from lightir.models.losses import world_size

logger = logging.getLogger(__name__)


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Inside, a first Ctrl-C (SIGINT) is only noted, and the function given says so; a second one interrupts as usual.

    Outside of the main thread, and where SIGINT is ignored, nothing changes. With several processes the answer is the
    same on all: one that was interrupted stops all, so every process has to ask equally often.
    """
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    changed = threading.current_thread() is threading.main_thread() and before not in (signal.SIG_IGN, None)

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(number)
        signal.signal(signal.SIGINT, before)
        logger.warning("interrupted: stopping after this step; once more to stop without it")

    if changed:
        signal.signal(signal.SIGINT, note)
    try:
        yield lambda: _anywhere(bool(noted))
    finally:
        if changed:
            signal.signal(signal.SIGINT, before)


def _anywhere(noted: bool) -> bool:
    if world_size() == 1:
        return noted
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([float(noted)], device=device)
    dist.all_reduce(shared, dist.ReduceOp.MAX)
    return bool(shared.item())
