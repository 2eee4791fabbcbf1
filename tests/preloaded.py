"""Programs whose file-system calls go through index/failing_calls.c."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parent / "index" / "failing_calls.c"


def compiled(folder: Path) -> Path:
    """Compile the library into a folder; skip the test where that cannot be done."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("a C compiler named cc and Linux are needed to intercept file-system calls")
    library = folder / "failing_calls.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", library, SOURCE, "-ldl"]
    subprocess.run(list(map(str, command)), check=True, timeout=60)
    return library


def run_preloaded(library: Path, program: Path, *arguments: object) -> Any:
    """Run a Python program with the library, and return the JSON that it prints."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parents[1]), "LD_PRELOAD": str(library)}
    command = [sys.executable, str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
