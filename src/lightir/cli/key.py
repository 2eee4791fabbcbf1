"""Make an API key for the service, add its hash to a file, and print the key.

The file does not hold the key itself, so it is shown only now.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.terminal import print_status

HELP = "make or remove an API key of the service"
EXAMPLES = """
  lightir key keys.json --name app
  lightir key keys.json --name importer --role write
  lightir key keys.json --name app --remove
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", metavar="FILE", help="file of API keys, which may be new")
    parser.add_argument("--name", required=True, help="name of the key's user")
    parser.add_argument(
        "--role", choices=("read", "write"), default="read", help="what the key allows (default %(default)s)"
    )
    parser.add_argument("--remove", action="store_true", help="remove the key of this name")


def run(args: argparse.Namespace) -> None:
    """Print a new key, or remove one."""
    from lightir.serve.api_keys import add_key, remove_key

    path = Path(args.file)
    if args.remove:
        remove_key(path, args.name)
        print_status(f"removed the key of {args.name} from {path}")
        return
    print(add_key(path, args.name, args.role))
