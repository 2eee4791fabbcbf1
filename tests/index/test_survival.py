"""An index survives kill -9, a full disk, two writers, many readers, and a reader of an old view."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import FormatError, IndexLocked, InvalidInput, WriteFailed
from lightir.index import Index, IndexOptions, IndexWriter, build_index, connections, document_shards, reader, view
from lightir.index.segments import segment_writer
from lightir.search import Searcher, SearchOptions
from lightir.types import Document

PROGRAM = Path(__file__).with_name("killed_writer.py")
DOCUMENTS = [Document(f"d{i}", f"the cat number {i}", metadata={"n": i}) for i in range(30)]


def run_program(*arguments: object) -> dict[str, Any]:
    done = subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_kill_9_loses_no_acknowledged_and_shows_no_partial_change(tmp_path: Path) -> None:
    report = run_program("kills", tmp_path / "index", 200, 1)
    assert report["acknowledged"] > 100
    assert report["left_orphans"] > 0, "no kill hit between a segment and its transaction: the test is blind"


def test_sixteen_readers_see_complete_views_during_compactions(tmp_path: Path) -> None:
    assert run_program("readers", tmp_path / "index", 16, 6) == {"readers": 16, "compactions": 6}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(document_shards(DOCUMENTS), tmp_path / "index", progress=False)
    return tmp_path / "index"


def contents(folder: Path) -> list[Document]:
    with Index.open(folder) as index:
        index.verify()
        doc_ids = Searcher(index).search(["cat"], 1000)["0"].doc_ids
        assert len(doc_ids) == len(index)
        return sorted(index.documents(doc_ids), key=lambda document: document.doc_id)


def test_a_read_only_index_is_searched_but_refuses_writers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o500 if path.is_dir() else 0o400)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write whatever the mode says
    try:
        assert contents(folder) == sorted(DOCUMENTS, key=lambda document: document.doc_id)
        with pytest.raises(WriteFailed, match="index is read-only; it can be searched but not changed"):
            IndexWriter.open(folder)
        assert not list(folder.glob("store.sqlite-*"))
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700)


def test_readers_without_write_permission_detect_changes_by_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SQLite locks a file by writing beside it; without the lock, a reader would mix two states of the store."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        index = Index.open(folder)
        searcher = Searcher(index)
        assert len(searcher.hits("cat", 30)) == 30
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d7", "the cat is another")])
        writer.delete(["d8"])
    changed = "was changed after it was opened; it is read without locks.*Refresh, or open the index again"
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: mode != os.W_OK)
        assert len(searcher.search(["cat"], 30)["0"]) == 30  # reads only the segments
        for reads in (lambda: searcher.hits("cat"), lambda: index.snapshot(tmp_path / "copy")):
            with pytest.raises(InvalidInput, match=changed):
                reads()
        assert not (tmp_path / "copy").exists()
        assert index.refresh()
        assert {hit.snippet for hit in searcher.hits("cat", 30) if hit.doc_id == "d7"} == {"the cat is another"}
        index.snapshot(tmp_path / "copy")
    index.close()


def test_a_second_writer_is_refused_with_the_first_ones_process(folder: Path) -> None:
    IndexWriter.open(folder, brief=True).close()  # the file keeps no content of this writer
    with IndexWriter.open(folder), pytest.raises(IndexLocked) as refused:
        IndexWriter.open(folder)
    assert f"process {os.getpid()} on {socket.gethostname()} since 20" in str(refused.value)
    IndexWriter.open(folder).close()


def test_the_lock_of_a_dead_writer_does_not_block(folder: Path) -> None:
    code = f"""
import os, signal, sys
from lightir.index import IndexWriter
writer = IndexWriter.open({str(folder)!r})
print("here", flush=True)
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "here\n"
        with pytest.raises(IndexLocked, match=f"process {holder.pid} "):
            IndexWriter.open(folder)
        holder.send_signal(signal.SIGKILL)
    with IndexWriter.open(folder) as second:
        assert second.delete(["d0"]) == 1


@pytest.mark.parametrize("target", ["/dev/full", "/"])
def test_a_lock_that_cannot_be_written_is_reported_and_released(folder: Path, target: str) -> None:
    (folder / "writer.lock").symlink_to(target)
    with pytest.raises(WriteFailed, match=r"cannot write .*writer\.lock"):
        IndexWriter.open(folder)
    (folder / "writer.lock").unlink()
    IndexWriter.open(folder, wait_s=0).close()


