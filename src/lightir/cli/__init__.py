"""The command line: one file a command, which parses, calls one library function and prints.

Data goes to stdout and talk to stderr; exit codes are 0 (done), 1 (failed) and 2 (misused).
"""

from __future__ import annotations

from lightir.cli.app import build_parser, main

__all__ = ["build_parser", "main"]
