"""The training stages by name: a recipe file says which one it is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightir.models  # noqa: F401 - first, as it says what to install where torch is not there
from lightir.contract import from_json, shorten
from lightir.errors import FormatError
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.recipe_files import recipe_content
from lightir.train.recipes.sidr_recipe import SidrRecipe
from lightir.train.stages import adaptation, contrastive, masked, query_likelihood, sidr


@dataclass(frozen=True, slots=True)
class StageKind:
    """One stage.

    Attributes:
        recipe: its dataclass.
        train: (recipe, out, resume=, device=) -> the model folder.
        after: the command that comes next, with {model} for the folder; of a first stage, the stage after it.
    """

    recipe: type[Any]
    train: Callable[..., Path]
    after: str = "lightir cache {model}"


FROM_HERE = "lightir train CONTRASTIVE-RECIPE --set model.address={model}"
STAGES = {
    "adaptation": StageKind(adaptation.AdaptationRecipe, adaptation.train, FROM_HERE),
    "contrastive": StageKind(ContrastiveRecipe, contrastive.train),
    "masked_next_token": StageKind(masked.MaskedRecipe, masked.train, FROM_HERE),
    "query_likelihood": StageKind(query_likelihood.LikelihoodRecipe, query_likelihood.train, FROM_HERE),
    "sidr": StageKind(SidrRecipe, sidr.train),
}


def read_recipe(path: Path | str, *, overrides: Sequence[str] = ()) -> tuple[StageKind, Any]:
    """The stage that a recipe file names under `stage` (contrastive where it doesn't), and the recipe, checked.

    Raises:
        NotFound: there is no such file.
        FormatError: not YAML, no such stage, an unknown key, a wrong type; the place is named.
        InvalidInput: an override without "=", or a value that makes no sense.
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
    """Train what a recipe file describes, whatever its stage, and write the model folder; its path comes back."""
    kind, recipe = read_recipe(path, overrides=overrides)
    return kind.train(recipe, Path(out), resume=resume, device=device)
