"""Recipes: refused values, overrides, and runs of every shipped recipe."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightir.cli import main
from lightir.cli.app import build_parser
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.data_names import data_folder
from lightir.train.recipes.recipe_files import recipe_content, recipe_yaml
from lightir.train.stages.registry import STAGES, read_recipe
from tiny_recipes import BACKBONE, RECIPES, tiny_recipe

MINIMAL = "model: {address: org/model}\ndata: [{name: x}]\n"


ODD_YAML = (
    "2020-13-45",
    "!!int x",
    "!!bool x",
    "!!timestamp x",
    "!!float x",
    "!!map [1]",
    "!!python/name:os.system",
    "9" * 5000,
    "{[1]: 2}",
)
"""Texts for most of which PyYAML raises errors of Python itself."""


def laughs(leaf: str, opened: str, closed: str, keys: Sequence[str]) -> str:
    """Return twelve lines, each with nine aliases of the line before: thousands of millions of values."""
    lines = [f"a0: &a0 {leaf}"]
    lines += [f"a{i}: &a{i} {opened}{', '.join(f'{key}*a{i - 1}' for key in keys)}{closed}" for i in range(1, 12)]
    return "\n".join(lines)


BOMBS = (
    laughs("[x, x]", "[", "]", [""] * 9),
    laughs("{k: v}", "{", "}", [f"k{i}: " for i in range(9)]),
    laughs("{k: v}", "{<<: [", "]}", [""] * 9),
    "model: &a {x: *a}",
    "data: &a [*a]",
)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Any:
    _, recipe = read_recipe(path, overrides=overrides)
    return recipe


def written(folder: Path, text: str) -> Path:
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"


def test_a_recipe_comes_back_from_its_yaml(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    assert load_recipe(written(tmp_path, recipe_yaml(recipe))) == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "loses: {}\n", r"unknown key 'loses' \(did you mean 'losses'\?\)"),
        (MINIMAL + "heads: {}\nlosses: {}\nheads: {}\n", "duplicate key 'heads'"),
        (MINIMAL + "losses: {dense: 1, dense: 2}\n", "duplicate key 'dense'"),
        (MINIMAL + "losses: {dens: 1}\n", r"losses: unknown key 'dens'"),
        ("model: {address: a}\ndata: [{name: x, ration: 2}]\n", "unknown key 'ration'"),
        (MINIMAL + "optimisation: {steps: many}\n", "optimisation: steps is 'many'; expected int"),
        (MINIMAL + "heads: {pooling: max}\n", "pooling is 'max'; expected one of"),
        ("model: {address: a}\ndata: []\n", "at least one training set"),
        (MINIMAL + "losses: {symmetric: 0, dense: 0, sparse: 0}\n", "must be above 0"),
        (MINIMAL + "heads: {sparse: false}\n", "must be 0"),
        (MINIMAL + "losses: {symmetric: 0}\n", "no trained full encoder to align with"),
        (MINIMAL + "losses: {symmetric: 0, dense_alignment: 0, sparse_alignment: 1}\n", "no trained full encoder"),
        (MINIMAL + "optimisation: {steps: 0}\n", "steps is 0"),
        ("a: [", "not valid YAML"),
        ("[" * 5000, "not valid YAML"),
        ("just text", "expected"),
        ("stage: [a]\n", r"stage is \['a'\]; expected one of"),
        (MINIMAL + "1: 2\nx: 3\n", "unknown key 1;"),
        (MINIMAL + "optimisation: {learning_rate: .nan}\n", "learning_rate is nan; expected a finite number"),
        (MINIMAL + "optimisation: {learning_rate: -.inf}\n", "learning_rate is -inf; expected a finite number"),
        (MINIMAL + f"optimisation: {{learning_rate: {10**400}}}\n", "learning_rate is 1000.*; expected a number"),
        (MINIMAL + f"optimisation: {{learning_rate: 0x{'f' * 5000}}}\n", "learning_rate is a very long int; expected"),
        (MINIMAL + f"losses: [{'[x, x], ' * 1000}]\n", r"losses: \[.{,200}\]; expected an object"),
        *((MINIMAL + f"heads: {value}\n", "not valid YAML") for value in ODD_YAML),
        *((text, "more than 1,000,000 values") for text in BOMBS),
        ("\x01", "not valid YAML"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        load_recipe(written(tmp_path, text))


NUMBERS = [
    ("optimisation.learning_rate", "-1", "0 or more"),
    ("optimisation.learning_rate", ".nan", "a finite number"),
    ("optimisation.warmup_steps", "-2", "0 or more"),
    ("optimisation.max_gradient_norm", "0", "above 0"),
    ("optimisation.weight_decay", "-0.1", "0 or more"),
    ("optimisation.final_share", "2", "0 to 1"),
    ("optimisation.max_minutes", "-1", "0 or more"),
    ("optimisation.negatives", "-1", "0 or more"),
    ("optimisation.query_tokens", "-1", "0 or more"),
    ("optimisation.seed", "-1", "0 or more"),
    ("model.lora_alpha", "0", "above 0"),
    ("model.lora_dropout", "1", "below 1"),
    ("model.first_layer", "-1", "0 or more"),
    ("losses.temperature", "0", "above 0"),
    ("losses.sparse_temperature", "-1", "above 0"),
    ("losses.flops", "-0.1", "0 or more"),
    ("losses.sparse_alignment", "-1", "0 or more"),
    ("losses.flops_ramp_steps", "-1", "0 or more"),
    ("heads.calibrate", "1.5", "0 to 1"),
    ("heads.calibration_documents", "0", "above 0"),
    ("evaluation.every", "-1", "0 or more"),
    ("checkpoint_every", "-1", "0 or more"),
]


@pytest.mark.parametrize(("key", "value", "expected"), NUMBERS)
def test_numbers_that_mean_nothing_are_refused_before_anything_is_read(
    key: str, value: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=rf"{key.split('.')[-1]} is {value.lstrip('.')}.*; expected .*{expected}"):
        load_recipe(written(tmp_path, MINIMAL), overrides=[f"{key}={value}"])


STAGE_NUMBERS = [
    ("sidr", "losses.semi_parametric=-1"),
    ("sidr", "heads.calibrate=2"),
    ("sidr", "evaluation.every=-1"),
    ("sidr", "checkpoint_every=-1"),
    ("query_likelihood", "passage_lm_weight=-1"),
    ("query_likelihood", "corruption.ratio=1.5"),
    ("query_likelihood", "evaluation.every=-1"),
    ("query_likelihood", "evaluation.sets=[{name: x, queries: 0}]"),
    ("query_likelihood", "checkpoint_every=-1"),
    ("adaptation", "checkpoint_every=-1"),
    ("adaptation", "data.0.documents=-1"),
]


@pytest.mark.parametrize(("stage", "override"), STAGE_NUMBERS)
def test_other_stages_refuse_them_too(stage: str, override: str, tmp_path: Path) -> None:
    key, value = override.removesuffix("}]").replace("=[{name: x, queries: ", "=").split("=")
    path = written(tmp_path, MINIMAL + f"stage: {stage}\n")
    assert load_recipe(path).stage == stage
    with pytest.raises(FormatError, match=rf"{key.split('.')[-1]}.* is {value}.*; expected"):
        load_recipe(path, overrides=[override])


def test_overrides_reach_every_depth(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL)
    recipe = load_recipe(path, overrides=["optimisation.steps=7", "data.0.ratio=0.5", "losses.dims=[64, 32]"])
    assert recipe.optimisation.steps == 7
    assert recipe.data[0].ratio == 0.5
    assert recipe.losses.dims == (64, 32)


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("2E+1", 20.0), ("-.5e-3", -5e-4), ("-3.e2", -300.0)])
def test_numbers_are_written_as_everyone_writes_them(text: str, value: float, tmp_path: Path) -> None:
    path = written(tmp_path, f"value: {text}\nname: 1e-5b\n")
    assert recipe_content(path) == {"value": value, "name": "1e-5b"}
    assert recipe_content(path, overrides=[f"name={text}"])["name"] == value


NOWHERE = (
    *("steps", "=3", "data.4.name=x", "data.x=1", "model.address.deep=1", "a=[", "b=1"),
    *("data.\u00b2.name=x", f"data.{'9' * 5000}.name=x", "optimisation.steps=2020-13-45", "model=&a {x: *a}"),
)


@pytest.mark.parametrize("override", NOWHERE)
def test_overrides_that_lead_nowhere_are_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises((InvalidInput, FormatError)):
        load_recipe(written(tmp_path, MINIMAL), overrides=[override])


@pytest.mark.parametrize("text", ["", "just text", "- a list"])
def test_a_recipe_without_fields_has_none_to_change(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match=r"no fields|no position"):
        load_recipe(written(tmp_path, text), overrides=["stage=sidr"])


def test_aliases_may_be_used(tmp_path: Path) -> None:
    text = "model: {address: a}\ndata: [&x {name: n, ratio: 0.5}, {<<: *x, name: m}, *x]\n"
    assert [(item.name, item.ratio) for item in load_recipe(written(tmp_path, text)).data] == [
        ("n", 0.5),
        ("m", 0.5),
        ("n", 0.5),
    ]


def test_a_recipe_names_its_stage(tmp_path: Path) -> None:
    kind, recipe = read_recipe(written(tmp_path, MINIMAL), overrides=["checkpoint_every=3"])
    assert kind is STAGES["contrastive"]
    assert recipe == dataclasses.replace(load_recipe(tmp_path / "recipe.yaml"), checkpoint_every=3)
    assert "stage: contrastive" in recipe_yaml(recipe)
    with pytest.raises(FormatError, match="stage is 'later'; expected one of"):
        read_recipe(written(tmp_path, MINIMAL + "stage: later\n"))


def test_the_command_that_comes_after_a_stage_is_one_and_names_the_model() -> None:
    for name, kind in STAGES.items():
        command = shlex.split(kind.after.format(model="out/model"))
        args = build_parser().parse_args(command[1:])
        first_stage = name in ("adaptation", "masked_next_token", "query_likelihood")
        assert args.command == ("train" if first_stage else "cache")
        assert any("out/model" in word for word in command)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="gone"):
        load_recipe(tmp_path / "gone.yaml")


def test_a_data_set_is_found_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "set").mkdir()
    assert data_folder(str(tmp_path / "set")) == tmp_path / "set"
    monkeypatch.setenv("LIGHTIR_DATA", str(tmp_path))
    assert data_folder("set") == tmp_path / "set"
    with pytest.raises(NotFound, match="other"):
        data_folder("other")
    monkeypatch.delenv("LIGHTIR_DATA")
    with pytest.raises(NotFound, match="LIGHTIR_DATA"):
        data_folder("set")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_takes_two_steps(
    path: Path, recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Train each shipped recipe with a tiny model, tiny data and a small batch."""
    kind, given = read_recipe(path)
    tiny = tiny_recipe(given, recipe.model.address, datasets, tmp_path)
    out = kind.train(tiny, tmp_path / "model", device="cpu")
    assert (out / "lightir.json").is_file()
    assert (out / "training" / "decontamination.json").is_file() == bool(getattr(given, "held_out", ()))


