"""Compute a model's query tables, so that queries need no model.

A query table has one vector for each token of the model's vocabulary, computed behind the task's instruction. A
query's vector is the mean of its tokens' rows. Each --task and each --instruction adds one table; searches use the
first one unless they name another with --task.

For a model whose contract weights queries by "expansion" (SiDR), the tables also hold each token's strongest
expansion terms.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import MODEL_HELP, add_device, add_json, add_overwrite, positive
from lightir.cli.terminal import print_json, print_status

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
        help="folder to write (default: query-encoder/ inside the model folder, where lightir encode looks for it)",
    )
    parser.add_argument(
        "--task",
        action="append",
        default=[],
        metavar="NAME",
        help="known task to compute a table for; repeat for more tables",
    )
    parser.add_argument(
        "--instruction",
        action="append",
        default=[],
        metavar="TEXT",
        help="custom instruction to compute a table for; repeat for more tables (default: the model's own instruction)",
    )
    parser.add_argument(
        "--dim",
        type=positive,
        metavar="N",
        help="number of dimensions to keep, for models trained with Matryoshka (default: all). "
        "Prints a warning for a width that the model was not trained at",
    )
    parser.add_argument(
        "--dtype", choices=("fp16", "int8"), default="fp16", help="number format of the table (default %(default)s)"
    )
    add_overwrite(parser)
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Compute the tables and print their folder."""
    from lightir.addresses import QUERY_ENCODER, resolve_model_folder
    from lightir.data import instructions
    from lightir.files import check_new_folder

    own = resolve_model_folder(args.model) / QUERY_ENCODER
    check_new_folder(args.out or own, overwrite=args.overwrite)
    for task in args.task:
        instructions(task)
    # Imports torch: only after the arguments are checked.
    from lightir.encode import TableOptions, cache_vocabulary

    options = TableOptions(args.task, args.instruction, args.dim, args.dtype)
    folder = cache_vocabulary(args.model, args.out, options=options, device=args.device, overwrite=args.overwrite)
    if args.json:
        print_json({"query_encoder": str(folder)})
    else:
        print_status(f"query encoder written to {folder}\nnext: lightir encode {args.model} CORPUS --out VECTORS")
