"""Encode a model's vocabulary once, so that queries need no model: one table for each task or instruction.

Where the contract's queries have the weighting "expansion" (SiDR), what is kept of each term are the strongest terms
that the sparse head gives for it alone.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import MODEL_HELP, add_device, add_json, positive
from lightir.cli.terminal import print_json, say

HELP = "compute a model's query tables (needs lightir[train])"
EXAMPLES = """
  lightir cache model
  lightir cache model --task scifact --task nfcorpus --dim 256 --dtype int8 --out query-encoder
  lightir cache model --instruction "Given a question, retrieve passages that answer it" --out query-encoder
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        help="folder to write (default: query-encoder in the model's folder, found there by encode)",
    )
    parser.add_argument(
        "--task", action="append", default=[], metavar="NAME", help="a known task; again for more tables"
    )
    parser.add_argument(
        "--instruction",
        action="append",
        default=[],
        metavar="TEXT",
        help="an instruction of your own; again for more tables (default: the model's own instruction alone)",
    )
    parser.add_argument("--dim", type=positive, metavar="N", help="width of the table (default: the model's)")
    parser.add_argument("--dtype", choices=("fp16", "int8"), default="fp16", help="of the rows (default %(default)s)")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder")
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Compute the tables and name their folder."""
    from lightir.encode import TableOptions, cache_vocabulary

    options = TableOptions(args.task, args.instruction, args.dim, args.dtype)
    folder = cache_vocabulary(args.model, args.out, options=options, device=args.device, overwrite=args.overwrite)
    if args.json:
        print_json({"query_encoder": str(folder)})
    else:
        say(f"{folder} is written\nnext: lightir encode {args.model} CORPUS --out VECTORS")
