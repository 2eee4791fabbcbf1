"""The order of writes, flushes and renames: a power failure takes nothing that a reader relies on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.pending import Queue
from pending_documents import documents
from power_loss import ACKNOWLEDGED, Journal
from preloaded import compiled, run_preloaded

PROGRAM = Path(__file__).with_name("recorded_changes.py")


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("order")
    result: dict[str, list[str]] = run_preloaded(compiled(folder), PROGRAM, folder / "changes")
    return result


def test_what_is_named_is_flushed_first_and_what_is_acknowledged_is_flushed(journals: dict[str, list[str]]) -> None:
    assert len(journals) == 16
    problems = {name: Journal().replay(lines) for name, lines in journals.items()}
    assert {name: told for name, told in problems.items() if told} == {}


NEEDED = {
    "add": [r"/segments/\.[^/]+/tokens\.bin", r"/segments/\.[^/]+/manifest\.json", r"/segments/\.[^/]+", r"/segments"],
    "update": [r"/store\.sqlite-wal"],
    "update_and_empty_log": [r"/store\.sqlite-wal", r"/store\.sqlite"],
    "delete": [r"/store\.sqlite-wal", r"/store\.sqlite"],
    "encode": [r"/queue/queue\.sqlite-wal", r"/queue/queue\.sqlite"],
    "build": [r"/\.new[^/]+/store\.sqlite", r"/\.new[^/]+/query-encoder/tables\.json", r"/\.new[^/]+", r"/build"],
    "overwrite": [r"/\.index[^/]+/store\.sqlite", r"/overwrite"],
    "snapshot": [r"/\.new[^/]+/segments/[^/]+/dense\.bin", r"/\.new[^/]+/segments", r"/snapshot"],
    "park": [r"/dense\.npy", r"/parked", r"/queue"],
    "fill_new_index": [r"/fill_new_index", r"/a", r"/a/new", r"/queue/\.queue\.sqlite\.[^/]+", r"/a/new/index"],
    "vectors": [r"/\.shard[^/]+/documents\.jsonl", r"/\.manifest\.json\.[^/]+", r"/a/new/vectors", r"/a/new", r"/a"],
    "file_overwrite": [r"/\.file\.json\.[^/]+", r"/file"],
}
"""Some paths, as regular expressions, that each change must flush."""


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in NEEDED.items() for path in paths])
def test_a_flush_that_is_left_out_is_noticed(name: str, path: str, journals: dict[str, list[str]]) -> None:
    lines = journals[name]
    left = [line for line in lines if not re.search(rf"^f\t.*{path}\t", line)]
    assert len(left) < len(lines), "nothing is left out"
    assert Journal().replay(left)


def test_a_change_that_relies_on_the_order_of_its_writes_is_noticed() -> None:
    named_too_early = ["c\t/i/.a\t", "r\t/i/.a\t/i/a", "f\t/i/a\t", "f\t/i\t", f"{ACKNOWLEDGED}\tit\t"]
    assert Journal().replay(named_too_early) == ["/i/a was named before the content and the name of /i/.a was flushed"]
    replaced = ["c\t/i/.a\t", "f\t/i/.a\t", "r\t/i/.a\t/i/a", f"{ACKNOWLEDGED}\tit\t"]
    assert Journal().replay(replaced) == ["it was acknowledged before the name of /i/a was flushed"]
    exchanged = ["m\t/.b\t", "c\t/.b/x\t", "f\t/.b/x\t", "x\t/.b\t/a", "f\t/\t", "u\t/.b\t"]
    assert Journal().replay(exchanged) == ["/a was named before the name of /.b/x was flushed"]


def test_each_connection_flushes_what_its_file_promises(tmp_path: Path) -> None:
    """0 is OFF, 1 flushes before the log is copied into the file, 2 also each commit."""
    build_index(document_shards(documents(3)), tmp_path / "index", progress=False)
    with (
        IndexWriter.open(tmp_path / "index") as writer,
        Index.open(tmp_path / "index") as index,
        Queue.open(tmp_path / "index") as queue,
    ):
        connections = writer._store.session.connection, index.view.store.session.connection, queue._connection
        levels = [connection.execute("PRAGMA synchronous").fetchone()[0] for connection in connections]
        modes = [connection.execute("PRAGMA journal_mode").fetchone()[0] for connection in connections]
    assert levels[0] == 2
    assert levels[1] >= 1
    assert levels[2] >= 1
    assert modes == ["wal"] * 3
