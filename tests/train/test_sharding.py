"""Layers sharded over two processes take the same steps as whole layers in one process."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from interrupted import cut
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DocumentRecipe
from lightir.train.run import checkpoint
from lightir.train.run.checkpoint import checkpoints
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
    """Train a whole run; then die while the shards of the second checkpoint are complete and its header is not."""
    join(number, world, meeting)
    run = STAGES[recipe.stage].train
    with mock.patch.object(DTensor, "full_tensor", _counted(gathered := [])):
        run(recipe, out / "whole-run", device="cpu")
    (out / f"gathered-{number}").write_text(json.dumps(gathered))
    original = checkpoint.write_tensors

    def dying(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        original(folder, tensors)
        if list(folder.parent.parent.glob("step-*")):
            dist.barrier()
            os._exit(9)

    checkpoint.write_tensors = dying  # type: ignore[assignment]
    run(recipe, out / "cut", device="cpu")


def _counted(numbers: list[int]) -> Callable[..., torch.Tensor]:
    original = DTensor.full_tensor

    def full_tensor(self: DTensor, **arguments: object) -> torch.Tensor:
        numbers.append(self.numel())
        return original(self, **arguments)  # type: ignore[arg-type]

    return full_tensor


def _resuming_process(number: int, world: int, meeting: Path, recipe: ContrastiveRecipe, out: Path) -> None:
    join(number, world, meeting)
    for name in ("cut", "old"):
        STAGES[recipe.stage].train(recipe, out / name, resume=True, device="cpu")
    dist.destroy_process_group()


@pytest.mark.parametrize(("name", "rank"), [("lightretriever-tiny", 4), ("llm-ql-tiny", 0)])
def test_split_layers_take_the_same_steps_and_resume(
    name: str, rank: int, recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Train an adapter, and all weights; resume with two processes and with one, and from a checkpoint of one."""
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
    cut(lambda: kind.train(split, tmp_path / "old", device="cpu"), at=1)
    header = tmp_path / "old.run" / "checkpoints" / "step-0000001" / "checkpoint.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"format_version": 3}))  # whole tensors, as before
    arguments = (2, tmp_path / "meeting", split, tmp_path)
    with pytest.raises(multiprocessing.ProcessExitedException, match="exit code 9"):
        multiprocessing.spawn(_process, args=arguments, nprocs=2)
    assert [path.name for path in checkpoints(tmp_path / "cut.run" / "checkpoints")] == ["step-0000001"]
    shutil.copytree(tmp_path / "cut.run", tmp_path / "alone.run")
    multiprocessing.spawn(_resuming_process, args=(2, tmp_path / "second-meeting", split, tmp_path), nprocs=2)
    one, other = weights(tmp_path / "whole-run"), weights(tmp_path / "cut")
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole-run") == pytest.approx(losses(expected), rel=1e-4)
    alone = kind.train(split, tmp_path / "alone", resume=True, device="cpu")
    for folder in (tmp_path / "whole-run", tmp_path / "old", alone):
        assert losses(folder) == pytest.approx(losses(expected), rel=1e-4)
        for key, tensor in weights(expected).items():
            torch.testing.assert_close(weights(folder)[key].float(), tensor.float(), rtol=1e-2, atol=2e-4)
        LightRetriever.load(folder)
    layers = sum(tensor.numel() for key, tensor in one.items() if ".layers." in key)
    for number in (0, 1):  # each trained weight of the layers once, when the model is written
        assert sum(json.loads((tmp_path / f"gathered-{number}").read_text())) == layers


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
