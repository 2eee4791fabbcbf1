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


@pytest.mark.parametrize("name", ["csplade-llama-3.2-1b", "csplade-bi-llama-3.1-8b", "csplade-echo-llama-3.1-8b"])
def test_csplade_draws_its_negatives_from_the_lists_of_its_training_set(name: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")

    def passage(doc_id: str) -> dict[str, str]:
        return {"docid": doc_id, "title": "", "text": f"text of {doc_id}"}

    rows = [
        {
            "query_id": str(number),
            "query": f"query {number}",
            "positive_passages": [passage(f"p{number}")],
            "negative_passages": [passage(f"n{number}-{rank}") for rank in range(20)],
        }
        for number in range(8)
    ]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "aug")
    recipe = full_scale(name)
    (data,) = recipe.data
    assert data.name == "hf:Tevatron/msmarco-passage-aug"  # whose columns are those above
    recipe = dataclasses.replace(recipe, data=(dataclasses.replace(data, name=f"hf:{tmp_path / 'aug'}"),))
    mixture = StageData(recipe, negatives=None).mixture
    drawn = defaultdict(set)
    for number in range(8):
        batch = mixture.batch(number)
        assert len(batch.documents) == 4 * 16
        for row, query_id in enumerate(batch.query_ids):
            negatives = batch.documents[4 + 15 * row : 4 + 15 * (row + 1)]
            assert batch.documents[row].doc_id == f"p{query_id}"
            assert {document.doc_id.partition("-")[0] for document in negatives} == {f"n{query_id}"}
            drawn[query_id] |= {document.doc_id for document in negatives}
    assert all(len(ids) > 15 for ids in drawn.values())  # another draw at each step


def test_an_instruction_of_the_model_contradicts_training_without_any() -> None:
    path = RECIPES / "lightretriever-llama-3.2-1b.yaml"
    with pytest.raises(FormatError, match=r"use_instructions is false, but query\.instruction is 'Given a web"):
        read_recipe(path, overrides=["use_instructions=false"])
