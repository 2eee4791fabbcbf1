"""A program for test_verify.py: damage an index folder; `verify` must tell, or nothing that is read has changed.

    PYTHONPATH=tests python tests/index/damaged_bytes.py FOLDER [EVERY]

One bit of every EVERY-th byte of each file is flipped (default 1: of every byte). Whether a change is harmless is
decided without lightir's checksums: SQLite alone then reads the same rows, and a parked batch has the same vectors.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import shutil
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lightir.cli.verify import verify
from lightir.errors import LightirError
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.pending import Queue, WorkOptions, work
from lightir.pending.parked import read_parked
from lightir.types import Document
from pending_documents import FakeEncoder, documents
from small_collections import word_contract, word_table, write_folder

STORE = "store.sqlite"
NOT_THE_INDEX = ("writer.lock", "queue/queue.sqlite", "queue/workers/")
"""Files that decide nothing about an index: who wrote last, and claims, failures and demand of pending documents."""

TABLES = ("record", "generation", "state", "segments", "sqlite_sequence", "documents", "metadata")
PAGE = 4096
ACCEPTED = ("told", "harmless", "not the index")


def write_index(folder: Path) -> Path:
    """Write an index with every kind of file and every kind of page, and return its folder."""
    encoder = write_folder(folder / "encoder", word_contract(), {name: {"embeddings": word_table()} for name in "ab"})
    index = folder / "index"
    options = IndexOptions(analyzer="words", dense_dtype="fp16+int8", dense_graph=True)
    with patch("lightir.index.segments.segment_writer.LEAST_DOCUMENTS", 1):  # otherwise a small segment gets no graph
        with IndexWriter.create(index, options=options, contract=word_contract(), query_encoder=encoder) as writer:
            metadata = {"n": 1, "tags": ["a", "ü"], "deep": {"x": None}}
            writer.add([dataclasses.replace(doc, title="The dog", metadata=metadata) for doc in documents(12)])
        work(index, FakeEncoder(), WorkOptions(once=True), progress=False)
        with IndexWriter.open(index) as writer:
            writer.add([Document(f"large{i}", f"cat {i} " * 1500) for i in range(3)])  # pages of overflow
            writer.add([dataclasses.replace(document, text="dog " * 500) for document in documents(5, first=90)])
            writer.add(documents(4, first=12))
            writer.upsert([dataclasses.replace(documents(1)[0], title="The dog", metadata={"n": 2})])
            writer.delete(["d0001", "d0013", "large1", *(f"d{i:04d}" for i in range(90, 95))])  # free pages
    with Index.open(index) as opened, Queue.open(index) as queue:
        claim = queue.claim(opened, 3)
        chosen = list(claim.view.store.documents.of(claim.keys[:2]).values())
        queue.park(claim.keys[:2], word_contract(), FakeEncoder().encode(chosen))
        queue.record_failures({claim.keys[2]: "ValueError: unreadable"})
    return index


def write_logged_index(folder: Path) -> Path:
    """Write an index whose writer was killed, so that the log beside the store holds commits; return its folder."""
    index = folder / "logged" / "index"
    IndexWriter.create(index, options=IndexOptions(analyzer="words")).close()
    pid = os.fork()
    if not pid:
        writer = IndexWriter.open(index)
        writer.add(documents(3))
        writer.upsert([Document("d0001", "another dog")])
        writer.delete(["d0002"])
        writer.add([Document("last", "the last cat")])
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return index


def files_of(index: Path) -> list[str]:
    """Return the relative paths of all files."""
    return sorted(path.relative_to(index).as_posix() for path in index.rglob("*") if path.is_file())


def is_told(index: Path) -> bool:
    """Return whether `lightir verify` reports damage; an exception of another kind passes through."""
    try:
        assert verify(index, "index") == [], "this release wrote something without a checksum"
    except LightirError:
        return True
    return False


def content(index: Path, name: str) -> Any:
    """Return everything that is read of a file, without lightir's checksums; its bytes if all of them are read."""
    path = index / name
    if name.startswith("queue/parked/"):
        _, shard = read_parked(index / Path(name).parents[-4])
        assert shard.dense is not None
        assert shard.sparse is not None
        arrays = (shard.dense, shard.sparse.indptr, shard.sparse.term_ids, shard.sparse.weights)
        return list(shard.documents), [array.tolist() for array in arrays]
    if name != STORE:
        return path.read_bytes()
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        write_version, read_version = path.read_bytes()[18:20]  # a log is required by 2, and 3 or more forbids changes
        return rows(connection), write_version <= 2, read_version


