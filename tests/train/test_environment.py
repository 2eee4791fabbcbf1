"""A run tells which code it ran on: the commit of a checkout, or the one that pip noted."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path

import pytest

from lightir.train.environment import environment, source_commit


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.example", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_names_its_commit_and_says_when_it_was_changed(tmp_path: Path) -> None:
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

    def __init__(self, noted: str | None) -> None:
        self.noted = noted

    def read_text(self, name: str) -> str | None:
        return self.noted if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (None, None),
        (json.dumps({"url": "file:///x", "dir_info": {"editable": True}}), None),
        (json.dumps({"url": "https://git.example/x", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}), "ab12"),
    ],
)
def test_an_installation_names_what_pip_noted(
    noted: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: Installed(noted))
    assert source_commit(tmp_path) == expected


def test_what_git_cannot_read_is_unknown(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere")
    assert source_commit(tmp_path) is None


def test_an_environment_is_plain_json() -> None:
    found = json.loads(json.dumps(environment("cpu")))
    assert {"lightir", "commit", "python", "torch", "machine", "device", "threads"} <= found.keys()
