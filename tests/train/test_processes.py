"""Gradients of several processes."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from lightir.train.run.processes import average_gradients
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
