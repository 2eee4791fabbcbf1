"""A skip that nobody expects fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from expected_skips import is_expected

TESTS = Path(__file__).parents[1]


def test_a_reason_is_expected_in_its_environments() -> None:
    assert is_expected("could not import 'usearch': No module named 'usearch'", "light")
    assert not is_expected("could not import 'usearch': No module named 'usearch'", "locked")
    assert not is_expected("could not import 'numpy': No module named 'numpy'", "light")
    assert is_expected("takes minutes; set LIGHTIR_LONG=1 to run it", "locked")


def test_a_named_folder_of_collections_has_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "/data has no scifact; LIGHTIR_DATA names the folder of collections"
    monkeypatch.delenv("LIGHTIR_DATA", raising=False)
    assert is_expected(reason, "locked")
    monkeypatch.setenv("LIGHTIR_DATA", "/data")
    assert not is_expected(reason, "locked")


FILE = """
import pytest

def test_imports(): pytest.importorskip('no_such_package')

@pytest.mark.skip(reason='later')
def test_later(): pass

@pytest.mark.skip(reason='fish is not installed')
def test_fish(): pass

@pytest.mark.xfail
def test_known(): assert False

def test_it(): pass
"""


def outcomes(folder: Path, *options: str) -> str:
    """Run FILE and a file that is skipped as a whole; return the last line that pytest prints."""
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "test_some.py").write_text(FILE)
    (folder / "test_none.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()[-1]


def test_pytest_lets_an_unexpected_skip_fail(tmp_path: Path) -> None:
    options = ["--continue-on-collection-errors"]
    assert outcomes(tmp_path, *options).startswith("1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors in")
    assert outcomes(tmp_path, *options, "--any-skip").startswith("1 passed, 4 skipped, 1 xfailed in")
