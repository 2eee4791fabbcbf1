"""The queue beside an index: claims, the order of demand, what is kept of it and what is refused."""

from __future__ import annotations

import itertools
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import FormatError, IndexLocked, WriteFailed
from lightir.index import Index, IndexWriter
from lightir.pending import Demand, failures_of
from lightir.pending.keys import keys_of_pending, pending_keys
from lightir.pending.parked import Vectors
from lightir.pending.queue import HALF_LIFE_S, Queue
from lightir.pending.worker_loop import work
from lightir.types import Document
from pending_documents import FakeEncoder, documents, pending_index, require_right_vectors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pending_index(tmp_path / "index", 10)


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    with Index.open(folder) as opened:
        yield opened


def ids(index: Index, keys: tuple[int, ...]) -> list[str]:
    found = index.view.store.documents_of(keys)
    return [found[key].doc_id for key in keys]


def claimed(queue: Queue, index: Index, n: int) -> list[str]:
    def newest() -> object:
        index.refresh()
        return index.view

    return ids(index, queue.claim(newest, n).keys)  # type: ignore[arg-type]


def note(folder: Path, index: Index, doc_ids: list[str], *, at: float) -> None:
    with Queue.open(folder) as queue:
        asked = {key: doc_ids.count(doc_id) for key, doc_id in index.view.store.documents_by_key() if doc_id in doc_ids}
        queue.note(asked, at=at)


def test_the_oldest_come_first_and_nobody_claims_what_another_has(folder: Path, index: Index) -> None:
    with Queue.open(folder) as one, Queue.open(folder) as other:
        assert claimed(one, index, 3) == ["d0000", "d0001", "d0002"]
        assert claimed(other, index, 3) == ["d0003", "d0004", "d0005"]
        assert claimed(one, index, 99) == ["d0006", "d0007", "d0008", "d0009"]
        assert claimed(one, index, 99) == claimed(other, index, 99) == []
        other.release([int(pending_keys(index.view)[4])])
        assert claimed(one, index, 99) == ["d0004"]
        other.close()
        with Queue.open(folder) as third:
            assert claimed(third, index, 99) == ["d0003", "d0005"]


def test_what_queries_asked_for_comes_first(folder: Path, index: Index) -> None:
    note(folder, index, ["d0007", "d0004", "d0007"], at=0.0)
    note(folder, index, ["d0005"], at=1.0)
    with Queue.open(folder) as queue:
        assert claimed(queue, index, 5) == ["d0007", "d0005", "d0004", "d0000", "d0001"]


def test_demand_cools(folder: Path, index: Index) -> None:
    note(folder, index, ["d0001"] * 10, at=0.0)
    note(folder, index, ["d0002"], at=3 * HALF_LIFE_S)
    with Queue.open(folder) as queue:
        assert claimed(queue, index, 2) == ["d0001", "d0002"]
    note(folder, index, ["d0003"], at=4 * HALF_LIFE_S)
    with Queue.open(folder) as queue:
        assert claimed(queue, index, 3) == ["d0003", "d0001", "d0002"]


@pytest.fixture(scope="module")
def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pending_index(tmp_path_factory.mktemp("demand") / "index", 10)


@settings(deadline=None, max_examples=30)
@given(
    asked=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(0, 10**6)), max_size=30).map(
        lambda rows: sorted(rows, key=lambda row: row[2])
    )
)
def test_the_order_of_demand_is_that_of_sums_of_halved_counts(
    asked: list[tuple[int, int, int]], folder_of_all: Path
) -> None:
    folder = folder_of_all
    with Index.open(folder) as index, Queue.open(folder) as queue:
        keys = pending_keys(index.view).tolist()
        for place, count, at in asked:
            queue.note({keys[place]: count}, at=float(at))
        found = list(queue.claim(lambda: index.view, 10).keys)
        end = 10**6
        heat = {
            key: sum(n * 2.0 ** ((at - end) / HALF_LIFE_S) for place, n, at in asked if keys[place] == key)
            for key in keys
        }
        assert sorted(found) == keys
        for before, after in itertools.pairwise(found):
            assert heat[before] >= heat[after] * (1 - 1e-9)
    shutil.rmtree(folder / "queue")


