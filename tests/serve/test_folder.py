"""A folder of files as what is served: its index, the commands that keep it in step, and hostile files."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, build_index, document_shards
from lightir.lines import ReadOptions
from lightir.pending import Queue
from lightir.serve import folder_index
from lightir.serve.folder_follower import FIRST_RETRY_S, LOCK_FILE, FolderFollower, _Command, reading_arguments
from lightir.serve.folder_index import FolderOptions, default_index, first_documents, prepare_index
from lightir.serve.schemas import SearchRequest
from lightir.serve.serve_options import ServeOptions
from lightir.serve.targets import opened
from lightir.types import Document
from small_collections import word_contract, word_table, write_folder


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three files, and a cache folder of its own."""
    monkeypatch.setenv("LIGHTIR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folder_index, "FIRST_S", 60.0)
    monkeypatch.setattr(folder_index, "DEFAULT_MODEL", "a model that is not installed")
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "cat.md").write_text("# Cats\n\nThe cat sleeps.")
    (folder / "deep" / "dog.txt").write_text("The dog runs.")
    (folder / "deep" / "fish.txt").write_text("The fish is well.")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with a contract and a query encoder, as a model has them."""
    folder = tmp_path / "model"
    folder.mkdir()
    word_contract().save(folder)
    write_folder(folder / "query-encoder", word_contract(), {"": {"embeddings": word_table()}})
    return folder


def ids(index: Path) -> list[str]:
    with Index.open(index) as opened_index:
        return opened_index.ids()


def eventually(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 120  # the machine may be busy
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_a_folder_gets_an_index_in_the_cache_that_others_cannot_read(notes: Path, tmp_path: Path) -> None:
    index = prepare_index(notes, FolderOptions())
    assert index == default_index(notes)
    assert index.parent == tmp_path / "cache" / "folders"
    assert index.parent.stat().st_mode & 0o077 == 0
    assert ids(index) == ["notes/cat.md", "notes/deep/dog.txt", "notes/deep/fish.txt"]
    assert sorted(path.name for path in notes.rglob("*")) == ["cat.md", "deep", "dog.txt", "fish.txt"]
    assert prepare_index(notes, FolderOptions()) == index
    other = tmp_path / "other" / "notes"
    other.mkdir(parents=True)
    assert default_index(other) != index
    os.symlink(notes, tmp_path / "link")
    assert default_index(tmp_path / "link") == index


def test_an_index_can_be_elsewhere_and_have_a_model(notes: Path, tmp_path: Path, model: Path) -> None:
    options = FolderOptions(index=tmp_path / "made" / "index", model=str(model))
    index = prepare_index(notes, options)
    assert index == tmp_path / "made" / "index"
    with Index.open(index) as made:
        info = made.info()
        assert made.contract == word_contract()
    assert (info.documents, info.pending) == (3, 3)
    assert info.fields is not None
    assert info.fields["modified"] == "date"
    other = tmp_path / "other-model"
    other.mkdir()
    word_contract(dim=8).save(other)
    with pytest.raises(ContractMismatch):
        prepare_index(notes, FolderOptions(index=index, model=str(other)))


def test_what_cannot_be_followed_is_refused(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "beir").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "beir" / "corpus.jsonl").write_text('{"_id": "a", "text": "b"}\n')
    strange = tmp_path / "strange"
    documents = [Document("notes/cat.md", "a file"), Document("notes0", "no file of it")]
    build_index(document_shards(documents), strange, progress=False)
    for folder, options, words in (
        (tmp_path / "beir", FolderOptions(), "nor a folder of files"),
        (notes / "cat.md", FolderOptions(), "nor a folder of files"),
        (tmp_path / "empty", FolderOptions(), "no files whose text can be read"),
        (Path("/"), FolderOptions(), "root of the file system"),
        (notes, FolderOptions(index=notes / "index"), "is among the files"),
        (notes, FolderOptions(index=notes), "is among the files"),
        (notes, FolderOptions(index=strange), "'notes0', which is no file of"),
    ):
        with pytest.raises(InvalidInput, match=words):
            prepare_index(folder, options)
    assert ids(strange) == ["notes/cat.md", "notes0"]
    assert prepare_index(notes, FolderOptions(index=notes / ".index")).is_dir()
    for target, options, error in (
        (tmp_path / "none", FolderOptions(), NotFound),
        (strange, FolderOptions(watch=True), InvalidInput),
        (strange, FolderOptions(model="minilm"), InvalidInput),
    ):
        with pytest.raises(error), opened(target, ServeOptions(), options, say=print):
            pass


def test_first_documents_are_those_that_are_read_fast(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (notes / "a.txt").write_text("long " * 60_000)
    (notes / "b.pdf").write_bytes(b"%PDF damaged")
    (notes / "bad.txt").write_bytes(b"\0\1\2")
    fast = ["notes/cat.md", "notes/deep/dog.txt", "notes/deep/fish.txt"]
    assert [document.doc_id for document in first_documents(notes, ReadOptions())] == [*fast, "notes/a.txt"]
    monkeypatch.setattr(folder_index, "FIRST_DOCUMENTS", 2)
    assert [document.doc_id for document in first_documents(notes, ReadOptions())] == fast[:2]
    monkeypatch.setattr(folder_index, "FIRST_S", -1.0)
    assert list(first_documents(notes, ReadOptions())) == []
    assert ids(prepare_index(notes, FolderOptions())) == []


def test_links_to_other_places_are_not_read_unless_asked_for(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("a secret outside")
    (notes / "link.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (notes / "folder").symlink_to(tmp_path / "outside")
    os.mkfifo(notes / "pipe.txt")
    plain = prepare_index(notes, FolderOptions())
    assert ids(plain) == ["notes/cat.md", "notes/deep/dog.txt", "notes/deep/fish.txt"]
    following = FolderOptions(index=tmp_path / "following", reading=ReadOptions(follow_links=True))
    assert {"notes/link.txt", "notes/folder/secret.txt"} <= {*ids(prepare_index(notes, following))}


def test_searches_of_a_folder_are_demand_for_its_worker(notes: Path, model: Path) -> None:
    options = FolderOptions(model=str(model))
    with opened(notes, ServeOptions(), options, say=print) as (service, _):
        assert service.writes is None
        service.search(SearchRequest(query="dog"))
    with Index.open(default_index(notes)) as index, Queue.open(default_index(notes)) as queue:
        (key,) = queue.claim(index, 1).keys
        assert index.view.store.documents.of([key])[key].doc_id == "notes/deep/dog.txt"


def test_reading_options_reach_the_commands() -> None:
    options = ReadOptions(exclude=("-x", "drafts/"), follow_links=True, ignore_files=False, max_document_bytes=7)
    assert reading_arguments(options) == [
        "--exclude=-x",
        "--exclude=drafts/",
        "--follow-links",
        "--no-ignore",
        "--limits=line=64000000,document=7,field=16000000",
    ]


def test_a_command_that_fails_is_not_started_again_at_once(tmp_path: Path) -> None:
    messages: list[str] = []
    command = _Command(["info", str(tmp_path / "none")], messages.append)
    command.keep_running()

    def ended() -> bool:
        command.poll()
        return not command.is_running

    eventually(ended, "the command does not end")
    assert not command.succeeded
    begun = time.monotonic()
    command.keep_running()
    assert not command.is_running
    assert begun < command._not_before < begun + 2 * FIRST_RETRY_S
    eventually(lambda: bool(messages), "its error is not passed on")
    assert "none" in messages[0]


def test_of_two_services_of_a_folder_one_follows_it(notes: Path) -> None:
    messages: list[str] = []
    options = FolderOptions(encode=False)
    with opened(notes, ServeOptions(), options, say=messages.append) as (service, _):
        first = FolderFollower(notes, service, options, messages.append)
        second = FolderFollower(notes, service, options, messages.append)
        assert first._is_follower()
        assert first._is_follower()
        assert not second._is_follower()
        assert not second._is_follower()
        assert [message for message in messages if "another process" in message] == messages
        assert len(messages) == 1
        first._release()
        assert second._is_follower()
        second._release()


def test_without_watch_the_files_are_read_once(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_index, "FIRST_DOCUMENTS", 1)
    messages: list[str] = []
    options = FolderOptions(encode=False)
    index = prepare_index(notes, options)
    with opened(notes, ServeOptions(), options, say=messages.append) as (service, _):
        assert len(service.index) == 1
        follower = FolderFollower(notes, service, options, messages.append)
        for _ in range(2):
            follower._look(encodes=False)
            if follower._reader.is_running:
                follower._reader._process.wait(120)
        assert messages == [f"{notes}: 3 documents"]
        assert not follower._reader.is_running
    assert ids(index) == ["notes/cat.md", "notes/deep/dog.txt", "notes/deep/fish.txt"]


def ask(address: str, query: str) -> list[str]:
    with urllib.request.urlopen(f"{address}/v1/search?q={query}", timeout=60) as answer:
        return [hit["doc_id"] for hit in json.load(answer)["hits"]]


def test_a_served_folder_follows_its_files_until_the_service_is_killed(notes: Path, serve: Any) -> None:
    with serve(notes, "--watch", "--no-encode", "--yes") as (process, address):
        eventually(lambda: ask(address, "dog") == ["notes/deep/dog.txt"], "a file is not found")
        (notes / "new.txt").write_text("A parrot that talks.")
        eventually(lambda: ask(address, "parrot") == ["notes/new.txt"], "a new file is not found")
        (notes / "new.txt").write_text("A raven that thinks.")
        eventually(lambda: ask(address, "raven") == ["notes/new.txt"], "a changed file is not found")
        (notes / "new.txt").unlink()
        eventually(lambda: ask(address, "raven") == [], "a deleted file is still found")
        request = urllib.request.Request(f"{address}/v1/documents/x", b'{"text": "a"}', method="PUT")
        request.add_header("content-type", "application/json")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert refused.value.code == 403
        with refused.value as answer:
            assert "the files of notes" in answer.read().decode()
        (command,) = _children(process)
        process.send_signal(signal.SIGKILL)
        eventually(lambda: not Path("/proc", command).exists(), "the command outlives its service")
    with (default_index(notes) / "queue" / LOCK_FILE).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _children(process: Any) -> list[str]:
    """Return the ids of the child processes of all threads."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [child for task in tasks for child in (task / "children").read_text().split()]


def test_an_empty_folder_is_served_and_gets_what_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Any
) -> None:
    monkeypatch.setenv("LIGHTIR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "inbox"
    folder.mkdir()
    with serve(folder, "--watch", "--no-encode") as (process, address):
        assert ask(address, "kettle") == []
        (folder / "kettle.md").write_text("# Kettle\n\nA steel kettle.")
        eventually(lambda: ask(address, "kettle") == ["inbox/kettle.md"], "the new file is found")
        assert process.poll() is None
