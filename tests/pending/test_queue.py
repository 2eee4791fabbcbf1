"""The queue beside an index: claims, failures, demand, parked vectors, and damaged or old files."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import FormatError, IndexLocked, WriteFailed
from lightir.index import Index, IndexWriter
from lightir.index.connections import is_busy
from lightir.pending import (
    Demand,
    Encoded,
    Queue,
    WorkOptions,
    deliver,
    failures_of,
    keys_of_pending,
    pending_keys,
    work,
    worker_lock,
)
from lightir.types import Document
from pending_documents import FakeEncoder, documents, pending_index, require_right_vectors
from small_collections import word_contract


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return pending_index(tmp_path / "index", 10)


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    with Index.open(folder) as opened:
        yield opened


def claimed(queue: Queue, index: Index, n: int) -> list[str]:
    keys = queue.claim(index, n).keys
    documents_by_key = index.view.store.documents.of(keys)
    return [documents_by_key[key].doc_id for key in keys]


def add_demand(folder: Path, index: Index, doc_ids: list[str]) -> None:
    with Queue.open(folder) as queue:
        keys = {doc_id: key for key, doc_id in index.view.store.documents.ids_by_key()}
        queue.add_demand(Counter(keys[doc_id] for doc_id in doc_ids))


def test_the_oldest_are_claimed_first_and_each_document_once(folder: Path, index: Index) -> None:
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


def test_the_most_demanded_are_claimed_first_then_the_oldest(folder: Path, index: Index) -> None:
    add_demand(folder, index, ["d0007", "d0004", "d0007"])
    add_demand(folder, index, ["d0005", "d0005", "d0007"])
    with Queue.open(folder) as queue:
        assert claimed(queue, index, 5) == ["d0007", "d0005", "d0004", "d0000", "d0001"]


@pytest.fixture(scope="module")
def folder_of_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pending_index(tmp_path_factory.mktemp("demand") / "index", 10)


@settings(max_examples=30)
@given(additions=st.lists(st.dictionaries(st.integers(0, 9), st.integers(1, 5)), max_size=30))
def test_the_order_of_demand_is_that_of_the_number_of_queries(
    additions: list[dict[int, int]], folder_of_all: Path
) -> None:
    with Index.open(folder_of_all) as index, Queue.open(folder_of_all) as queue:
        keys = pending_keys(index.view).tolist()
        totals = dict.fromkeys(keys, 0)
        for counts in additions:
            queue.add_demand({keys[position]: count for position, count in counts.items()})
            for position, count in counts.items():
                totals[keys[position]] += count
        assert list(queue.claim(index, 10).keys) == sorted(keys, key=lambda key: (-totals[key], key))
    shutil.rmtree(folder_of_all / "queue")


def test_claims_of_a_dead_worker_are_released(folder: Path, index: Index) -> None:
    code = f"""
import signal
from lightir.index import Index
from lightir.pending import Queue
with Index.open({str(folder)!r}) as index:
    queue = Queue.open({str(folder)!r})
    print(len(queue.claim(index, 4).keys), flush=True)
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


def test_a_replaced_document_can_be_claimed_again(folder: Path, index: Index) -> None:
    with Queue.open(folder) as one, Queue.open(folder) as other:
        first = one.claim(index, 1)
        one.record_failures({first.keys[0]: "no"}, at=0.0)
        assert [failure.doc_id for failure in one.failures(index.view)] == ["d0000"]
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
    slow = {doc_id: key for key, doc_id in view.store.documents.ids_by_key() if doc_id in set(view.pending())}
    assert pending_keys(view).tolist() == sorted(slow.values())
    there = [doc_id for _, doc_id in view.store.documents.ids_by_key()][::-1]
    ords = np.array([view.doc_ord(doc_id) for doc_id in there], dtype=np.uint32)
    assert keys_of_pending(view, ords).tolist() == [slow[doc_id] for doc_id in there if doc_id in slow]
    assert len(keys_of_pending(view, ords[:0])) == 0