def test_a_dead_worker_s_claims_are_free(folder: Path, index: Index) -> None:
    code = f"""
import signal
from lightir.index import Index
from lightir.pending.queue import Queue
with Index.open({str(folder)!r}) as index:
    queue = Queue.open({str(folder)!r})
    print(len(queue.claim(lambda: index.view, 4).keys), flush=True)
    signal.pause()
"""
    with (
        Queue.open(folder) as queue,
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        assert other.stdout.readline() == "4\n"
        assert len(claimed(queue, index, 99)) == 6
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert claimed(queue, index, 99) == ["d0000", "d0001", "d0002", "d0003"]
        assert len(list((folder / "queue" / "workers").iterdir())) == 1


def test_a_replaced_document_is_claimed_anew(folder: Path, index: Index) -> None:
    with Queue.open(folder) as one, Queue.open(folder) as other:
        first = one.claim(lambda: index.view, 1)
        one.set_aside({first.keys[0]: "no"}, at=0.0)
        assert [each.doc_id for each in one.failures(index.view)] == ["d0000"]
        with IndexWriter.open(folder) as writer:
            writer.upsert([Document("d0000", "another text")])
        assert claimed(other, index, 99)[-1] == "d0000"
        assert one.failures(index.view) == []


def test_pending_documents_are_found_by_their_numbers(folder: Path, index: Index) -> None:
    with IndexWriter.open(folder) as writer:
        shard = FakeEncoder().encode(documents(6, first=10))
        writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
        writer.delete(["d0003"])
    index.refresh()
    view = index.view
    slow = {doc_id: key for key, doc_id in view.store.documents_by_key() if doc_id in set(view.pending())}
    assert pending_keys(view).tolist() == sorted(slow.values())
    there = [doc_id for _, doc_id in view.store.documents_by_key()][::-1]
    ords = np.array([view.doc_ord(doc_id) for doc_id in there], dtype=np.uint32)
    assert keys_of_pending(view, ords).tolist() == [slow[doc_id] for doc_id in there if doc_id in slow]
    assert len(keys_of_pending(view, ords[:0])) == 0


def ords_of(index: Index, *doc_ids: str) -> np.ndarray:
    return np.array([index.view.doc_ord(doc_id) for doc_id in doc_ids], dtype=np.uint32)


def test_demand_is_told_once_a_second_and_at_the_end(folder: Path, index: Index) -> None:
    now = [0.0]
    with Demand(folder, clock=lambda: now[0]) as demand:
        demand.note(index.view, ords_of(index, "d0005"))
        demand.note(index.view, ords_of(index, "d0006"))
        assert heats(folder) == 1
        now[0] = 1.5
        demand.note(index.view, ords_of(index, "d0007"))
        assert heats(folder) == 3
        demand.note(index.view, ords_of(index, "d0008"))
        assert heats(folder) == 3
        queue = demand._queue
    assert heats(folder) == 4
    with sqlite3.connect(folder / "queue" / "queue.sqlite") as told:  # each at its time, by the clock that was given
        assert told.execute("SELECT heat * 3600 FROM demand ORDER BY doc_key").fetchall() == [
            (0,),
            (1.5,),
            (1.5,),
            (1.5,),
        ]
    assert queue is not None
    assert queue._opened.is_closed


def heats(folder: Path) -> int:
    with sqlite3.connect(folder / "queue" / "queue.sqlite") as queue:
        return int(queue.execute("SELECT count(*) FROM demand").fetchone()[0])


def test_demand_never_waits_for_a_busy_queue(folder: Path, index: Index) -> None:
    now = [0.0]
    Queue.open(folder).close()
    busy = sqlite3.connect(folder / "queue" / "queue.sqlite", isolation_level=None)
    with Demand(folder, clock=lambda: now[0]) as demand:
        busy.execute("BEGIN IMMEDIATE")
        demand.note(index.view, ords_of(index, "d0005"))
        busy.execute("ROLLBACK")
        assert heats(folder) == 0
        now[0] = 2.0
        demand.note(index.view, ords_of(index, "d0006"))
        assert heats(folder) == 2
    busy.close()


def test_where_nothing_can_be_written_demand_says_so_once(
    folder: Path, index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "queue").write_text("in the way")
    with Demand(folder) as demand:
        for _ in range(3):
            demand.note(index.view, ords_of(index, "d0005"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "not noted" in caplog.text


def test_an_index_without_pending_documents_gets_no_queue(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 0)
    with IndexWriter.open(folder) as writer:
        shard = FakeEncoder().encode(documents(3))
        writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
    with Index.open(folder) as index, Demand(folder) as demand:
        demand.note(index.view, ords_of(index, "d0001"))
        assert failures_of(index.view) == []
    assert not (folder / "queue").exists()


def test_a_damaged_queue_is_named_with_what_to_do(folder: Path, index: Index) -> None:
    Queue.open(folder).close()
    path = folder / "queue" / "queue.sqlite"
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FormatError, match=r"format 99; this release reads 1\. Remove .*queue"):
        Queue.open(folder)
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(FormatError, match=r"queue\.sqlite is damaged.*Remove .*queue"):
        failures_of(index.view)
    shutil.rmtree(folder / "queue")
    assert failures_of(index.view) == []


def changed(folder: Path, statement: str, *arguments: object) -> None:
    """The queue's file after one statement that no queue ever makes."""
    connection = sqlite3.connect(folder / "queue" / "queue.sqlite")
    with connection:
        connection.execute(statement, arguments)
    connection.close()


@pytest.mark.parametrize("name", ["../../store.sqlite", "..", "", "a\0b", "x" * 400, b"\xff", "12-abc", "victim"])
def test_a_claim_whose_worker_cannot_be_is_free_and_no_file_of_that_name_goes(
    folder: Path, index: Index, name: object
) -> None:
    """A worker's file is removed when it died; the name comes out of a file that others may have written."""
    Queue.open(folder).close()
    (folder / "queue" / "workers" / "victim").touch()
    (folder / "queue" / "workers" / "a folder").mkdir()
    before = sorted(path for path in folder.rglob("*") if not path.name.startswith("queue.sqlite-"))
    changed(folder, "INSERT INTO claims VALUES (1, ?)", name)
    with Queue.open(folder) as queue:
        assert len(claimed(queue, index, 99)) == 10
    assert sorted(path for path in folder.rglob("*") if not path.name.startswith("queue.sqlite-")) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE parked SET dense = 2.5 WHERE doc_key = 2",
        "UPDATE parked SET dense = 'text'",
        "UPDATE parked SET dense = NULL WHERE doc_key = 2",
        "UPDATE parked SET dense = NULL",
        "UPDATE parked SET term_ids = NULL, impacts = NULL",
        "UPDATE parked SET dense = X'00'",
        "UPDATE parked SET dense = X'00000000'",
        "UPDATE parked SET dense = X'00000000' WHERE doc_key = 2",
        "UPDATE parked SET term_ids = NULL WHERE doc_key = 2",
        "UPDATE parked SET term_ids = X'0000'",
        "UPDATE parked SET term_ids = X'FFFFFFFF'",
        "UPDATE parked SET impacts = X'0102'",
        "DROP TABLE parked",
    ],
)
def test_parked_vectors_that_are_none_are_said_and_spoil_no_index(folder: Path, index: Index, statement: str) -> None:
    with Queue.open(folder) as queue:
        claim = queue.claim(lambda: index.view, 4)
        documents = index.view.store.documents_of(claim.keys)
        queue.park(claim.keys, Vectors.of([FakeEncoder().encode([documents[key] for key in claim.keys])]))
    changed(folder, statement)
    with pytest.raises((FormatError, WriteFailed), match=r"queue\.sqlite"):
        work(folder, FakeEncoder(), once=True, progress=False)
    shutil.rmtree(folder / "queue")
    assert work(folder, FakeEncoder(), once=True, progress=False).pending == 0
    with Index.open(folder) as after:
        assert len(require_right_vectors(after)) == 10


