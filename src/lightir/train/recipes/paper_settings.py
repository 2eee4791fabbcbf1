"""Comparison of recipes with tables of the settings that their papers give."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from lightir.contract import from_json, to_json
from lightir.errors import InvalidInput
from lightir.train.recipes.recipe_files import recipe_content
from lightir.train.recipes.run_recipe import RunRecipe

ENGINEERING = (
    *("base", "stage", "method", "chosen", "deviations", "checkpoint_every", "data", "held_out", "evaluation"),
    *("model.dtype", "model.gradient_checkpointing", "model.liger", "model.compile"),
    *("optimisation.sharding", "optimisation.gradient_cache", "optimisation.packed_tokens"),
)
"""Settings that a recipe file may have although neither its paper gives them nor the recipe explains them: names, and
what changes speed and memory, but not the result."""
FACTOR = " x "
"""Separator of the factors in a key whose value is a product, such as batch_size x accumulation."""


@dataclass(frozen=True, slots=True)
class PaperGroup:
    """Settings that one part of a paper gives for some recipes.

    Attributes:
        where: section, table or appendix.
        recipes: names of recipes, with * for any characters.
        settings: values by key.
    """

    where: str
    recipes: tuple[str, ...]
    settings: dict[str, object]

    def holds_for(self, recipe: str) -> bool:
        """Return whether the group's settings hold for the recipe with this name."""
        return any(fnmatchcase(recipe, pattern) for pattern in self.recipes)


@dataclass(frozen=True, slots=True)
class PaperTable:
    """The settings of one paper.

    Attributes:
        paper: authors, title and source.
        groups: settings by part of the paper; a later group replaces keys of earlier ones.
    """

    paper: str
    groups: tuple[PaperGroup, ...]

    def settings(self, recipe: str) -> dict[str, tuple[Any, PaperGroup]]:
        """Return the settings that hold for a recipe: value and group by key."""
        return {
            key: (value, group)
            for group in self.groups
            if group.holds_for(recipe)
            for key, value in group.settings.items()
        }


@dataclass(frozen=True, slots=True)
class ComparedSetting:
    """One setting in the paper and in a recipe.

    Attributes:
        key: key of the recipe, or words for a setting that recipes do not have.
        kind: "same", "deviation", or "chosen" if the paper does not give it.
        recipe: value in the recipe; None if recipes do not have the setting.
        paper: value in the paper; None if the paper does not give it.
        group: part of the table with the setting; None if the paper does not give it.
        reason: why the recipe deviates, or why this value was chosen; "" if both are equal.
    """

    key: str
    kind: Literal["same", "deviation", "chosen"]
    recipe: Any
    paper: Any = None
    group: PaperGroup | None = None
    reason: str = ""


def read_paper_table(path: Path) -> PaperTable:
    """Read the settings of a paper; recipes/papers/lightretriever.yaml explains the format.

    Raises:
        FormatError: not YAML, an unknown key, or a wrong type.
    """
    table: PaperTable = from_json(PaperTable, recipe_content(path), str(path))
    return table


def compare_with_paper(name: str, recipe: RunRecipe, table: PaperTable) -> list[ComparedSetting]:
    """Compare a recipe with its paper's settings.

    Args:
        name: the recipe's name.
        recipe: the recipe.
        table: the settings of its paper.

    Returns:
        The paper's settings in the table's order, then those that were chosen here.

    Raises:
        InvalidInput: a setting differs from the paper and the recipe does not list it under `deviations`, a listed
            deviation is none, or a setting under `chosen` is in the paper or is no setting; the message has all.
    """
    values, given = to_json(recipe), table.settings(name)
    deviations, chosen = ({key: why for key, why in part.items() if why} for part in (recipe.deviations, recipe.chosen))
    compared = [_compared(values, key, *setting, deviations) for key, setting in given.items()]
    wrong = [
        f"{item.key} is {item.recipe!r} and {item.paper!r} in the paper ({item.group.where if item.group else ''}): "
        "list it under `deviations` with its reason, or change it"
        for item in compared
        if item.kind == "deviation" and not item.reason
    ]
    deviating = {item.key for item in compared if item.kind == "deviation"}
    wrong += [f"{key} under `deviations` is not a deviation" for key in deviations if key not in deviating]
    for key, reason in chosen.items():
        if key in given:
            wrong.append(f"{key} under `chosen` is given by the paper: {given[key][0]!r}")
        elif (value := _value(values, key)) is _ABSENT:
            wrong.append(f"{key} under `chosen` is not a setting of this recipe")
        else:
            compared.append(ComparedSetting(key, "chosen", value, reason=reason))
    if wrong:
        raise InvalidInput(f"recipe {name} and {table.paper}: {'; '.join(wrong)}")
    return compared


def unexplained(content: Mapping[str, Any], name: str, recipe: RunRecipe, table: PaperTable) -> list[str]:
    """Return the keys of a recipe file that neither the paper gives nor the recipe lists under `chosen`.

    Args:
        content: content of the recipe file, with its bases.
        name: the recipe's name.
        recipe: the recipe.
        table: the settings of its paper.
    """
    known = {factor for key in (*table.settings(name), *recipe.chosen) for factor in _factors(key)}
    return [key for key in _leaves(content, "") if not _is_within(key, known | set(ENGINEERING))]


def _compared(
    values: Mapping[str, Any], key: str, paper: Any, group: PaperGroup, deviations: Mapping[str, str]
) -> ComparedSetting:
    value = _value(values, key)
    if value is _ABSENT:
        return ComparedSetting(key, "deviation", None, paper, group, deviations.get(key, ""))
    same = value == paper or ("*" in key and all(item == paper for item in value.values()))
    reason = "" if same else deviations.get(key, "")
    return ComparedSetting(key, "same" if same else "deviation", value, paper, group, reason)


_ABSENT = object()


def _value(values: Any, key: str) -> Any:
    """Return the value of a key of a recipe; _ABSENT if there is none, by name if the key covers all training sets."""
    factors = _factors(key)
    if len(factors) > 1:
        product = 1
        for factor in factors:
            product *= _value(values, factor)
        return product
    for position, part in enumerate(parts := key.split(".")):
        if isinstance(values, list):
            by_name = {item["name"]: item for item in values}
            if part == "*":
                rest = ".".join(parts[position + 1 :])
                return {name: _value(item, rest) for name, item in by_name.items()}
            values = by_name
        if not isinstance(values, dict) or part not in values:
            return _ABSENT
        values = values[part]
    return values


def _factors(key: str) -> Sequence[str]:
    return key.split(FACTOR)


def _leaves(content: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the keys of values that are not objects, with dots between nested keys."""
    for key, value in content.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _is_within(key: str, names: Iterable[str]) -> bool:
    """Return whether a key, or a key above it, is one of the names."""
    return any(key == name or key.startswith(f"{name}.") for name in names)
