"""Change metadata of documents without their texts: prices, stock, tags.

Vectors stay as they are, so nothing is encoded again. Words of fields with a boost (lightir index --boost) are counted
anew. All changes are one transaction: after an interruption
the index has all of them or none. Values are checked by the types of the index's fields.

NAME=VALUE sets a field; VALUE is JSON (3, true, ["a", "b"]) or else a string. NAME=null removes the field.
"author.name" is the field "name" of the object "author". A file of changes has an id and fields in each record: CSV,
TSV, JSONL or Parquet. An empty cell of a CSV or TSV file leaves the field unchanged, and null removes the field.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from lightir.cli.arguments import add_index, add_json, add_limits, field_names
from lightir.cli.terminal import print_json, print_status
from lightir.errors import InvalidInput
from lightir.quantities import counted

HELP = "change metadata of documents"
EXAMPLES = """
  lightir set index P-17 price=3.50 stock=12
  lightir set index P-17 P-18 sale=null
  lightir set index --from prices.csv --fields id=sku
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "changes", nargs="*", metavar="ID|NAME=VALUE", help="ids of documents, and then the fields to set in each"
    )
    parser.add_argument("--from", dest="file", metavar="FILE", help="file of changes: JSONL, CSV, TSV or Parquet")
    parser.add_argument(
        "--fields",
        type=field_names,
        metavar="id=NAME",
        help="with --from: name of the field that holds the id (default: _id, doc_id, docid or id)",
    )
    parser.add_argument(
        "--skip-missing", action="store_true", help="skip ids that the index does not have (default: error)"
    )
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Make the changes and print their number."""
    if (args.file is None) == (not args.changes):
        args.parser.error("expected either ID and NAME=VALUE, or --from")
    if args.fields is not None and (args.file is None or set(args.fields) != {"id"}):
        args.parser.error("--fields requires --from, and names the id alone: --fields id=sku")
    from lightir.index import IndexWriter

    changes = given_changes(args.changes) if args.file is None else changes_of_file(args.file, args.fields)
    with IndexWriter.open(args.index) as writer:
        n_changed = writer.set_metadata(changes, skip_missing=args.skip_missing)
        n_missing = len(changes) - len(writer.view.existing(list(changes)))
    if args.json:
        print_json({"changed": n_changed, "missing": n_missing, "unchanged": len(changes) - n_changed - n_missing})
        return
    missing = f"; {counted(n_missing, 'id')} not in the index" if n_missing else ""
    print_status(f"{args.index}: {counted(n_changed, 'document')} changed{missing}")


def given_changes(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """Return the changes that `ID ... NAME=VALUE ...` names.

    Raises:
        InvalidInput: there is no id, or no field.
    """
    first = next((i for i, text in enumerate(arguments) if i and "=" in text), len(arguments))
    doc_ids, pairs = arguments[:first], [text.partition("=") for text in arguments[first:]]
    if not pairs or not all(name and equals for name, equals, _ in pairs):
        raise InvalidInput(f"{' '.join(arguments)[:80]!r} is not of the form ID NAME=VALUE")
    values = {name: _value(text) for name, _, text in pairs}
    return dict.fromkeys(doc_ids, values)


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def changes_of_file(path: str, fields: dict[str, str] | None) -> dict[str, dict[str, Any]]:
    """Return the changes of a file by id."""
    from lightir.data.readers import read_changes

    return dict(read_changes(path, id_field=None if fields is None else fields["id"]))