ROW = (b"\0" * 8, b"\1\0\0\0\2\0\0\0", b"\5\6")
"""A dense row of four, and two terms with their impacts."""


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([ROW, (b"\0" * 16, *ROW[1:]), (None, *ROW[1:])], "differ in width"),
        ([ROW, (None, *ROW[1:]), (b"\0" * 16, *ROW[1:])], "differ in width"),
        ([ROW, (ROW[0], None, None)], "differ in number"),
        ([(ROW[0], None, None), ROW], "differ in number"),
        ([ROW, (ROW[0], b"", b"\7"), (ROW[0], b"\1\0\0\0\2\0\0\0", b"\7")], "differ in number"),
        ([ROW, (ROW[0], b"\1\0\0\0", None)], "differ in number"),
    ],
)
def test_parked_rows_that_fit_only_all_together_are_not_given_to_each_others_documents(rows: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Vectors.from_blobs(rows, 9)


@pytest.mark.parametrize("kinds", ["both", "dense", "sparse"])
def test_what_is_parked_comes_back(kinds: str) -> None:
    empty = (b"\0\x3c" * 4, b"", b"")
    rows = [ROW, empty, ROW]
    if kinds == "dense":
        rows = [(each[0], None, None) for each in rows]  # type: ignore[misc]
    if kinds == "sparse":
        rows = [(None, *each[1:]) for each in rows]  # type: ignore[misc]
    found = Vectors.from_blobs(rows, 9)
    assert [found.blobs(place) for place in range(3)] == rows
    assert [found.take(np.array([1, 0])).blobs(place) for place in range(2)] == [rows[1], rows[0]]
    if found.dense is not None:
        assert found.dense.tolist() == [[0.0] * 4, [1.0] * 4, [0.0] * 4]


def test_demand_and_failures_of_other_types_are_read_as_numbers_and_text(folder: Path, index: Index) -> None:
    with Queue.open(folder) as queue:
        queue.set_aside({1: "an error", 2: "another"}, at=3.0)
        queue.note({4: 1, 5: 1}, at=0.0)
    changed(folder, "UPDATE failures SET error = 7, at = 'noon' WHERE doc_key = 2")
    changed(folder, "UPDATE demand SET heat = 'hot' WHERE doc_key = 4")
    with Queue.open(folder) as queue:
        assert [(each.error, each.at) for each in queue.failures(index.view)] == [("an error", 3.0), ("7", 0.0)]
        queue.note({4: 2, 5: 1}, at=0.0)
        assert sorted(claimed(queue, index, 2)) == ["d0003", "d0004"]


def test_damage_that_only_a_change_meets_is_named_too(folder: Path, index: Index) -> None:
    Queue.open(folder).close()
    path = folder / "queue" / "queue.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # the first page, with the schema, is whole
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"queue\.sqlite is damaged.*Remove .*queue"), Queue.open(folder) as queue:
        claimed(queue, index, 3)


def test_others_wait_for_a_brief_writer_but_not_for_a_long_one(folder: Path) -> None:
    brief = IndexWriter.open(folder, brief=True)
    threading.Timer(0.1, brief.close).start()
    with IndexWriter.open(folder) as long:
        assert len(long) == 10
        with pytest.raises(IndexLocked):
            IndexWriter.open(folder, brief=True)
