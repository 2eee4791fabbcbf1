"""Full-scale recipes compared with the settings of their papers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import FormatError, InvalidInput
from lightir.train.recipes.paper_settings import (
    PaperGroup,
    PaperTable,
    compare_with_paper,
    read_paper_table,
    unexplained,
)
from lightir.train.recipes.recipe_files import recipe_content
from lightir.train.stages.registry import read_recipe
from tiny_recipes import BACKBONE, RECIPES

TABLES = {path.stem: read_paper_table(path) for path in sorted((RECIPES / "papers").glob("*.yaml"))}
FULL_SCALE = [path for path in sorted(RECIPES.glob("*.yaml")) if BACKBONE.search(path.stem)]
RECIPE = """
model: {address: org/model}
data: [{name: a, ratio: 0.5}, {name: b}]
optimisation: {steps: 7, batch_size: 4, accumulation: 8}
"""


@pytest.mark.parametrize("path", FULL_SCALE, ids=lambda path: path.stem)
def test_a_full_scale_recipe_has_its_papers_settings_or_says_why_not(path: Path) -> None:
    tables = [table for table in TABLES.values() if table.settings(path.stem)]
    assert len(tables) == 1, f"{path.stem} belongs into one table of recipes/papers"
    _, recipe = read_recipe(path)
    compared = compare_with_paper(path.stem, recipe, tables[0])
    assert sum(item.kind == "same" for item in compared) >= 2
    unflagged = unexplained(recipe_content(path), path.stem, recipe, tables[0])
    assert not unflagged, "add them to the paper's table, or to `chosen` with a reason"


def test_every_pattern_of_a_table_names_a_recipe() -> None:
    names = [path.stem for path in FULL_SCALE]
    for table in TABLES.values():
        for pattern in {pattern for group in table.groups for pattern in group.recipes}:
            assert any(dataclasses.replace(table.groups[0], recipes=(pattern,)).holds_for(name) for name in names), (
                pattern
            )


def compared(folder: Path, settings: dict[str, object], extra: str = "") -> dict[str, tuple[str, Any, str]]:
    """Compare a small recipe with settings; return kind, value and reason by key."""
    (folder / "r.yaml").write_text(RECIPE + extra)
    _, recipe = read_recipe(folder / "r.yaml")
    table = PaperTable("a paper", (PaperGroup("section 1", ("r*",), settings), PaperGroup("2", ("s",), {"x": 1})))
    return {item.key: (item.kind, item.recipe, item.reason) for item in compare_with_paper("r", recipe, table)}


def test_keys_reach_every_set_products_and_defaults(tmp_path: Path) -> None:
    given = {
        "optimisation.steps": 7,
        "optimisation.batch_size x optimisation.accumulation": 32,
        "data.*.ratio": {"a": 0.5, "b": 1},
        "data.*.split": "train",
        "data.b.ratio": 1,
        "heads.top_k": 512,
    }
    assert {kind for kind, _, _ in compared(tmp_path, given).values()} == {"same"}


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({"optimisation.steps": 8}, 7),
        ({"optimisation.batch_size x optimisation.accumulation": 4}, 32),
        ({"data.*.ratio": 1}, {"a": 0.5, "b": 1}),
        ({"data.*.ratio": {"a": 0.5}}, {"a": 0.5, "b": 1}),
        ({"no such thing": True}, None),
    ],
)
def test_a_deviation_must_be_listed_and_must_be_one(tmp_path: Path, settings: dict[str, object], value: object) -> None:
    (key,) = settings
    with pytest.raises(InvalidInput, match=r"in the paper \(section 1\): list it under `deviations`"):
        compared(tmp_path, settings)
    with pytest.raises(InvalidInput, match="list it under"):
        compared(tmp_path, settings, f'deviations: {{"{key}": ""}}\n')
    assert compared(tmp_path, settings, f'deviations: {{"{key}": why}}\n') == {key: ("deviation", value, "why")}
    with pytest.raises(InvalidInput, match=r"heads\.scale under `deviations` is not a deviation"):
        compared(tmp_path, settings, f'deviations: {{"{key}": why, heads.scale: why}}\n')
    with pytest.raises(InvalidInput, match="under `chosen` is given by the paper"):
        compared(tmp_path, settings, f'deviations: {{"{key}": why}}\nchosen: {{"{key}": why}}\n')


def test_a_chosen_setting_is_one_that_the_paper_does_not_give(tmp_path: Path) -> None:
    extra = "heads: {scale: 3.0}\nchosen: {heads.scale: why}\n"
    assert compared(tmp_path, {}, extra) == {"heads.scale": ("chosen", 3.0, "why")}
    with pytest.raises(InvalidInput, match=r"heads\.scales under `chosen` is not a setting"):
        compared(tmp_path, {}, "chosen: {heads.scales: why}\n")


def test_settings_that_are_neither_the_papers_nor_flagged_are_reported(tmp_path: Path) -> None:
    compared(
        tmp_path, {}, "heads: {scale: 3.0, top_k: 5}\nfusion: {weights: {dense: 1.0}}\nchosen: {heads.scale: why}\n"
    )
    _, recipe = read_recipe(tmp_path / "r.yaml")
    table = PaperTable(
        "a paper", (PaperGroup("1", ("r",), {"model.address": 1, "optimisation.batch_size x optimisation.steps": 1}),)
    )
    assert unexplained(recipe_content(tmp_path / "r.yaml"), "r", recipe, table) == [
        "optimisation.accumulation",
        "heads.top_k",
        "fusion.weights.dense",
    ]


def test_later_groups_replace_keys_of_earlier_ones() -> None:
    table = PaperTable("p", (PaperGroup("1", ("r*",), {"a": 1, "b": 2}), PaperGroup("2", ("r-x",), {"a": 3})))
    assert {key: value for key, (value, _) in table.settings("r-x").items()} == {"a": 3, "b": 2}
    assert {key: value for key, (value, _) in table.settings("r").items()} == {"a": 1, "b": 2}
    assert not table.settings("other")


def test_a_wrong_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("paper: p\ngroups: [{where: 1, recipes: [r], settings: {}}]\n")
    with pytest.raises(FormatError, match="where is 1; expected str"):
        read_paper_table(tmp_path / "t.yaml")


def test_reasons_are_inherited_and_shown(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(RECIPE + "deviations: {a: one, b: two}\n")
    (tmp_path / "r.yaml").write_text('base: base.yaml\ndeviations: {b: ""}\nchosen: {heads.scale: why}\n')
    _, recipe = read_recipe(tmp_path / "r.yaml")
    assert recipe.deviations == {"a": "one", "b": ""}
    assert recipe.chosen == {"heads.scale": "why"}
