"""Read every byte of an index or of vectors against its checksum, and a model or query encoder against its contract."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_json
from lightir.cli.info import folder_of, kind_of
from lightir.cli.terminal import print_json, say

HELP = "verify a folder against its checksums"
EXAMPLES = """
  lightir verify index && echo whole
  lightir verify minilm
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="an index, vectors, model or query-encoder folder, or a model's name"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Check; damage is an error, so the exit code is 1."""
    folder = folder_of(args.folder)
    kind = kind_of(folder)
    verify(folder, kind)
    if args.json:
        print_json({"folder": args.folder, "kind": kind, "ok": True})
    else:
        say(f"{args.folder}: {kind}, whole")


def verify(folder: Path, kind: str) -> None:
    """Nothing, or the error that names what is damaged."""
    if kind == "index":
        from lightir.index import Index

        with Index.open(folder, skip_damaged=True) as index:  # so that all damage is told at once
            index.verify()
    elif kind == "vectors":
        from lightir.shards import VectorsReader

        for _ in VectorsReader(folder):
            pass
    elif kind == "query-encoder":
        from lightir.query import CachedQueryEncoder

        CachedQueryEncoder.load(folder)
    else:
        from lightir.models.encoder import LightRetriever

        LightRetriever.load(folder)
