"""The tutorial of docs/passages.md runs as it is written, and prints what it shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lightir.encode  # noqa: F401 - the tutorial's worker needs the half with torch
from lightir.addresses import shipped_models
from tutorials import ROOT, check

TUTORIAL = (ROOT / "docs" / "passages.md").read_text(encoding="utf-8").split("\n## How a document is split\n")[0]


@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
def test_every_block_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "handbook", tmp_path / "handbook")
    monkeypatch.chdir(tmp_path)
    check(TUTORIAL, least=6, with_scores=False)
