"""Run one of the benchmarks in bench/ of a checkout. Without NAME, list them."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from pathlib import Path

from lightir.cli.terminal import suggest
from lightir.errors import NotFound
from lightir.provenance import SOURCE_ROOT

HELP = "run a benchmark of the checkout"
EXAMPLES = """
  lightir bench                        list the benchmarks
  lightir bench query_encoding --help  show a benchmark's own options
  lightir bench soak --minutes 30      readers, writers, kills and failing calls on one index
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="benchmark to run (default: list all)")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="options of the benchmark itself")


def run(args: argparse.Namespace) -> int:
    """List the benchmarks, or run one in its own process and return its exit code."""
    scripts = benchmarks()
    if args.name is None:
        for name, path in scripts.items():
            print(f"{name:<20} {summary(path)}")
        return 0
    if args.name not in scripts:
        raise NotFound(f"unknown benchmark {args.name!r}; available: {', '.join(scripts)}{suggest(args.name, scripts)}")
    return subprocess.run([sys.executable, str(scripts[args.name]), *args.options], check=False).returncode


def benchmarks() -> dict[str, Path]:
    """Return the scripts in bench/ by name.

    Raises:
        NotFound: lightir was not installed from a checkout.
    """
    folder = SOURCE_ROOT / "bench"
    if not folder.is_dir():
        raise NotFound(
            f"folder {folder} not found: benchmarks need a checkout that was installed with pip install -e ."
        )
    return {path.stem.removeprefix("bench_"): path for path in sorted(folder.glob("bench_*.py"))}


def summary(script: Path) -> str:
    """Return the first line of a script's docstring."""
    return (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").partition("\n")[0]
