"""The commands of docs/distill.md for stored vectors run in the order in which the page shows them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fake_endpoint import text_vector
from lightir.addresses import shipped_models
from lightir.cli import main
from tutorials import ROOT

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper", "meadow", "lantern"]
PAGE = (ROOT / "docs" / "distill.md").read_text(encoding="utf-8")


def commands_under(heading: str) -> list[list[str]]:
    """Return the words of the commands in the first block under a heading, with a question that fits the texts."""
    block = re.search(rf"^#+ {heading}\n.*?^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [shlex.split(line.replace("your question", "copper harbor")) for line in block[1].splitlines()]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the commands name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=8)) for _ in range(120)]
    lines = [json.dumps({"_id": f"d{i}", "title": text[:12], "text": text}) for i, text in enumerate(texts)]
    Path("corpus.jsonl").write_text("\n".join(lines))
    Path("ids.txt").write_text("\n".join(f"d{i}" for i in range(120)))
    np.save("corpus.npy", np.array([text_vector(text) for text in texts], np.float32))
    Path("new.jsonl").write_text(json.dumps({"_id": "new", "text": "a lantern and a meadow"}))
    np.save("new.npy", np.array([text_vector("a lantern and a meadow")], np.float32))
    Path("queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "copper harbor"}))
    for name in ("query", "queries"):
        np.save(name, np.array([text_vector("copper harbor")], np.float32))
    return tmp_path


@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
def test_the_commands_that_fit_a_table(files: Path) -> None:
    shown = commands_under("Stored vectors")
    assert [words[1] for words in shown] == ["distill", "index", "search", "add"]
    for words in shown:
        assert main(words[1:]) == 0, words


def test_the_commands_without_a_table(files: Path) -> None:
    shown = commands_under("Without a table")
    assert [words[1] for words in shown] == ["index", "search", "search", "search"]
    for words in shown:
        assert main(words[1:]) == 0, words
    assert len((files / "out.trec").read_text().splitlines()) == 10
