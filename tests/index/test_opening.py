"""Opening an index while a writer removes merged segments."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import sqlite3
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.index import Index, IndexWriter, build_index, document_shards, reader
from lightir.index.removal import keeping_segments
from lightir.index.segments import segment
from lightir.index.store_file import named
from lightir.pending.queue_file import naming_file
from lightir.search import Searcher, SearchOptions
from lightir.search.language_model import parse_smoothing
from lightir.types import Document

PROGRAM = Path(__file__).with_name("busy_index.py")
DOCUMENTS = [Document(f"d{i}", f"the cat number {i}") for i in range(6)]
FILES_OF_A_SEGMENT = 3  # manifest, documents, tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(document_shards(DOCUMENTS), tmp_path / "index", progress=False)
    return tmp_path / "index"


def rewrite(folder: Path) -> None:
    """Replace all documents, and thus the segment."""
    with IndexWriter.open(folder) as writer:
        number = writer.view.generation
        writer.upsert([Document(document.doc_id, f"{document.text} again {number}") for document in DOCUMENTS])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "segments").iterdir())


def run_busily(folder: Path, seconds: float, n_openers: int) -> list[dict[str, Any]]:
    """Run the program; require that nothing fails, and that files and maps are exactly those of the open view."""
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, str(PROGRAM), str(folder), str(seconds), str(n_openers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    reports: list[dict[str, Any]] = told["reports"]
    assert [report for report in reports if "failed" in report] == []
    assert told["left"] == []
    for report in reports:
        if report["role"] == "open_again":
            for half in report["peaks"]:
                assert half["files"] <= report["before"]["files"]
                assert half["maps"] <= report["before"]["maps"]
        if report["role"] == "refresh_again":
            assert report["maps"] - report["before"]["maps"] == report["maps_of_last_view"]
        if "peaks" in report:
            first, second = report["peaks"]
            assert second["mb"] <= first["mb"] + 8
    return reports


def test_processes_open_refresh_and_search_beside_writers_and_workers(tmp_path: Path) -> None:
    reports = run_busily(tmp_path / "index", 8, 4)
    assert all(report.get("changes", 1) and report.get("compactions", 1) for report in reports)


@pytest.mark.long
def test_processes_open_refresh_and_search_for_minutes_beside_writers_and_workers(tmp_path: Path) -> None:
    reports = run_busily(tmp_path / "index", float(os.environ.get("LIGHTIR_BUSY_S", "180")), 8)
    assert sum(report["second_attempts"] for report in reports) > 0, "no opening met a removal: the test is blind"


Opener = Callable[[Path], Index]


def opened(folder: Path) -> Index:
    return Index.open(folder)


def opened_skipping_damage(folder: Path) -> Index:
    return Index.open(folder, skip_damaged=True)


@pytest.mark.parametrize("nth", range(FILES_OF_A_SEGMENT))
@pytest.mark.parametrize("opener", [opened, opened_skipping_damage])
def test_a_segment_removed_before_its_nth_file_is_opened_is_not_damage(
    folder: Path, nth: int, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, n_opened = segment._opened, [0]

    def meanwhile(path: Path) -> Any:
        if n_opened[0] == nth:
            n_opened[0] += 1  # the writer opens files too
            rewrite(folder)
        n_opened[0] += 1
        return opening(path)

    monkeypatch.setattr(segment, "_opened", meanwhile)
    with without_collection():
        with opener(folder) as index:
            assert len(index) == 6
            assert index.view.damaged == []
            assert index.view.segments[0].number == 2
        assert open_files(folder) == []
    assert n_opened[0] > nth + FILES_OF_A_SEGMENT


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect cycles of references now, and not during the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def open_files(folder: Path) -> list[str]:
    """Return the open files of this process below a folder; removed ones too, whose names the system marks."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    names = [os.readlink(link) for link in links if os.path.islink(link)]
    return sorted(name for name in names if name.startswith(f"{folder}/"))


def test_a_closed_index_keeps_no_file_open_though_it_is_still_referenced(folder: Path, tmp_path: Path) -> None:
    with without_collection():
        index = Index.open(folder)
        searcher = Searcher(index)
        for smoothing in (None, parse_smoothing("dirichlet")):
            searcher.search(["cat number", "3"], 5, SearchOptions(smoothing=smoothing))
            assert len(searcher.hits("cat", 5, SearchOptions(smoothing=smoothing), explain=True)) == 5
        assert searcher.hits("cat", 5, SearchOptions(filter={"n": 1})) == []
        searcher.explain("cat", "d3")
        rewrite(folder)
        assert index.refresh()
        with pytest.raises(NotFound):
            index.documents(["none"])
        with pytest.raises(InvalidInput):
            searcher.search(["cat"], -1)
        index.verify()
        index.snapshot(tmp_path / "copy")
        assert open_files(tmp_path)
        index.close()
        assert open_files(tmp_path) == []
        (folder / "segments" / "segment-000002" / "tokens.bin").unlink()
        with pytest.raises(FormatError, match="is missing"):
            Index.open(folder)
        assert open_files(tmp_path) == []
    index.close()
    for use in (index.refresh, index.info, lambda: searcher.search(["cat"]), lambda: len(index)):
        with pytest.raises(InvalidInput, match=r"index was closed; open it again"):
            use()


