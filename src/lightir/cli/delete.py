"""Delete documents from an index while others search it, by ids or by a metadata filter.

Deleted documents are no longer found by new searches. `lightir compact` reclaims their space.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_filter, add_index, add_json, add_limits
from lightir.cli.filter_hints import why_nothing
from lightir.cli.terminal import print_json, print_status, printable
from lightir.quantities import counted

HELP = "delete documents from an index"
EXAMPLES = """
  lightir delete index doc-17 doc-18
  lightir delete index --ids gone.txt
  lightir delete index --filter '{"year": {"lt": 2000}}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("doc_ids", nargs="*", metavar="ID", help="id of a document to delete; unknown ids are counted")
    parser.add_argument("--ids", metavar="FILE", help="file of ids to delete, one per line (- for stdin)")
    add_filter(parser)
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Delete the documents and print how many there were."""
    if sum([bool(args.doc_ids), args.ids is not None, args.filter is not None]) != 1:
        args.parser.error("expected exactly one of ID, --ids and --filter")
    if args.filter == {}:
        args.parser.error(
            "--filter {} matches every document; add a condition, or remove the index folder to delete everything"
        )
    from lightir.index import IndexWriter

    doc_ids = None if args.filter is not None else args.doc_ids or read_ids(args.ids)
    with IndexWriter.open(args.index) as writer:
        for hint in why_nothing(writer.view, args.filter):
            print_status(printable(hint))
        n_deleted = writer.delete_where(args.filter) if doc_ids is None else writer.delete(doc_ids)
        n_left = len(writer)
    n_unknown = 0 if doc_ids is None else len(set(doc_ids)) - n_deleted
    if args.json:
        print_json({"deleted": n_deleted, "not_there": n_unknown, "documents": n_left})
        return
    unknown = "" if doc_ids is None else f", {counted(n_unknown, 'id')} not in the index"
    print_status(f"{args.index}: {counted(n_deleted, 'document')} deleted{unknown}; {n_left:,} in total")


def read_ids(file: str) -> list[str]:
    """Return the nonblank lines of a file, or of stdin for "-"."""
    from lightir.data.readers import STDIN
    from lightir.lines import read_nonblank_lines, read_stdin_lines

    return [line for _, line in (read_stdin_lines() if file == STDIN else read_nonblank_lines(Path(file)))]
