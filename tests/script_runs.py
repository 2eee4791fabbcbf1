"""Running a script in a process of its own, forked from one that has imported the slow packages."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

SLOW_TO_IMPORT = (
    "transformers",
    "sentence_transformers",
    "lightir.train.stages.registry",
    "lightir.encode",
    "lightir.search",
)


def run(script: Path, options: Sequence[str], output: Path) -> int | None:
    """Run a script; return its exit code, or None after 300 s. Its output and errors go to the file `output`."""
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in SLOW_TO_IMPORT if find_spec(name) is not None])
    process = context.Process(target=_run, args=(script, options, output))
    process.start()
    process.join(timeout=300)
    process.kill()
    return process.exitcode


def _run(script: Path, options: Sequence[str], output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(script.parents[1])
    sys.argv, sys.path = [str(script), *options], [str(script.parent), *sys.path]
    runpy.run_path(str(script), run_name="__main__")
