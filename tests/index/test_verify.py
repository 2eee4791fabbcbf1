"""`verify` tells every change of what is read of an index folder, and a damaged index never becomes a backup."""

from __future__ import annotations

import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from format_fixtures import RELEASES, unpack
from lightir import files
from lightir.cli import main
from lightir.errors import FormatError, StorageError
from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.index.verification import NAMED
from lightir.types import Document
from pending_documents import FakeEncoder, documents
from small_collections import animal_shard, word_contract, word_table, write_folder

PROGRAM = Path(__file__).with_name("damaged_bytes.py")


def damage_everything(folder: Path, every: int) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[1])}
    command = [sys.executable, str(PROGRAM), str(folder), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_verify_tells_damage_of_every_file(tmp_path: Path) -> None:
    report = damage_everything(tmp_path / "damaged", 1511)
    assert report["untold"] == []
    assert report["total"]["told"] > 100
    for page in ("header", "schema", "tables", "index", "overflow", "free pages"):
        assert report["flips"].get(f"store.sqlite: {page}"), "the store lacks a kind of page: the test is blind"
    assert set(report["other"]["changed rows"]) == {"told"}


@pytest.mark.long
def test_verify_tells_flipped_bits_of_every_region(tmp_path: Path) -> None:
    report = damage_everything(tmp_path / "damaged", 11)
    assert report["untold"] == []
    assert report["total"]["told"] > 10_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An index of three documents with vectors and a query encoder."""
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"search": {"embeddings": word_table()}})
    index = tmp_path / "index"
    build_index([animal_shard()], index, contract=word_contract(), query_encoder=encoder, progress=False)
    return index


def change(folder: Path, statement: str) -> None:
    """Change rows of a store by SQLite alone."""
    with closing(sqlite3.connect(folder / "store.sqlite")) as connection, connection:
        assert connection.execute(statement).rowcount > 0


def flip(path: Path, at: int = 100) -> None:
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 8
    path.write_bytes(content)


def message_of(act: Callable[[], object]) -> str:
    with pytest.raises(FormatError) as refused:
        act()
    return str(refused.value)


def verified(folder: Path) -> list[str]:
    with Index.open(folder) as index:
        return index.verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE documents SET text = 'the cat sleeps at the wall' WHERE doc_id = 'b'",
        "UPDATE documents SET title = 'Bat' WHERE doc_id = 'b'",
        """UPDATE metadata SET value = '{"page": 3}'
        WHERE doc_key = (SELECT doc_key FROM documents WHERE doc_id = 'b')""",
    ],
)
def test_damaged_documents_are_named(folder: Path, statement: str) -> None:
    change(folder, statement)
    assert "text or metadata of document 'b'" in message_of(lambda: verified(folder))


def test_many_damaged_documents_are_counted_and_some_named(tmp_path: Path) -> None:
    build_index(document_shards(documents(NAMED + 7)), tmp_path / "index", progress=False)
    change(tmp_path / "index", "UPDATE documents SET text = text || '!'")
    message = message_of(lambda: verified(tmp_path / "index"))
    assert f"{NAMED + 7} documents 'd0000', 'd0001'" in message
    assert "and 7 others" in message


def test_a_missing_query_encoder_is_told(folder: Path) -> None:
    encoder = folder / "query-encoder"
    flip(encoder / "model.safetensors")
    (encoder / "tokenizer.json").rename(folder / "aside")
    message = message_of(lambda: verified(folder))
    assert "query-encoder/model.safetensors is damaged" in message
    assert "query-encoder/tokenizer.json is missing" in message
    (folder / "aside").rename(encoder / "tokenizer.json")
    flip(encoder / "model.safetensors")
    assert verified(folder) == []
    encoder.rename(folder / "aside")
    assert "query-encoder/tables.json is missing" in message_of(lambda: verified(folder))


@pytest.mark.parametrize("damaged", ["bytes", "sha256", "query_encoder"])
def test_a_damaged_record_of_the_query_encoder_s_files_is_told(folder: Path, damaged: str) -> None:
    change(folder, f"UPDATE record SET value = replace(value, '\"{damaged}\"', '\"x{damaged[1:]}\"')")
    assert "the checksum over its record" in message_of(lambda: verified(folder))


def test_a_query_encoder_that_was_put_into_an_index_without_one_is_told(tmp_path: Path) -> None:
    build_index(document_shards(documents(3)), tmp_path / "index", progress=False)
    write_folder(tmp_path / "index" / "query-encoder", word_contract(), {"search": {"embeddings": word_table()}})
    assert "query-encoder is unexpected" in message_of(lambda: verified(tmp_path / "index"))


@pytest.mark.parametrize(("number", "kind"), [(errno.EMFILE, StorageError), (errno.EIO, FormatError)])
def test_a_file_that_the_process_cannot_open_is_not_called_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(path: Path) -> str:
        raise OSError(number, os.strerror(number), str(path))

    with Index.open(folder) as index:
        monkeypatch.setattr(files, "sha256_file", refuse)
        with pytest.raises(kind, match=os.strerror(number)):
            index.verify()


def test_all_damage_is_told_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(folder / "query-encoder" / "lightir.json")
    flip(folder / "segments" / "segment-000001" / "tokens.bin")
    change(folder, "UPDATE documents SET text = '' WHERE doc_id = 'a'")
    (folder / "queue").mkdir()
    (folder / "queue" / "queue.sqlite").write_bytes(b"SQLite format 3\0" + bytes(5000))
    assert main(["verify", str(folder)]) == 1
    message = capsys.readouterr().err
    for fault in ("lightir.json", "tokens.bin", "document 'a'", "queue.sqlite"):
        assert fault in message


def test_every_change_keeps_the_checksums(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.add([Document("new", "a new dog", metadata={"page": 7})])
        writer.upsert([Document("new", "a new dog", metadata={"page": 8}), Document("a", "another text")])
        late = FakeEncoder().encode([Document("new", "a new dog")])
        assert writer.set_vectors(late.documents, dense=late.dense, sparse=late.sparse) == []
        writer.delete(["b"])
        assert verified(folder) == []
        writer.compact(progress=False)
        writer.set_fusion(word_contract().fusion)
    assert verified(folder) == []


# Snapshots


@pytest.mark.parametrize("what", ["text", "segment", "query encoder", "removed query encoder", "record"])
def test_a_damaged_index_never_becomes_the_backup(folder: Path, tmp_path: Path, what: str) -> None:
    with Index.open(folder) as index:
        index.snapshot(tmp_path / "backup")
    if what == "text":
        change(folder, "UPDATE documents SET text = 'no cat' WHERE doc_id = 'b'")
    elif what == "segment":
        flip(folder / "segments" / "segment-000001" / "dense.bin", 3)
    elif what == "query encoder":
        flip(folder / "query-encoder" / "model.safetensors")
    elif what == "removed query encoder":
        (folder / "query-encoder").rename(tmp_path / "removed")
    else:
        change(folder, "UPDATE record SET value = json_set(value, '$.written_by', 'another')")
    with Index.open(folder) as index:
        message = message_of(lambda: index.snapshot(tmp_path / "backup", overwrite=True))
        message_of(lambda: index.snapshot(tmp_path / "other"))
    assert f"{folder} is damaged and was not copied" in message
    assert ".new-" not in message
    part = {"text": "document 'b'", "segment": "dense.bin", "record": "record"}.get(what, "query-encoder/")
    assert part in message
    assert verified(tmp_path / "backup") == []
    assert not (tmp_path / "other").exists()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_snapshot_leaves_no_files_of_its_verification(folder: Path, tmp_path: Path) -> None:
    with Index.open(folder) as index:
        index.snapshot(tmp_path / "backup")
    names = {path.name for path in (tmp_path / "backup").iterdir()}
    assert names == {"store.sqlite", "segments", "query-encoder"}
    with IndexWriter.open(tmp_path / "backup") as writer:
        assert writer.delete(["a"]) == 1
    assert verified(tmp_path / "backup") == []


# Merges


def test_damage_is_not_given_a_valid_checksum(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.add([Document("new", "the cat runs")])
        tokens = writer.view.segments[0].segment.folder / "tokens.bin"
    content = tokens.read_bytes()
    for at in range(0, len(content), 16):
        flip(tokens, at)
    with IndexWriter.open(folder) as writer:
        with pytest.raises(FormatError, match=r"tokens\.bin is damaged"):
            writer.compact(progress=False)
        with pytest.raises(FormatError, match=r"tokens\.bin is damaged"):
            writer.add(documents(5))
        late = FakeEncoder().encode([Document("new", "the cat runs")])
        assert writer.set_vectors(late.documents, dense=late.dense, sparse=late.sparse) == []
    tokens.write_bytes(content)
    with Index.open(folder) as index:
        assert index.verify() == []
        assert len(index.view.segments) == 2


# Folders of earlier releases


@pytest.mark.parametrize("release", [release for release in RELEASES if release == "0.1.0"])
def test_an_index_without_checksums_says_so_and_compaction_adds_them(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack(release, "index-hybrid", tmp_path)
    gaps = verified(folder)
    assert gaps == ["no checksum of 12 documents", "the query encoder has no checksums"]
    assert main(["verify", str(folder)]) == 0
    assert f"lightir compact {folder}" in capsys.readouterr().err
    with IndexWriter.open(folder) as writer:
        writer.add([Document("new", "the old bridge")])
    assert verified(folder) == gaps
    change(folder, "UPDATE documents SET text = 'x' WHERE doc_id = 'new'")
    assert "document 'new'" in message_of(lambda: verified(folder))
    change(folder, "UPDATE documents SET text = 'the old bridge' WHERE doc_id = 'new'")
    assert main(["compact", str(folder)]) == 0
    assert verified(folder) == []
    assert main(["verify", str(folder), "--json"]) == 0
    assert '"without_checksums": []' in capsys.readouterr().out
    change(folder, "UPDATE documents SET text = 'x' WHERE doc_id = 'd00'")
    assert "document 'd00'" in message_of(lambda: verified(folder))


@pytest.mark.parametrize("release", [release for release in RELEASES if release == "0.1.0"])
def test_compaction_gives_no_checksums_to_a_damaged_index(release: str, tmp_path: Path) -> None:
    folder = unpack(release, "index-words", tmp_path)
    change(folder, "UPDATE metadata SET value = '{' WHERE doc_key = 3")
    with IndexWriter.open(folder) as writer, pytest.raises(FormatError, match="text or metadata of document"):
        writer.compact(progress=False)
    with pytest.raises(FormatError), Index.open(folder) as index:
        index.snapshot(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


# Lost commits


def killed_after_a_change(folder: Path) -> None:
    """Add a document in a process that is killed before it closes the index, so that the log is not merged."""
    pid = os.fork()
    if not pid:
        IndexWriter.open(folder).add([Document("late", "a late dog")])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_lost_changes_are_told_until_they_are_accepted(folder: Path, tmp_path: Path) -> None:
    killed_after_a_change(folder)
    (folder / "store.sqlite-wal").unlink()
    told = r"store\.sqlite has lost its last change: .*remove writer\.lock"
    with Index.open(folder) as index:
        assert len(index) == 3, "the change was not lost: the test is blind"
        with pytest.raises(FormatError, match=told):
            index.verify()
        with pytest.raises(FormatError, match=told):
            index.snapshot(tmp_path / "backup")
    with IndexWriter.open(folder) as writer:
        writer.add(documents(5))
        writer.delete(["d0002"])
    with pytest.raises(FormatError, match=told):
        verified(folder)
    (folder / "writer.lock").unlink()
    assert verified(folder) == []


def test_a_store_that_an_older_one_has_replaced_is_told(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        writer.delete(["a"])
    older = (folder / "store.sqlite").read_bytes()
    with IndexWriter.open(folder) as writer:
        writer.upsert([Document("b", "the cat sleeps at the well", "Cat", {"page": 9})])  # changes no segment
    assert verified(folder) == []
    (folder / "store.sqlite").write_bytes(older)
    with pytest.raises(FormatError, match="has lost its last change"):
        verified(folder)


def test_a_view_of_a_replaced_index_is_verified_without_the_other_one_s_query_encoder(folder: Path) -> None:
    with Index.open(folder) as old:
        build_index(document_shards(documents(3)), folder, progress=False, overwrite=True)
        assert old.verify() == ["the query encoder was replaced with the folder"]
    assert verified(folder) == []


def test_a_restored_snapshot_and_a_killed_writer_have_lost_nothing(folder: Path, tmp_path: Path) -> None:
    with Index.open(folder) as index:
        index.snapshot(tmp_path / "backup")
    killed_after_a_change(folder)
    with Index.open(folder) as old:
        assert verified(folder) == []
        with IndexWriter.open(folder) as writer:
            writer.delete(["late"])
        assert old.verify() == []  # an earlier view is not a loss
    with Index.open(tmp_path / "backup") as backup:
        backup.snapshot(folder, overwrite=True)
    assert verified(folder) == []