def ords_of(index: Index, *doc_ids: str) -> np.ndarray:
    return np.array([index.view.doc_ord(doc_id) for doc_id in doc_ids], dtype=np.uint32)


def test_demand_is_written_once_a_second_and_at_the_end(folder: Path, index: Index) -> None:
    now = [0.0]
    with Demand(folder, clock=lambda: now[0]) as demand:
        demand.note(index.view, ords_of(index, "d0005"))
        demand.note(index.view, ords_of(index, "d0006"))
        assert stored_demand(folder) == {"d0005": 1}
        now[0] = 1.5
        demand.note(index.view, ords_of(index, "d0007", "d0005"))
        assert stored_demand(folder) == {"d0005": 2, "d0006": 1, "d0007": 1}
        demand.note(index.view, ords_of(index, "d0008"))
        assert len(stored_demand(folder)) == 3
        queue = demand._queue
    assert len(stored_demand(folder)) == 4
    assert queue is not None
    assert queue._opened.is_closed


def stored_demand(folder: Path) -> dict[str, int]:
    with Index.open(folder) as index, closing(sqlite3.connect(folder / "queue" / "queue.sqlite")) as queue:
        doc_ids = dict(index.view.store.documents.ids_by_key())
        return {doc_ids[key]: count for key, count in queue.execute("SELECT doc_key, queries FROM demand")}


def test_demand_does_not_wait_for_a_busy_queue(folder: Path, index: Index) -> None:
    now = [0.0]
    Queue.open(folder).close()
    busy = sqlite3.connect(folder / "queue" / "queue.sqlite", isolation_level=None)
    with Demand(folder, clock=lambda: now[0]) as demand:
        busy.execute("BEGIN IMMEDIATE")
        demand.note(index.view, ords_of(index, "d0005"))
        busy.execute("ROLLBACK")
        assert stored_demand(folder) == {}
        now[0] = 2.0
        demand.note(index.view, ords_of(index, "d0006"))
        assert len(stored_demand(folder)) == 2
    busy.close()


