"""Split an index by document into shards that are searched as one.

The folder has an index per shard and the counts of all, so rankings and scores are those of the index that was split. A
document belongs to a shard by the hash of its id; its passages stay together. The index is unchanged and may be in use.
To change documents, change the index and split it again: --overwrite replaces the folder in one step.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_index, add_json, add_overwrite, positive
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted

HELP = "split an index into shards"
EXAMPLES = """
  lightir split index --shards 4 --out shards
  lightir split index --shards 8 --out shards --overwrite
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("--shards", type=positive, required=True, metavar="N", help="number of shards (at most 1,000)")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder of shards to write")
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Split the index and print the number of documents of each shard."""
    from lightir.index.splitting import split_index

    manifest = split_index(args.index, args.out, args.shards, overwrite=args.overwrite)
    documents = [shard.documents for shard in manifest.shards]
    if args.json:
        print_json({"folder": args.out, "version": manifest.version, "documents": documents})
        return
    sizes = f"{counted(len(documents), 'shard')} of {min(documents):,} to {max(documents):,}"
    print_status(f"{args.out}: {counted(sum(documents), 'document')} in {sizes}")