def test_a_refresh_and_a_forked_process_open_the_newest_view_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Index.open(folder) as index:
        rewrite(folder)
        attempts: list[int] = []

        class Meanwhile(reader.View):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                attempts.append(1)
                if len(attempts) == 1:
                    rewrite(folder)
                super().__init__(*arguments, **options)

        monkeypatch.setattr(reader, "View", Meanwhile)
        assert index.refresh()
        assert len(attempts) == 2
        child = os.fork()
        if child == 0:
            attempts.clear()
            os._exit(0 if len(index.view) == 6 and len(attempts) == 2 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_writer_keeps_segments_while_a_reader_opens_and_removes_them_at_the_next_change(folder: Path) -> None:
    with keeping_segments(folder):
        rewrite(folder)
        assert names(folder) == ["segment-000001", "segment-000002"]
        IndexWriter.open(folder).close()
        assert names(folder) == ["segment-000001", "segment-000002"]
    with IndexWriter.open(folder) as writer:
        assert names(folder) == ["segment-000002"]
        with keeping_segments(folder), keeping_segments(folder):
            writer.upsert([Document(document.doc_id, "the cat") for document in DOCUMENTS])
        assert len(names(folder)) == 2
        writer.add([Document("new", "a dog")])
        assert len(names(folder)) == len(writer.view.segments)


def test_the_second_attempt_keeps_segments(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that changes the index during every attempt would otherwise make all of them fail."""
    attempts: list[int] = []

    def always_meanwhile(*arguments: Any, **options: Any) -> reader.View:
        attempts.append(1)
        rewrite(folder)
        return view(*arguments, **options)

    view = reader.View
    monkeypatch.setattr(reader, "View", always_meanwhile)
    Index.open(folder).close()
    assert len(attempts) == 2


def test_a_process_forked_during_an_opening_does_not_keep_segments(folder: Path) -> None:
    waiting, ending = os.pipe()
    with keeping_segments(folder):
        child = os.fork()
        if child == 0:
            os.read(waiting, 1)
            os._exit(0)
    rewrite(folder)
    assert names(folder) == ["segment-000002"]
    os.write(ending, b".")
    os.waitpid(child, 0)


def test_without_locks_of_folders_the_newest_view_is_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems lock files only."""
    lock, view, attempts = fcntl.flock, reader.View, []

    def refusing(file: Any, operation: int) -> None:
        if isinstance(file, int):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        lock(file, operation)

    def twice_meanwhile(*arguments: Any, **options: Any) -> reader.View:
        attempts.append(1)
        if len(attempts) < 3:
            rewrite(folder)
        return view(*arguments, **options)

    monkeypatch.setattr(fcntl, "flock", refusing)
    monkeypatch.setattr(reader, "View", twice_meanwhile)
    with Index.open(folder) as index:
        assert len(Searcher(index).search(["cat"], 10)["0"]) == 6
    assert len(attempts) == 3
    assert names(folder) == ["segment-000003"]


@pytest.mark.parametrize("name", ["manifest.json", "documents.bin", "tokens.bin"])
def test_a_file_that_is_missing_without_a_change_is_damage(folder: Path, name: str) -> None:
    (folder / "segments" / "segment-000001" / name).unlink()
    with pytest.raises(FormatError, match=f"segment-000001/{name} is missing"):
        Index.open(folder)
    with Index.open(folder, skip_damaged=True) as index:
        assert len(index.view.missing()) == 6


def test_a_snapshot_of_a_replaced_index_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its query encoder is that of the other index."""
    with Index.open(folder) as index:
        build_index(document_shards(DOCUMENTS[:2]), folder, overwrite=True, progress=False)
        with pytest.raises(InvalidInput, match="removed or replaced by another index"):
            index.snapshot(tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        index.refresh()
        index.snapshot(tmp_path / "copy")


@pytest.mark.parametrize("block", [named, naming_file])
def test_an_error_that_names_its_file_keeps_nothing_alive(block: Callable[[Path], Any], tmp_path: Path) -> None:
    """Otherwise what a failed opening had opened would stay open until garbage collection."""

    class Opened:
        """A file that a block opens."""

    def fail() -> weakref.ref[Opened]:
        opened = Opened()
        known = weakref.ref(opened)
        with pytest.raises(FormatError), block(tmp_path):
            raise sqlite3.DatabaseError(f"damaged while {opened} is open")
        return known

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()