def test_where_nothing_can_be_written_demand_logs_one_warning(
    folder: Path, index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "queue").write_text("in the way")
    with Demand(folder) as demand:
        for _ in range(3):
            demand.note(index.view, ords_of(index, "d0005"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "not recorded" in caplog.text


def test_an_index_without_pending_documents_gets_no_queue(tmp_path: Path) -> None:
    folder = pending_index(tmp_path / "index", 0)
    with IndexWriter.open(folder) as writer:
        shard = FakeEncoder().encode(documents(3))
        writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
    with Index.open(folder) as index, Demand(folder) as demand:
        demand.note(index.view, ords_of(index, "d0001"))
        assert failures_of(index.view) == []
    assert not (folder / "queue").exists()


def test_a_damaged_queue_is_refused_by_name_with_a_remedy(folder: Path, index: Index) -> None:
    Queue.open(folder).close()
    path = folder / "queue" / "queue.sqlite"
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FormatError, match=r"format 99; this release reads 2\. Remove .*queue"):
        Queue.open(folder)
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(FormatError, match=r"queue\.sqlite is damaged.*Remove .*queue"):
        failures_of(index.view)
    shutil.rmtree(folder / "queue")
    assert failures_of(index.view) == []


def execute(folder: Path, statement: str, *arguments: object) -> None:
    """Run a statement on the queue's file that no queue runs."""
    connection = sqlite3.connect(folder / "queue" / "queue.sqlite")
    with connection:
        connection.execute(statement, arguments)
    connection.close()


@pytest.mark.parametrize(
    "name", ["../../store.sqlite", "..", "", "a\0b", "x" * 400, b"\xff", "12-abc", "victim", "parked-a"]
)
def test_a_claim_of_an_impossible_holder_is_released_and_no_file_of_that_name_is_removed(
    folder: Path, index: Index, name: object
) -> None:
    """The files of dead workers are removed; their names come from a database that others may have written."""
    Queue.open(folder).close()
    (folder / "queue" / "workers" / "victim").touch()
    (folder / "queue" / "workers" / "a folder").mkdir()
    before = sorted(path for path in folder.rglob("*") if not path.name.startswith("queue.sqlite-"))
    execute(folder, "INSERT INTO claims VALUES (1, ?)", name)
    with Queue.open(folder) as queue:
        assert len(claimed(queue, index, 99)) == 10
    assert sorted(path for path in folder.rglob("*") if not path.name.startswith("queue.sqlite-")) == before


def park(folder: Path, index: Index, n: int) -> Path:
    """Claim n documents, encode and park them; return the batch."""
    with Queue.open(folder) as queue:
        before = set(queue.parked())
        claim = queue.claim(index, n)
        claimed_documents = list(index.view.store.documents.of(claim.keys).values())
        queue.park(claim.keys, word_contract(), FakeEncoder().encode(claimed_documents))
        (batch,) = set(queue.parked()) - before
        return batch


def test_parked_documents_are_not_claimed_until_their_batch_is_gone(folder: Path, index: Index) -> None:
    batch = park(folder, index, 4)
    with Queue.open(folder) as queue:
        assert claimed(queue, index, 99) == ["d0004", "d0005", "d0006", "d0007", "d0008", "d0009"]
        queue.remove_parked(batch)
        assert queue.parked() == []
        assert claimed(queue, index, 99) == ["d0000", "d0001", "d0002", "d0003"]


def test_a_batch_that_is_removed_by_hand_is_encoded_again(folder: Path, index: Index) -> None:
    shutil.rmtree(park(folder, index, 4))
    encoder = FakeEncoder()
    assert work(folder, encoder, WorkOptions(once=True), progress=False).committed == 10
    assert len(encoder.encoded) == 10


def test_parked_vectors_of_dead_workers_are_committed_even_if_the_database_is_lost(folder: Path, index: Index) -> None:
    park(folder, index, 4)
    park(folder, index, 3)
    for path in (folder / "queue").glob("queue.sqlite*"):
        path.unlink()
    with Queue.open(folder) as queue:
        deliver(folder, queue, word_contract(), Encoded(), wait_s=0.0)
        assert queue.parked() == []
    index.refresh()
    assert len(require_right_vectors(index)) == 7


def test_parked_vectors_of_changed_and_deleted_documents_are_dropped(folder: Path, index: Index) -> None:
    park(folder, index, 4)
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("d0001", "another text"), Document("d0002", "its text", metadata={"n": 1})])
        writer.delete(["d0003"])
    with Queue.open(folder) as queue:
        delivery = deliver(folder, queue, word_contract(), Encoded(), wait_s=0.0)
        assert delivery.committed == ["d0000"]
        assert delivery.dropped == ["d0001", "d0002", "d0003"]
        assert queue.parked() == []
    index.refresh()
    assert require_right_vectors(index) == {"d0000"}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


SHARD_FILES = ("documents.jsonl", "dense.npy", "indptr.npy", "term_ids.npy", "impacts.npy")
FILES = ("lightir.json", "manifest.json", *(f"shard-00000/{name}" for name in SHARD_FILES))


