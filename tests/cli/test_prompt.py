"""`lightir search INDEX` without a query on a terminal: a prompt."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lightir.cli import main
from lightir.index import build_index, document_shards
from lightir.types import Document

PROMPT = b"search> "


@pytest.fixture
def index(tmp_path: Path) -> Path:
    documents = [Document("cat", "The cat sleeps."), Document("dog", "The dog runs.")]
    build_index(document_shards(documents), tmp_path / "index", progress=False)
    return tmp_path / "index"


def typed(index: Path, lines: Sequence[bytes]) -> tuple[int, str]:
    """Type lines at the command's prompt, then Ctrl-D; return its exit code and the screen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "lightir", "search", str(index)]
    environment = {**os.environ, "TERM": "dumb", "NO_COLOR": "1"}
    screen = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        for line in [*lines, b"\x04"]:
            n_prompts = screen.count(PROMPT) + 1
            while screen.count(PROMPT) < n_prompts:
                assert select.select([ours], [], [], 120)[0], screen
                screen += os.read(ours, 4096)
            os.write(ours, line)
        with contextlib.suppress(OSError):  # the terminal has no process any more
            while part := os.read(ours, 4096):
                screen += part
        os.close(ours)
    return process.returncode, screen.decode(errors="replace")


def test_a_prompt_answers_lines_until_it_ends(index: Path) -> None:
    code, screen = typed(index, [b"dogs\n", b"\n", b"cats\n"])
    assert code == 0, screen
    assert screen.index("The dog runs.") < screen.index("The cat sleeps.")
    assert screen.count("1 hit") == 2


def test_an_error_of_a_query_does_not_end_the_prompt(
    index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["cats\ud800", "  ", "dogs"])

    def type_line(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr("lightir.cli.search.is_interactive", lambda: True)
    assert main(["search", str(index)]) == 0
    printed = capsys.readouterr()
    assert "The dog runs." in printed.out
    assert "error: " in printed.err


def test_without_a_terminal_the_missing_query_is_an_error(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["search", str(index)])
    assert ended.value.code == 2
    assert "the query is missing" in capsys.readouterr().err
