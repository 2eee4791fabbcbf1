"""Layers sharded over two processes take the same steps as whole layers in one process."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file

from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DocumentRecipe
from lightir.train.run.loop import Loop
from lightir.train.stages.registry import STAGES, read_recipe
from processes import join
from tiny_recipes import RECIPES, tiny_recipe


def weights(model: Path) -> dict[str, torch.Tensor]:
    result = {}
    for file in sorted(model.rglob("*.safetensors")):
        if file.parent.name in ("adapter", "backbone"):
            result |= load_file(str(file))
    assert result
    return result


def losses(model: Path) -> list[float]:
    lines = (model / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in line]


def _process(number: int, world: int, meeting: Path, recipe: ContrastiveRecipe, out: Path) -> None:
    join(number, world, meeting)
    run = STAGES[recipe.stage].train
    run(recipe, out / "whole-run", device="cpu")
    step = Loop._optimizer_step

    def stopped(self: Loop) -> dict[str, object]:
        if self.step == 2:
            raise InterruptedError
        return step(self)

    Loop._optimizer_step = stopped  # type: ignore[method-assign]
    try:
        run(recipe, out / "cut", device="cpu")
    except InterruptedError:
        Loop._optimizer_step = step  # type: ignore[method-assign]
    run(recipe, out / "cut", resume=True, device="cpu")
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "rank"), [("lightretriever-tiny", 4), ("llm-ql-tiny", 0)])
def test_split_layers_take_the_same_steps_and_resume(
    name: str, rank: int, recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Train an adapter, and all weights."""
    kind, given = read_recipe(RECIPES / f"{name}.yaml")
    tiny = tiny_recipe(given, recipe.model.address, datasets, tmp_path)
    first_layer = tiny.model.first_layer if rank else 0
    model = dataclasses.replace(
        tiny.model,
        lora_rank=rank,
        lora_dropout=0.0,
        first_layer=first_layer,
        dtype="float32",
        gradient_checkpointing=True,
    )
    settings = dataclasses.replace(tiny.optimisation, steps=3, accumulation=2, learning_rate=1e-3)
    plain = dataclasses.replace(tiny, model=model, optimisation=settings, checkpoint_every=1)
    expected = kind.train(plain, tmp_path / "one", device="cpu")
    split = dataclasses.replace(plain, optimisation=dataclasses.replace(settings, sharding="layers"))
    multiprocessing.spawn(_process, args=(2, tmp_path / "meeting", split, tmp_path), nprocs=2)
    one, other = weights(tmp_path / "whole-run"), weights(tmp_path / "cut")
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole-run") == pytest.approx(losses(expected), rel=1e-4)
    for key, tensor in weights(expected).items():
        torch.testing.assert_close(one[key].float(), tensor.float(), rtol=1e-2, atol=2e-4)
    LightRetriever.load(tmp_path / "cut")


def _compiled_process(number: int, world: int, meeting: Path, recipe: ContrastiveRecipe, out: Path) -> None:
    join(number, world, meeting)
    STAGES[recipe.stage].train(recipe, out, device="cpu")
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # the layers were compiled
    dist.destroy_process_group()


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_layers_that_are_split_may_be_compiled(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    plain = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, lora_dropout=0.0, dtype="float32"),
        optimisation=dataclasses.replace(recipe.optimisation, steps=2, negatives=0),
        losses=LossWeights(dense=0.0, sparse=0.0, dense_alignment=0.0, flops=0.0),
        heads=HeadRecipe(pooling="mean", sparse=False),
        documents=DocumentRecipe(max_tokens=48),  # the length of padded queries: one shape
        evaluation=BranchEvaluation(),
    )
    split = dataclasses.replace(
        plain,
        model=dataclasses.replace(plain.model, compile=True),
        optimisation=dataclasses.replace(plain.optimisation, sharding="layers"),
    )
    expected = STAGES[plain.stage].train(plain, tmp_path / "one", device="cpu")
    arguments = (2, tmp_path / "meeting", split, tmp_path / "split")
    multiprocessing.spawn(_compiled_process, args=arguments, nprocs=2)
    assert losses(tmp_path / "split") == pytest.approx(losses(expected), rel=1e-4)
    one, other = weights(expected), weights(tmp_path / "split")
    for key, tensor in one.items():
        torch.testing.assert_close(other[key].float(), tensor.float(), rtol=1e-2, atol=2e-4)
    LightRetriever.load(tmp_path / "split")


@pytest.mark.parametrize("beside", [{"gradient_cache": 4}, {"mixed_batches": True}])
def test_what_may_run_the_layers_unevenly_is_refused(recipe: ContrastiveRecipe, beside: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="different number of times"):
        dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, sharding="layers", **beside))
