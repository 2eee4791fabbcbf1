"""The tutorial of docs/fields.md runs as it is written, and prints what it shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import pytest

from lightir.cli.app import main

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "fields.md").read_text(encoding="utf-8").split("\n## Types\n")[0]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def masked(output: str) -> str:
    """Return output without durations, sizes and blanks at the ends of lines."""
    without_times = re.sub(r"\d[\d.]* (µs|ms|s)\b", "TIME", output)
    return re.sub(r"[ \t]+$", "", re.sub(r"\d[\d.]* kB\b", "SIZE", without_times), flags=re.MULTILINE).strip()


def run(language: str, code: str) -> str:
    """Return what a block prints on stdout and stderr."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        if language == "python":
            exec(code, {})
        else:
            for line in code.splitlines():
                main(shlex.split(line)[1:])
    return output.getvalue()


def test_every_block_prints_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "examples" / "shop").glob("*.csv"):
        shutil.copy(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(TUTORIAL)
    assert len(blocks) == TUTORIAL.count("```sh") + TUTORIAL.count("```python") >= 7
    assert sum(bool(shown) for _, _, shown in blocks) >= 6
    for language, code, shown in blocks:
        printed = masked(run(language, code))
        if shown:
            assert printed == masked(shown), code
