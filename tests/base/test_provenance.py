"""A result names the commit, machine, date and command that made it."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import re
import subprocess
from pathlib import Path

import pytest

from lightir.provenance import command_line, provenance, source_commit

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"commit", "machine", "date", "command"}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_names_its_commit_and_marks_changed_files(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("one")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    git(tmp_path, "tag", "--annotate", "v1", "--message", "no tag takes the place of a commit")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert source_commit(tmp_path) == commit
    (tmp_path / "code.py").write_text("two")
    assert source_commit(tmp_path) == f"{commit}-dirty"


class Installed:
    """A distribution as `importlib.metadata` gives it."""

    def __init__(self, recorded: str | None) -> None:
        self.recorded = recorded

    def read_text(self, name: str) -> str | None:
        return self.recorded if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (None, None),
        (json.dumps({"url": "file:///x", "dir_info": {"editable": True}}), None),
        (json.dumps({"url": "https://git.example/x", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}), "ab12"),
    ],
)
def test_an_installation_names_the_commit_that_pip_recorded(
    recorded: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(recorded))
    assert source_commit(tmp_path) == expected


def test_a_checkout_that_git_cannot_read_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert source_commit(tmp_path) is None


def test_provenance_is_plain_json_with_every_field() -> None:
    record = json.loads(json.dumps(provenance()))
    assert record.keys() >= FIELDS
    assert record["machine"].keys() == {"processor", "cores", "memory_gib"}
    assert record["machine"]["cores"] >= 1
    assert record["machine"]["memory_gib"] > 0
    assert datetime.datetime.fromisoformat(record["date"]).utcoffset() == datetime.timedelta(0)


def test_a_script_of_the_checkout_is_named_as_one_would_type_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightir.provenance.SOURCE_ROOT", ROOT)  # also where an installed wheel is tested
    assert (
        command_line([str(ROOT / "recipes" / "measure.py"), "--out", "a b"]) == "python recipes/measure.py --out 'a b'"
    )
    assert command_line(["/somewhere/bin/lightir", "train", "recipe.yaml"]) == "lightir train recipe.yaml"


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_every_stored_result_carries_its_provenance(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))["provenance"]
    assert record.keys() >= FIELDS
    assert re.fullmatch(r"[0-9a-f]{40}", record["commit"])  # without "-dirty": of a tree whose changes are committed
    assert datetime.datetime.fromisoformat(record["date"]).tzinfo is not None
    assert record["command"].startswith("python recipes/")
    if record["machine"] is None:
        assert record["recorded"] == "afterwards, from the history and the docs"
    else:
        assert record["machine"].keys() == {"processor", "cores", "memory_gib"}
