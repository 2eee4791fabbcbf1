"""SQLite's log stays short while readers overlap, and a reader that never refreshes does not stop the writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightir.index import Index, IndexWriter, build_index, connections, document_shards, write_ahead_log
from lightir.types import Document

CHANGE_BYTES = 1 << 20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(write_ahead_log, "LOG_BYTES", 2 * CHANGE_BYTES)
    build_index(document_shards([Document("other", "the cat")]), tmp_path / "index", progress=False)
    return tmp_path / "index"


def log_after_each_change(folder: Path, changes: int, first: int = 0) -> list[int]:
    """Change the metadata of a document, 1 MiB each time; return the size of the log after each change."""
    sizes = []
    with IndexWriter.open(folder) as writer:
        for i in range(first, first + changes):
            writer.upsert([Document("long", "a cat", metadata={"n": i, "filling": f"{i:04d}" * (CHANGE_BYTES // 4)})])
            sizes.append((folder / "store.sqlite-wal").stat().st_size)
    return sizes


@contextmanager
def overlapping_readers(folder: Path) -> Iterator[list[Exception]]:
    """Refresh two readers in turn until the end of the block, so that one of them always has a view."""
    stopped, errors = threading.Event(), []

    def read() -> None:
        try:
            with Index.open(folder) as first, Index.open(folder) as second:
                while not stopped.wait(0.005):
                    for index in (first, second):
                        index.refresh()
                        index.documents(["other"])
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield errors
    finally:
        stopped.set()
        thread.join()


def test_the_log_stays_short_while_readers_overlap(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "WAIT_S", 60.0)
    with overlapping_readers(folder) as errors:
        sizes = log_after_each_change(folder, 24)
    assert errors == []
    assert max(sizes) < 4 * CHANGE_BYTES, "the log grew with the changes"
    assert sizes.count(0) >= 6
    with Index.open(folder) as index:
        index.verify()
        assert index.documents(["long"])[0].metadata["n"] == 23


def test_a_view_that_is_never_refreshed_keeps_its_state_and_delays_few_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = []

    def empty(connection: connections.Connection) -> bool:
        attempts.append(connection)
        return attempt(connection)

    attempt = write_ahead_log._empty
    monkeypatch.setattr(write_ahead_log, "WAIT_S", 0.0)
    monkeypatch.setattr(write_ahead_log, "_empty", empty)
    with Index.open(folder) as index:
        sizes = log_after_each_change(folder, 12)
        assert sizes == sorted(sizes)
        assert len(attempts) == sum(size > write_ahead_log.LOG_BYTES for size in sizes) > 5
        index.verify()
        assert index.view.store.documents.ids_by_key() == [(1, "other")]
    log_after_each_change(folder, 1, first=12)
    assert not (folder / "store.sqlite-wal").exists()


def test_after_a_time_without_changes_the_log_starts_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead_log, "WAIT_S", 0.0)
    with Index.open(folder) as first, Index.open(folder) as second:
        assert log_after_each_change(folder, 8)[-1] > 8 * CHANGE_BYTES
        for index in (first, second, first, second):  # never without a view, and now without a change
            index.refresh()
        assert log_after_each_change(folder, 1, first=8) == [write_ahead_log.LOG_BYTES]
        assert first.documents(["long"])[0].metadata["n"] == second.documents(["long"])[0].metadata["n"] == 7


def test_a_disk_that_fails_while_the_log_is_emptied_fails_no_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: connections.Connection) -> bool:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(write_ahead_log, "_empty", fail)
    assert log_after_each_change(folder, 4)[-1] > 2 * CHANGE_BYTES
    with Index.open(folder) as index:
        assert index.documents(["long"])[0].metadata["n"] == 3
