"""Training that starts from a model folder instead of a bare backbone."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from lightir.contract import Contract, require_same_documents
from lightir.errors import InvalidInput, NotFound
from lightir.models.encoder import LightRetriever
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe
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


@pytest.fixture
def project(recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with runs/adapted (all weights trained) and runs/second (LoRA on top), both named relatively."""
    folder = tmp_path / "project"
    shutil.copytree(recipe.model.address, folder / "bases" / "llama")
    monkeypatch.chdir(folder)
    short = dataclasses.replace(
        recipe, evaluation=BranchEvaluation(), optimisation=dataclasses.replace(recipe.optimisation, steps=1)
    )
    whole = starting_from(short, Path("bases/llama"), lora_rank=0, lora_dropout=0.0)
    adapted = train(whole, Path("runs/adapted"), device="cpu")
    train(starting_from(short, adapted), Path("runs/second"), device="cpu")
    monkeypatch.chdir(tmp_path)
    return folder


def test_an_adapter_on_trained_weights_opens_from_anywhere_and_after_a_move_with_its_base(
    project: Path, tmp_path: Path
) -> None:
    text = ["a river in winter"]
    opened = LightRetriever.load(project / "runs" / "second")
    expected = opened.states(opened.batch(opened.frame_documents(text)))
    saved = tmp_path / "elsewhere" / "saved"
    LightRetriever.load(project / "runs" / "second", merge=False).save(saved)
    moved = tmp_path / "moved"
    (project / "runs").rename(moved)
    for folder in (moved / "second", Path("moved/second")):
        loaded = LightRetriever.load(folder)
        torch.testing.assert_close(loaded.states(loaded.batch(loaded.frame_documents(text))), expected)
    with pytest.raises(NotFound, match="was trained on the model") as error:
        LightRetriever.load(saved)
    assert str(project / "runs" / "adapted" / "backbone") in str(error.value)
    (moved / "adapted").rename(project / "adapted")
    with pytest.raises(NotFound, match="keep both folders where they are") as error:
        LightRetriever.load("moved/second")
    assert str(moved / "adapted" / "backbone") in str(error.value)


def test_a_model_saved_elsewhere_names_its_base_from_there(project: Path, tmp_path: Path) -> None:
    saved = tmp_path / "other" / "depth" / "saved"
    opened = LightRetriever.load("project/runs/second", merge=False)
    contract = opened.save(saved)
    assert contract.backbone.address == "../../../project/runs/adapted/backbone"
    loaded = LightRetriever.load(saved, merge=False)
    assert loaded.backbone.weights_hash == opened.backbone.weights_hash
    require_same_documents(contract, Contract.load(project / "runs" / "second"), names=("one", "other"))
    assert Contract.load(project / "runs" / "adapted").backbone.address == "../../bases/llama"
