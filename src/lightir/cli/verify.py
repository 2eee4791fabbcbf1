"""Verify a folder: an index or vectors against checksums, a model or query encoder against its contract.

Of an index, every document, segment and setting, every file of its query encoder, and the vectors parked in its queue
are read and compared with checksums, and SQLite's integrity check is run. Damage is an error that names files, and
documents by their ids; the exit code is 1. Parts that an earlier release wrote without checksums are listed;
`lightir compact` adds checksums to them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_json
from lightir.cli.info import add_folder, folder_of, kind_of
from lightir.cli.terminal import print_json, print_status
from lightir.errors import FormatError

HELP = "verify a folder against its checksums"
EXAMPLES = """
  lightir verify index && echo "no damage"
  lightir verify index --json | jq .without_checksums
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
    gaps = verify(folder, kind)
    if args.json:
        print_json({"folder": args.folder, "kind": kind, "ok": True, "without_checksums": gaps})
        return
    print_status(f"{args.folder}: {kind}, no damage found")
    if gaps:
        print_status(
            f"{args.folder}: an earlier release wrote parts without checksums: {'; '.join(gaps)}. "
            f"Add them with: lightir compact {args.folder}"
        )


def verify(folder: Path, kind: str) -> list[str]:
    """Raise an error that names what is damaged, or return a sentence for each part of an index without checksums."""
    if kind == "index":
        from lightir.index import Index
        from lightir.pending import verify_queue

        problems, gaps = [], list[str]()
        with Index.open(folder, skip_damaged=True) as index:  # to report all damage at once
            for check in (index.verify, lambda: verify_queue(folder)):
                try:
                    gaps += check() or []
                except FormatError as error:
                    problems.append(str(error))
        if problems:
            raise FormatError("; ".join(problems))
        return gaps
    if kind == "vectors":
        from lightir.shards import VectorsReader

        for _ in VectorsReader(folder):
            pass
    elif kind == "query-encoder":
        from lightir.query import CachedQueryEncoder

        CachedQueryEncoder.load(folder)
    else:
        from lightir.models.encoder import LightRetriever

        LightRetriever.load(folder)
    return []
