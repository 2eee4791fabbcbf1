"""Failing file-system calls: the index keeps what was acknowledged, and each other change is made as a whole or not."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import OutcomeUnknown, WriteFailed
from lightir.index import Index, IndexWriter, build_index, connections, document_shards, store
from lightir.index.segments import segment
from lightir.pending import Queue
from lightir.types import Document
from preloaded import compiled, run_preloaded

PROGRAM = Path(__file__).with_name("disk_faults.py")
DOCUMENTS = [Document(f"d{i}", f"the cat number {i}") for i in range(6)]


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("faults"))


def run_cases(library: Path, folder: Path, every: int) -> dict[str, Any]:
    report: dict[str, Any] = run_preloaded(library, PROGRAM, folder, every)
    for kind in "cofrtuw":
        assert sum(counts.get(kind, 0) for counts in report["calls"].values()), f"no call of kind {kind} is intercepted"
    return report


def test_after_a_failing_call_and_a_kill_every_promise_holds(failing_calls: Path, tmp_path: Path) -> None:
    report = run_cases(failing_calls, tmp_path / "cases", 211)
    assert report["broken"] == []
    assert {"done", "killed", "unchanged", "unknown"} <= report["outcomes"].keys(), "the test is blind"


@pytest.mark.long
def test_after_each_failing_call_and_a_kill_every_promise_holds(failing_calls: Path, tmp_path: Path) -> None:
    report = run_cases(failing_calls, tmp_path / "cases", 1)
    assert report["broken"] == []
    assert report["cases"] > 5000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(document_shards(DOCUMENTS), tmp_path / "index", progress=False)
    return tmp_path / "index"


class FailingCommits:
    """A connection whose next commits fail, after SQLite was asked to roll back."""

    def __init__(self, connection: Any, n: int) -> None:
        self._connection, self._n = connection, n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def usable(self) -> FailingCommits:
        return self

    def execute(self, statement: str, *arguments: Any) -> Any:
        if statement == "COMMIT" and self._n:
            self._n -= 1
            self._connection.execute("ROLLBACK")
            return self._connection.execute("SELECT * FROM failing_disk")
        return self._connection.execute(statement, *arguments)


def test_a_failed_commit_that_a_later_one_overwrites_has_changed_nothing(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer._store.session.opened = FailingCommits(writer._store.session.opened, 1)  # type: ignore[assignment]
        with pytest.raises(WriteFailed, match="it is unchanged") as failed:
            writer.add([Document("new", "the cat")])
        assert not isinstance(failed.value, OutcomeUnknown)
        assert len(list((folder / "segments").iterdir())) == 1
        writer.add([Document("new", "the cat")])
        assert len(writer) == 7


def test_a_failed_commit_that_nothing_overwrites_keeps_both_states_and_the_writer_refuses_to_go_on(
    folder: Path,
) -> None:
    with IndexWriter.open(folder) as writer:
        writer._store.session.opened = FailingCommits(writer._store.session.opened, 2)  # type: ignore[assignment]
        with pytest.raises(OutcomeUnknown, match=r"the outcome of a change of .* is unknown: .*; open the index again"):
            writer.upsert([Document(f"d{i}", "another cat") for i in range(6)])
        assert len(list((folder / "segments").iterdir())) == 2, "the segments of one of both states were removed"
        with pytest.raises(WriteFailed, match="was not changed: an earlier change failed; open the index again"):
            writer.delete(["d0"])
    with IndexWriter.open(folder) as writer:
        assert len(list((folder / "segments").iterdir())) == 1
        assert writer.delete(["d0"]) == 1


def test_a_writer_that_cannot_read_its_change_refuses_to_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next change would start from the segments before this one."""

    def refuse(path: Path, n_bytes: int) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with IndexWriter.open(folder) as writer:
        with monkeypatch.context() as patched:
            patched.setattr(segment, "_mapped", refuse)
            with pytest.raises(OutcomeUnknown, match="cannot be read after a change"):
                writer.add([Document("new", "the cat")])
        with pytest.raises(WriteFailed, match="open the index again"):
            writer.delete(["d0"])
    with Index.open(folder) as index:
        index.verify()
        assert len(index) == 7


def test_a_writer_whose_store_sqlite_opened_for_reading_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the system refuses to open a file for writing, SQLite opens it for reading and returns no error."""
    with monkeypatch.context() as patched:
        patched.setattr(store, "connect", lambda path, mode: connections.connect(path, "ro"))
        with pytest.raises(WriteFailed, match=r"cannot use .*store\.sqlite: attempt to write a readonly database"):
            IndexWriter.open(folder)
    with IndexWriter.open(folder, wait_s=0) as writer:
        assert writer.delete(["d0"]) == 1


class ShyConnection(connections.Connection):
    """A connection that stays in its mode, which SQLite tells by the mode that it returns, if a write fails."""

    def execute(self, statement: str, *arguments: Any) -> Any:
        return super().execute(statement.replace("PRAGMA journal_mode = WAL", "PRAGMA journal_mode"), *arguments)


def test_an_index_whose_header_could_not_be_written_is_not_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "Connection", ShyConnection)
    with pytest.raises(WriteFailed, match="cannot write the header of"):
        build_index(document_shards(DOCUMENTS), folder.with_name("new"), progress=False)
    assert os.listdir(folder.parent) == [folder.name]


def test_a_queue_whose_header_could_not_be_written_is_not_created(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path: connect(path, factory=ShyConnection))
    with pytest.raises(WriteFailed, match="cannot write the header of"):
        Queue.open(folder)
    assert os.listdir(folder / "queue") == ["workers"]


def test_a_segment_that_could_not_be_removed_does_not_take_the_number_of_a_new_one(folder: Path) -> None:
    (folder / "segments" / "segment-000002").mkdir()
    with IndexWriter.open(folder, brief=True) as writer:
        (folder / "segments" / "segment-000007").mkdir()
        writer.add([Document("new", "the cat")])
        assert [live.number for live in writer.view.segments] == [1, 8]


READS_SHARED_MEMORY = """
import ctypes, errno, json, os, sys
from lightir.errors import LightirError
from lightir.index import Index

faults = ctypes.CDLL(None)
faults.faults_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
outcomes = []
for call in range(1, 12):
    faults.faults_start(os.fsencode(sys.argv[1]), call, call, errno.EIO)
    try:
        index = Index.open(sys.argv[1])
    except (LightirError, OSError) as error:
        faults.faults_stop()
        outcomes.append(type(error).__name__)
        continue
    faults.faults_stop()
    with index:
        maps = [line.split() for line in open("/proc/self/maps") if line.rstrip().endswith("store.sqlite-shm")]
        index.verify()
        outcomes.append("reads" if maps and "w" not in maps[0][1] else "writes")
print(json.dumps(outcomes))
"""


def test_shared_memory_that_sqlite_opened_for_reading_is_not_damage(folder: Path, tmp_path: Path) -> None:
    """The connections of a process share it, so those that are opened later cannot write either."""
    library, program = compiled(tmp_path), tmp_path / "reads_shared_memory.py"
    program.write_text(READS_SHARED_MEMORY)
    with IndexWriter.open(folder):  # keeps the shared memory
        outcomes = run_preloaded(library, program, folder.resolve())
    assert "reads" in outcomes, "no failing call made SQLite read the shared memory: the test is blind"
    assert "writes" in outcomes
