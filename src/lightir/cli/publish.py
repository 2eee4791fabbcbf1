"""Write an index as static files with a page that searches them, for any web host.

The host needs no program of ours and no database: a script in the browser reads the parts of the files that a query
needs. All titles, texts and metadata of the documents become public.
"""

from __future__ import annotations

import argparse

from lightir.cli.arguments import add_index, add_json, add_overwrite, add_task
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted, format_size

HELP = "write an index as static files that a browser searches"
EXAMPLES = """
  lightir publish index --out site
  lightir publish index --out site --overwrite
  lightir publish index --out site --mode tokens
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("-o", "--out", required=True, metavar="SITE", help="folder to write")
    parser.add_argument(
        "--mode",
        choices=("dense+tokens", "dense", "tokens"),
        help="branches to publish (default: those of the index)",
    )
    add_task(parser)
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Publish the index and print what was written."""
    from lightir.files import check_new_folder
    from lightir.index import Index
    from lightir.publish import publish_index

    check_new_folder(args.out, overwrite=args.overwrite)
    with Index.open(args.index) as index:
        written = publish_index(index, args.out, mode=args.mode, task=args.task, overwrite=args.overwrite)
    if args.json:
        print_json(
            {
                "folder": str(written.folder),
                "documents": written.documents,
                "branches": list(written.branches),
                "left_out": list(written.left_out),
                "files": written.n_files,
                "bytes": written.n_bytes,
            }
        )
        return
    size = f"{counted(written.n_files, 'file')}, {format_size(written.n_bytes)}"
    branches = ", ".join(written.branches)
    print_status(f"{args.out}: {counted(written.documents, 'document')} published ({branches}; {size})")
    if written.left_out:
        print_status(f"the page does not search: {', '.join(written.left_out)}")
    print_status(f"look at it with: python -m http.server --directory {args.out}")
