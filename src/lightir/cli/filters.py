"""What commands with --filter share."""

from __future__ import annotations

import argparse
import json
from typing import Any

FILTER_HELP = (
    'a metadata filter as JSON, such as {"lang": "en", "year": {"gte": 2000}}; '
    "tests are gt, gte, lt, lte, in and exists, joined by and, or, not"
)


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Declare --filter."""
    parser.add_argument("--filter", type=json_filter, metavar="JSON", help=FILTER_HELP)


def json_filter(text: str) -> Any:
    """An argparse type: any JSON value; what it may be as a filter is checked where it is used."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # of "[" a hundred thousand times, the latter
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} is not JSON: {error}; expected an object, such as " """'{"lang": "en"}'"""
        ) from None
