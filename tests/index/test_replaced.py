"""An index that is replaced, as by `lightir index --overwrite`, while other processes read, write or encode it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.errors import ContractMismatch, IndexLocked, InvalidInput, NotFound, WriteFailed
from lightir.index import Index, IndexWriter, build_index, connections, document_shards, lock
from lightir.index.lock import WriterLock
from lightir.index.store import Store
from lightir.index.store_file import STORE_FILE
from lightir.pending import Demand, Queue, WorkOptions, work
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from pending_documents import FakeEncoder, documents, pending_index, require_right_vectors
from small_collections import GivenVectors, animal_shard, word_contract, word_table, write_folder

OLD = [Document(f"old{i}", f"the old text {i}") for i in range(5)]
NEW = [Document(f"new{i}", f"the new text {i}") for i in range(7)]


def build(folder: Path, some: list[Document], *, overwrite: bool = False) -> Path:
    build_index(document_shards(some), folder, progress=False, overwrite=overwrite)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(tmp_path / "index", OLD)


def shown(index: Index) -> list[Document]:
    index.verify()
    doc_ids = [hit.doc_id for hit in Searcher(index).hits("text", 100)]
    assert len(doc_ids) == len(index)
    return sorted(index.documents(doc_ids), key=lambda document: document.doc_id)


@pytest.mark.parametrize("n_changes", [0, 1])
def test_a_reader_keeps_the_old_index_till_it_refreshes_and_then_sees_the_new_one_alone(
    folder: Path, n_changes: int
) -> None:
    """Both indexes may have the same number of changes, or segments of the same numbers."""
    with IndexWriter.open(folder) as writer:
        for i in range(n_changes):
            writer.add([Document(f"later{i}", "a later text")])
    with Index.open(folder) as index:
        before = shown(index)
        build(folder, NEW, overwrite=True)
        assert shown(index) == before
        assert index.refresh()
        assert shown(index) == NEW
        assert not index.refresh()
        with IndexWriter.open(folder) as writer:
            writer.delete(["new3"])
        assert index.refresh()
        assert shown(index) == [document for document in NEW if document.doc_id != "new3"]


def test_filters_meet_the_new_index_s_metadata_though_its_segments_are_the_same(tmp_path: Path) -> None:
    def described(n: int) -> list[Document]:
        return [Document(f"d{i}", f"a text {i}", metadata={"n": (i + n) % 3}) for i in range(6)]

    folder = build(tmp_path / "index", described(0))
    before = (folder / "segments" / "segment-000001" / "manifest.json").read_bytes()
    with Index.open(folder) as index:
        assert [hit.doc_id for hit in Searcher(index).hits("text", options=SearchOptions(filter={"n": 1}))] == [
            "d1",
            "d4",
        ]
        build(folder, described(1), overwrite=True)
        assert (folder / "segments" / "segment-000001" / "manifest.json").read_bytes() == before
        assert index.refresh()
        assert [hit.doc_id for hit in Searcher(index).hits("text", options=SearchOptions(filter={"n": 1}))] == [
            "d0",
            "d3",
        ]


def test_a_searcher_for_another_model_is_refused_when_its_index_is_replaced(tmp_path: Path) -> None:
    encoder = GivenVectors(word_contract(), {"cat": np.ones(4, np.float32)}, {"cat": {1: 1.0}})
    build_index([animal_shard()], tmp_path / "i", contract=word_contract(), progress=False)
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index, encoder)
        assert len(searcher.search(["cat"], options=SearchOptions(mode="dense"))["0"]) == 3
        other = word_contract(attention="bidirectional")
        build_index([animal_shard()], tmp_path / "i", contract=other, progress=False, overwrite=True)
        index.refresh()
        with pytest.raises(ContractMismatch, match="but the query encoder is for"):
            searcher.search(["cat"], options=SearchOptions(mode="dense"))
        with pytest.raises(ContractMismatch, match="but the query encoder is for"):
            searcher.explain("cat", "a", SearchOptions(mode="dense"))


def test_an_index_with_a_writer_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    with IndexWriter.open(folder) as writer, Index.open(build(tmp_path / "another", NEW)) as another:
        with pytest.raises(IndexLocked, match=f"index is being written by process {os.getpid()}"):
            build(folder, NEW, overwrite=True)
        with pytest.raises(IndexLocked, match="index is being written by"):
            another.snapshot(folder, overwrite=True)
        writer.add([Document("more", "another text")])
    with Index.open(folder) as index:
        assert shown(index) == [Document("more", "another text"), *OLD]
    build(folder, NEW, overwrite=True)
    IndexWriter.open(folder).close()  # the lock of the new index is free
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "index"]


def test_nobody_writes_an_index_that_is_being_replaced(folder: Path) -> None:
    def shards() -> Any:
        with pytest.raises(IndexLocked):
            IndexWriter.open(folder, wait_s=0)
        yield from document_shards(NEW)

    build_index(shards(), folder, progress=False, overwrite=True)
    with Index.open(folder) as index:
        assert shown(index) == NEW


@pytest.mark.parametrize("change", ["add", "delete", "compact"])
def test_a_writer_whose_index_was_replaced_by_hand_changes_nothing_of_the_new_one(folder: Path, change: str) -> None:
    with IndexWriter.open(folder) as writer:
        writer.add([Document(f"more{i}", "a text") for i in range(9)])
        writer.delete(["old1"])
        shutil.rmtree(folder)
        build(folder, NEW)
        before = {path: path.read_bytes() for path in folder.rglob("*.bin")}
        with pytest.raises(WriteFailed, match="was removed or replaced by another index; open the index again"):
            {
                "add": lambda: writer.add([Document("x", "a text")]),
                "delete": lambda: writer.delete(["old2"]),
                "compact": lambda: writer.compact(progress=False),
            }[change]()
    assert {path: path.read_bytes() for path in folder.rglob("*.bin")} == before
    with Index.open(folder) as index:
        assert shown(index) == NEW


def test_a_writer_waiting_for_a_replaced_index_writes_the_new_one(folder: Path, tmp_path: Path) -> None:
    brief = WriterLock(folder, brief=True)
    writers: list[IndexWriter] = []
    waiting = threading.Thread(target=lambda: writers.append(IndexWriter.open(folder, wait_s=30)))
    waiting.start()
    build(tmp_path / "aside", NEW)
    folder.rename(tmp_path / "gone")
    (tmp_path / "aside").rename(folder)
    brief.release()
    waiting.join()
    with writers[0] as writer:
        with pytest.raises(IndexLocked):
            IndexWriter.open(folder, wait_s=0)
        writer.add([Document("x", "a text")])
    with Index.open(folder) as index:
        assert shown(index) == [*NEW, Document("x", "a text")]


KEPT: list[IndexWriter] = []


@pytest.fixture(autouse=True)
def close_kept_writers() -> Iterator[None]:
    yield
    while KEPT:
        KEPT.pop().close()


def exchange(folder: Path) -> None:
    """Replace the index by one of NEW, whose last document is still in SQLite's log."""
    aside = build(folder.with_name("aside"), NEW[:-1])
    kept = IndexWriter.open(aside)  # the last connection to close would checkpoint the log
    KEPT.append(kept)
    kept.add(NEW[-1:])
    folder.rename(folder.with_name("gone"))
    aside.rename(folder)


