"""The pages for beginners run as they are written, and print what they show."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lightir.encode  # noqa: F401 - the workers of these pages need the half with torch
from lightir.addresses import shipped_models
from tutorials import ROOT, check


@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
@pytest.mark.parametrize(("page", "least"), [("start", 4), ("rag", 2)])
def test_every_block_prints_what_the_page_shows(
    page: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "examples" / "handbook", tmp_path / "handbook")
    shutil.copy(ROOT / "examples" / "notes.jsonl", tmp_path)
    monkeypatch.chdir(tmp_path)
    check((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), least=least, with_scores=False)


def test_the_recipe_for_own_pairs_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "support", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    check((ROOT / "docs" / "train.md").read_text(encoding="utf-8"), least=0)
