"""Train a model from a recipe; while it runs, its log and checkpoints lie in MODEL.run, where --resume goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_device, add_json
from lightir.cli.terminal import print_json, say

HELP = "train a model from a recipe (needs lightir[train])"
STAYS = "the checkpoints are in MODEL.run, and the same command with --resume goes on from the last one"
EXAMPLES = """
  lightir train recipes/lightretriever-smollm2-135m.yaml --out model
  lightir train recipe.yaml --out model --set optimisation.steps=200 --set model.lora_rank=8
  lightir train recipe.yaml --out model --resume
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file; docs/recipe.md lists its keys")
    parser.add_argument("-o", "--out", metavar="MODEL", help="model folder to write (default: the recipe's name)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change one key of the recipe; again for more"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint; Ctrl-C and SIGTERM write one"
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Train and name the model's folder."""
    from lightir.train.run.processes import is_first
    from lightir.train.stages.registry import read_recipe

    out = args.out or Path(args.recipe).stem
    kind, recipe = read_recipe(args.recipe, overrides=args.set)
    model = kind.train(recipe, Path(out), resume=args.resume, device=args.device)
    if not is_first():
        return
    if args.json:
        print_json({"model": str(model)})
    else:
        say(f"{model} is trained\nnext: {kind.after.format(model=model)}")
