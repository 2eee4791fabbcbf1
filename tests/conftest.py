"""`--light` runs only the tests that need no torch, for an installation without the train extra."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

HEAVY = re.compile(
    r"^(?:from|import) (?:torch|transformers|tiny_models|yaml|lightir\.(?:models|train|encode))\b", re.MULTILINE
)


if shutil.which("nvidia-smi") is None:  # Triton's kernels then run on the CPU; Triton reads this when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--light", action="store_true", help="leave out the files and folders whose tests import torch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that take minutes, unless LIGHTIR_LONG is set."""
    if not os.environ.get("LIGHTIR_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes; set LIGHTIR_LONG=1 to run it"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files that import the heavy half, and folders whose conftest.py does, if --light is given."""
    source = collection_path / "conftest.py" if collection_path.is_dir() else collection_path
    if not config.getoption("--light") or source.suffix != ".py" or not source.is_file():
        return None
    return True if HEAVY.search(source.read_text(encoding="utf-8")) else None


def pytest_report_header(config: pytest.Config) -> str | None:
    return "lightir: the tests that import torch are left out" if config.getoption("--light") else None
