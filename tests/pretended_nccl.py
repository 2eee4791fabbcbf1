"""A simulated NCCL group of two processes that compute the same: its collectives refuse tensors in main memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from lightir.train.run import waiting

WORLD = 2


@contextlib.contextmanager
def pretended_nccl() -> Iterator[list[str]]:
    """Let this process be process 0 of two, the other of which has its values; yield the names of called collectives.

    Raises:
        RuntimeError: from a collective that gets a tensor in main memory, as NCCL does.
    """
    called: list[str] = []

    def on_gpu(name: str, *tensors: Tensor) -> None:
        called.append(name)
        if any(tensor.device.type != "cuda" for tensor in tensors):
            raise RuntimeError(f"{name}: No backend type associated with device type cpu")

    def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        on_gpu("all_reduce", tensor)
        if op == dist.ReduceOp.SUM:
            tensor.mul_(WORLD)

    def all_gather(parts: list[Tensor], tensor: Tensor) -> None:
        on_gpu("all_gather", tensor, *parts)
        for part in parts:
            part.copy_(tensor)

    def all_gather_object(values: list[Any], own: Any) -> None:
        values[:] = [own] * len(values)

    with contextlib.ExitStack() as stack:
        replaced: dict[str, Any] = {
            "is_initialized": lambda: True,
            "get_world_size": lambda: WORLD,
            "get_rank": lambda: 0,
            "get_backend": lambda: "nccl",
            "broadcast": lambda tensor, source: on_gpu("broadcast", tensor),
            "barrier": lambda: None,
            "all_reduce": all_reduce,
            "all_gather": all_gather,
            "all_gather_object": all_gather_object,
        }
        stack.enter_context(mock.patch.multiple(torch.distributed, **replaced))
        stack.enter_context(mock.patch.object(waiting, "_get_default_store", dist.HashStore))
        yield called
