"""Delete documents from an index while others search it, by their ids or by a metadata filter."""

from __future__ import annotations

import argparse
from pathlib import Path

from lightir.cli.arguments import add_filter, add_json
from lightir.cli.filter_hints import why_nothing
from lightir.cli.terminal import print_json, say, visible

HELP = "delete documents from an index"
EXAMPLES = """
  lightir delete index doc-17 doc-18
  lightir delete index --ids gone.txt
  lightir delete index --filter '{"year": {"lt": 2000}}'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    parser.add_argument("doc_ids", nargs="*", metavar="ID", help="ids of documents")
    parser.add_argument("--ids", metavar="FILE", help="a file with one id a line (- for stdin)")
    add_filter(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Delete and say how many documents went."""
    if sum([bool(args.doc_ids), args.ids is not None, args.filter is not None]) != 1:
        args.parser.error("give one of ID…, --ids and --filter")
    if args.filter == {}:
        args.parser.error("--filter {} matches every document; name a condition, or remove the index's folder")
    from lightir.index import IndexWriter

    doc_ids = None if args.filter is not None else args.doc_ids or read_ids(args.ids)
    with IndexWriter.open(args.index) as writer:
        for line in why_nothing(writer.view, args.filter):
            say(visible(line))
        deleted = writer.delete_where(args.filter) if doc_ids is None else writer.delete(doc_ids)
        left = len(writer)
    missing = 0 if doc_ids is None else len(set(doc_ids)) - deleted
    if args.json:
        print_json({"deleted": deleted, "not_there": missing, "documents": left})
        return
    not_there = "" if doc_ids is None else f", {missing:,} not there"
    say(f"{args.index}: {deleted:,} documents deleted{not_there}; it holds {left:,}")


def read_ids(file: str) -> list[str]:
    """The lines of a file, or of stdin, without blank ones."""
    from lightir.data.readers import STDIN
    from lightir.lines import read_nonblank_lines, read_stdin_lines

    return [line for _, line in (read_stdin_lines() if file == STDIN else read_nonblank_lines(Path(file)))]
