"""Copy an index to another folder, for backup or moving, while others search and change it.

The copy is a complete index with the state of one moment. It is verified before it gets its name: a damaged index is
refused with the names of what is damaged, and an earlier backup stays as it is.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_index, add_json, add_overwrite
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted

HELP = "copy an index while it is in use"
EXAMPLES = """
  lightir snapshot index backup
  lightir snapshot index backup --overwrite
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("out", metavar="OUT", help="index folder to write")
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Copy the index and print the number of documents."""
    from lightir.index import Index

    with Index.open(args.index) as index:
        index.snapshot(args.out, overwrite=args.overwrite)
        n_documents = len(index)
    if args.json:
        print_json({"folder": args.out, "documents": n_documents})
        return
    print_status(f"{args.out}: {counted(n_documents, 'document')} copied")
