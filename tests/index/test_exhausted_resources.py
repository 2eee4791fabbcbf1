"""A full disk, too few descriptors, no memory, no locks: readers open, and errors are lightir's own."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from lightir import files
from lightir.errors import InvalidInput, OutcomeUnknown, StorageError, WriteFailed
from lightir.files import atomic_folder, write_bytes
from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.search import Searcher
from lightir.types import Document
from preloaded import compiled, run_preloaded

PROGRAM = Path(__file__).with_name("exhausted_resources.py")
DOCUMENTS = [Document(f"d{i}", f"the cat number {i}") for i in range(6)]
LATER = [Document(f"later{i}", f"a cat came later {i}") for i in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(document_shards(DOCUMENTS), tmp_path / "index", progress=False)
    return tmp_path / "index"


def in_a_child(act: Callable[[], Any]) -> Any:
    """Return the result of a call in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, pickle.dumps(act()))
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            os.write(writing, pickle.dumps(f"{type(error).__name__}: {error}"))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(result)


def fill_the_disk() -> None:
    """Let the system refuse every write to a file of this process; empty files can be created."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def free_the_disk() -> None:
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def listed(index: Index) -> list[str]:
    """Return the ids of the documents that contain "cat", read from all of an index: arrays, texts and store."""
    index.verify()
    hits = Searcher(index).hits("cat", 100)
    assert len(hits) == len(index) == len(index.view.store.documents.ids_by_key())
    return sorted(hit.doc_id for hit in hits)


def ids_on_a_full_disk(folder: Path) -> Any:
    def act() -> list[str]:
        fill_the_disk()
        with Index.open(folder) as index:
            return listed(index)

    return in_a_child(act)


@contextmanager
def beside_a_writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that has added LATER and keeps its writer open."""
    code = f"""
import sys
from lightir.index import IndexWriter
from lightir.types import Document
writer = IndexWriter.open({str(folder)!r})
writer.add([Document(f"later{{i}}", f"a cat came later {{i}}") for i in range(3)])
print("added", flush=True)
for line in sys.stdin:
    writer.delete([f"later{{i}}" for i in range(3)])
    writer.compact(progress=False)
    writer._store.session.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    print("deleted", flush=True)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "added\n"
        yield writer
        writer.kill()


IDS = sorted(document.doc_id for document in DOCUMENTS)
ALL_IDS = sorted([*IDS, *(document.doc_id for document in LATER)])


def test_a_new_reader_opens_and_searches_on_a_full_disk(folder: Path) -> None:
    assert not list(folder.glob("store.sqlite-*"))
    assert ids_on_a_full_disk(folder) == IDS
    assert ids_on_a_full_disk(folder) == IDS, "after the empty files that the first one left"
    with IndexWriter.open(folder) as writer:
        writer.add(LATER)
    assert ids_on_a_full_disk(folder) == ALL_IDS


def test_a_new_reader_beside_a_writer_sees_the_newest_state_on_a_full_disk(folder: Path) -> None:
    with beside_a_writer(folder) as writer:
        assert ids_on_a_full_disk(folder) == ALL_IDS
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("delete\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "deleted\n"
        assert ids_on_a_full_disk(folder) == IDS


@pytest.mark.parametrize("shared_memory", ["kept", "emptied", "removed"])
def test_after_a_kill_the_log_is_read_on_a_full_disk(folder: Path, tmp_path: Path, shared_memory: str) -> None:
    """The last change is in the log alone: readers that ignored it would show an earlier state."""
    with beside_a_writer(folder) as writer:
        copy = shutil.copytree(folder, tmp_path / "copy")
        writer.send_signal(signal.SIGKILL)
    assert (copy / "store.sqlite-wal").stat().st_size > 32
    if shared_memory == "emptied":
        os.truncate(copy / "store.sqlite-shm", 0)
    elif shared_memory == "removed":
        (copy / "store.sqlite-shm").unlink()
    before = (copy / "store.sqlite").read_bytes(), (copy / "store.sqlite-wal").read_bytes()
    assert ids_on_a_full_disk(copy) == ALL_IDS
    assert ((copy / "store.sqlite").read_bytes(), (copy / "store.sqlite-wal").read_bytes()) == before
    with IndexWriter.open(copy) as later:
        assert len(later) == 9


@pytest.mark.parametrize("pending_log", [False, True])
def test_a_view_opened_on_a_full_disk_never_mixes_two_states(folder: Path, tmp_path: Path, pending_log: bool) -> None:
    """Space is freed and a writer changes everything; the view shows its own state, or says that it cannot."""
    target = folder
    if pending_log:
        with beside_a_writer(folder) as writer:
            target = shutil.copytree(folder, tmp_path / "copy")
            writer.send_signal(signal.SIGKILL)
    ids = ALL_IDS if pending_log else IDS
    change = f"""
from lightir.index import IndexWriter
from lightir.types import Document
with IndexWriter.open({str(target)!r}) as writer:
    for _ in range(3):
        writer.upsert([Document(doc_id, "another cat " + "dog " * 3000) for doc_id in {ids!r}])
        writer._store.session.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
