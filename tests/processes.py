"""Processes of one machine that compute together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing


def join(number: int, world: int, meeting: Path) -> None:
    """Be one of `world` gloo processes; they meet at a file, which nobody else takes, as somebody may a port."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=number, world_size=world)


def first_of(world: int, compute: Callable[[], dict[str, Tensor]], folder: Path) -> dict[str, Tensor]:
    """What `compute` gives the first of `world` processes that run it together; they meet in `folder`."""
    arguments = (world, folder / f"meeting-{world}", compute, folder / f"found-{world}.pt")
    multiprocessing.start_processes(_computing, args=arguments, nprocs=world, start_method="fork")
    found: dict[str, Tensor] = torch.load(arguments[-1], weights_only=True)
    return found


def _computing(number: int, world: int, meeting: Path, compute: Callable[[], dict[str, Tensor]], path: Path) -> None:
    join(number, world, meeting)
    found = compute()
    if number == 0:
        torch.save(found, path)
    dist.destroy_process_group()
