"""`--light` runs only the tests that need no torch, for an installation without the train extra; `--heavy` the rest."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

from expected_skips import is_expected

HEAVY = re.compile(
    r"^(?:from|import) (?:torch|transformers|tiny_models|yaml|lightir\.(?:models|train|encode))\b", re.MULTILINE
)


settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
settings.load_profile("untimed")

if shutil.which("nvidia-smi") is None:  # Triton's kernels then run on the CPU; Triton reads this when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--light", action="store_true", help="leave out the files and folders whose tests import torch")
    parser.addoption("--heavy", action="store_true", help="leave out what --light runs")
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run about one test in N, chosen by --draw")
    parser.addoption("--draw", default="", metavar="TEXT", help="another text chooses other tests")
    parser.addoption("--any-skip", action="store_true", help="let skips pass that expected_skips.py does not list")


CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR")
"""Variables that name folders of compiled code."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep code that the tests compile in pytest's cache, instead of a folder that all programs share."""
    if (cache := getattr(config, "cache", None)) is not None:
        for name in CACHES:
            os.environ[name] = str(cache.mkdir("compiled") / name.lower())  # torch may have set its own by now


def is_drawn(test: str, one_in: int, draw: str) -> bool:
    """Whether a test is among about one in `one_in`. Every process draws the same."""
    digest = hashlib.sha256(f"{draw} {test}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % one_in == 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests that are not drawn, and skip those that take minutes, unless LIGHTIR_LONG is set."""
    one_in, draw = config.getoption("--one-in"), config.getoption("--draw")
    left_out = [item for item in items if not is_drawn(item.nodeid, one_in, draw)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_drawn(item.nodeid, one_in, draw)]
    if not os.environ.get("LIGHTIR_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes; set LIGHTIR_LONG=1 to run it"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let an unexpected skip of a test fail."""
    report = yield
    return without_unexpected_skip(report, item.config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let an unexpected skip of a file fail."""
    report = yield
    return without_unexpected_skip(report, collector.config)


def without_unexpected_skip(report: Report, config: pytest.Config) -> Report:
    """Return the report; it is one of a failure if the reason of a skip is unexpected."""
    if not report.skipped or hasattr(report, "wasxfail") or config.getoption("--any-skip"):
        return report
    environment = "light" if config.getoption("--light") else "lowest" if config.getoption("--heavy") else "locked"
    assert isinstance(report.longrepr, tuple)
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not is_expected(reason, environment):
        report.outcome = "failed"
        report.longrepr = (
            f"unexpected skip: {reason}\nInstall what the test needs, or add the reason to tests/expected_skips.py for "
            f"the environment {environment!r}; --any-skip lets it pass"
        )
    return report


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