def rows(connection: sqlite3.Connection) -> list[Any]:
    """Return the rows of all tables of a store and of its index, its schema, and what SQLite thinks of it."""
    connection.text_factory = bytes
    statements = [f"SELECT rowid, * FROM {table} ORDER BY rowid" for table in TABLES]
    statements += ["SELECT type, name, tbl_name, sql FROM sqlite_master", "PRAGMA user_version"]
    statements += ["SELECT doc_id, doc_key FROM documents ORDER BY doc_id", "PRAGMA integrity_check"]
    return [connection.execute(statement).fetchall() for statement in statements]


def recovered(index: Path) -> list[Any]:
    """Return the rows that SQLite recovers from copies of a store and its log."""
    copy = index.with_name("recovered")
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for name in (STORE, f"{STORE}-wal"):
        if (index / name).exists():
            shutil.copy(index / name, copy / name)
    with closing(sqlite3.connect(copy / STORE)) as connection:
        return rows(connection)


def region(pages: dict[int, str], name: str, at: int) -> str:
    """Return the name of the region of a byte: the kind of the page in the store, elsewhere the kind of the file."""
    if name == STORE:
        return "store.sqlite: header" if at < 100 else f"store.sqlite: {pages[at // PAGE]}"
    parts = Path(name).parts
    return f"{parts[0]}/{parts[-1]}" if len(parts) > 1 and not name.startswith("queue/parked") else "/".join(parts[:2])


