"""A program for test_disk_faults.py: file-system calls fail or kill the process; failing_calls.c is preloaded.

In each case a child process makes one change while some of its calls fail, reports the outcome and is killed. Then the
index must keep its promises. The program forks, so Python starts once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from lightir.errors import LightirError, NotFound, OutcomeUnknown, StorageError
from lightir.index import Index, IndexWriter, build_index, document_shards, write_ahead_log
from lightir.pending import WorkOptions, work
from lightir.types import Document
from pending_documents import FakeEncoder, documents
from small_collections import word_contract, word_table, write_folder

NEVER = 2**40
KILL = 0
FLUSHES_AND_RENAMES = "fr"
FAULTS = ctypes.CDLL(None)
FAULTS.faults_start.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
FAULTS.faults_only.argtypes = [ctypes.c_char_p]
FAULTS.faults_stop.restype = ctypes.c_char_p

State = dict[str, tuple[str, bool]] | None
"""Text of each document and whether it has vectors, by id; None without an index."""


@dataclass(frozen=True)
class Case:
    """A change and the calls that fail meanwhile.

    Attributes:
        change: name of the change.
        first: number of the first failing call, from 1.
        last: number of the last failing call.
        error: errno of the failing calls; KILL kills the process.
        closes: whether the writer is closed before the process is killed.
        with_reader: whether another process has the index open, so that SQLite recovers nothing at the next opening.
    """

    change: str
    first: int
    last: int
    error: int
    closes: bool = False
    with_reader: bool = False


kept: list[IndexWriter] = []


@contextmanager
def writing(folder: Path, closes: bool) -> Iterator[IndexWriter]:
    """Open a writer and close it, or keep it open until the process is killed."""
    writer = IndexWriter.open(folder)
    try:
        yield writer
    finally:
        if closes:
            writer.close()
        else:
            kept.append(writer)


def add(folder: Path, closes: bool) -> None:
    with writing(folder / "index", closes) as writer:
        writer.add(documents(3, first=100))


def update(folder: Path, closes: bool) -> None:
    with writing(folder / "index", closes) as writer:
        writer.upsert([Document(f"d{i:04d}", f"the dog {i}") for i in range(4, 12)])


def update_and_empty_log(folder: Path, closes: bool) -> None:
    with patch.multiple(write_ahead_log, LOG_BYTES=1, WAIT_S=0.0):
        update(folder, closes)


def delete(folder: Path, closes: bool) -> None:
    with writing(folder / "index", closes) as writer:
        writer.delete(["d0003", "d0018", "d0019"])  # one of many, and all of a segment


def compact(folder: Path, closes: bool) -> None:
    with writing(folder / "index", closes) as writer:
        writer.compact(progress=False)


def encode(folder: Path, closes: bool) -> None:
    work(folder / "index", FakeEncoder(), WorkOptions(once=True), progress=False)


def build(folder: Path, closes: bool) -> None:
    shards = document_shards(documents(5, first=200))
    build_index(shards, folder / "new", query_encoder=folder.parent / "encoder", progress=False)


def overwrite(folder: Path, closes: bool) -> None:
    build_index(document_shards(documents(5, first=200)), folder / "index", progress=False, overwrite=True)


def snapshot(folder: Path, closes: bool) -> None:
    with Index.open(folder / "index") as index:
        index.snapshot(folder / "new")


def restore(folder: Path, closes: bool) -> None:
    with Index.open(folder.parent / "other") as index:
        index.snapshot(folder / "index", overwrite=True)


CHANGES: Mapping[str, tuple[Callable[[Path, bool], None], str]] = {
    "add": (add, "index"),
    "update": (update, "index"),
    "update_and_empty_log": (update_and_empty_log, "index"),
    "delete": (delete, "index"),
    "compact": (compact, "index"),
    "encode": (encode, "index"),
    "build": (build, "new"),
    "overwrite": (overwrite, "index"),
    "snapshot": (snapshot, "new"),
    "restore": (restore, "index"),
}
"""Each change, and the name of the index that it changes."""


def write_templates(folder: Path) -> None:
    """Write a query encoder and two indexes: one with encoded, pending and deleted documents, and a small one."""
    write_folder(folder / "encoder", word_contract(), {"search": {"embeddings": word_table()}})
    index = folder / "template" / "index"
    with IndexWriter.create(index, query_encoder=folder / "encoder") as writer:
        writer.add(documents(14))
    work(index, FakeEncoder(), WorkOptions(once=True), progress=False)
    with IndexWriter.open(index) as writer:
        writer.add(documents(4, first=14))
        writer.add(documents(2, first=18))
        writer.delete(["d0001"])
        assert len(writer.view.segments) == 3
    build_index(document_shards(documents(3, first=300)), folder / "other", progress=False)


def state(folder: Path) -> State:
    """Verify an index, and return its documents."""
    try:
        index = Index.open(folder)
    except NotFound:
        assert not folder.exists()
        return None
    with index:
        index.verify()
        held = {}
        for live in index.view.segments:
            doc_ids = [live.segment.doc_ids[row] for row in live.places.tolist()]
            vectors = (~live.segment.pending[live.places]).tolist()
            texts = [document.text for document in index.documents(doc_ids)]
            held |= dict(zip(doc_ids, zip(texts, vectors, strict=True), strict=True))
        return held


def state_after_all_ended(folder: Path) -> State:
    """Return the state that SQLite recovers once every process has ended: its shared memory is gone, its log stays."""
    copy = folder.with_name(f"{folder.name}-copy")
    if folder.exists():
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("store.sqlite-shm"))
    recovered = state(copy)
    shutil.rmtree(copy, ignore_errors=True)
    return recovered


def forked(child: Callable[[int], None]) -> tuple[int, int]:
    """Start a child that gets a pipe; return its process id and the other end of the pipe."""
    reading, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            child(report)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(report)
    return pid, reading


def reader_of(folder: Path) -> int:
    """Start a process that has the index open, and return its process id."""

    def hold(report: int) -> None:
        with Index.open(folder):
            os.write(report, b".")
            signal.pause()

    pid, reading = forked(hold)
    assert os.read(reading, 1) == b"."
    os.close(reading)
    return pid


def end(pid: int | None) -> None:
    """Kill a process, if any."""
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def outcome_of(folder: Path, case: Case) -> tuple[str, str]:
    """Make the change in a process that is killed afterwards; return the outcome, and a letter for each call."""

    def change(report: int) -> None:
        FAULTS.faults_start(os.fsencode(folder), case.first, case.last, case.error)
        try:
            CHANGES[case.change][0](folder, case.closes)
            outcome = "done"
        except OutcomeUnknown:
            outcome = "unknown"
        except StorageError:
            outcome = "refused" if case.change == "encode" else "unchanged"  # a worker commits several times
        except LightirError:
            outcome = "refused"
        except Exception as error:  # noqa: BLE001 - the case is then broken
            outcome = repr(error)
        calls = FAULTS.faults_stop().decode()
        os.write(report, json.dumps([outcome, calls]).encode())

    pid, reading = forked(change)
    with os.fdopen(reading) as lines:
        told = lines.read()
    os.waitpid(pid, 0)
    outcome, calls = json.loads(told) if told else ("killed", "")
    return outcome, calls


def run_case(root: Path, case: Case, states: Mapping[str, tuple[State, State]]) -> str:
    """Run a case in a fresh copy of the template; return the outcome.

    Raises:
        AssertionError: a promise is broken.
    """
    folder = root / "case"
    shutil.copytree(root / "template", folder)
    changed = folder / CHANGES[case.change][1]
    before, after = states[case.change]
    reader = reader_of(folder / "index") if case.with_reader else None
    try:
        outcome, _ = outcome_of(folder, case)
        assert outcome in OUTCOMES, "neither a result nor an error of lightir"
        allowed = {"done": [after], "unchanged": [before]}.get(outcome, [before, after])
        assert state_after_all_ended(changed) in allowed, "after all processes have ended"
        assert state(changed) in allowed, "for a new reader"
        if changed.name == "new":
            assert state(folder / "index") == states["add"][0], "the source has changed"
            build_index(document_shards(documents(1)), changed, progress=False, overwrite=True)
        with IndexWriter.open(changed) as writer:
            settled = state(changed)
            assert settled in allowed or changed.name == "new", "for a new writer"
            assert state_after_all_ended(changed) == settled, "after a new writer and the end of all processes"
            later = Document("later", "the cat again")
            writer.upsert([later])
            expected = {**(settled or {}), "later": (later.text, writer.view.contract is None)}
            assert state(changed) == state_after_all_ended(changed) == expected, "after a later change"
            listed = {live.segment.folder.name for live in writer.view.segments}
        assert {path.name for path in (changed / "segments").iterdir()} == listed, "abandoned segments are left"
        left = {path.name for path in folder.iterdir()} - {"index", "new"}
        assert not {name for name in left if name.startswith(f".{changed.name}.new")} or changed.name == "index", left
    finally:
        end(reader)
    shutil.rmtree(folder)
    return outcome


Calls = dict[tuple[str, bool], str]
"""A letter for each call, by the change and whether another process has the index open."""


def states_and_calls(root: Path) -> tuple[dict[str, tuple[State, State]], Calls]:
    """Make each change without faults; return the states before and after it, and its calls."""
    states: dict[str, tuple[State, State]] = {}
    calls: Calls = {}
    for (name, (_, target)), with_reader in itertools.product(CHANGES.items(), (False, True)):
        folder = root / "case"
        shutil.copytree(root / "template", folder)
        before = state(folder / target)
        reader = reader_of(folder / "index") if with_reader else None
        outcome, calls[name, with_reader] = outcome_of(folder, Case(name, NEVER, NEVER, KILL, closes=True))
        end(reader)
        assert outcome == "done", (name, outcome)
        states[name] = before, state(folder / target)
        shutil.rmtree(folder)
    return states, calls


OUTCOMES = {"done", "unchanged", "unknown", "refused", "killed"}

MODES = [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False), (errno.ENOSPC, True), (KILL, False)]
"""An errno, and whether all later calls fail too."""


def cases(calls: Calls) -> Iterator[Case]:
    """Yield the cases of each call: it fails with EIO or ENOSPC, once or from there on, or the process is killed there.

    Flushes and renames are tried with and without a reader, other calls in turn.
    """
    for (change, with_reader), letters in calls.items():
        for call, letter in enumerate(letters, start=1):
            for i, (error, stays) in enumerate(MODES):
                if letter in FLUSHES_AND_RENAMES or (call + i) % 2 == with_reader:
                    closes = (call + i) % 4 < 2
                    yield Case(change, call, NEVER if stays else call, error, closes, with_reader)


def of_deletion(calls: Calls) -> list[Case]:
    """Return the cases of all flushes of `delete`, whose commit adds no segment that a new writer would remove."""
    return [
        case
        for case in cases(calls)
        if case.change == "delete" and calls["delete", case.with_reader][case.first - 1] == "f"
    ]


def chosen(calls: Calls, every: int) -> list[Case]:
    """Return each `every`-th case, and those of the last flushes of `add`, one of which is that of the commit."""
    whole = list(cases(calls))
    last = {reader: [i for i, letter in enumerate(calls["add", reader], 1) if letter == "f"][-3:] for reader in (0, 1)}
    at_commit = [case for case in whole if case.change == "add" and case.first in last[case.with_reader]]
    return list(dict.fromkeys([*whole[::every], *at_commit, *of_deletion(calls)]))


def main(root: Path, every: int) -> dict[str, object]:
    """Run cases and return the numbers of calls, cases and outcomes, and what was broken."""
    root.mkdir(parents=True, exist_ok=True)
    write_templates(root)
    states, calls = states_and_calls(root)
    outcomes: Counter[str] = Counter()
    broken = []
    to_run = chosen(calls, every)
    for case in to_run:
        try:
            outcomes[run_case(root, case, states)] += 1
        except Exception as error:  # noqa: BLE001 - each case is reported
            call = calls[case.change, case.with_reader][case.first - 1]
            broken.append([dataclasses.asdict(case), call, repr(error)[:500]])
            shutil.rmtree(root / "case", ignore_errors=True)
    counts = {name: dict(Counter(letters)) for (name, with_reader), letters in calls.items() if not with_reader}
    return {"calls": counts, "cases": len(to_run), "outcomes": dict(outcomes), "broken": broken}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
