"""The examples of docs/frameworks.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text(encoding="utf-8").split("\n## Haystack\n")[1].split("\n## ")[0]
    blocks = BLOCK.findall(section)
    assert len(blocks) == 1
    for block in blocks:
        exec(block, {})
