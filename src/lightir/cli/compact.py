"""Merge an index's segments and remove deleted documents, while others search it.

Few large segments are searched faster than many small ones. Deleted documents, and outdated rows of documents that were
replaced or got their vectors, occupy space until they are removed.
"""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import add_index, add_json
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted, format_size

HELP = "merge segments and remove deleted documents"
EXAMPLES = """
  lightir compact index
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Compact the index and print its new size."""
    from lightir.index import IndexWriter

    with IndexWriter.open(args.index) as writer:
        before = writer.info()
        after = writer.compact()
    if args.json:
        print_json(dataclasses.asdict(after))
        return
    removed = f"{counted(before.deleted, 'deleted document')} and {counted(before.outdated, 'outdated row')}"
    print_status(
        f"{args.index}: merged {counted(before.segments, 'segment')} into {after.segments:,}, removed {removed}; "
        f"{format_size(sum(after.bytes.values()))}"
    )
