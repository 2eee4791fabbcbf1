"""Training processes: joining them, their devices, and the exchange of tensors and values between them.

Every collective on tensors is called here, so that it gets its tensor on a device that the group's backend supports.
"""

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
    """Return the number of training processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def gather(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes (the same number each), with gradient; one process gets its own rows.

    If every process computes the loss of the whole gathered batch, and gradients are averaged over processes (as in
    DistributedDataParallel), a step is the same on 1 and on n processes: the backward pass sums the gradients that all
    processes have of these rows.
    """
    if world_size() == 1:
        return rows
    gathered: Tensor = _AllGather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.n_rows = len(rows)
        own = _on_group_device(rows).contiguous()
        parts = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(parts, own)
        return torch.cat(parts).to(rows.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = summed(grad.contiguous())
        begin = rank() * ctx.n_rows
        return total[begin : begin + ctx.n_rows]


def _on_group_device(tensor: Tensor) -> Tensor:
    """Return the tensor on a device that the group's backend supports: NCCL takes tensors on a GPU only."""
    if tensor.device.type == "cpu" and dist.get_backend() == "nccl":
        return tensor.to("cuda")
    return tensor


def _reduced(tensor: Tensor, operation: Any) -> Tensor:
    if world_size() == 1:
        return tensor
    shared = _on_group_device(tensor)
    shared = shared.clone() if shared is tensor else shared
    dist.all_reduce(shared, operation)
    return shared.to(tensor.device)


def summed(tensor: Tensor) -> Tensor:
    """Return the sum of the processes' tensors, on the tensor's own device and without gradient."""
    return _reduced(tensor, dist.ReduceOp.SUM)


def maximum(tensor: Tensor) -> Tensor:
    """Return the elementwise maximum of the processes' tensors, on the tensor's own device and without gradient."""
    return _reduced(tensor, dist.ReduceOp.MAX)


def anywhere(flag: bool) -> bool:
    """Return whether the flag is set on any process."""
    return bool(maximum(torch.tensor([float(flag)])).item())


def from_first(number: float) -> float:
    """Return process 0's number, on every process."""
    if world_size() == 1:
        return number
    shared = _on_group_device(torch.tensor([number], dtype=torch.float64))
    dist.broadcast(shared, 0)
    return float(shared.item())


def mean_over_processes(total: Tensor, n: int) -> Tensor:
    """Convert a sum over n positions of this process to the mean over the positions of all processes.

    Its gradient is scaled so that the mean over processes, which the loop computes, is the whole batch's gradient.
    """
    if world_size() == 1:
        return total / max(n, 1)
    whole = summed(torch.stack([total.detach(), torch.full_like(total.detach(), n)]))
    mean, own = whole[0] / whole[1].clamp(min=1), total * world_size() / whole[1].clamp(min=1)
    return own + (mean - own.detach())


@contextmanager
def autocast(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Autocast float32 weights on a GPU to bfloat16; weights in bfloat16 need no autocast."""
    kind = torch.device(device).type
    enabled = kind != "cpu" and dtype == torch.float32
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled):
        yield


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace each gradient by its mean over all processes; with a gathered loss, that is the whole batch's gradient.

    A parameter without a gradient on any process (a head that no loss reads) stays without, as on one process: the
    optimizer skips it.
    """
    if world_size() == 1:
        return
    used = maximum(torch.tensor([float(parameter.grad is not None) for parameter in parameters]))
    for parameter, has_gradient in zip(parameters, used.tolist(), strict=True):
        if isinstance(parameter, DTensor) or not has_gradient:  # FSDP averages the gradients of sharded parameters
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        shared = _on_group_device(parameter.grad)  # usually the gradient itself
        dist.all_reduce(shared)
        parameter.grad.copy_(shared.div_(world_size()))


def own_device(name: str) -> str:
    """Return this process's device: under torchrun, "cuda" (or "auto" with GPUs) is the GPU of its own."""
    several = "LOCAL_RANK" in os.environ and (name == "cuda" or (name == "auto" and torch.cuda.is_available()))
    return f"cuda:{os.environ['LOCAL_RANK']}" if several else name


def join_processes(device: str) -> str:
    """Join the process group if torchrun started this process; return the device."""
    if "WORLD_SIZE" not in os.environ or not dist.is_available():
        return device
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def is_first() -> bool:
    """Return whether this process is the one that writes."""
    return rank() == 0


def of_all_processes(own: Any) -> list[Any]:
    """Return the values of all processes by rank, on every process."""
    values = [own] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, own)
    return values


def barrier() -> None:
    """Wait for all processes."""
    if world_size() > 1:
        dist.barrier()
