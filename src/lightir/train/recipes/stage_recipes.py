"""The recipe of a file, of any stage, read and checked without torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightir.contract import from_json, shorten
from lightir.errors import FormatError
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.likelihood_recipe import LikelihoodRecipe
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe, MaskedRecipe
from lightir.train.recipes.recipe_files import recipe_content
from lightir.train.recipes.run_recipe import RunRecipe
from lightir.train.recipes.sidr_recipe import SidrRecipe

RECIPES: dict[str, type[RunRecipe]] = {
    "contrastive": ContrastiveRecipe,
    "adaptation": AdaptationRecipe,
    "masked_next_token": MaskedRecipe,
    "query_likelihood": LikelihoodRecipe,
    "sidr": SidrRecipe,
}
"""Recipe class of each stage, by the name that a recipe file gives under `stage`."""


def read_stage_recipe(path: Path | str, *, overrides: Sequence[str] = ()) -> tuple[str, RunRecipe]:
    """Read a recipe file, apply overrides, check it, and return its stage (by default contrastive) and the recipe.

    Raises:
        NotFound: the file does not exist.
        FormatError: not YAML, an unknown stage or key, or a wrong type; the message names the key.
        InvalidInput: an override without "=", or a value out of range.
    """
    content = recipe_content(path, overrides=overrides)
    name = content.get("stage", "contrastive") if isinstance(content, dict) else "contrastive"
    if not isinstance(name, str) or name not in RECIPES:
        raise FormatError(f"{path}: stage is {shorten(name)}; expected one of {', '.join(sorted(RECIPES))}")
    return name, from_json(RECIPES[name], content, str(path))
