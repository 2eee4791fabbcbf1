"""Every folder that an earlier release wrote is opened with the same results; a later format is refused by name."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightir
from format_fixtures import FIXTURES, FORMATS, FUTURE, RELEASES, change_json, expected, unpack
from lightir.cli import main
from lightir.pending import Queue

INDEXES = [(release, name) for release, name in FIXTURES if name.startswith("index")]
SEARCHES = [
    pytest.param(release, search, id="-".join([release, search["index"], *search["options"]]))
    for release in RELEASES
    for search in expected(release)["searches"]
]


def test_this_release_has_its_fixtures() -> None:
    assert "dev" in lightir.__version__ or lightir.__version__ in RELEASES, "run tests/formats/make.py (RELEASE.md)"


def test_fixtures_are_small() -> None:
    for release in RELEASES:
        assert sum(path.stat().st_size for path in (FORMATS / release).iterdir()) < 300_000


@pytest.mark.parametrize(("release", "search"), SEARCHES)
def test_an_index_gives_the_run_that_its_release_gave(release: str, search: dict[str, Any], tmp_path: Path) -> None:
    folder = unpack(release, search["index"], tmp_path)
    queries, run = tmp_path / "queries.jsonl", tmp_path / "run.trec"
    rows = [{"_id": query_id, "text": text} for query_id, text in expected(release)["queries"].items()]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["search", str(folder), "--queries", str(queries), "-k", "20", "--run", str(run), *search["options"]]
    assert main(command) == 0
    assert [line.rsplit(" ", 1)[0] for line in run.read_text().splitlines()] == search["run"]


@pytest.mark.parametrize(("release", "name"), INDEXES)
def test_an_index_is_whole_and_can_be_changed(
    release: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = unpack(release, name, tmp_path)
    corpus = tmp_path / "new.jsonl"
    corpus.write_text('{"_id": "new", "text": "a new document about zebras", "kind": "animal"}\n')
    assert main(["verify", str(folder)]) == 0
    for command in (
        ["add", folder, corpus],
        ["delete", folder, "--filter", '{"kind": "food"}'],
        ["compact", folder],
        ["verify", folder],
    ):
        assert main([str(part) for part in command]) == 0
    capsys.readouterr()
    assert main(["search", str(folder), "zebras", "--mode", "tokens", "-k", "1", "--json"]) == 0
    assert '"new"' in capsys.readouterr().out


@pytest.mark.parametrize("release", RELEASES)
def test_an_index_gives_back_its_documents(release: str, tmp_path: Path) -> None:
    documents = [
        lightir.Document(row["doc_id"], row["text"], row["title"], row["metadata"])
        for row in expected(release)["vectors"]
    ]
    with lightir.Index.open(unpack(release, "index-words", tmp_path)) as index:
        assert index.documents([document.doc_id for document in documents]) == documents


@pytest.mark.parametrize("release", RELEASES)
def test_vectors_are_those_that_were_written(release: str, tmp_path: Path) -> None:
    rows = []
    for shard in lightir.VectorsReader(unpack(release, "vectors", tmp_path)):
        assert shard.dense is not None
        assert shard.sparse is not None
        for i, document in enumerate(shard.documents):
            term_ids, impacts = shard.sparse.row(i)
            sparse = {str(term): impact for term, impact in zip(term_ids.tolist(), impacts.tolist(), strict=True)}
            identity = {"doc_id": document.doc_id, "text": document.text, "title": document.title}
            rows.append({**identity, "metadata": document.metadata, "dense": shard.dense[i].tolist(), "sparse": sparse})
    assert rows == expected(release)["vectors"]


@pytest.mark.parametrize("release", RELEASES)
def test_vectors_are_indexed(release: str, tmp_path: Path) -> None:
    folder = unpack(release, "vectors", tmp_path)
    assert main(["index", str(folder), "--out", str(tmp_path / "index")]) == 0
    with lightir.Index.open(tmp_path / "index") as index:
        assert index.info().documents == index.info().encoded == len(expected(release)["vectors"])


@pytest.mark.parametrize("release", RELEASES)
def test_query_encoders_give_the_vectors_that_they_gave(release: str, tmp_path: Path) -> None:
    content = expected(release)
    for address, rows in content["query_vectors"].items():
        name, _, inside = address.partition("/")
        encoder = lightir.CachedQueryEncoder.load(unpack(release, name, tmp_path / address) / inside)
        vectors = encoder.encode(list(content["queries"].values()))
        assert vectors.sparse is not None
        for i, row in enumerate(rows):
            dense = None if vectors.dense is None else vectors.dense[i].tolist()
            if encoder.bigrams is None:
                assert dense == row["dense"]
            else:  # release 0.1.0 added the rows of terms and of pairs apart: the last bits differ
                np.testing.assert_allclose(dense, row["dense"], rtol=0, atol=2e-7)
            term_ids, weights = vectors.sparse.row(i)
            assert dict(zip(map(str, term_ids.tolist()), weights.tolist(), strict=True)) == row["sparse"]


@pytest.mark.parametrize("release", RELEASES)
def test_pending_documents_and_failures_are_known(
    release: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, recorded = unpack(release, "index-pending", tmp_path), expected(release)["pending"]
    assert main(["info", str(folder), "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert {name: info[name] for name in recorded if name != "failures"} == {
        name: value for name, value in recorded.items() if name != "failures"
    }
    assert {failure["doc_id"]: failure["error"] for failure in info["failures"]} == recorded["failures"]


@pytest.mark.parametrize("release", RELEASES)
def test_a_queue_is_migrated_and_all_but_the_failed_documents_can_be_claimed(release: str, tmp_path: Path) -> None:
    folder, recorded = unpack(release, "index-pending", tmp_path), expected(release)["pending"]
    with lightir.Index.open(folder) as index, Queue.open(folder) as queue:
        pending = set(index.view.pending())
        claim = queue.claim(index, 99)
        claimed = {document.doc_id for document in index.view.store.documents.of(claim.keys).values()}
        assert claimed == pending - set(recorded["failures"])


# A later format


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open an SQLite file; commit and close it at the end, so that it is one file again."""
    with closing(sqlite3.connect(path)) as connection, connection:
        yield connection