def test_the_walk_over_tiny_recipes_runs_each_goes_on_after_a_failure_and_repeats_nothing(
    recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(
        recipe_yaml(dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, steps=2)))
    )
    bad.write_text(MINIMAL + "loses: {}\n")
    command = [sys.executable, str(RECIPES / "run_tiny.py"), "--work", "work", "--out", "results", str(bad), str(good)]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        failed, trained = json.loads((tmp_path / "results.json").read_text())["recipes"]
        assert failed["status"] == 1
        assert "did you mean 'losses'" in failed["failed"]
        assert "failed" not in trained, trained
        written = [json.loads(line) for line in (tmp_path / "work/good/training/log.jsonl").read_text().splitlines()]
        mean_loss = statistics.fmean(item["loss"] for item in written if "loss" in item)
        assert [trained["loss_at_first"], trained["loss_at_last"]] == [mean_loss, mean_loss]
        assert trained["development"] == written[-1]["development"]["mean"]["hybrid"]
        assert f"| good | {trained['seconds'] / 60:.1f} | 2 |" in (tmp_path / "results.md").read_text()
        made = (tmp_path / "work/good").stat().st_mtime_ns
    assert (tmp_path / "work/good").stat().st_mtime_ns == made


def test_full_scale_recipes_have_tiny_twins_and_names_without_slips_of_yaml() -> None:
    names = {path.stem for path in RECIPES.glob("*.yaml")}
    full = {name for name in names if BACKBONE.search(name)}
    twins = {BACKBONE.sub("-tiny", name) for name in full if "bert-base" not in name}
    variants = (re.search(r"^sidr(-.*|)-bert-base", name) for name in full if "bert-base" in name)
    twins |= {f"sidr-splade-tiny{variant[1]}" for variant in variants if variant}
    assert len(full) > 20
    assert twins <= names
    for name in sorted(full):
        _, given = read_recipe(RECIPES / f"{name}.yaml")
        assert not [held for held in getattr(given, "held_out", ()) if re.search(r"\s", held)]  # a name broken in two


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_states_whether_it_ran(path: Path) -> None:
    header = list(itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines()))
    assert [line for line in header if re.match(r"# (Ran \d{4}-\d{2}-\d{2} on |Not run at full scale\.)", line)]


