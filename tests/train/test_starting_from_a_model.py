"""Training that starts from a model folder instead of a bare backbone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.stages.contrastive import train
from lightir.train.stages.stage_model import build_model


def starting_from(recipe: ContrastiveRecipe, folder: Path, **changes: object) -> ContrastiveRecipe:
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, address=str(folder), **changes))


@pytest.fixture
def trained(recipe: ContrastiveRecipe, tmp_path: Path) -> Path:
    return train(recipe, tmp_path / "trained", device="cpu")


def test_the_first_step_sees_the_trained_model_and_trains_its_adapter(recipe: ContrastiveRecipe, trained: Path) -> None:
    begun = build_model(starting_from(recipe, trained, lora_dropout=0.0), device="cpu")
    loaded = LightRetriever.load(trained)
    batch = loaded.batch(loaded.frame_documents(["a river in winter", "bread"]))
    torch.testing.assert_close(begun.states(batch), loaded.states(batch), atol=1e-5, rtol=1e-4)
    learning = {name: p for name, p in begun.trunk.named_parameters() if p.requires_grad}
    assert learning
    assert all("lora_" in name and p.dtype == torch.float32 for name, p in learning.items())
    assert begun.contract.backbone.address == recipe.model.address


def test_what_comes_out_loads_by_itself(recipe: ContrastiveRecipe, trained: Path, tmp_path: Path) -> None:
    second = train(starting_from(recipe, trained), tmp_path / "second", device="cpu")
    before, after = LightRetriever.load(trained), LightRetriever.load(second)
    assert after.contract.backbone.address == recipe.model.address
    assert after.contract.backbone.adapter_hash != before.contract.backbone.adapter_hash


def test_layers_below_the_first_one_keep_the_trained_adapter(recipe: ContrastiveRecipe, trained: Path) -> None:
    begun = build_model(starting_from(recipe, trained, first_layer=1), device="cpu")
    learning = [name for name, p in begun.trunk.named_parameters() if p.requires_grad]
    assert learning
    assert all(".layers.1." in name for name in learning)


@pytest.mark.parametrize(("changes", "message"), [({"lora_rank": 8}, "has rank 4"), ({"lora_alpha": 3}, "alpha 8")])
def test_an_adapter_of_another_shape_is_refused(
    recipe: ContrastiveRecipe, trained: Path, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        build_model(starting_from(recipe, trained, **changes), device="cpu")


def test_an_adapter_that_begins_higher_up_is_refused(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    high = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, first_layer=1))
    folder = train(high, tmp_path / "high", device="cpu")
    with pytest.raises(InvalidInput, match="begins in layer 1"):
        build_model(starting_from(recipe, folder), device="cpu")
