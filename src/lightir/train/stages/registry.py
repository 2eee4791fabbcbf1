"""The training stages by the name that a recipe file gives under `stage`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightir.models  # noqa: F401 - first: without torch, it says what to install
from lightir.train.recipes.run_recipe import RunRecipe
from lightir.train.recipes.stage_recipes import RECIPES, read_stage_recipe
from lightir.train.stages import adaptation, contrastive, masked, query_likelihood, sidr


@dataclass(frozen=True, slots=True)
class StageKind:
    """A training stage.

    Attributes:
        recipe: the stage's recipe class.
        train: function (recipe, out, resume=, device=) that trains and returns the model folder.
        after: next command, with {model} for the folder; for a first stage, the command of the second.
    """

    recipe: type[RunRecipe]
    train: Callable[..., Path]
    after: str = "lightir cache {model}"


_SECOND_STAGE = "lightir train CONTRASTIVE-RECIPE --set model.address={model}"
STAGES = {
    "contrastive": StageKind(RECIPES["contrastive"], contrastive.train),
    "adaptation": StageKind(RECIPES["adaptation"], adaptation.train, _SECOND_STAGE),
    "masked_next_token": StageKind(RECIPES["masked_next_token"], masked.train, _SECOND_STAGE),
    "query_likelihood": StageKind(RECIPES["query_likelihood"], query_likelihood.train, _SECOND_STAGE),
    "sidr": StageKind(RECIPES["sidr"], sidr.train),
}


def read_recipe(path: Path | str, *, overrides: Sequence[str] = ()) -> tuple[StageKind, Any]:
    """Read a recipe file, apply overrides, check it, and return its stage (by default contrastive) and the recipe.

    Raises:
        NotFound: the file does not exist.
        FormatError: not YAML, an unknown stage or key, or a wrong type; the message names the key.
        InvalidInput: an override without "=", or a value out of range.
    """
    name, recipe = read_stage_recipe(path, overrides=overrides)
    return STAGES[name], recipe


def train_file(
    path: Path | str,
    out: Path | str,
    *,
    overrides: Sequence[str] = (),
    resume: bool = False,
    device: str = "auto",
) -> Path:
    """Train the recipe in a file, of any stage; write the model folder and return its path.

    Args:
        path: recipe file (YAML).
        out: model folder to write.
        overrides: changes to single keys of the recipe, `key.key=value`.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: the recipe, a data set, or a checkpoint to resume from, is missing.
        FormatError: the recipe is not YAML, or has an unknown key.
        InvalidInput: a value of the recipe is out of range.
    """
    kind, recipe = read_recipe(path, overrides=overrides)
    return kind.train(recipe, Path(out), resume=resume, device=device)