def test_a_view_stays_readable_while_its_segments_are_merged(folder: Path) -> None:
    with Index.open(folder) as old, IndexWriter.open(folder) as changing:
        before = Searcher(old).search(["cat number 7"], 30, SearchOptions(filter={"n": {"gte": 5}}))["0"]
        changing.delete_where({"n": {"lt": 20}})
        changing.upsert([Document("d25", "another text")])
        changing.compact()
        after = Searcher(old).search(["cat number 7"], 30, SearchOptions(filter={"n": {"gte": 5}}))["0"]
        assert list(after.doc_ids) == list(before.doc_ids)
        assert old.documents(["d3", "d25"]) == [DOCUMENTS[3], DOCUMENTS[25]]
        old.verify()
        old.snapshot(folder.parent / "backup")
        assert old.refresh()
        assert len(old) == 10
        assert not old.refresh()
    assert contents(folder.parent / "backup") == sorted(DOCUMENTS, key=lambda document: document.doc_id)


@pytest.mark.parametrize("skip_damaged", [False, True])
def test_a_segment_merged_away_while_an_index_is_opened_is_not_damage(
    folder: Path, skip_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []

    def meanwhile(*arguments: Any, skip_damaged: bool, **options: Any) -> view.View:
        calls.append(skip_damaged)
        if len(calls) == 1:
            with IndexWriter.open(folder) as writer:
                writer.upsert([dataclasses.replace(document, text=f"{document.text} again") for document in DOCUMENTS])
        return view.View(*arguments, skip_damaged=skip_damaged, **options)

    monkeypatch.setattr(reader, "View", meanwhile)
    with Index.open(folder, skip_damaged=skip_damaged) as index:
        assert len(index) == 30
        assert index.view.damaged == []
    assert calls == [False, False]


def test_threads_search_while_the_index_is_refreshed(folder: Path) -> None:
    failed: list[BaseException] = []
    done = threading.Event()
    with Index.open(folder) as index, IndexWriter.open(folder) as changing:
        searcher = Searcher(index)

        def search() -> None:
            try:
                while not done.is_set():
                    hits = searcher.hits("cat", 30, SearchOptions(filter={"n": {"gte": 0}}))
                    assert {hit.doc_id for hit in hits} == {document.doc_id for document in DOCUMENTS}
            except BaseException as error:  # noqa: BLE001 - told by the main thread
                failed.append(error)

        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for i in range(15):
            changing.upsert([dataclasses.replace(DOCUMENTS[i], text=f"the cat number {i} again")])
            assert index.refresh()
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_crash_s_leftovers_are_ignored_by_readers_and_removed_by_the_next_writer(folder: Path) -> None:
    for name in ("segment-000099", ".segment-000100.new-0123"):
        (folder / "segments" / name).mkdir()
        (folder / "segments" / name / "dense.bin").write_bytes(b"half")
    assert len(contents(folder)) == 30
    IndexWriter.open(folder).close()
    assert [path.name for path in (folder / "segments").iterdir()] == ["segment-000001"]


@pytest.mark.parametrize("name", ["add", "upsert", "compact"])
@pytest.mark.parametrize("what", ["segment", "store"])
def test_a_full_disk_fails_the_change_and_leaves_the_index(
    folder: Path, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, *arguments: object, **options: object) -> str:
        path.mkdir()
        (path / "documents.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with IndexWriter.open(folder) as opened:
        opened.add([Document("more", "cat")])
        change: Callable[[], object] = {
            "add": lambda: opened.add([Document("new", "cat " * 10_000)]),
            "upsert": lambda: opened.upsert([Document("d3", "cat " * 10_000)]),
            "compact": opened.compact,
        }[name]
        before = contents(folder)
        with monkeypatch.context() as patched:
            if what == "segment":
                patched.setattr(segment_writer, "write_arrays", full)
            else:
                opened._store.session.connection.execute("PRAGMA max_page_count = 1")  # makes SQLite report a full disk
            if what == "segment" or name != "compact":  # compaction adds nothing to the store
                with pytest.raises(WriteFailed, match=r"No space left on device|database or disk is full"):
                    change()
        assert contents(folder) == before
        opened._store.session.connection.execute("PRAGMA max_page_count = 1000000")
        change()
        assert len(opened) == len(contents(folder))
        assert len(list((folder / "segments").iterdir())) == len(opened.view.segments)


def test_a_file_size_limit_fails_the_change_and_leaves_the_index(folder: Path) -> None:
    """Under this limit the kernel refuses writes in the middle of a file, like a full disk."""
    before = contents(folder)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with IndexWriter.open(folder) as opened:
                resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
                for batch in (
                    [Document("big", "cat " * 100_000)],
                    [Document(f"x{i}", f"w{i} " * 50) for i in range(3000)],
                ):
                    with pytest.raises(WriteFailed, match="is unchanged"):
                        opened.add(batch)
                opened.add([Document("small", "cat")])
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert contents(folder) == sorted([*before, Document("small", "cat")], key=lambda document: document.doc_id)


@pytest.mark.parametrize("limit", [3_000, 300_000])
def test_a_full_disk_leaves_nothing_of_an_index_that_was_being_built(folder: Path, tmp_path: Path, limit: int) -> None:
    """The limits are too small for an empty store, and for its documents. Snapshots are tested too."""
    shards = list(document_shards([Document(f"x{i}", f"w{i} " * 50) for i in range(3000)]))
    with Index.open(folder) as index:
        changes: list[Callable[[], object]] = [
            lambda: build_index(shards, tmp_path / "new" / "index", progress=False),
            lambda: index.snapshot(tmp_path / "new" / "index"),
        ]
        for change in changes[: 1 if limit > 3_000 else 2]:
            message = in_a_process_with_files_of(limit, change)
            assert re.search(r"cannot write .*new/index.*: (disk I/O error|database or disk is full)", message)
    assert not list((tmp_path / "new").iterdir())


def test_a_store_that_the_system_refuses_is_not_called_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "reading_modes", lambda path: ["rw"])  # a reader's shared memory is a file too
    message = in_a_process_with_files_of(1, lambda: Index.open(folder))
    assert re.search(r"cannot use .*store\.sqlite: disk I/O error; check the disk", message)


def in_a_process_with_files_of(limit: int, act: Callable[[], object]) -> str:
    """Return the message of a failing act in a process whose files may have at most `limit` bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            act()
        except OSError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        message = file.read()
    os.waitpid(child, 0)
    return message


def test_a_damaged_store_is_named(folder: Path) -> None:
    content = bytearray((folder / "store.sqlite").read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    (folder / "store.sqlite").write_bytes(content)
    with pytest.raises(FormatError, match=r"store\.sqlite"), Index.open(folder) as index:
        index.verify()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record SET value = '[]'",
        "UPDATE record SET value = '{'",
        "UPDATE record SET value = json_remove(value, '$.sizes')",
        "UPDATE record SET value = json_set(value, '$.sizes.sparse_top_k', 'many')",
        "DELETE FROM generation",
        "UPDATE generation SET number = X'00'",
        "UPDATE segments SET documents = X'00'",
        "UPDATE segments SET deleted = 'text'",
        "UPDATE segments SET deleted = X''",
        "UPDATE segments SET deleted = zeroblob(1000)",
    ],
)
def test_a_store_with_impossible_values_is_damaged(folder: Path, change: str) -> None:
    connection = sqlite3.connect(folder / "store.sqlite")
    connection.execute(change)
    connection.commit()
    connection.close()
    with pytest.raises(FormatError, match=r"store\.sqlite"):
        Index.open(folder)


@pytest.mark.parametrize("value", ["{", ""])
def test_metadata_that_is_not_json_is_damage(folder: Path, value: str) -> None:
    connection = sqlite3.connect(folder / "store.sqlite")
    connection.execute("UPDATE metadata SET value = ?", (value,))
    doc_id = connection.execute("SELECT doc_id FROM documents").fetchone()[0]
    connection.commit()
    connection.close()
    with Index.open(folder) as index, pytest.raises(FormatError, match=r"store\.sqlite"):
        index.documents([doc_id])


def test_a_damaged_index_lists_its_missing_documents(tmp_path: Path) -> None:
    build_index(
        document_shards(DOCUMENTS, size=10), tmp_path / "i", options=IndexOptions(segment_documents=10), progress=False
    )
    segments = tmp_path / "i" / "segments"
    (segments / "segment-000002" / "tokens.bin").write_bytes(b"short")
    content = bytearray((segments / "segment-000003" / "documents.bin").read_bytes())
    content[0] ^= 4
    (segments / "segment-000003" / "documents.bin").write_bytes(content)
    for opened in (Index, IndexWriter):
        with pytest.raises(FormatError, match=r"segment-000002/tokens\.bin has 5 bytes"):
            opened.open(tmp_path / "i")
    with Index.open(tmp_path / "i", skip_damaged=True) as index:
        assert len(index) == 20
        assert index.view.missing() == [f"d{i}" for i in range(10, 20)]
        doc_ids = Searcher(index).search(["cat"], 100)["0"].doc_ids
        assert len(doc_ids) == 20
        assert not set(doc_ids) & set(index.view.missing())
        with pytest.raises(FormatError) as refused:
            index.verify()
    for fault in ("segment-000002/tokens.bin", "segment-000003/documents.bin", "10 of 30 documents are missing"):
        assert fault in str(refused.value)
