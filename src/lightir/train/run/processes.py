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


def world_size() -> int:
    """Processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather(rows: Tensor) -> Tensor:
    """Every process's rows (equally many each) below one another, with gradient; the rows themselves for one process.

    Where every process takes the loss of the whole gathered batch and gradients are then averaged over processes (as
    DistributedDataParallel does), one step is the same on 1 and on n processes: the backward pass sums what all
    processes want of these rows.
    """
    if world_size() == 1:
        return rows
    gathered: Tensor = _AllGather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n_rows = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.contiguous().clone()
        dist.all_reduce(total)
        begin = rank() * ctx.n_rows
        return total[begin : begin + ctx.n_rows]


def mean_over_processes(total: Tensor, n: int) -> Tensor:
    """A sum over n positions of this process as the mean over all processes' positions.

    Its gradient is such that the mean of all processes' gradients, which the loop takes, is the whole batch's.
    """
    if world_size() == 1:
        return total / max(n, 1)
    whole = torch.stack([total.detach(), total.new_tensor(float(n))])
    dist.all_reduce(whole)
    mean, own = whole[0] / whole[1].clamp(min=1), total * world_size() / whole[1].clamp(min=1)
    return own + (mean - own.detach())


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
