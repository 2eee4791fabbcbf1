"""Check that a recipe's model and data sets exist, before torch is imported and anything is read."""

from __future__ import annotations

from pathlib import Path

from lightir.addresses import resolve_local
from lightir.data import Dataset
from lightir.data.hub import PREFIX as HUB_PREFIX
from lightir.train.recipes.data_names import data_folder, examples_file
from lightir.train.recipes.run_recipe import QueryRunRecipe, RunRecipe
from lightir.train.recipes.settings import CorpusRecipe, DataRecipe


def require_data(recipe: RunRecipe) -> None:
    """Refuse a recipe whose model, data sets or splits do not exist; names on a hub are not looked up.

    Raises:
        NotFound: a model, a data set or a split does not exist.
        MissingExtra: the model is in a package that is not installed.
    """
    resolve_local(recipe.model.address)
    for data in recipe.data:
        if isinstance(data, DataRecipe):
            _require_set(data)
        elif isinstance(data, CorpusRecipe) and not (data.name.startswith(HUB_PREFIX) or Path(data.name).is_file()):
            data_folder(data.name)
    if isinstance(recipe, QueryRunRecipe):
        for name in recipe.held_out:
            Dataset.open(data_folder(name))
        for development in recipe.evaluation.sets:
            _require_split(data_folder(development.name), development.split)


def _require_set(data: DataRecipe) -> None:
    if data.name.startswith(HUB_PREFIX) or examples_file(data.name) is not None:
        return
    folder = data_folder(data.name)
    if data.pairs == "judged":
        _require_split(folder, data.split)
    else:
        Dataset.open(folder)


def _require_split(folder: Path, split: str) -> None:
    Dataset.open(folder).require_split(split)
