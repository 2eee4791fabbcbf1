"""A program for test_write_order.py: it records the file-system calls of changes; failing_calls.c is preloaded."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import disk_faults

from lightir.files import write_json
from lightir.index import Index, IndexWriter
from lightir.pending import Encoded, Queue, deliver
from lightir.shards import VectorsWriter
from pending_documents import FakeEncoder, documents
from power_loss import recorded
from small_collections import word_contract

Change = Callable[[Path], object]


def of_faults(name: str) -> Change:
    """Return a change of disk_faults.py; its writer stays open."""
    return lambda folder: disk_faults.CHANGES[name][0](folder, False)


def park(folder: Path) -> None:
    with Index.open(folder / "index") as index, Queue.open(folder / "index") as queue:
        claim = queue.claim(index, 4)
        shard = FakeEncoder().encode(list(index.view.store.documents.of(claim.keys).values()))
        queue.park(claim.keys, word_contract(), shard)


def commit_parked(folder: Path) -> None:
    with Queue.open(folder / "index") as queue:
        deliver(folder / "index", queue, word_contract(), Encoded(), wait_s=0.0)


def write_vectors(folder: Path) -> None:
    with VectorsWriter(folder / "a" / "new" / "vectors", word_contract()) as writer:
        writer.add(FakeEncoder().encode(documents(3)))
        writer.add(FakeEncoder().encode(documents(3, first=3)))
        writer.finish()


def fill_new_index(folder: Path) -> None:
    with IndexWriter.create(folder / "a" / "new" / "index") as writer:
        writer.add(documents(3))
    Queue.open(folder / "a" / "new" / "index").close()


CHANGES: Mapping[str, Change] = {
    **{name: of_faults(name) for name in disk_faults.CHANGES},
    "park": park,
    "commit_parked": commit_parked,
    "fill_new_index": fill_new_index,
    "vectors": write_vectors,
    "file": lambda folder: write_json(folder / "file.json", {}),
    "file_overwrite": lambda folder: write_json(folder / "file.json", {"n": 1}),
}
"""Each change, in the order in which those of one folder are made."""

FOLLOWS = {"commit_parked": "park", "file_overwrite": "file"}
"""Changes that continue in the folder of another one."""


def main(root: Path) -> dict[str, list[str]]:
    """Make each change, and return the lines of its journal."""
    root.mkdir(parents=True, exist_ok=True)
    disk_faults.write_templates(root)
    journals = {}
    for name, change in CHANGES.items():
        folder = root / FOLLOWS.get(name, name)
        if name not in FOLLOWS:
            shutil.copytree(root / "template", folder)
        with recorded(folder, root / "journal") as acknowledge:
            change(folder)
            acknowledge(name)
            while disk_faults.kept:
                disk_faults.kept.pop().close()
            acknowledge(f"{name}, closed")
        journals[name] = (root / "journal").read_text().splitlines()
    return journals


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
