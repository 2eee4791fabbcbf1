"""Upload a model to the Hugging Face hub, with a card that describes it.

The card is generated from the model's contract, unless the folder has a README.md. Checkpoints stay behind. A new
repository is public unless --private is given. A token with write access is required: hf auth login, or HF_TOKEN.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json, print_status

HELP = "upload a model to the Hugging Face hub (needs lightir[train])"
EXAMPLES = """
  lightir upload model owner/name --license apache-2.0
  lightir upload model owner/name --private --message "Trained on MS MARCO"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="model folder, or name of an installed model")
    parser.add_argument("repository", metavar="OWNER/NAME", help="repository; created if it does not exist")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--license", metavar="ID", help="license for the generated card, such as apache-2.0")
    parser.add_argument(
        "--message", default="Model of lightir", metavar="TEXT", help="title of the commit (default: %(default)s)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Upload, and print the address with its commit."""
    from lightir.encode.exports.hub_repository import upload_model

    address = upload_model(
        args.model, args.repository, private=args.private, license=args.license, message=args.message
    )
    if args.json:
        print_json({"address": address})
    else:
        print_status(f"uploaded to {address}\nothers get it with: lightir download {address} --out MODEL")