"""

    def act() -> list[Any]:
        fill_the_disk()
        index = Index.open(target)
        free_the_disk()
        seen: list[Any] = [listed(index), [document.text for document in index.documents(ids)]]
        subprocess.run([sys.executable, "-c", change], check=True, timeout=60)
        for read in (lambda: index.documents(ids), lambda: list(index.view.store.documents.keys(ids))):
            try:
                seen.append(read())
            except InvalidInput as error:
                seen.append("changed" if "was changed after it was opened" in str(error) else repr(error))
        index.refresh()
        seen.append([document.text for document in index.documents(ids)])
        return seen

    seen_by_child = in_a_child(act)
    assert isinstance(seen_by_child, list), seen_by_child
    first, texts, *read, refreshed = seen_by_child
    assert first == ids
    assert refreshed == ["another cat " + "dog " * 3000] * len(ids)
    if pending_log:
        assert [document.text for document in read[0]] == texts
        assert read[1] == ids
    else:
        assert read == ["changed", "changed"]


@pytest.mark.parametrize("pending_log", [False, True])
def test_a_read_only_folder_is_searched_with_what_its_log_holds(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pending_log: bool
) -> None:
    target = folder
    if pending_log:
        with beside_a_writer(folder) as writer:
            target = shutil.copytree(folder, tmp_path / "copy")
            writer.send_signal(signal.SIGKILL)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write whatever the mode says
    assert ids_on_a_full_disk(target) == (ALL_IDS if pending_log else IDS)


def test_too_few_descriptors_are_named_with_the_remedy(folder: Path) -> None:
    def act() -> list[str]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        told, taken = [], []
        with suppress(OSError):
            while True:
                taken.append(os.open("/", os.O_RDONLY))
        for _ in range(3):
            for call in (lambda: Index.open(folder), lambda: IndexWriter.open(folder)):
                try:
                    call().close()
                except StorageError as error:
                    told.append(f"{error.errno} {error}")
            os.close(taken.pop())
        return told

    messages = in_a_child(act)
    assert len(messages) >= 6
    for message in messages:
        assert message.startswith(f"{errno.EMFILE} cannot ")
        assert "raise the limit on open files (ulimit -n)" in message


def refuse_folders(path: Path) -> None:
    if path.is_dir() and not path.name.startswith("."):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def test_a_replacement_whose_folder_cannot_be_flushed_is_told_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure either content may be there, so both are kept until a later flush succeeds."""
    for content in ("old", "new"):
        with monkeypatch.context() as patched:
            if content == "new":
                patched.setattr(files, "fsync_path", refuse_folders)
            told = pytest.raises(OutcomeUnknown, match=r"was written, but .* could not be flushed.*Input/output error")
            with told if content == "new" else nullcontext(), atomic_folder(tmp_path / "f", overwrite=True) as folder:
                (folder / content).touch()
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["new"]
    (aside,) = (path for path in tmp_path.iterdir() if path.name != "f")
    assert [path.name for path in aside.iterdir()] == ["old"]
    with atomic_folder(tmp_path / "f", overwrite=True) as folder:
        (folder / "newest").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    with monkeypatch.context() as patched:
        patched.setattr(files, "fsync_path", refuse_folders)
        with pytest.raises(OutcomeUnknown, match="was written, but"):
            write_bytes(tmp_path / "a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_overwrite_that_raises_says_truly_whether_it_was_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    shards = list(document_shards(LATER))
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    rename = os.replace

    def refuse(source: Path, target: Path) -> None:
        if Path(target) == folder and ".new-" in str(source):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(*((files, "_move_into_place") if exchanges else (os, "replace")), refuse)
        with pytest.raises(
            WriteFailed, match=r"cannot write .*index: No space left on device; it is unchanged; free"
        ) as failed:
            build_index(shards, folder, progress=False, overwrite=True)
    assert not isinstance(failed.value, OutcomeUnknown)
    with Index.open(folder) as index:
        assert listed(index) == IDS
    with monkeypatch.context() as patched:
        patched.setattr(files, "fsync_path", lambda path: refuse_folders(path) if path == folder.parent else None)
        with pytest.raises(OutcomeUnknown):
            build_index(shards, folder, progress=False, overwrite=True)
    with Index.open(folder) as index:
        assert listed(index) == sorted(document.doc_id for document in LATER)


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="the program calls lightir.encode too")
    return compiled(tmp_path_factory.mktemp("faults"))


def test_refused_calls_reach_the_caller_as_errors_of_lightir(failing_calls: Path, tmp_path: Path) -> None:
    report = run_preloaded(failing_calls, PROGRAM, tmp_path / "cases", 97)
    assert report["other"] == {}
    told = {outcome.split()[0] for outcome in report["outcomes"] if not outcome.endswith("done")}
    assert told >= {"EMFILE", "ENOMEM", "EIO", "ENOSPC"}, "the test is blind"


@pytest.mark.long
def test_every_refused_call_reaches_the_caller_as_an_error_of_lightir(failing_calls: Path, tmp_path: Path) -> None:
    report = run_preloaded(failing_calls, PROGRAM, tmp_path / "cases", 1)
    assert report["other"] == {}
    assert sum(report["outcomes"].values()) > 4000
