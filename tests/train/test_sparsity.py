"""The sparsity target: a controller that settles near it on a toy problem, and resumes exactly in a real run."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from interrupted import cut
from lightir.errors import InvalidInput
from lightir.models.heads import activate
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.stages.contrastive import train
from lightir.train.stages.losses import flops
from lightir.train.stages.sparsity import SparsityControl


def settled(target: int, start: float, *, steps: int = 400) -> float:
    """Return the final mean of nonzero terms, where documents pull terms up unequally and FLOPS pushes all down."""
    generator = torch.Generator().manual_seed(0)
    wanted = torch.rand(24, 150, generator=generator) ** 3
    logits = torch.full((24, 150), 0.5, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.04)
    control = SparsityControl(start, target)
    seen = []
    for _ in range(steps):
        weights = activate(logits, straight_through=True)
        optimizer.zero_grad()
        torch.autograd.backward(-(wanted * weights).sum(1).mean() / 10 + control.weight * flops(weights))
        optimizer.step()
        seen.append(float((F.relu(logits.detach()) > 0).sum(1).double().mean()))
        control.observe(seen[-1])
        control.adjust()
    return sum(seen[-30:]) / 30


@pytest.mark.parametrize("start", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("target", [20, 60])
def test_a_toy_problem_settles_near_the_target_from_any_start(target: int, start: float) -> None:
    assert settled(target, start) == pytest.approx(target, rel=0.15)


def test_the_weight_follows_the_error_and_its_change() -> None:
    control = SparsityControl(0.5, 100)
    for passes, error, change in (((110.0, 130.0), math.log(1.2), 0.0), ((100.0, 100.0), 0.0, -math.log(1.2))):
        before = math.log(control.weight)
        for nonzeros in passes:  # the forward passes of one optimizer step
            control.observe(nonzeros)
        control.adjust()
        assert math.log(control.weight) - before == pytest.approx(0.03 * error + 0.5 * change)


def test_dead_and_dense_documents_move_the_weight_within_bounds() -> None:
    for nonzeros, factor in ((0.0, 1e-4), (1e9, 1e4)):
        control = SparsityControl(2.0, 50)
        for _ in range(400):
            control.observe(nonzeros)
            control.adjust()
        assert control.weight == pytest.approx(2.0 * factor)


def controlled(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
    losses = dataclasses.replace(recipe.losses, symmetric_sparse=1.0, query_flops=0.1, flops=0.1)
    losses = dataclasses.replace(losses, flops_target=20, query_flops_target=7)
    accumulated = dataclasses.replace(recipe.optimisation, accumulation=2)
    return dataclasses.replace(recipe, losses=losses, optimisation=accumulated)


def test_a_resumed_run_has_the_same_weights_logged_and_losses(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    def steps(model: Path) -> list[dict[str, float]]:
        lines = [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]
        names = ("loss", "flops_weight", "query_flops_weight", "nonzeros")
        return [{name: item[name] for name in names} for item in lines if "loss" in item]

    whole = train(controlled(recipe), tmp_path / "whole", device="cpu")
    cut(lambda: train(controlled(recipe), tmp_path / "cut", device="cpu"))
    resumed = train(controlled(recipe), tmp_path / "cut", resume=True, device="cpu")
    assert steps(resumed) == steps(whole)
    weights = [step["flops_weight"] for step in steps(whole)]
    assert weights[0] == pytest.approx(0.1)
    assert len(set(weights)) == len(weights)


@pytest.mark.parametrize("losses", [{"flops_target": -1}, {"flops_target": 9, "flops": 0.0}, {"query_flops_target": 9}])
def test_a_target_without_a_weight_to_begin_with_is_refused(
    recipe: ContrastiveRecipe, losses: dict[str, float]
) -> None:
    with pytest.raises(InvalidInput, match="_target is"):
        dataclasses.replace(recipe, losses=dataclasses.replace(recipe.losses, **losses))