@pytest.mark.parametrize("damage", [truncate, flip_last_bit, Path.unlink])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_batch_is_named_and_its_documents_are_encoded_again(
    folder: Path, index: Index, name: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    batch, whole = park(folder, index, 4), park(folder, index, 2)
    damage(batch / "vectors" / name)
    encoder = FakeEncoder()
    assert work(folder, encoder, WorkOptions(once=True), progress=False).committed == 10
    if caplog.messages:
        (message,) = caplog.messages
        assert f"parked vectors {batch} are removed and their documents encoded again" in message
        assert len(encoder.encoded) == 8
    else:  # the last byte of a JSON file is a line's end, which says nothing
        assert name.endswith(".json")
        assert len(encoder.encoded) == 4
    assert not whole.exists()
    with Index.open(folder) as after:
        assert len(require_right_vectors(after)) == 10


@pytest.mark.parametrize("lacking", ["dense", "sparse"])
def test_a_batch_of_another_model_or_without_a_branch_is_named_and_encoded_again(
    folder: Path, index: Index, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Queue.open(folder) as queue:
        claim = queue.claim(index, 6)
        first = list(index.view.store.documents.of(claim.keys).values())
        vectors = FakeEncoder().encode(first[:3])
        queue.park(claim.keys[:3], word_contract(), dataclasses.replace(vectors, **{lacking: None}))
        queue.park(claim.keys[3:], word_contract(attention="bidirectional"), FakeEncoder().encode(first[3:]))
    assert work(folder, FakeEncoder(), WorkOptions(once=True), progress=False).committed == 10
    assert sorted(text for message in caplog.messages for text in ("attention is", "lightir") if text in message)
    assert sum("parked vectors" in message for message in caplog.messages) == 2
    with Index.open(folder) as after:
        assert len(require_right_vectors(after)) == 10


def test_unfinished_batches_of_killed_workers_are_removed(folder: Path, index: Index) -> None:
    batch = park(folder, index, 4)
    left = batch.with_name(".parked-0123456789abcdef.new-01234567")
    shutil.copytree(batch, left)
    (batch.parent / "a foreign file").touch()
    assert work(folder, FakeEncoder(), WorkOptions(once=True), progress=False).committed == 10
    assert [path.name for path in batch.parent.iterdir()] == ["a foreign file"]


def old_queue(folder: Path, *, parked: int) -> None:
    """Write a queue of version 1 with a dead worker's claim, a failure, demand and parked vectors."""
    (folder / "queue" / "workers").mkdir(parents=True)
    connection = sqlite3.connect(folder / "queue" / "queue.sqlite")
    with connection:
        connection.executescript(
            """
            PRAGMA auto_vacuum = FULL;
            PRAGMA user_version = 1;
            PRAGMA journal_mode = WAL;
            CREATE TABLE claims (doc_key INTEGER PRIMARY KEY, worker TEXT NOT NULL);
            CREATE TABLE failures (doc_key INTEGER PRIMARY KEY, error TEXT NOT NULL, at REAL NOT NULL);
            CREATE TABLE demand (doc_key INTEGER PRIMARY KEY, heat REAL NOT NULL);
            CREATE INDEX hottest ON demand (heat DESC, doc_key);
            CREATE TABLE parked (doc_key INTEGER PRIMARY KEY, dense BLOB, term_ids BLOB, impacts BLOB);
            INSERT INTO claims VALUES (1, '99999-0123456789abcdef');
            INSERT INTO failures VALUES (2, 'an error', 3.0);
            INSERT INTO demand VALUES (8, 490123.5);
            """
        )
        connection.executemany("INSERT INTO parked VALUES (?, X'00', NULL, NULL)", [(3 + i,) for i in range(parked)])
    connection.close()


@pytest.mark.parametrize("parked", [0, 2])
def test_a_queue_of_the_first_version_is_migrated(
    folder: Path, index: Index, parked: int, caplog: pytest.LogCaptureFixture
) -> None:
    old_queue(folder, parked=parked)
    assert [failure.error for failure in failures_of(index.view)] == ["an error"]
    with Queue.open(folder) as one, Queue.open(folder) as other:
        assert claimed(one, index, 2) == ["d0007", "d0000"]
        assert len(claimed(other, index, 99)) == 7
        assert one.retry_failed() == 1
    messages = [message for message in caplog.messages if "2 documents had vectors parked by an earlier rel" in message]
    assert len(messages) == bool(parked)
    assert work(folder, FakeEncoder(), WorkOptions(once=True), progress=False).committed == 10


def test_demand_and_failures_of_other_types_are_read_as_numbers_and_text(folder: Path, index: Index) -> None:
    with Queue.open(folder) as queue:
        queue.record_failures({1: "an error", 2: "another"}, at=3.0)
        queue.add_demand({4: 1, 5: 1})
    execute(folder, "UPDATE failures SET error = 7, at = 'noon' WHERE doc_key = 2")
    execute(folder, "UPDATE demand SET queries = 'many' WHERE doc_key = 4")
    with Queue.open(folder) as queue:
        failures = queue.failures(index.view)
        assert [(failure.error, failure.at) for failure in failures] == [("an error", 3.0), ("7", 0.0)]
        queue.add_demand({4: 2, 5: 1})
        assert sorted(claimed(queue, index, 2)) == ["d0003", "d0004"]


def test_damage_found_during_a_change_is_reported_by_name(folder: Path, index: Index) -> None:
    Queue.open(folder).close()
    path = folder / "queue" / "queue.sqlite"
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)  # the first page, with the schema, is whole
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"queue\.sqlite is damaged.*Remove .*queue"), Queue.open(folder) as queue:
        claimed(queue, index, 3)
    assert not list((folder / "queue" / "workers").iterdir()), "the lock of the worker outlives it"


