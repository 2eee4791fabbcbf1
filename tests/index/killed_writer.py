"""A program for test_survival.py: killed writers, and readers beside a writer. It forks, so Python starts once."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lightir.index import Index, IndexWriter
from lightir.search import Searcher
from lightir.types import Document

WORDS = ["cat", "dog", "fish", "runs", "sleeps", "well", "river", "stone"]
Model = dict[str, str]
Operation = tuple[str, Any]


def operation(rng: random.Random, number: int) -> Operation:
    """Return a random change of few distinct ids."""
    name = rng.choice(["upsert", "upsert", "upsert", "delete", "compact"])
    if name == "upsert":
        texts = {
            f"d{rng.randrange(40)}": f"all {number} {' '.join(rng.choices(WORDS, k=4))}"
            for _ in range(rng.randint(1, 6))
        }
        return name, texts
    return name, [f"d{rng.randrange(40)}" for _ in range(5)] if name == "delete" else None


def apply(writer: IndexWriter, change: Operation) -> None:
    name, what = change
    if name == "upsert":
        writer.upsert([Document(doc_id, text) for doc_id, text in what.items()])
    elif name == "delete":
        writer.delete(what)
    else:
        writer.compact(progress=False)


def applied(model: Model, change: Operation) -> Model:
    name, what = change
    if name == "upsert":
        return {**model, **what}
    return {doc_id: text for doc_id, text in model.items() if name != "delete" or doc_id not in what}


def write_until_killed(folder: Path, seed: int, report: int) -> None:
    rng = random.Random(seed)
    with IndexWriter.open(folder) as writer:
        for number in range(1000):
            change = operation(rng, number)
            os.write(report, (json.dumps(["begin", change]) + "\n").encode())
            apply(writer, change)
            os.write(report, (json.dumps(["done", change]) + "\n").encode())


def kill_one(folder: Path, seed: int, model: Model, n_lines: int, delay_s: float) -> tuple[Model, Model, int]:
    """Kill one writer; return the acknowledged state, the state with the begun change, and the acknowledged changes."""
    reading, report = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        write_until_killed(folder, seed, report)
        os._exit(1)
    os.close(report)
    with os.fdopen(reading) as lines:
        heard = [lines.readline() for _ in range(n_lines)]
        time.sleep(delay_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        told = [json.loads(line) for line in (*heard, *lines) if line.endswith("\n")]
    begun, n_done = model, 0
    for what, change in told:
        if what == "done":
            model, n_done = applied(model, change), n_done + 1
        begun = applied(model, change)
    return model, begun, n_done


def held(index: Index) -> Model:
    """Return the texts of all documents by id, found by the word "all", which every text contains."""
    index.verify()
    doc_ids = list(Searcher(index).search(["all"], 100)["0"].doc_ids) if len(index) else []
    assert len(doc_ids) == len(index)
    return {document.doc_id: document.text for document in index.documents(doc_ids)}


def kills(folder: Path, n_kills: int, seed: int) -> dict[str, Any]:
    """Kill writers at random moments; require every acknowledged change and no partial one."""
    IndexWriter.create(folder).close()
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # written data survives a killed process anyway
    rng = random.Random(seed)
    model: Model = {}
    n_done = n_orphans = n_more = 0
    for _ in range(n_kills):
        known, begun, done = kill_one(folder, rng.randrange(2**32), model, rng.randint(0, 4), rng.uniform(0.0, 0.03))
        n_done += done
        with Index.open(folder) as index:
            model = held(index)
            live = {live.segment.folder.name for live in index.view.segments}
        assert model in (known, begun), (model, known, begun)
        n_more += model != known
        orphans = {path.name for path in (folder / "segments").iterdir()} - live
        n_orphans += bool(orphans)
    with IndexWriter.open(folder):
        assert {path.name for path in (folder / "segments").iterdir()} == live
    return {"kills": n_kills, "acknowledged": n_done, "left_orphans": n_orphans, "committed_unacknowledged": n_more}


def read_on(folder: Path, expected: list[str], ready: int) -> None:
    n_views = 0
    with Index.open(folder) as index:
        searcher = Searcher(index)
        os.write(ready, b".")
        while not n_views or not (folder / "stop").exists():
            assert list(searcher.search(["all"], 100)["0"].doc_ids) == expected
            assert {document.text.split()[0] for document in index.documents(expected)} == {"all"}
            n_views += index.refresh()


def readers(folder: Path, n_readers: int, n_compactions: int) -> dict[str, Any]:
    """Require readers to see the same documents while a writer replaces and compacts them."""
    documents = [Document(f"d{i:02d}", f"all {' '.join(WORDS[: i % 8])}") for i in range(60)]
    waiting, ready = os.pipe()
    with IndexWriter.create(folder) as writer:
        writer.add(documents)
        with Index.open(folder) as index:
            expected = list(Searcher(index).search(["all"], 100)["0"].doc_ids)
        children = []
        for _ in range(n_readers):
            child = os.fork()
            if child == 0:
                try:
                    read_on(folder, expected, ready)
                except BaseException as error:  # noqa: BLE001 - a child reports by its exit code
                    sys.stderr.write(f"{error!r}\n")
                    os._exit(1)
                os._exit(0)
            children.append(child)
        n_ready = 0
        while n_ready < n_readers:
            n_ready += len(os.read(waiting, n_readers))
        rng = random.Random(0)
        for i in range(n_compactions):
            changed = [Document(document.doc_id, document.text + " ." * i) for document in rng.sample(documents, 5)]
            writer.upsert(changed)
            writer.compact(progress=False)
        (folder / "stop").touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * n_readers, codes
    return {"readers": n_readers, "compactions": n_compactions}


if __name__ == "__main__":
    test, folder, *numbers = sys.argv[1:]
    if test == "kills":
        report = kills(Path(folder), int(numbers[0]), int(numbers[1]))
    else:
        report = readers(Path(folder), int(numbers[0]), int(numbers[1]))
    print(json.dumps(report))
