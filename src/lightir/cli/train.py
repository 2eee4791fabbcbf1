"""Train a model from a recipe.

The log and the checkpoints are in MODEL.run while training runs. Ctrl-C and SIGTERM write a checkpoint; the same
command with --resume continues from it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lightir.cli.arguments import add_device, add_json, add_limits
from lightir.cli.terminal import print_json, print_status

HELP = "train a model from a recipe (needs lightir[train])"
ON_INTERRUPT = "checkpoints are in MODEL.run: add --resume to the same command to continue from the last one"
EXAMPLES = """
  lightir train recipes/lightretriever-smollm2-135m.yaml --out model
  lightir train recipe.yaml --out model --set optimisation.steps=200 --set model.lora_rank=8
  lightir train recipe.yaml --out model --resume
  lightir train recipes/csplade-echo-llama-3.1-8b.yaml --show
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "recipe", metavar="RECIPE", help="YAML file with the training recipe; docs/recipe.md lists its keys"
    )
    parser.add_argument("-o", "--out", metavar="MODEL", help="model folder to write (default: the recipe's name)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="key of the recipe to change, with dots for nested keys; repeat for more",
    )
    parser.add_argument("--resume", action="store_true", help="continue from the last checkpoint (default: start anew)")
    parser.add_argument(
        "--show",
        action="store_true",
        help="print the recipe with every field, bases and --set applied, and exit without training",
    )
    add_device(parser)
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Train the model and print its folder, or print the recipe."""
    from lightir.files import check_new_folder
    from lightir.train.recipes.recipe_files import recipe_yaml
    from lightir.train.recipes.required_data import require_data
    from lightir.train.recipes.stage_recipes import read_stage_recipe

    stage, recipe = read_stage_recipe(args.recipe, overrides=args.set)
    if args.show:
        print(recipe_yaml(recipe), end="")
        return
    out = args.out or Path(args.recipe).stem
    require_data(recipe)
    check_new_folder(out)
    # Imports torch: only after the arguments are checked.
    from lightir.train.run.processes import is_first
    from lightir.train.stages.registry import STAGES

    kind = STAGES[stage]
    model = kind.train(recipe, Path(out), resume=args.resume, device=args.device)
    if not is_first():
        return
    if args.json:
        print_json({"model": str(model)})
    else:
        print_status(f"{describe_losses(model)}\nmodel written to {model}\nnext: {kind.after.format(model=model)}")


def describe_losses(model: Path) -> str:
    """Describe in one line how the loss of a run fell, and where its curves are."""
    log = model / "training" / "log.jsonl"
    records = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    steps = f"loss {losses[0]:.4g} in the first step and {losses[-1]:.4g} in the last; " if losses else ""
    curves = log.with_name("tensorboard")
    return f"{steps}every step is in {log}" + (f", curves for TensorBoard in {curves}" if curves.is_dir() else "")