def test_others_wait_for_a_brief_writer_but_not_for_a_long_one(folder: Path) -> None:
    brief = IndexWriter.open(folder, brief=True)
    threading.Timer(0.1, brief.close).start()
    with IndexWriter.open(folder) as long:
        assert len(long) == 10
        with pytest.raises(IndexLocked):
            IndexWriter.open(folder, brief=True)


def test_two_workers_that_claim_at_once_get_different_documents(
    folder: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second claim starts when the first one has read the view and has not chosen yet; it waits for the queue."""
    refresh, refused = index.refresh, []
    with Queue.open(folder) as one, Queue.open(folder, busy_s=0.0) as other, Index.open(folder) as its_index:

        def meanwhile() -> bool:
            changed = refresh()
            with pytest.raises(WriteFailed) as caught:
                other.claim(its_index, 3)
            refused.append(is_busy(caught.value))
            return changed

        with monkeypatch.context() as patched:
            patched.setattr(index, "refresh", meanwhile)
            first = claimed(one, index, 3)
        assert refused == [True]
        assert first == ["d0000", "d0001", "d0002"]
        assert claimed(other, its_index, 3) == ["d0003", "d0004", "d0005"]


def test_what_a_dying_worker_commits_before_its_claim_is_released_is_not_claimed_again(
    folder: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim reads the view after it has released the stale claims: an earlier view would show them as pending."""
    with Queue.open(folder) as dying, Queue.open(folder) as other:
        claim = dying.claim(index, 4)
        shard = FakeEncoder().encode(list(claim.view.store.documents.of(claim.keys).values()))
        release = other._release_stale_claims

        def late(own_name: str) -> None:
            with IndexWriter.open(folder) as writer:
                writer.set_vectors(shard.documents, dense=shard.dense, sparse=shard.sparse)
            assert dying._worker is not None
            dying._worker.release()
            release(own_name)

        monkeypatch.setattr(other, "_release_stale_claims", late)
        assert claimed(other, index, 99) == [f"d{i:04d}" for i in range(4, 10)]


def test_a_worker_s_new_file_may_be_removed_as_a_dead_worker_s_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = worker_lock._locked

    def after_removal(path: Path) -> object:
        monkeypatch.setattr(worker_lock, "_locked", locked)
        assert worker_lock.remove_if_dead(path)
        return locked(path)

    monkeypatch.setattr(worker_lock, "_locked", after_removal)
    holder = worker_lock.WorkerLock.create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [holder.name]
    assert not worker_lock.remove_if_dead(tmp_path / holder.name)
    holder.release()
    assert list(tmp_path.iterdir()) == []
