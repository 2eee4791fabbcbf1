"""Print documents of an index by their ids: title, metadata and the whole text."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import add_index, add_json
from lightir.cli.results import value_text
from lightir.cli.terminal import BOLD, CYAN, DIM, paint, print_json, print_json_line, printable

if TYPE_CHECKING:
    from lightir.types import Document

HELP = "print documents of an index by their ids"
EXAMPLES = """
  lightir get index threading.Timer
  lightir get index doc-17 doc-18 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("doc_ids", nargs="+", metavar="ID", help="id of a document to print")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print the documents; with --json one indented object, or a line per document if several are named."""
    from lightir.index import Index

    with Index.open(args.index) as index:
        documents = index.documents(args.doc_ids)
    for number, document in enumerate(documents):
        if args.json:
            (print_json if len(documents) == 1 else print_json_line)(_json(document))
        else:
            print("\n" * bool(number) + _text(document))


def _json(document: Document) -> dict[str, Any]:
    return {
        "doc_id": document.doc_id,
        "title": document.title,
        "text": document.text,
        "metadata": dict(document.metadata),
    }


def _text(document: Document) -> str:
    name = paint(printable(document.title or document.doc_id), BOLD, CYAN)
    lines = [f"{name}  [{printable(document.doc_id)}]" if document.title else name]
    for key, value in document.metadata.items():
        lines.append(paint(f"    {printable(key)}: {printable(value_text(value))}", DIM))
    return "\n".join([*lines, *(printable(line) for line in document.text.splitlines())])
