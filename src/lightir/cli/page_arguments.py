"""Arguments and output of a page of results: offset, total, facets, order and groups."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import Arguments
from lightir.cli.results import value_text
from lightir.cli.terminal import BOLD, DIM, output_width, paint, printable, shorten
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.search import Page, PageOptions

FACET_VALUES = 10


def add_page(group: Arguments) -> None:
    """Declare --offset, --facet, --sort, --group, --total and --text."""
    group.add_argument("--offset", type=_count, default=0, metavar="N", help="number of hits to skip (default 0)")
    group.add_argument(
        "--facet",
        type=_facet,
        action="append",
        default=[],
        metavar="FIELD[:N]",
        help=f"count the values of a field over all matches, and print the N of most documents (default "
        f"{FACET_VALUES}); repeat for several fields",
    )
    group.add_argument(
        "--sort",
        metavar="FIELD[:desc]",
        help="order by a field instead of by score; documents without a value are last",
    )
    group.add_argument("--group", metavar="FIELD", help="show one hit per value of a field, its best")
    group.add_argument("--total", action="store_true", help="count all matches, as the options above do")
    group.add_argument(
        "--text",
        choices=("snippet", "full"),
        default="snippet",
        help="text to show: the best passage, or the whole text (default %(default)s)",
    )


def _count(text: str) -> int:
    """Parse an integer of at least 0 (argparse type)."""
    if not text.isdecimal() or int(text) >= 2**31:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not an integer from 0 to 2147483647")
    return int(text)


def _facet(text: str) -> tuple[str, int]:
    """Parse `brand` or `brand:20` (argparse type)."""
    name, colon, n = text.rpartition(":")
    if not colon or not n.isdecimal():
        return text, FACET_VALUES
    return name, _count(n)


def asks_for_page(args: argparse.Namespace) -> bool:
    """Whether the answer is a page: the query is empty, or an option of `add_page` but --text is given."""
    is_empty = args.query is not None and args.query != "-" and not args.query.strip()
    return is_empty or bool(args.offset or args.facet or args.sort or args.group or args.total)


def page_options(args: argparse.Namespace) -> PageOptions:
    """Return the options of the page among a command's arguments."""
    from lightir.search import PageOptions

    return PageOptions(args.offset, args.k, dict(args.facet), args.sort, args.group)


def shown_fields(args: argparse.Namespace) -> list[str]:
    """Return the fields to show of each hit: those that it is sorted and grouped by."""
    sort = (args.sort or "").removesuffix(":asc").removesuffix(":desc")
    return list(dict.fromkeys(filter(None, [sort, args.group])))


def page_json(page: Page, args: argparse.Namespace) -> dict[str, Any]:
    """Return the part of `search --json` that a page adds to its hits."""
    facets = {
        name: [{"value": counted.value, "count": counted.count} for counted in counts]
        for name, counts in page.facets.items()
    }
    return {"total": page.total, "offset": args.offset, "facets": facets}


def print_page(page: Page, args: argparse.Namespace) -> None:
    """Print the number of matches, the place of the page among them, and the facets."""
    print(paint(f"\n{counted(page.total, 'matching document')}{_place(page, args)}", DIM))
    for line in facet_lines(page.facets):
        print(line)


def _place(page: Page, args: argparse.Namespace) -> str:
    if not page.hits or (args.offset == 0 and len(page.hits) == page.total):
        return ""
    return f"; shown from {args.offset + 1:,} to {args.offset + len(page.hits):,}"


def facet_lines(facets: Mapping[str, Any]) -> list[str]:
    """Return a line per facet: "brand  Acme 12 · Bolt 3"."""
    lines = []
    for name, counts in facets.items():
        values = " · ".join(f"{printable(value_text(counted.value))} {counted.count:,}" for counted in counts)
        lines.append(paint(printable(name), BOLD) + "  " + shorten(values or "-", output_width() - len(name) - 2))
    return lines
