"""A program for test_exhausted_resources.py: calls of public functions fail for want of a resource.

In each case a child process calls one public function while some of its file-system calls fail. It must return its
result or raise one of lightir's errors for the system's refusals: StorageError, WriteFailed or OutcomeUnknown.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import disk_faults
import numpy as np
from disk_faults import CHANGES, FAULTS, NEVER, documents, forked, write_templates

from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.errors import FormatError, StorageError
from lightir.index import Index, IndexWriter, build_index, connections
from lightir.index.connections import connect
from lightir.pending import Queue, WorkOptions, work
from lightir.pending.queue import failures_of
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.shards import VectorsReader, VectorsWriter
from pending_documents import FakeEncoder
from small_collections import word_contract, word_table, word_tokenizer

KINDS = {errno.EMFILE: "co", errno.ENOMEM: "p", errno.ENOLCK: "k", errno.EIO: "icowft", errno.ENOSPC: "cwtmlr"}
"""The calls that fail with each errno, by the letters of failing_calls.c."""

LOCK_STEP = 20
"""SQLite waits for up to ten seconds if it gets no locks, so only some of these calls are tried."""

NAMES = {number: errno.errorcode[number] for number in KINDS}


@dataclass(frozen=True)
class Refusal:
    """One case.

    Attributes:
        door: name of the public function.
        error: errno of the failing calls.
        first: number of the first failing call, from 1.
        last: number of the last failing call.
    """

    door: str
    error: int
    first: int
    last: int


def search(folder: Path) -> None:
    with Index.open(folder / "index") as index:
        assert len(Searcher(index).hits("cat", 30)) == 19


def refresh(folder: Path) -> None:
    opened[0].refresh()


def verify(folder: Path) -> None:
    with Index.open(folder / "index") as index:
        index.verify()
        index.info()


def delete_where(folder: Path) -> None:
    with IndexWriter.open(folder / "index") as writer:
        writer.delete_where({"year": {"gte": 2000}})
        writer.keep_only(["d0000"])


def queue(folder: Path) -> None:
    with Index.open(folder / "index") as index, Queue.open(folder / "index") as opened_queue:
        claim = opened_queue.claim(index, 3)
        opened_queue.record_failures(dict.fromkeys(claim.keys, "no"))
        failures_of(index.view)
        opened_queue.retry_failed()


def park(folder: Path) -> None:
    with Index.open(folder / "index") as index, Queue.open(folder / "index") as opened_queue:
        claim = opened_queue.claim(index, 3)
        shard = FakeEncoder().encode(list(index.view.store.documents.of(claim.keys).values()))
        opened_queue.park(claim.keys, word_contract(), shard)
    work(folder / "index", FakeEncoder(), WorkOptions(once=True), progress=False)


def write_vectors(folder: Path) -> None:
    with VectorsWriter(folder / "vectors", word_contract()) as writer:
        writer.add(FakeEncoder().encode(documents(4)))
        writer.add(FakeEncoder().encode(documents(4, first=4)))
        writer.finish()


def index_vectors(folder: Path) -> None:
    build_index(folder / "source", folder / "new", progress=False)


def read_vectors(folder: Path) -> None:
    assert len(list(VectorsReader(folder / "source"))) == 1


def cache(folder: Path) -> None:
    tables = [QueryTable("search", "", word_table().astype(np.float32))]
    write_query_encoder(folder / "encoder", word_contract(), word_tokenizer(), QueryEncoderArrays(tables))


def load(folder: Path) -> None:
    CachedQueryEncoder.load(folder / "index").encode(["cat"])


opened: list[Index] = []

DOORS: Mapping[str, Callable[[Path], None]] = {
    "search": search,
    "refresh": refresh,
    "verify": verify,
    "delete_where": delete_where,
    "queue": queue,
    "park": park,
    "write_vectors": write_vectors,
    "index_vectors": index_vectors,
    "read_vectors": read_vectors,
    "cache": cache,
    "load": load,
    **{name: lambda folder, change=change: change(folder, True) for name, (change, _) in CHANGES.items()},
}


def outcome_of(folder: Path, refusal: Refusal) -> tuple[str, str]:
    """Call the function in a process whose calls fail; return the outcome, and a letter for each call."""

    def act(report: int) -> None:
        connect.__kwdefaults__["busy_s"] = Queue.open.__func__.__kwdefaults__["busy_s"] = 0.05  # type: ignore[attr-defined]
        if refusal.door == "refresh":
            opened.append(Index.open(folder / "index"))
            disk_faults.add(folder, True)
        FAULTS.faults_only(KINDS[refusal.error].encode())
        FAULTS.faults_start(os.fsencode(folder), refusal.first, refusal.last, refusal.error)
        try:
            DOORS[refusal.door](folder)
            outcome = "done"
        except StorageError as error:
            outcome = type(error).__name__
        except FormatError as error:  # SQLite calls a file damaged if the system cannot read it
            outcome = "FormatError" if refusal.error == errno.EIO else f"FormatError: {error}"
        except Exception as error:  # noqa: BLE001 - the report lists the other errors
            outcome = f"{type(error).__name__}: {error}"
        os.write(report, json.dumps([outcome, FAULTS.faults_stop().decode()]).encode())

    pid, reading = forked(act)
    with os.fdopen(reading) as lines:
        told = lines.read()
    os.waitpid(pid, 0)
    outcome, calls = json.loads(told) if told else ("died", "")
    return outcome, calls


def refusals(root: Path) -> Iterator[Refusal]:
    """Yield the cases: each call of each function fails once, or it and all later ones fail."""
    for door in DOORS:
        for error in KINDS:
            outcome, calls = in_copy(root, Refusal(door, error, NEVER, NEVER))
            assert outcome == "done", (door, outcome)
            step = LOCK_STEP if error == errno.ENOLCK else 1
            for call in range(1, len(calls) + 1, step):
                yield Refusal(door, error, call, call)
                yield Refusal(door, error, call, NEVER)


def in_copy(root: Path, refusal: Refusal) -> tuple[str, str]:
    """Run a case in a fresh copy of the template."""
    folder = root / "case"
    shutil.copytree(root / "template", folder)
    try:
        return outcome_of(folder, refusal)
    finally:
        shutil.rmtree(folder)


def main(root: Path, every: int) -> dict[str, Any]:
    """Run each `every`-th case; return the number of cases by errno and outcome, and those that ended otherwise."""
    root.mkdir(parents=True, exist_ok=True)
    write_templates(root)
    with VectorsWriter(root / "template" / "source", word_contract()) as writer:
        writer.add(FakeEncoder().encode(documents(5, first=400)))
        writer.finish()
    connections.BUSY_S = 0.05
    outcomes: Counter[str] = Counter()
    other: dict[str, list[str]] = {}
    for refusal in list(refusals(root))[::every]:
        outcome, _ = in_copy(root, refusal)
        if outcome in ("done", "StorageError", "WriteFailed", "OutcomeUnknown", "FormatError"):
            outcomes[f"{NAMES[refusal.error]} {outcome}"] += 1
        else:
            other.setdefault(f"{refusal.door} {NAMES[refusal.error]}: {outcome}"[:400], []).append(str(refusal))
    return {"outcomes": dict(sorted(outcomes.items())), "other": {name: cases[:3] for name, cases in other.items()}}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2])), indent=1))
