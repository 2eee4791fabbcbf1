"""The commands of docs/publish.md run as they are written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tutorials import ROOT, check


def test_the_commands_publish_the_shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "examples" / "shop" / "products.csv", tmp_path)
    monkeypatch.chdir(tmp_path)
    check((ROOT / "docs" / "publish.md").read_text(encoding="utf-8"), least=0)
    manifest = json.loads((tmp_path / "site" / "search.json").read_text())
    assert (manifest["documents"], manifest["branches"]) == (40, ["tokens"])
    assert (tmp_path / "site" / "index.html").is_file()
