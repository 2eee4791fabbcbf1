"""Fetch a lightir model from the Hugging Face hub into a folder.

OWNER/NAME@REVISION fetches a commit, branch or tag; without one the newest revision. The command prints the address
with the commit, which fetches the same files again. Only model files are fetched, no code. The base model that the
model names is fetched by the commands that run it.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_json, add_overwrite
from lightir.cli.terminal import print_json, print_status

HELP = "fetch a model from the Hugging Face hub (needs lightir[train])"
EXAMPLES = """
  lightir download owner/name --out model
  lightir download owner/name@v1 --out model --overwrite
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("address", metavar="OWNER/NAME", help="repository, with an optional @REVISION")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="model folder to write")
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Fetch, and print the address with its commit."""
    from lightir.files import check_new_folder

    check_new_folder(args.out, overwrite=args.overwrite)
    from lightir.encode.exports.hub_repository import download_model

    address = download_model(args.address, args.out, overwrite=args.overwrite)
    if args.json:
        print_json({"address": address, "out": args.out})
    else:
        print_status(f"{address} written to {args.out}")
