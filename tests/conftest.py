"""`--light` runs only the tests that need no torch, for an installation without the train extra; `--heavy` the rest."""

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
    parser.addoption("--heavy", action="store_true", help="leave out what --light runs")


CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR")
"""Variables that name folders of compiled code."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep code that the tests compile in pytest's cache, instead of a folder that all programs share."""
    if (cache := getattr(config, "cache", None)) is not None:
        for name in CACHES:
            os.environ[name] = str(cache.mkdir("compiled") / name.lower())  # torch may have set its own by now


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that take minutes, unless LIGHTIR_LONG is set."""
    if not os.environ.get("LIGHTIR_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes; set LIGHTIR_LONG=1 to run it"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files that import the heavy half, and folders whose conftest.py does, if --light is given."""
    folder = collection_path.is_dir()
    source = collection_path / "conftest.py" if folder else collection_path
    if source.suffix != ".py" or not source.is_file():
        return None
    heavy = bool(HEAVY.search(source.read_text(encoding="utf-8")))
    if config.getoption("--light"):
        return heavy or None
    if config.getoption("--heavy") and not folder:
        beside = source.with_name("conftest.py")
        in_heavy_folder = beside != Path(__file__) and beside.is_file() and HEAVY.search(beside.read_text("utf-8"))
        return None if heavy or in_heavy_folder else True
    return None


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("--light"):
        return "lightir: the tests that import torch are left out"
    return "lightir: only the tests that --light leaves out" if config.getoption("--heavy") else None
