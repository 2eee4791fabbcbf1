"""A program for test_worker.py: workers that are killed, workers side by side; it forks, so Python starts once."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from lightir.index import Index, IndexWriter
from lightir.pending import Queue, WorkOptions, work, worker_loop
from lightir.pending.parked import read_parked
from pending_documents import FakeEncoder, documents, pending_index, require_right_vectors


def forked(child: Callable[[], None]) -> int:
    """The process id of a child that does something and ends."""
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:  # noqa: BLE001 - a child reports by its exit code
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    return pid


def logged(log: Path) -> list[str]:
    return [line.split()[1] for line in log.read_text().splitlines()] if log.exists() else []


def encoded(folder: Path) -> set[str]:
    with Index.open(folder) as index:
        return require_right_vectors(index)


def left_claims(folder: Path) -> set[str]:
    with Index.open(folder) as index, closing(sqlite3.connect(folder / "queue" / "queue.sqlite")) as queue:
        keys = [row[0] for row in queue.execute("SELECT doc_key FROM claims")]
        return {document.doc_id for document in index.view.store.documents.of(keys).values()}


def kills(folder: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Kill workers at random moments; what was committed stays and is never encoded again; the next one goes on."""
    rng = random.Random(seed)
    pending_index(folder, 0)
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # what was written outlives a killed process anyway
    log, n_documents, n_survivals, n_lost, n_late, before = folder / "log", 0, 0, 0, 0, set[str]()
    longest_s = 0.15  # that a worker lives; a busy machine needs more to come to a commit
    for _ in range(n_kills):
        with IndexWriter.open(folder) as writer:
            writer.upsert(documents(8, first=n_documents))
        n_documents += 8
        log.unlink(missing_ok=True)
        pid = forked(lambda: _work(folder, log, batch_size=rng.randint(1, 12)))
        while not log.exists() and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, longest_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        now = encoded(folder)
        assert before <= now, before - now
        assert not before & set(logged(log)), "a committed document was encoded again"
        assert now - before <= set(logged(log))
        n_lost += len(set(logged(log)) - now)
        claimed = left_claims(folder)
        n_late += bool(claimed & now)
        n_survivals += now > before
        longest_s *= 0.8 if now > before else 1.25
        before = now
    assert os.waitpid(forked(lambda: _work(folder, log, batch_size=64)), 0)[1] == 0
    assert len(encoded(folder)) == n_documents
    assert list((folder / "queue" / "workers").iterdir()) == []
    return {"committed": n_survivals, "lost": n_lost, "between_commit_and_queue": n_late}


def parked(folder: Path) -> set[str]:
    """The documents of parked batches that have passed their claims to the batch; every batch must be whole."""
    with Queue.open(folder) as queue, Index.open(folder) as index:
        doc_ids = {doc_id: key for key, doc_id in index.view.store.documents.ids_by_key()}
        parked_ids = set()
        for batch in queue.parked():
            keys = {doc_ids[document.doc_id] for document in read_parked(batch)[1].documents}
            rows = queue._select("SELECT doc_key FROM claims WHERE holder = ?", [batch.name])
            assert not rows or keys == {key for (key,) in rows}
            if rows:
                parked_ids |= {document.doc_id for document in read_parked(batch)[1].documents}
        return parked_ids


def parked_kills(folder: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Kill workers while another writer has the lock, then while they commit what was parked."""
    rng = random.Random(seed)
    n_documents = 40 * n_kills
    pending_index(folder, n_documents)
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    worker_loop.LOCK_WAIT_S = 0.0
    log, locked = folder / "log", folder / "locked"

    def hold_lock() -> None:
        with IndexWriter.open(folder):
            locked.touch()
            signal.pause()

    def killed(longest_s: float) -> None:
        log.unlink(missing_ok=True)
        pid = forked(lambda: _work(folder, log, batch_size=rng.randint(1, 12)))
        while not log.exists():
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                return  # it only had parked batches to commit, nothing to encode
            time.sleep(0.0005)
        time.sleep(rng.uniform(0.0, longest_s))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    holder = forked(hold_lock)
    while not locked.exists():
        time.sleep(0.001)
    before = set[str]()
    for _ in range(n_kills):
        if len(before) == n_documents:
            break  # a fast machine has parked all, and a worker with nothing to encode waits for the lock
        killed(0.1)
        assert not before & set(logged(log)), "a parked document was encoded again"
        now = parked(folder)
        assert before <= now, before - now
        before = now
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    n_killed, done, longest_s = 0, set[str](), 0.02
    while parked(folder) - done:
        killed(longest_s)
        now = encoded(folder)
        longest_s *= 0.8 if now > done else 1.25
        assert done <= now, done - now
        assert not before & set(logged(log)), "a parked document was encoded again"
        n_killed += done < now
        done = now
    log.unlink(missing_ok=True)
    _work(folder, log, batch_size=64)
    assert not (before | done) & set(logged(log))
    assert len(encoded(folder)) == n_documents
    for name in ("workers", "parked"):
        assert list((folder / "queue" / name).iterdir()) == []
    return {"parked": len(before), "killed_in_delivery": n_killed}


def side_by_side(folder: Path, n_workers: int, n_documents: int) -> dict[str, Any]:
    """Workers that share an index while it grows: together they encode every document exactly once."""
    pending_index(folder, n_documents)
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    log = folder / "log"
    children = [forked(lambda: _work(folder, log, batch_size=8)) for _ in range(n_workers)]
    for first in range(n_documents, 2 * n_documents, 10):
        with IndexWriter.open(folder) as writer:
            writer.add(documents(10, first=first))
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * n_workers, codes
    _work(folder, log, batch_size=8)  # what was added after they had found nothing more
    counts = Counter(logged(log))
    assert set(counts.values()) == {1}, counts.most_common(3)
    assert len(encoded(folder)) == len(counts) == 2 * n_documents
    return {"workers": len({line.split()[0] for line in log.read_text().splitlines()} - {str(os.getpid())})}


def _work(folder: Path, log: Path, *, batch_size: int) -> None:
    options = WorkOptions(once=True, batch_size=batch_size, encode_size=4)
    work(folder, FakeEncoder(log=log), options, progress=False)


if __name__ == "__main__":
    test, folder, *numbers = sys.argv[1:]
    program = {"kills": kills, "parked_kills": parked_kills, "side_by_side": side_by_side}[test]
    print(json.dumps(program(Path(folder), int(numbers[0]), int(numbers[1]))))
