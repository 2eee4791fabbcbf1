"""Merge an index's segments and drop what was deleted, while others search it."""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json, say, size

HELP = "merge segments and remove deleted documents"
EXAMPLES = """
  lightir compact index
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Compact and say what the index holds."""
    from lightir.index import IndexWriter

    with IndexWriter.open(args.index) as writer:
        before = writer.info()
        after = writer.compact()
    if args.json:
        print_json(dataclasses.asdict(after))
        return
    segments = f"{before.segments:,} segments became {after.segments:,}"
    say(f"{args.index}: {segments}, {before.deleted:,} deleted documents dropped, {size(sum(after.bytes.values()))}")
