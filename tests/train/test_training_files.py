"""Flushes of a training run's checkpoints, of its model and of a query table, see tests/index/test_write_order.py."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from power_loss import Journal
from preloaded import compiled, run_preloaded

PROGRAM = Path(__file__).with_name("recorded_training.py")


def test_checkpoints_models_and_tables_are_flushed_before_they_are_named(
    recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    settings = dataclasses.replace(recipe.optimisation, steps=2)
    short = dataclasses.replace(recipe, optimisation=settings, evaluation=BranchEvaluation(), checkpoint_every=1)
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(short))
    lines = run_preloaded(compiled(tmp_path), PROGRAM, tmp_path / "recipe.yaml", tmp_path / "out")
    assert [line.split("\t")[1] for line in lines if line.startswith("acknowledged")] == [
        "step-0000001",
        "step-0000002",
        "train",
        "cache",
        "teacher",
    ]
    assert Journal().replay(lines) == []
    for path in (
        r"/checkpoints",
        r"/state\.pt",
        r"/log\.jsonl",
        r"/model\.run",
        r"/training/recipe\.yaml",
        r"/\.model\.new[^/]+/tokenizer\.json",
        r"/a",
        r"/\.query-encoder[^/]+/tokenizer\.json",
        r"/out/a/model",
        r"/vectors/\.tokens-[^/]+",
    ):
        left = [line for line in lines if not re.search(rf"^f\t.*{path}\t", line)]
        assert Journal().replay(left), path