def kinds_of_pages(store: bytes) -> dict[int, str]:
    """Return the kind of each page of a store, by number from 0, after SQLite's description of its file format."""
    kinds = {2: "index", 5: "tables", 10: "index", 13: "tables"}
    pages = {i: kinds.get(store[i * PAGE], "overflow") for i in range(len(store) // PAGE)}
    pages[0] = "schema"
    trunk = int.from_bytes(store[32:36], "big")
    while trunk:
        start = (trunk - 1) * PAGE
        n = int.from_bytes(store[start + 4 : start + 8], "big")
        free = [int.from_bytes(store[start + 8 + 4 * i : start + 12 + 4 * i], "big") for i in range(n)]
        pages |= {page - 1: "free pages" for page in (trunk, *free)}
        trunk = int.from_bytes(store[start : start + 4], "big")
    return pages


def outcome(index: Path, name: str, before: Any) -> str:
    """Return whether damage of a file is told, harmless or neither; restores nothing."""
    try:
        if is_told(index):
            return "told"
    except Exception as error:  # noqa: BLE001 - reported with the untold damage
        return f"{error!r}"
    if name.startswith(NOT_THE_INDEX):
        return "not the index"
    try:
        return "harmless" if content(index, name) == before else "untold"
    except (sqlite3.Error, LightirError, OSError):
        return "untold"


def flips(index: Path, every: int) -> Iterator[tuple[str, str, str]]:
    """Flip one bit of each `every`-th byte of each file in turn; yield file, region and outcome."""
    for name in files_of(index):
        path = index / name
        original = path.read_bytes()
        before = content(index, name)
        pages = kinds_of_pages(original) if name == STORE else {}
        # The store's header is always swept whole: each of its fields means something else.
        chosen = range(0, len(original), every) if name != STORE else [*range(100), *range(100, len(original), every)]
        for at in chosen:
            changed = bytearray(original)
            changed[at] ^= 1 << (at * 5 + at // 8) % 8
            path.write_bytes(changed)
            yield name, region(pages, name, at), outcome(index, name, before)
            leave(path, original)


def damaged_logs(index: Path, every: int) -> Iterator[tuple[str, str, str]]:
    """Damage the log of a killed writer, and the shared memory beside it; yield file, region and outcome."""
    originals = {path: path.read_bytes() for path in index.iterdir() if path.is_file()}
    before = recovered(index)
    for suffix in ("-wal", "-shm"):
        path = index / (STORE + suffix)
        original = originals[path]
        frame = 24 + PAGE  # after a header of 32 bytes
        firsts = range(0, len(original), frame if every == 1 else 5 * frame)
        heads = {32 + first + at for first in firsts for at in range(0, 24, 4)}
        chosen = sorted({*range(32), *heads, *range(0, len(original), every)} & set(range(len(original))))
        versions = [bytes(original[:at]) + bytes([original[at] ^ 1 << at % 8]) + original[at + 1 :] for at in chosen]
        versions += [b"", original[: len(original) // 2], bytes(len(original))]
        for version in versions:
            path.write_bytes(version)
            try:
                result = "told" if is_told(index) else "untold"
            except Exception as error:  # noqa: BLE001 - reported with the untold damage
                result = repr(error)
            if result == "untold":
                for file, content_of_file in originals.items():
                    file.write_bytes(content_of_file)
                path.write_bytes(version)
                result = "harmless" if recovered(index) == before else "untold"
            yield path.name, path.name, result
            for file, content_of_file in originals.items():
                file.write_bytes(content_of_file)


def leave(path: Path, original: bytes) -> None:
    """Restore a file, and remove the files that SQLite keeps beside a store that is open."""
    path.write_bytes(original)
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def other_damage(index: Path, every: int) -> Iterator[tuple[str, str, str]]:
    """Remove, truncate, lengthen, overwrite and exchange files, and change rows; yield file, kind and outcome.

    Of the pairs of files that are exchanged, at most 20 are tried unless `every` is 1.
    """
    names = files_of(index)
    originals = {name: (index / name).read_bytes() for name in names}
    contents = {name: content(index, name) for name in names}
    for name in names:
        path, original = index / name, originals[name]
        middle, end = len(original) // 2, len(original)
        damaged = {
            "truncated": [original[:n] for n in {0, 1, middle, end - 1} if n != end],
            "lengthened": [original + b"\0", original + original[:PAGE]],
            "zeroed": [original[:first] + bytes(end - first) for first in {0, middle} if any(original[first:])],
            "zeroed pages": [
                original[:first] + bytes(len(original[first : first + PAGE])) + original[first + PAGE :]
                for first in range(0, end, PAGE)
                if any(original[first : first + PAGE])
            ],
        }
        for kind, versions in damaged.items():
            for version in versions:
                path.write_bytes(version)
                yield name, kind, outcome(index, name, contents[name])
                leave(path, original)
        path.unlink()
        yield name, "removed", outcome(index, name, None)
        leave(path, original)
    of_index = [name for name in names if not name.startswith(("queue/", *NOT_THE_INDEX))]
    pairs = [pair for pair in itertools.combinations(of_index, 2) if originals[pair[0]] != originals[pair[1]]]
    for one, other in pairs if every == 1 else pairs[:: len(pairs) // 20 + 1]:
        (index / one).write_bytes(originals[other])
        (index / other).write_bytes(originals[one])
        yield one, "exchanged", outcome(index, one, None)
        leave(index / one, originals[one])
        leave(index / other, originals[other])
    for change in ROW_CHANGES:
        path = index / STORE
        with closing(sqlite3.connect(path)) as connection, connection:
            assert connection.execute(change).rowcount > 0, change
        yield STORE, "changed rows", outcome(index, STORE, contents[STORE])
        leave(path, originals[STORE])


_OTHER = "(SELECT {0} FROM documents AS other JOIN metadata USING (doc_key) WHERE doc_id = 'd0003')"
ROW_CHANGES = [
    *(f"DELETE FROM {table}" for table in TABLES),
    *(f"DELETE FROM {table} WHERE doc_key = (SELECT max(doc_key) FROM {table})" for table in ("documents", "metadata")),
    "DELETE FROM segments WHERE number = (SELECT max(number) FROM segments)",
    "UPDATE segments SET deleted = NULL WHERE deleted IS NOT NULL",
    "UPDATE documents SET text = " + _OTHER.format("text") + " WHERE doc_id = 'd0002'",
    "UPDATE documents SET title = '' WHERE doc_id = 'd0002'",
    "UPDATE documents SET text = title || text, title = '' WHERE doc_id = 'd0002'",
    "UPDATE metadata SET checksum = NULL",
    "UPDATE metadata SET value = json_set(value, '$.n', 9) WHERE doc_key = 3",
    "UPDATE metadata SET checksum = " + _OTHER.format("checksum") + " WHERE doc_key = 3",
    "UPDATE record SET value = json_set(value, '$.contract.fusion.method', 'rrf')",
    "UPDATE generation SET number = number - 1",
    "UPDATE sqlite_sequence SET seq = seq - 1 WHERE name = 'documents'",
    "UPDATE state SET covered_from = 1000",
    "INSERT INTO metadata SELECT doc_key + 1000, value, checksum FROM metadata LIMIT 1",
]
"""Changes of rows by another program, after which the file is a sound SQLite database."""


def main(folder: Path, every: int) -> dict[str, Any]:
    """Damage an index in every way; return the number of outcomes by region, and the damage that was not told."""
    shutil.rmtree(folder, ignore_errors=True)
    index = write_index(folder)
    assert not is_told(index)
    flipped: dict[str, Counter[str]] = {}
    other: dict[str, Counter[str]] = {}
    untold = []
    logged = write_logged_index(folder)
    for name, kind, result in itertools.chain(flips(index, every), damaged_logs(logged, every)):
        flipped.setdefault(kind, Counter())[result] += 1
        if result not in ACCEPTED:
            untold.append([name, kind, result])
    for name, kind, result in other_damage(index, every):
        other.setdefault(kind, Counter())[result] += 1
        if result not in ACCEPTED:
            untold.append([name, kind, result])
    assert not is_told(index), "the index was not restored"
    assert not is_told(logged), "the index was not restored"
    total = sum(flipped.values(), Counter())
    return {"flips": flipped, "total": total, "other": other, "untold": untold}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1), indent=1))
