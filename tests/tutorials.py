"""Pages whose blocks of commands and Python are run, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from lightir.cli.app import main

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def masked(output: str, *, with_scores: bool = True) -> str:
    """Return output without durations, speeds, sizes, on request scores, and blanks at the ends of lines."""
    without_times = re.sub(r"\d[\d.]* (µs|ms|s|documents/s)\b", "TIME", output)
    without_sizes = re.sub(r"\d[\d.]* kB\b", "SIZE", without_times)
    kept = without_sizes if with_scores else re.sub(r"\b\d+\.\d+\b", "SCORE", without_sizes)
    return re.sub(r"[ \t]+$", "", kept, flags=re.MULTILINE).strip()


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


def check(tutorial: str, *, least: int, with_scores: bool = True) -> None:
    """Run each block of a page and compare what it prints with the block of text after it, if there is one.

    Args:
        tutorial: Markdown with blocks of sh, python and text.
        least: number of blocks with output that the page has at least.
        with_scores: whether scores are compared; those of vectors differ between processors in their last digits.
    """
    blocks = BLOCK.findall(tutorial)
    assert len(blocks) == tutorial.count("```sh") + tutorial.count("```python")
    assert sum(bool(shown) for _, _, shown in blocks) >= least
    for language, code, shown in blocks:
        printed = masked(run(language, code), with_scores=with_scores)
        if shown:
            assert printed == masked(shown, with_scores=with_scores), code
