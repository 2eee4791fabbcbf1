"""The command line: one file a command, which parses, calls one library function and prints.

Data goes to stdout and messages to stderr; exit codes are 0 (done), 1 (failed), 2 (misused), 130 (after Ctrl-C) and 143
(after SIGTERM).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

__all__ = ["build_parser", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, also while Ctrl-C or SIGTERM ends it.

    Args:
        argv: arguments; None for those of the process, which then keeps the signal handlers until it ends.
    """
    from lightir.cli import interruption

    return interruption.run(argv)


def build_parser() -> ArgumentParser:
    """Build the parser of `lightir`, with one subparser per command."""
    from lightir.cli import app

    return app.build_parser()
