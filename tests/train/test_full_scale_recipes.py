"""Full-scale recipes, unchanged but for the size of data, model and batch, do what their paper says."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest

from collections_for_training import write_dataset
from lightir.errors import FormatError
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.stages.registry import read_recipe
from lightir.train.stages.stage_data import StageData
from tiny_recipes import RECIPES

TRAINING_SETS = 23  # LightRetriever, Table 5


def full_scale(name: str) -> ContrastiveRecipe:
    """Return a recipe with its own training sets, for batches of 4 queries without mined negatives."""
    _, recipe = read_recipe(RECIPES / f"{name}.yaml")
    assert isinstance(recipe, ContrastiveRecipe)
    return dataclasses.replace(
        recipe,
        data=tuple(dataclasses.replace(data, negatives="") for data in recipe.data),
        optimisation=dataclasses.replace(recipe.optimisation, batch_size=4),
        held_out=(),
    )


@pytest.fixture
def training_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Write a small data set under the name of each set that LightRetriever trains on, and return the names."""
    names = [data.name for data in full_scale("lightretriever-llama-3.2-1b").data]
    for number, name in enumerate(names):
        write_dataset(tmp_path / name, f"set{number}")
    monkeypatch.setenv("LIGHTIR_DATA", str(tmp_path))
    return names


def instructions_seen(recipe: ContrastiveRecipe) -> dict[str, set[str]]:
    """Return the instructions of each set's queries in an epoch's batches."""
    mixture = StageData(recipe, negatives=None).mixture
    seen = defaultdict(set)
    for number in range(mixture.batches_per_epoch):
        batch = mixture.batch(number)
        seen[batch.dataset] |= set(batch.instructions)
    return seen


def test_training_without_instructions_has_none_in_any_set(training_sets: list[str]) -> None:
    with_them = instructions_seen(full_scale("lightretriever-llama-3.2-1b"))
    assert set(with_them) == set(training_sets)
    assert len(training_sets) == TRAINING_SETS
    assert all("" not in texts for texts in with_them.values())
    without = full_scale("lightretriever-no-instruction-llama-3.2-1b")
    assert instructions_seen(without) == {name: {""} for name in training_sets}
    assert without.contract.query.prompt == ""


def test_an_instruction_of_the_model_contradicts_training_without_any() -> None:
    path = RECIPES / "lightretriever-llama-3.2-1b.yaml"
    with pytest.raises(FormatError, match=r"use_instructions is false, but query\.instruction is 'Given a web"):
        read_recipe(path, overrides=["use_instructions=false"])
