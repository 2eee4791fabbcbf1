"""Process groups on one machine, and comparison of their gradients with those of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

from lightir.train.run.processes import average_gradients


def join(number: int, world: int, meeting: Path) -> None:
    """Join a gloo group of `world` processes; they meet at a file, since another program may take a port."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting.as_uri(), rank=number, world_size=world)


def first_of(world: int, compute: Callable[[], dict[str, Tensor]], folder: Path) -> dict[str, Tensor]:
    """Run `compute` in a group of `world` processes that meet in `folder`; return the result of the first."""
    arguments = (world, folder / f"meeting-{world}", compute, folder / f"result-{world}.pt")
    multiprocessing.start_processes(_computing, args=arguments, nprocs=world, start_method="fork")
    result: dict[str, Tensor] = torch.load(arguments[-1], weights_only=True)
    return result


def _computing(number: int, world: int, meeting: Path, compute: Callable[[], dict[str, Tensor]], path: Path) -> None:
    join(number, world, meeting)
    result = compute()
    if number == 0:
        torch.save(result, path)
    dist.destroy_process_group()


def wake_lora(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Give LoRA's B matrices random values: with B = 0, where they start, half of the gradients vanish."""
    with torch.no_grad():
        for name, parameter in parameters:
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)


def gradients_of(parts: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of a loss by parameter, averaged over all processes as the training loop does."""
    torch.autograd.backward(torch.stack(list(parts.values())).sum())
    average_gradients(list(parameters.values()))
    return {name: parameter.grad for name, parameter in parameters.items() if parameter.grad is not None}


def assert_same(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, rtol: float) -> None:
    """Require equal tensors, none of them zero, within the fraction `rtol` of each tensor's norm."""
    assert actual.keys() == expected.keys()
    assert expected
    for name, tensor in expected.items():
        assert float(tensor.norm()) > 0, name
        assert float((actual[name] - tensor).norm()) <= rtol * float(tensor.norm()), name
