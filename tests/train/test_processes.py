"""Exchanges between processes: gradients, values, and the wait for work that one of them does alone."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing

import lightir.train
from lightir.errors import LightirError
from lightir.train.mining import miner
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.run import waiting
from lightir.train.run.processes import (
    anywhere,
    average_gradients,
    from_first,
    gather,
    maximum,
    mean_over_processes,
    summed,
)
from lightir.train.run.waiting import first_alone
from lightir.train.stages.stage_data import StageData
from pretended_cuda import pretended_cuda
from pretended_nccl import pretended_nccl
from processes import first_of


def averaged() -> dict[str, Tensor]:
    """Average gradients: all processes have one of the first parameter, process 1 of the second, none of the third."""
    number = dist.get_rank()
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad = torch.full((2,), float(number))
    if number == 1:
        parameters[1].grad = torch.ones(2)
    average_gradients(parameters)
    return {str(position): item.grad for position, item in enumerate(parameters) if item.grad is not None}


def test_gradients_are_means_and_what_no_loss_reads_has_none(tmp_path: Path) -> None:
    result = first_of(4, averaged, tmp_path)
    assert result.keys() == {"0", "1"}  # AdamW would let a gradient of zeros decay the weight; one process has none
    assert result["0"].tolist() == [1.5, 1.5]
    assert result["1"].tolist() == [0.25, 0.25]


def exchanged() -> dict[str, Tensor]:
    """Return what process 0 gets from every function that exchanges tensors or values."""
    number = dist.get_rank()
    own = torch.tensor([1.0 + number, 3.0 - number])
    rows = own[None].clone().requires_grad_()
    joined = gather(rows)
    (joined * torch.tensor([[1.0], [10.0]])).sum().backward()
    assert rows.grad is not None
    total, maxima, mean = summed(own), maximum(own), mean_over_processes(own.sum(), 2 + 2 * number)
    assert own.tolist() == [1.0 + number, 3.0 - number]  # nothing is summed in place
    return {
        "summed": total,
        "maximum": maxima,
        "mean": mean,
        "gathered": joined.detach(),
        "gradient": rows.grad,
        "anywhere": torch.tensor([anywhere(number == 1), anywhere(False)]),
        "from_first": torch.tensor([from_first(0.1 + number)], dtype=torch.float64),
    }


def test_what_two_processes_exchange(tmp_path: Path) -> None:
    result = first_of(2, exchanged, tmp_path)
    assert {name: tensor.tolist() for name, tensor in result.items()} == {
        "summed": [3.0, 5.0],
        "maximum": [2.0, 3.0],
        "mean": pytest.approx(8 / 6),
        "gathered": [[1.0, 3.0], [2.0, 2.0]],
        "gradient": [[2.0, 2.0]],
        "anywhere": [True, False],
        "from_first": [0.1],
    }


def test_one_process_exchanges_nothing() -> None:
    own = torch.tensor([1.0, 2.0])
    assert summed(own) is own
    assert maximum(own) is own
    assert gather(own) is own
    assert (from_first(0.5), anywhere(True), anywhere(False)) == (0.5, True, False)


@pytest.mark.parametrize(
    "exchange",
    [
        lambda tensor: gather(tensor),
        lambda tensor: summed(tensor),
        lambda tensor: maximum(tensor),
        lambda tensor: mean_over_processes(tensor.sum(), 3),
        lambda tensor: torch.tensor(anywhere(True)),
        lambda tensor: torch.tensor(from_first(0.5)),
        lambda tensor: _averaged_gradient(tensor),
    ],
)
def test_nccl_gets_tensors_on_a_gpu_and_the_caller_its_own_device(exchange: Callable[[Tensor], Tensor]) -> None:
    with pretended_cuda(), pretended_nccl() as called:
        result = exchange(torch.ones(2))
    assert called
    assert result.device.type == "cpu"


def _averaged_gradient(tensor: Tensor) -> Tensor:
    parameter = torch.nn.Parameter(torch.zeros_like(tensor))
    parameter.grad = tensor.clone()
    average_gradients([parameter])
    assert parameter.grad.tolist() == tensor.tolist()
    return parameter.grad


def test_collectives_are_called_in_one_module() -> None:
    """A collective elsewhere would pass a tensor in main memory to NCCL, which refuses it."""
    root = Path(lightir.train.__file__).parent
    outside = []
    for path in sorted(root.rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]
        if path.name != "processes.py":
            outside += [(path.name, name) for name in names if name.startswith(("all_", "broadcast", "reduce_scatter"))]
    assert outside == []


def _short(number: int, meeting: Path, work: Callable[[], None], outcomes: Path) -> None:
    """Join two processes whose collectives time out after two seconds, do the work, and write how it ended."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=meeting.as_uri(), rank=number, world_size=2, timeout=datetime.timedelta(seconds=2)
    )
    try:
        work()
        outcome = "done"
    except (ArithmeticError, LightirError, RuntimeError) as error:
        outcome = f"{type(error).__name__}: {error}"
    (outcomes / str(number)).write_text(outcome)


def _outcomes(work: Callable[[], None], folder: Path) -> list[str]:
    arguments = (folder / "meeting", work, folder)
    context = multiprocessing.start_processes(_short, args=arguments, nprocs=2, join=False, start_method="fork")
    assert context is not None
    for process in context.processes:
        process.join(timeout=120)
    return [(folder / str(number)).read_text() for number in (0, 1) if (folder / str(number)).is_file()]


def test_mining_may_take_longer_than_a_collectives_time_out(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    mining = dataclasses.replace(
        recipe, data=tuple(dataclasses.replace(data, negatives="bm25") for data in recipe.data)
    )
    mine = miner.mine

    def slow(*arguments: object, **keywords: object) -> object:
        assert dist.get_rank() == 0
        time.sleep(2.5)  # for each of two sets: more than twice the time-out
        return mine(*arguments, **keywords)  # type: ignore[arg-type]

    def open_data() -> None:
        with mock.patch.object(miner, "mine", slow):
            data = StageData(mining, negatives=tmp_path / "negatives")
        assert all(example.negative_ids for training in data.sets for example in training.examples)
        assert summed(torch.ones(1)).item() == 2.0  # the group still works

    assert _outcomes(open_data, tmp_path) == ["done", "done"]
    assert len(list((tmp_path / "negatives").glob("*.jsonl"))) == 2


def test_an_error_of_process_0_reaches_the_others(tmp_path: Path) -> None:
    def fail() -> None:
        first_alone(lambda: 1 / 0, name="mining negatives")

    message = "ZeroDivisionError: division by zero"
    assert _outcomes(fail, tmp_path) == [message, f"LightirError: mining negatives failed on process 0: {message}"]


def test_a_dead_process_0_is_not_waited_for(tmp_path: Path) -> None:
    def die() -> None:
        with mock.patch.multiple(waiting, HEARTBEAT_SECONDS=0.1, SILENCE_SECONDS=1.0):
            first_alone(lambda: os._exit(9), name="mining negatives")

    (outcome,) = _outcomes(die, tmp_path)
    assert outcome == "LightirError: mining negatives: process 0 gave no sign of life for 1 s; start the run again"


def test_one_process_works_without_a_group() -> None:
    with pytest.raises(LightirError, match="own"):
        first_alone(_raising, name="work")


def _raising() -> None:
    raise LightirError("its own")
