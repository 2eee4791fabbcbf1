"""`lightir watch`: after every change of files, the index is that of the files."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lightir.cli import main
from lightir.cli.watch import Watch
from lightir.errors import InvalidInput, NotFound
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.lines import ReadOptions
from lightir.pending import WorkOptions, work
from pending_documents import FakeEncoder
from small_collections import word_contract, word_table, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    for i in range(12):
        (notes / "deep" / f"{i}.txt").write_text(f"cat number {i}")
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    with IndexWriter.create(
        tmp_path / "index", options=IndexOptions(), contract=word_contract(), query_encoder=encoder
    ):
        pass
    return notes


def watch(folder: Path, *, yes: bool = False, exclude: tuple[str, ...] = ()) -> Watch:
    return Watch(str(folder.parent / "index"), [str(folder)], ReadOptions(exclude=exclude), yes=yes)


def texts(folder: Path) -> dict[str, str]:
    with Index.open(folder.parent / "index") as index:
        return {doc_id: document.text for doc_id, document in index.get(index.ids()).items()}


def expected(folder: Path) -> dict[str, str]:
    return {f"notes/{path.relative_to(folder)}": path.read_text() for path in folder.rglob("*.txt")}


def n_pending(folder: Path) -> int:
    with Index.open(folder.parent / "index") as index:
        return index.info().pending


def test_an_index_follows_random_changes_of_files(folder: Path) -> None:
    rng = random.Random(7)
    following = watch(folder, yes=True)
    for round_ in range(40):
        files = sorted(folder.rglob("*.txt"))
        for _ in range(rng.randrange(3)):
            target = folder / rng.choice(["", "deep", "new"]) / f"{rng.randrange(30)}.txt"
            target.parent.mkdir(exist_ok=True)
            action = rng.choice(["write", "delete", "move", "touch"])
            if action == "write" or not files:
                target.write_text(f"dog {rng.randrange(1000)} of round {round_}")
            elif action == "delete":
                rng.choice(files).unlink(missing_ok=True)
            elif action == "move" and (old := rng.choice(files)).exists():
                old.rename(target)
            elif (old := rng.choice(files)).exists():
                os.utime(old, ns=(round_, round_))
        following.step()
        assert texts(folder) == expected(folder)
        assert following.step() is None


def test_only_changed_files_are_read_and_moved_ones_keep_their_vectors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = watch(folder)
    first = following.step()
    assert first is not None
    assert (first.added, first.renamed, first.removed, first.info.documents) == (12, 0, 0, 12)
    work(folder.parent / "index", FakeEncoder(), WorkOptions(once=True), progress=False)
    read: list[str] = []
    from lightir.data import file_documents

    extract = file_documents.extract
    monkeypatch.setattr(
        file_documents,
        "extract",
        lambda path, options, **given: read.append(path.name) or extract(path, options, **given),
    )
    (folder / "deep" / "3.txt").write_text("bird")
    (folder / "deep" / "4.txt").rename(folder / "moved.txt")
    step = following.step()
    assert step is not None
    assert (step.renamed, step.removed) == (1, 0)
    assert sorted(read) == ["3.txt", "moved.txt"]
    assert n_pending(folder) == 1
    assert texts(folder) == expected(folder)


def test_files_that_disappear_together_keep_their_documents_until_they_return(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    following = watch(folder)
    following.step()
    before = texts(folder)
    away = folder.parent / "away"
    (folder / "deep").rename(away)
    (folder / "other.txt").write_text("one more")
    step = following.step()
    assert step is not None
    assert (step.added, step.removed) == (1, 0)
    assert texts(folder) == {**before, "notes/other.txt": "one more"}
    assert following.step() is None
    assert capsys.readouterr().err.count("12 of 13 documents would be deleted; they stay") == 1
    away.rename(folder / "deep")
    assert following.step() is None
    assert texts(folder) == expected(folder)
    (folder / "deep").rename(away)
    step = watch(folder, yes=True).step()
    assert step is not None
    assert step.removed == 12
    folder.rename(folder.parent / "gone")
    with pytest.raises(NotFound):
        following.step()


def test_a_wrong_folder_changes_nothing(folder: Path, tmp_path: Path) -> None:
    watch(folder).step()
    before = texts(folder)
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "a.txt").write_text("something else")
    with pytest.raises(InvalidInput, match="12 of 12 documents would be deleted; nothing was changed"):
        Watch(str(tmp_path / "index"), [str(tmp_path / "wrong")], ReadOptions()).step()
    assert texts(folder) == before
    (tmp_path / "copy" / "notes").mkdir(parents=True)
    (tmp_path / "copy" / "notes" / "x.txt").write_text("x")
    (folder / "x.txt").write_text("y")
    with pytest.raises(InvalidInput, match=r"have the same id 'notes/x\.txt'"):
        Watch(str(tmp_path / "index"), [str(folder), str(tmp_path / "copy" / "notes")], ReadOptions()).step()


def test_an_unreadable_file_keeps_its_document_and_is_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = watch(folder)
    following.step()
    (folder / "deep" / "1.txt").write_bytes(b"\0\1\2\3" * 100)
    assert following.step() is None
    assert following.step() is None
    assert caplog.text.count("skipped") == 1
    assert texts(folder)["notes/deep/1.txt"] == "cat number 1"


def test_another_writer_delays_a_change(folder: Path) -> None:
    from lightir.errors import IndexLocked

    following = watch(folder)
    following.step()
    (folder / "late.txt").write_text("late")
    with IndexWriter.open(folder.parent / "index"), pytest.raises(IndexLocked):
        following.step()
    step = following.step()
    assert step is not None
    assert step.added == 1


def test_data_files_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    assert main(["watch", str(tmp_path / "index"), str(tmp_path / "corpus.jsonl")]) == 1
    assert "--mirror" in capsys.readouterr().err


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_follows_a_folder_until_a_signal(folder: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "lightir", "watch", str(folder.parent / "index"), str(folder), "--interval", "0.1"]
    process = subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(texts(folder)) == 12)
    (folder / "new.txt").write_text("a new file")
    wait_until(lambda: "notes/new.txt" in texts(folder))
    (folder / "new.txt").unlink()
    wait_until(lambda: "notes/new.txt" not in texts(folder))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    steps = [json.loads(line) for line in out.splitlines()]
    assert [(step["added"], step["removed"]) for step in steps] == [(12, 0), (1, 0), (0, 1)]
    assert steps[-1]["info"]["documents"] == 12
