"""Verify a folder: an index or vectors against checksums, a model or query encoder against its contract.

Damage is an error that names the file; the exit code is 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_json
from lightir.cli.info import add_folder, folder_of, kind_of
from lightir.cli.terminal import print_json, print_status

HELP = "verify a folder against its checksums"
EXAMPLES = """
  lightir verify index && echo "no damage"
  lightir verify minilm
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_folder(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Verify the folder; damage is an error."""
    folder = folder_of(args.folder)
    kind = kind_of(folder)
    verify(folder, kind)
    if args.json:
        print_json({"folder": args.folder, "kind": kind, "ok": True})
    else:
        print_status(f"{args.folder}: {kind}, no damage found")


def verify(folder: Path, kind: str) -> None:
    """Raise an error that names what is damaged, or return."""
    if kind == "index":
        from lightir.index import Index

        with Index.open(folder, skip_damaged=True) as index:  # to report all damage at once
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
