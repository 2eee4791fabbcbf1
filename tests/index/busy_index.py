"""A program for test_opening.py: processes that open, refresh and search beside a writer, a compactor and two workers.

Some documents are never deleted, so every view must have all of them. Each process counts what it has done, and readers
also what they hold: memory, open files, and mapped files of segments.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from lightir.errors import IndexLocked
from lightir.index import Index, IndexWriter, reader, removal
from lightir.pending import WorkOptions, work
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from pending_documents import FakeEncoder, documents, pending_index

STEADY = documents(40)
STEADY_IDS = {document.doc_id for document in STEADY}
Report = dict[str, Any]
attempts: list[float] = []
"""Times of the attempts to open a view for which this process locked the segments."""


def keeping_segments(folder: Path) -> AbstractContextManager[None]:
    attempts.append(time.monotonic())
    return removal.keeping_segments(folder)


reader.keeping_segments = keeping_segments


def holdings() -> dict[str, int]:
    """Return the process's open files, mapped files of segments and resident memory in MB."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    n_maps = len({line.split(maxsplit=5)[5] for line in maps if "/segments/" in line})
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    n_files = len(os.listdir("/proc/self/fd"))
    return {"files": n_files, "maps": n_maps, "mb": resident * resource.getpagesize() // 2**20}


class Peaks:
    """The largest holdings in the first and in the second half of a run."""

    def __init__(self, start: float, end: float) -> None:
        self.middle = (start + end) / 2
        self.halves: list[dict[str, int]] = [{}, {}]

    def note(self) -> None:
        half = self.halves[time.monotonic() > self.middle]
        for name, value in holdings().items():
            half[name] = max(half.get(name, 0), value)


def require_steady(index: Index) -> None:
    """Require every steady document in the ranking and in the store."""
    doc_ids = Searcher(index).search(["cat"], 10_000, SearchOptions(mode="tokens"))["0"].doc_ids
    assert set(doc_ids) >= STEADY_IDS, STEADY_IDS - set(doc_ids)
    assert len(set(doc_ids)) == len(doc_ids)
    index.documents(random.sample(sorted(STEADY_IDS), 3))


def visit(folder: Path, number: int) -> int:
    """Open, search and close the index; now and then verify or copy it. Return the number of copies."""
    with Index.open(folder) as index:
        require_steady(index)
        if number % 20 == 10:
            index.verify()
        if number % 50 != 25:
            return 0
        index.snapshot(folder.with_name(f"copy-{os.getpid()}"), overwrite=True)
        return 1


def open_again(folder: Path, end: float) -> Report:
    """Visit the index over and over, and note what is held after each visit."""
    peaks, n_opened, n_copied = Peaks(time.monotonic(), end), 0, 0
    before = holdings()
    while time.monotonic() < end:
        n_copied += visit(folder, n_opened)
        peaks.note()
        n_opened += 1
    return {"opened": n_opened, "copied": n_copied, "before": before, "peaks": peaks.halves}


def refresh_again(folder: Path, end: float) -> Report:
    """Refresh and search one reader over and over, in two threads."""
    peaks, counts, failures = Peaks(time.monotonic(), end), {"refreshed": 0, "searched": 0}, []
    before = holdings()
    with Index.open(folder) as index:

        def search() -> None:
            try:
                while time.monotonic() < end:
                    require_steady(index)
                    counts["searched"] += 1
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                failures.append(error)

        thread = threading.Thread(target=search)
        thread.start()
        while time.monotonic() < end and not failures:
            counts["refreshed"] += index.refresh()
            peaks.note()
        thread.join()
        if failures:
            raise failures[0]
        listed = sum(len(live.segment.buffers) for live in index.view.segments)
        return {
            **counts,
            "before": before,
            "peaks": peaks.halves,
            "maps": holdings()["maps"],
            "maps_of_last_view": listed,
        }


def write_again(folder: Path, end: float) -> Report:
    """Upsert and delete a few documents at a time, each with a writer of its own."""
    rng, n_changes = random.Random(1), 0
    while time.monotonic() < end:
        try:
            with IndexWriter.open(folder, brief=True) as writer:
                if rng.random() < 0.3:
                    writer.delete([f"d{rng.randrange(100, 160):04d}" for _ in range(8)])
                else:
                    chosen = rng.sample(STEADY + documents(60, first=100), 4)
                    changed = [Document(document.doc_id, f"{document.text} {rng.randrange(9)}") for document in chosen]
                    writer.upsert(changed)
            n_changes += 1
        except IndexLocked:  # the other writers were faster for ten seconds
            pass
        time.sleep(0.002)
    return {"changes": n_changes}


def compact_again(folder: Path, end: float) -> Report:
    n_compactions = 0
    while time.monotonic() < end:
        try:
            with IndexWriter.open(folder, brief=True) as writer:
                writer.compact(progress=False)
            n_compactions += 1
        except IndexLocked:
            pass
        time.sleep(0.05)
    return {"compactions": n_compactions}


def encode_again(folder: Path, end: float) -> Report:
    stop = threading.Event()
    timer = threading.Timer(end - time.monotonic(), stop.set)
    timer.start()
    report = work(folder, FakeEncoder(), WorkOptions(idle_wait_s=0.02, batch_size=8), stop=stop, progress=False)
    timer.cancel()
    return {"encoded": report.committed}


def start(role: Callable[[Path, float], Report], folder: Path, end: float) -> tuple[int, int]:
    """Start a process for a role; return its process id and a pipe with its report."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            report = {"role": role.__name__, **role(folder, end), "second_attempts": len(attempts)}
        except BaseException as error:  # noqa: BLE001 - a child reports its failure
            report = {"role": role.__name__, "failed": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(report).encode())
        os._exit(0)
    os.close(writing)
    return pid, reading


def main(folder: Path, seconds: float, n_openers: int) -> Report:
    """Run all roles for a while and return their reports, and the segments that are left."""
    pending_index(folder, 0)
    with IndexWriter.open(folder) as writer:
        writer.add(STEADY)
    end = time.monotonic() + seconds
    roles = [open_again] * n_openers + [refresh_again] * 2 + [write_again, compact_again, encode_again, encode_again]
    reports = []
    for pid, reading in [start(role, folder, end) for role in roles]:
        with os.fdopen(reading) as told:
            reports.append(json.loads(told.read()))
        os.waitpid(pid, 0)
    with IndexWriter.open(folder) as writer:  # removes what the last writer had to leave to a reader
        listed = {live.segment.folder.name for live in writer.view.segments}
    left = {path.name for path in (folder / "segments").iterdir()} - listed
    with Index.open(folder) as index:
        index.verify()
        require_steady(index)
    return {"reports": reports, "left": sorted(left)}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
