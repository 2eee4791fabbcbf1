"""The tutorial of docs/fields.md runs as it is written, and prints what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tutorials import ROOT, check

TUTORIAL = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8").split("\n## Types\n")[0]


def test_every_block_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "examples" / "shop").glob("*.csv"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    check(TUTORIAL, least=6)
