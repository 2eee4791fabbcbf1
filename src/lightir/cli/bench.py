"""Run one of the project's benchmarks, which lie in bench/ of a checkout; without a name, list them."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

from lightir.errors import NotFound
from lightir.version import SOURCE_ROOT

HELP = "run a benchmark of the checkout"
EXAMPLES = """
  lightir bench                           the benchmarks by name
  lightir bench query_encoding -- --help  a benchmark's own options
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark; without it they are listed")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="passed on to the benchmark; put -- in front")


def run(args: argparse.Namespace) -> int:
    """List, or run in a process of its own and pass its exit code on."""
    found = benchmarks()
    if args.name is None:
        for name, path in found.items():
            print(f"{name:<20} {first_line(path)}")
        return 0
    if args.name not in found:
        raise NotFound(f"there is no benchmark {args.name!r}; known are {', '.join(found)}")
    return subprocess.run([sys.executable, str(found[args.name]), *args.options], check=False).returncode


def benchmarks() -> dict[str, Path]:
    """The scripts in bench/ by name.

    Raises:
        NotFound: lightir was installed without its checkout.
    """
    folder = SOURCE_ROOT / "bench"
    if not folder.is_dir():
        raise NotFound(f"{folder} does not exist; benchmarks need a checkout, installed with pip install -e")
    return {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}


def first_line(script: Path) -> str:
    """What a script says of itself in its first line."""
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
