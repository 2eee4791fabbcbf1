"""Copy an index to another folder, as it is at this moment, while others search and change it."""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json, say

HELP = "copy an index while it is in use"
EXAMPLES = """
  lightir snapshot index backup
  lightir snapshot index backup --overwrite && lightir verify backup
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    parser.add_argument("out", metavar="OUT", help="folder to write, an index again")
    parser.add_argument("--overwrite", action="store_true", help="replace the folder")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Copy and say what the copy holds."""
    from lightir.index import Index

    with Index.open(args.index) as index:
        index.snapshot(args.out, overwrite=args.overwrite)
        n_documents = len(index)
    if args.json:
        print_json({"folder": args.out, "documents": n_documents})
        return
    say(f"{args.out}: {n_documents:,} documents")
