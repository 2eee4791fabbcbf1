"""The queue of changes: order, shared commits, refusals, and what is done before the service stops."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import IndexLocked, InvalidInput
from lightir.index import Index, IndexWriter
from lightir.serve.writing import Delete, QueueFull, ServiceStops, SetMetadata, Upsert, WriteQueue
from lightir.types import Document


def queue_of(folder: Path, **changes: Any) -> WriteQueue:
    return WriteQueue(folder, **{"max_waiting": 100, "lock_s": 5.0, **changes})


def ids(folder: Path) -> list[str]:
    with Index.open(folder) as index:
        return index.ids()


def generation(folder: Path) -> int:
    with Index.open(folder) as index:
        return index.view.generation


def test_changes_that_wait_share_a_commit_and_keep_their_order(shop: Path) -> None:
    before = generation(shop)
    writes = queue_of(shop)
    with IndexWriter.open(shop, brief=True):  # while it is open, changes wait
        first = writes.submit(Upsert([Document("start", "x")]))
        jobs = [writes.submit(Upsert([Document(f"n{i}", "x")])) for i in range(20)]
        again = writes.submit(Upsert([Document("n3", "second")]))
        deleted = writes.submit(Delete(["n5", "none"]))
        changed = writes.submit(SetMetadata({"n6": {"price": 5}}))
    writes.close()
    assert [job.result.result() for job in (first, *jobs, again, deleted, changed)] == [1] * 24
    with Index.open(shop) as index:
        assert {f"n{i}" for i in range(20) if i != 5} <= set(index.ids())
        assert "n5" not in index.ids()
        assert index.get(["n3"])["n3"].text == "second"
        assert index.get(["n6"])["n6"].metadata == {"price": 5}
    assert generation(shop) - before <= 6  # 24 changes


def test_a_wrong_change_fails_alone(shop: Path) -> None:
    writes = queue_of(shop)
    with IndexWriter.open(shop, brief=True):
        writes.submit(Upsert([Document("start", "x")]))
        jobs = [writes.submit(Upsert([Document(f"n{i}", "x", "", {"price": i if i != 2 else "x"})])) for i in range(4)]
    writes.close()
    assert [job.state for job in jobs] == ["done", "done", "failed", "done"]
    with pytest.raises(InvalidInput, match="price"):
        jobs[2].result.result()
    assert {"n0", "n1", "n3"} == {doc_id for doc_id in ids(shop) if doc_id.startswith("n")}


def test_a_full_queue_refuses_and_a_stopped_one_too(shop: Path) -> None:
    writes = queue_of(shop, max_waiting=2)
    with IndexWriter.open(shop, brief=True):
        accepted = [writes.submit(Upsert([Document("n0", "x")]))]
        while len(writes):  # until the thread has taken it
            time.sleep(0.001)
        accepted += [writes.submit(Upsert([Document(f"n{i}", "x")])) for i in (1, 2)]
        with pytest.raises(QueueFull, match="2 changes wait"):
            writes.submit(Upsert([Document("n3", "x")]))
    writes.close()
    with pytest.raises(ServiceStops):
        writes.submit(Delete(["x"]))
    writes.close()
    assert all(job.state == "done" for job in accepted)
    assert len([doc_id for doc_id in ids(shop) if doc_id.startswith("n")]) == len(accepted)


def test_another_writer_is_waited_for_and_then_named(shop: Path) -> None:
    writes = queue_of(shop, lock_s=0.05)
    with IndexWriter.open(shop):
        job = writes.submit(Delete(["kettle-1"]))
        with pytest.raises(IndexLocked):
            job.result.result(timeout=20)
    assert writes.submit(Delete(["kettle-1"])).result.result(timeout=20) == 1
    writes.close()


def test_readers_see_a_change_before_its_job_is_done(shop: Path) -> None:
    seen: list[list[str]] = []
    writes = queue_of(shop, committed=lambda: seen.append(ids(shop)))
    writes.submit(Upsert([Document("new", "x")])).result.result(timeout=20)
    writes.close()
    assert "new" in seen[-1]
