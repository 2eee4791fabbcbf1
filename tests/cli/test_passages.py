"""Passages and renamed files on the command line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from lightir import Index
from lightir.cli.app import main

LONG = "# Handbook\n\n## Heating\n\n" + "The boiler is warm. " * 80 + "\n\n## Cooling\n\n" + "The fridge is cold. " * 80


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with a long file and a short one."""
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "long.md").write_text(LONG)
    (folder / "short.txt").write_text("a fridge and a boiler")
    return folder


def output(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    """Run a command with --json and return what it prints."""
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_long_files_of_a_folder_become_passages(
    notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    built = output(capsys, "index", notes, "--out", index)
    assert (built["documents"], built["passages"]) == (2, 6)
    assert output(capsys, "info", index)["passages"] == 6
    (best, other) = output(capsys, "search", index, "cold fridge")["hits"]
    assert (best["doc_id"], best["title"]) == ("notes/long.md", "Handbook > Cooling")
    assert best["passage"]["heading"] == "Handbook > Cooling"
    assert LONG[best["passage"]["start"] : best["passage"]["end"]].count("fridge") > 5
    assert (other["doc_id"], "passage" in other) == ("notes/short.txt", False)
    every = output(capsys, "search", index, "fridge", "--passages")["hits"]
    assert len(every) == len({hit["doc_id"] for hit in every}) == 4
    assert {hit["passage"]["document"] for hit in every if "passage" in hit} == {"notes/long.md"}
    assert output(capsys, "search", index, "boiler", "--total")["total"] == 2
    assert main(["search", str(index), "boiler"]) == 0
    assert "line 5" in capsys.readouterr().out
    assert output(capsys, "get", index, "notes/long.md")["text"] == LONG
    assert output(capsys, "add", index, notes, "--mirror")["unchanged"] == 2


@pytest.mark.parametrize(
    ("given", "passages"), [(["--passages", "none"], 0), (["--passages", "100"], 8), (["--passages", "all"], 6)]
)
def test_passages_can_be_chosen(
    notes: Path, tmp_path: Path, given: list[str], passages: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "index", notes, "--out", tmp_path / "index", *given)["passages"] >= passages
    with Index.open(tmp_path / "index") as index:
        assert (index.info().passages > 0) == (passages > 0)
        assert index.get(["notes/long.md"])["notes/long.md"].text == LONG


def test_records_stay_whole_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"_id": "d", "text": LONG}))
    assert output(capsys, "index", corpus, "--out", tmp_path / "whole")["passages"] == 0
    assert output(capsys, "index", corpus, "--out", tmp_path / "split", "--passages", "all")["passages"] == 6
    overlapping = ["--passages", "60", "--passage-overlap", "20"]
    assert output(capsys, "index", corpus, "--out", tmp_path / "overlapping", *overlapping)["passages"] > 8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--passages", "some"], "--passages"),
        (["--passages", "3"], "minimum is 16"),
        (["--passages", "none", "--passage-overlap", "3"], "requires passages"),
        (["--passages", "20", "--passage-overlap", "11"], "0 to half of a passage"),
        (["--passages", "all", "--analyzer", "bag"], "bag_tokens"),
    ],
)
def test_impossible_choices_are_refused(
    notes: Path, tmp_path: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        assert main(["index", str(notes), "--out", str(tmp_path / "index"), *given]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_a_moved_file_is_renamed(notes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = tmp_path / "index"
    output(capsys, "index", notes, "--out", index)
    with Index.open(index) as opened:
        keys = set(opened.view.store.documents.ids_by_key())
    (notes / "moved").mkdir()
    (notes / "long.md").rename(notes / "moved" / "handbook.md")
    (notes / "new.txt").write_text("something new")
    preview = output(capsys, "add", index, notes, "--mirror", "--dry-run")
    assert [preview[name] for name in ("added", "renamed", "unchanged", "removed")] == [1, 1, 1, 0]
    done = output(capsys, "add", index, notes, "--mirror")
    assert [done[name] for name in ("added", "renamed", "removed", "documents")] == [2, 1, 0, 3]
    with Index.open(index) as opened:
        assert opened.ids() == ["notes/moved/handbook.md", "notes/new.txt", "notes/short.txt"]
        document = opened.get(["notes/moved/handbook.md"])["notes/moved/handbook.md"]
        assert (document.text, document.metadata["folder"]) == (LONG, "notes/moved")
        assert len(set(opened.view.store.documents.ids_by_key()) & keys) == 1  # the short file's
