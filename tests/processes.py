"""Processes of one machine that compute together."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist


def join(number: int, world: int, meeting: Path) -> None:
    """Be one of `world` gloo processes; they meet at a file, which nobody else takes, as somebody may a port."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=number, world_size=world)