def test_an_index_replaced_while_it_is_opened_is_the_old_or_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite opens its log by path at the first read: it must not read the log of the other index."""
    snapshot, calls = Store._snapshot, []

    def meanwhile(path: Path, connection: Any) -> Store:
        calls.append(path)
        if len(calls) == 1:
            exchange(folder)
        return snapshot(path, connection)

    monkeypatch.setattr(Store, "_snapshot", meanwhile)
    with Index.open(folder) as index:
        assert shown(index) == NEW
    assert len(calls) >= 2


def test_a_file_replaced_while_it_is_opened_is_detected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, calls = sqlite3.connect, []

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        if not calls:
            calls.append(1)
            folder.rename(folder.with_name("gone"))
            build(folder, NEW)
        return connect(*arguments, **options)

    monkeypatch.setattr(connections.sqlite3, "connect", meanwhile)
    opened = connections.connect(folder / STORE_FILE, "rw")
    assert opened.is_current
    assert opened.execute("SELECT count(*) FROM documents").fetchone() == (7,)
    shutil.rmtree(folder)
    assert not opened.is_current
    opened.close()


def test_an_index_deleted_while_it_is_opened_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Store._snapshot

    def meanwhile(path: Path, connection: Any) -> Store:
        shutil.rmtree(folder)
        return snapshot(path, connection)

    monkeypatch.setattr(Store, "_snapshot", meanwhile)
    with pytest.raises(NotFound, match="index does not exist"):
        Index.open(folder)


def test_a_replacing_index_of_the_same_model_gets_no_old_vectors(tmp_path: Path) -> None:
    """Other documents have the same keys."""
    folder = pending_index(tmp_path / "index", 10)
    new = [Document(f"n{i}", f"the dog {i}") for i in range(20)]

    def replace(batch: Any) -> None:
        if batch[0].doc_id.startswith("d"):
            with IndexWriter.create(folder, contract=word_contract(), overwrite=True) as writer:
                writer.add(new)

    with pytest.raises(InvalidInput, match="index was replaced by another index, or its queue removed; start the"):
        work(folder, FakeEncoder(watch=replace), WorkOptions(once=True), progress=False)
    with Index.open(folder) as index:
        assert (index.info().encoded, index.info().pending) == (0, 20)
    assert work(folder, FakeEncoder(), WorkOptions(once=True), progress=False).committed == 20
    with Index.open(folder) as index:
        assert require_right_vectors(index) == {document.doc_id for document in new}


def test_an_idle_worker_reports_that_its_queue_is_gone(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 3)

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            shutil.rmtree(folder / "queue")
            return False

    with pytest.raises(InvalidInput, match="its queue removed"):
        work(folder, FakeEncoder(), stop=Stop(), progress=False)
    with Index.open(folder) as index:
        assert len(require_right_vectors(index)) == 3


def test_demand_is_recorded_in_the_current_index(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 3)
    now = [0.0]
    with Demand(folder, clock=lambda: now[0]) as demand, Index.open(folder) as index:
        demand.note(index.view, np.array([index.view.doc_ord("d0001")], np.uint32))
        with IndexWriter.create(folder, contract=word_contract(), overwrite=True) as writer:
            writer.add(documents(5))
        index.refresh()
        now[0] = 2.0
        demand.note(index.view, np.array([index.view.doc_ord("d0004")], np.uint32))
        with Queue.open(folder) as queue:
            claim = queue.claim(index, 1)
            assert index.view.store.documents.of(claim.keys)[claim.keys[0]].doc_id == "d0004"


def test_the_query_encoder_of_an_index_is_never_that_of_the_index_that_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        write_folder(tmp_path / name, word_contract(), {name: {"embeddings": word_table()}})
    folder, shards = tmp_path / "encoded", list(document_shards(OLD))
    build_index(shards, folder, query_encoder=tmp_path / "old", progress=False)

    def replace() -> None:
        build_index(shards, folder, query_encoder=tmp_path / "new", progress=False, overwrite=True)

    with Index.open(folder) as index:
        encoder = index.query_encoder()
        assert encoder is not None
        assert encoder.tasks == ("old",)
        load = CachedQueryEncoder.load

        def load_late(*arguments: Any, **options: Any) -> CachedQueryEncoder:
            patched.setattr(CachedQueryEncoder, "load", load)
            replace()
            return load(*arguments, **options)

        refused = pytest.raises(InvalidInput, match="replaced by another index, so its query encoder cannot be loaded")
        with monkeypatch.context() as patched, refused:
            patched.setattr(CachedQueryEncoder, "load", load_late)
            index.query_encoder()
        with pytest.raises(InvalidInput, match="refresh, or open the index again"):
            Searcher(index)
        assert index.refresh()
        encoder = index.query_encoder()
        assert encoder is not None
        assert encoder.tasks == ("new",)
        shutil.rmtree(folder)
        with pytest.raises(InvalidInput, match="was removed or replaced"):
            index.query_encoder()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_file_that_is_removed_while_a_writer_waits_does_not_give_two_writers(
    folder: Path, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The waiting writer has the old file open, and gets its lock when the first writer ends."""
    path, first = folder / lock.LOCK_FILE, WriterLock(folder, brief=True)
    second: list[WriterLock] = []
    waits: list[float] = []

    def meanwhile(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            path.unlink()
            second.extend([WriterLock(folder, brief=True)] if replaced else [])
            first.release()
        else:
            assert replaced, "the removed file's lock is free, and its name too"
            second[0].release()

    monkeypatch.setattr(lock.time, "sleep", meanwhile)
    waiting = WriterLock(folder)
    assert len(waits) == 1 + replaced
    assert waiting.is_current
    with pytest.raises(IndexLocked):
        WriterLock(folder, wait_s=0)
    waiting.release()


def test_a_lock_file_that_is_replaced_between_its_opening_and_its_locking_is_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked, path = lock._locked, folder / lock.LOCK_FILE

    def late(file: Any) -> bool:
        monkeypatch.setattr(lock, "_locked", locked)
        path.unlink()
        path.touch()
        return locked(file)

    monkeypatch.setattr(lock, "_locked", late)
    holder = WriterLock(folder)
    assert holder.is_current
    with pytest.raises(IndexLocked):
        WriterLock(folder, wait_s=0)
    holder.release()