def change_index_record(path: Path) -> None:
    """Raise the version of an index, which its store records."""
    with changing(path) as connection:
        ((content,),) = connection.execute("SELECT value FROM record").fetchall()
        changed = json.dumps({**json.loads(content), "format_version": FUTURE, "written_by": "9.9"})
        connection.execute("UPDATE record SET value = ?", [changed])


def change_segment(path: Path) -> None:
    """Raise the version of a segment, whose manifest's checksum the store records."""
    change_json(path)
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    with changing(path.parents[2] / "store.sqlite") as connection:
        connection.execute("UPDATE segments SET manifest_sha256 = ? WHERE number = 1", [checksum])


def change_queue(path: Path) -> None:
    """Raise the version of a queue."""
    with changing(path) as connection:
        connection.execute(f"PRAGMA user_version = {FUTURE}")


@pytest.mark.parametrize(
    ("name", "file", "change", "command"),
    [
        ("vectors", "manifest.json", change_json, "verify"),
        ("vectors", "lightir.json", change_json, "verify"),
        ("query-encoder-bigrams", "tables.json", change_json, "verify"),
        ("query-encoder-expansions", "lightir.json", change_json, "verify"),
        ("index-hybrid", "store.sqlite", change_index_record, "info"),
        ("index-hybrid", "segments/segment-000001/manifest.json", change_segment, "info"),
        ("index-pending", "queue/queue.sqlite", change_queue, "info"),
    ],
)
def test_a_later_format_is_refused_by_name(
    name: str,
    file: str,
    change: Callable[[Path], None],
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = unpack(RELEASES[-1], name, tmp_path)
    change(folder / file)
    assert main([command, str(folder)]) == 1
    message = capsys.readouterr().err
    assert str(folder) in message
    assert str(FUTURE) in message
    assert "this release reads" in message


def test_a_refused_index_is_left_as_it_was(tmp_path: Path) -> None:
    folder = unpack(RELEASES[-1], "index-words", tmp_path)
    change_index_record(folder / "store.sqlite")
    kept = shutil.copytree(folder, tmp_path / "kept")
    corpus = tmp_path / "new.jsonl"
    corpus.write_text('{"_id": "new", "text": "new"}\n')
    assert main(["add", str(folder), str(corpus)]) == 1
    names = {path.relative_to(kept) for path in kept.rglob("*") if path.is_file()}
    assert all((folder / name).read_bytes() == (kept / name).read_bytes() for name in names)
