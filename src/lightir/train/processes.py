"""The processes that train together: joining them, their devices, their gradients."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightir.models.losses import rank, world_size


@contextmanager
def autocast(device: str, dtype: torch.dtype) -> Iterator[None]:
    """bfloat16 autocast over float32 weights on a GPU; weights in bfloat16 need none."""
    kind = torch.device(device).type
    wanted = kind != "cpu" and dtype == torch.float32
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=wanted):
        yield


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace each gradient by its mean over all processes; the gathered loss makes that the whole batch's gradient.

    A parameter that no process has a gradient of (a head that no loss reads) is left without, as on one process: the
    optimizer passes it over.
    """
    if world_size() == 1:
        return
    used = torch.tensor([float(each.grad is not None) for each in parameters], device=parameters[0].device)
    dist.all_reduce(used, dist.ReduceOp.MAX)
    for parameter, anywhere in zip(parameters, used.tolist(), strict=True):
        if isinstance(parameter, DTensor) or not anywhere:  # a split one's was averaged while it was split
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size()


def own_device(name: str) -> str:
    """The device of this process: of "cuda", or "auto" where there are GPUs, its own one where torchrun started it."""
    several = "LOCAL_RANK" in os.environ and (name == "cuda" or (name == "auto" and torch.cuda.is_available()))
    return f"cuda:{os.environ['LOCAL_RANK']}" if several else name


def join_processes(device: str) -> str:
    """The device, after this process has joined the others where torchrun started it."""
    if "WORLD_SIZE" not in os.environ or not dist.is_available():
        return device
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def of_all_processes(own: Any) -> list[Any]:
    """What each process has, by rank, on every process; of one process a list of one."""
    found = [own] * world_size()
    if world_size() > 1:
        dist.all_gather_object(found, own)
    return found


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()
