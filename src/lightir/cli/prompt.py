"""Queries that a user types at a prompt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from lightir.cli.terminal import print_status

PROMPT = "search> "


def is_interactive() -> bool:
    """Return whether a user types the input and reads the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def typed_queries() -> Iterator[str]:
    """Yield the lines that a user types, without blank ones, until Ctrl-D. Earlier lines can be edited."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (input uses it)
    print_status("type a query per line; Ctrl-D ends")
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            print()
            return
        if line.strip():
            yield line.strip()
