"""Write a trained model as a plain folder of transformers, with its adapter merged into the weights.

The folder has weights, config.json and tokenizer, and loads with AutoModelForCausalLM (encoders: AutoModelForMaskedLM).
A recipe can start from it with an adapter of any rank (`model.address`). Prompts, pooling, attention and head arrays
stay in the model folder; the command lists those that transformers' format has no place for.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_json, add_overwrite
from lightir.cli.terminal import print_json, print_status

HELP = "write a model with its adapter merged, in transformers' format (needs lightir[train])"
EXAMPLES = """
  lightir merge model --out merged
  lightir merge csplade-adapted --out csplade-adapted-merged --dtype float32
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model folder, or name of an installed model")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--dtype",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="number format of the weights (default %(default)s)",
    )
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Merge, and print the folder and what it lacks."""
    from lightir.models.merged_model import write_merged

    merged = write_merged(args.model, args.out, dtype=args.dtype, overwrite=args.overwrite)
    if args.json:
        print_json({"folder": str(merged.folder), "left_out": list(merged.left_out)})
        return
    print_status(f"merged model written to {merged.folder}")
    for part in merged.left_out:
        print_status(f"not in the folder: {part}")
