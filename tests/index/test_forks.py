"""An index that was open when the process forked, in the child and in the parent."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lightir.errors import IndexLocked, InvalidInput
from lightir.index import Index, IndexWriter
from lightir.pending import Demand, Queue
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from small_collections import word_contract


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with IndexWriter.create(tmp_path / "index") as writer:
        writer.add([Document(f"d{i}", f"alpha word{i}", metadata={"n": i}) for i in range(20)])
    return tmp_path / "index"


def in_a_child(work: Callable[[], object], *, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Run `work` in a forked process, and `meanwhile` in the parent as soon as the child has begun."""
    begun, begin = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(60)  # a blocked child fails
        try:
            os.write(begin, b"1")
            work()
            code = 0
        except BaseException:  # noqa: BLE001 - a child must not go on as a second pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    os.read(begun, 1)
    meanwhile()
    assert os.waitpid(child, 0)[1] == 0


def found(index: Index, query: str) -> list[str]:
    return [hit.doc_id for hit in Searcher(index).hits(query, 3)]


def test_a_childs_changes_survive_when_the_parent_closes_the_index(folder: Path) -> None:
    """Regression: SQLite believed that the child held the parent's locks, and the parent deleted the child's log."""
    index = Index.open(folder)
    closed, close = os.pipe()

    def write() -> None:
        with IndexWriter.open(folder) as writer:
            writer.add([Document("first", "written")])
            os.read(closed, 1)
            writer.add([Document("second", "written")])

    def close_it() -> None:
        while True:  # until the child's first change is visible
            with Index.open(folder) as other:
                if len(other) == 21:
                    break
        index.close()
        os.write(close, b"1")

    in_a_child(write, meanwhile=close_it)
    with Index.open(folder) as after:
        assert sorted(found(after, "written")) == ["first", "second"]
        after.verify()


def test_a_child_searches_the_current_state_of_its_parents_index(folder: Path) -> None:
    with Index.open(folder) as index:
        searcher = Searcher(index)
        view = index.view
        with IndexWriter.open(folder) as writer:
            writer.delete(["d3"])

        def search() -> None:
            assert searcher.hits("word3", 1) == []
            (hit,) = searcher.hits("word4", 1, SearchOptions(filter={"n": 4}))
            assert (hit.doc_id, hit.metadata) == ("d4", {"n": 4})
            assert not index.refresh()
            with pytest.raises(InvalidInput, match="before this process was forked"):
                view.store.documents.named(["d4"])

        in_a_child(search)
        assert found(index, "word3") == ["d3"]  # the parent keeps its view


def test_a_child_does_not_inherit_a_writer(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:

        def write() -> None:
            with pytest.raises(InvalidInput, match="before this process was forked"):
                writer.add([Document("x", "x")])
            with pytest.raises(IndexLocked):
                IndexWriter.open(folder, wait_s=0)
            writer.close()
            with pytest.raises(IndexLocked):
                IndexWriter.open(folder, wait_s=0)

        in_a_child(write)
        writer.add([Document("y", "y")])


def test_a_surviving_child_does_not_keep_the_writers_lock(folder: Path) -> None:
    ended, end = os.pipe()

    def write_meanwhile() -> None:
        writer.close()
        IndexWriter.open(folder, wait_s=0).close()
        os.write(end, b"1")

    writer = IndexWriter.open(folder)
    in_a_child(lambda: os.read(ended, 1), meanwhile=write_meanwhile)


def test_a_fork_in_the_middle_of_a_change_leaves_the_change_alone(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:

        def refused() -> None:
            with pytest.raises(InvalidInput, match="was changing it"):
                Index.open(folder)

        with writer._store.transaction():
            writer._store.set_record({**writer._store.record(), "note": 1})
            in_a_child(refused)
        assert writer._store.record()["note"] == 1
    with Index.open(folder) as index:
        index.verify()


def test_a_fork_does_not_wait_forever_for_a_thread(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightir.index.connections.FORK_WAIT_S", 0.01)
    with Index.open(folder) as index:
        holding, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with index.view.store.session.opened.lock:
                holding.set()
                let_go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        assert holding.wait(timeout=30)

        def refused() -> None:
            with pytest.raises(InvalidInput, match="forked"):
                Searcher(index).hits("alpha", 1)

        in_a_child(refused)
        let_go.set()
        thread.join()
        assert found(index, "word1") == ["d1"]


def test_a_forked_child_writes_its_demand_too(folder: Path) -> None:
    with Demand(folder) as demand:
        demand._counts[1] += 1
        demand.flush()

        def flush() -> None:
            demand._counts[2] += 1
            demand.flush()
            demand.close()

        in_a_child(flush)
        assert demand._queue is not None
        assert sorted(row[0] for row in demand._queue._select("SELECT doc_key FROM demand")) == [1, 2]


def test_a_forked_child_counts_from_zero_and_needs_no_lock_of_its_parent(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "pending", contract=word_contract()) as writer:
        writer.add([Document("a", "alpha"), Document("b", "beta")])
    with Index.open(tmp_path / "pending") as index, Demand(tmp_path / "pending", clock=lambda: 0.0) as demand:
        demand._flushed_at = 0.0
        demand.note(index.view, np.array([0, 1], np.uint32))  # not written yet

        def note() -> None:
            demand.note(index.view, np.array([1], np.uint32))
            assert demand._counts == {2: 1}

        with demand._counting:  # as if another thread were counting
            in_a_child(note)
        assert demand._counts == {1: 1, 2: 1}


def test_demand_that_cannot_be_written_in_a_forked_child_does_not_stop_its_searches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The process was forked while another thread was writing to the queue."""
    with IndexWriter.create(tmp_path / "pending", contract=word_contract()) as writer:
        writer.add([Document("a", "alpha")])
    with (
        Index.open(tmp_path / "pending") as index,
        Demand(tmp_path / "pending") as demand,
        Queue.open(tmp_path / "pending") as queue,
    ):

        def note() -> None:
            demand.note(index.view, np.array([0], np.uint32))
            assert "was changing it" in caplog.text

        with queue._transaction():
            in_a_child(note)


def test_a_closed_index_says_so(folder: Path) -> None:
    index = Index.open(folder)
    index.close()
    with pytest.raises(InvalidInput, match="was closed"):
        Searcher(index).hits("alpha")


def test_pickling_an_open_index_fails_with_advice(folder: Path) -> None:
    with Index.open(folder) as index:
        for opened in (index, Searcher(index)):
            with pytest.raises(TypeError, match=r"open it in each process: Index\.open"):
                pickle.dumps(opened)


def test_a_process_that_ends_during_a_search_prints_nothing(folder: Path) -> None:
    """A web server's daemon threads do this; nanobind used to print two dozen lines about leaks."""
    program = (
        "import sys, threading, time; from lightir import Index, Searcher\n"
        "index = Index.open(sys.argv[1]); searcher = Searcher(index); ready = threading.Event()\n"
        "def serve():\n    searcher.hits('alpha'); ready.set(); time.sleep(60)\n"
        "threading.Thread(target=serve, daemon=True).start(); ready.wait(); print(len(searcher.hits('alpha')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10\n", "")
