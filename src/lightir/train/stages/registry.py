"""The training stages by the name that a recipe file gives under `stage`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightir.models  # noqa: F401 - first: without torch, it says what to install
from lightir.contract import from_json, shorten
from lightir.errors import FormatError
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.likelihood_recipe import LikelihoodRecipe
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe, MaskedRecipe
from lightir.train.recipes.recipe_files import recipe_content
from lightir.train.recipes.run_recipe import RunRecipe
from lightir.train.recipes.sidr_recipe import SidrRecipe
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
    "contrastive": StageKind(ContrastiveRecipe, contrastive.train),
    "adaptation": StageKind(AdaptationRecipe, adaptation.train, _SECOND_STAGE),
    "masked_next_token": StageKind(MaskedRecipe, masked.train, _SECOND_STAGE),
    "query_likelihood": StageKind(LikelihoodRecipe, query_likelihood.train, _SECOND_STAGE),
    "sidr": StageKind(SidrRecipe, sidr.train),
}


def read_recipe(path: Path | str, *, overrides: Sequence[str] = ()) -> tuple[StageKind, Any]:
    """Read a recipe file, apply overrides, check it, and return its stage (by default contrastive) and the recipe.

    Raises:
        NotFound: the file does not exist.
        FormatError: not YAML, an unknown stage or key, or a wrong type; the message names the key.
        InvalidInput: an override without "=", or a value out of range.
    """
    content = recipe_content(path, overrides=overrides)
    name = content.get("stage", "contrastive") if isinstance(content, dict) else "contrastive"
    if not isinstance(name, str) or name not in STAGES:
        raise FormatError(f"{path}: stage is {shorten(name)}; expected one of {', '.join(sorted(STAGES))}")
    kind = STAGES[name]
    return kind, from_json(kind.recipe, content, str(path))


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