def differences_from_base(own: Any, base: Any) -> bool:
    """Return whether every key of a file differs from its base."""
    if isinstance(own, dict) and isinstance(base, dict):
        return all(key not in base or differences_from_base(value, base[key]) for key, value in own.items())
    return bool(own != base)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_does_not_repeat_its_base(path: Path) -> None:
    own = yaml.safe_load(path.read_text())
    base = own.pop("base", None)
    assert base is None or differences_from_base(own, recipe_content(path.parent / base))


def test_show_prints_every_field_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = RECIPES / "csplade-echo-llama-3.1-8b.yaml"
    assert main(["train", str(path), "--set", "optimisation.seed=7", "--show"]) == 0
    shown = load_recipe(written(tmp_path, capsys.readouterr().out))
    assert shown == load_recipe(path, overrides=["optimisation.seed=7"])
    assert (shown.model.lora_rank, shown.documents.max_tokens, shown.losses.symmetric_sparse) == (16, 384, 1.0)


def test_a_recipe_says_only_what_differs_from_its_base(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL + "optimisation: {steps: 7, batch_size: 3}\nquery: {drop: [1, 2]}\n")
    (tmp_path / "middle.yaml").write_text("base: recipe.yaml\noptimisation: {steps: 9}\n")
    (tmp_path / "own.yaml").write_text("base: middle.yaml\nmodel: {lora_rank: 2}\nquery: {drop: [3]}\n")
    recipe = load_recipe(tmp_path / "own.yaml", overrides=["optimisation.batch_size=4"])
    assert recipe.model.address == "org/model"
    assert recipe.model.lora_rank == 2
    assert (recipe.optimisation.steps, recipe.optimisation.batch_size) == (9, 4)
    assert recipe.query.drop == (3,)
    assert "base" not in recipe_yaml(recipe)


def test_bases_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(FormatError, match="its own base"):
        load_recipe(tmp_path / "a.yaml")
    with pytest.raises(NotFound, match="names it as its base"):
        load_recipe(written(tmp_path, "base: gone.yaml\n"))
    with pytest.raises(FormatError, match="base is 3"):
        load_recipe(written(tmp_path, "base: 3\n"))
