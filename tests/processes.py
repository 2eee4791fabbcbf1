"""Processes of one machine that compute together, and what holds their gradients against those of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from lightir.train.run.processes import average_gradients


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


def wake_lora(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Give LoRA's B matrices random values: it starts at B = 0, where half of the gradients vanish."""
    with torch.no_grad():
        for name, parameter in parameters:
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)


def gradients_of(parts: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of a loss's parts, added up, as the loop averages them over all processes; by parameter."""
    torch.autograd.backward(torch.stack(list(parts.values())).sum())
    average_gradients(list(parameters.values()))
    return {name: each.grad for name, each in parameters.items() if each.grad is not None}


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, rtol: float) -> None:
    """The same tensors, none of which is zero, up to this share of each one's norm."""
    assert found.keys() == expected.keys()
    assert expected
    for name, tensor in expected.items():
        assert float(tensor.norm()) > 0, name
        assert float((found[name] - tensor).norm()) <= rtol * float(tensor.norm()), name
