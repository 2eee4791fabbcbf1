"""An index split into shards: what the folder holds, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lightir.cli import main
from lightir.errors import AlreadyExists, FormatError, InvalidInput, NotFound
from lightir.files import checksums_of_files
from lightir.index import Index, IndexWriter
from lightir.index.passages.naming import document_of
from lightir.index.splitting import MANIFEST_FILE, ShardedManifest, shard_of, split_index
from lightir.types import Document
from sharded_indexes import build_random


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("splitting") / "index"
    build_random(folder, 1, 50, model=True, encoded=0.8, long=True)
    return folder


def test_each_document_is_whole_and_unchanged_in_the_shard_of_its_id(index: Path, tmp_path: Path) -> None:
    before = checksums_of_files(index / "segments")
    manifest = split_index(index, tmp_path / "shards", 3, progress=False)
    assert checksums_of_files(index / "segments") == before
    with Index.open(index) as one:
        expected = one.get([*one.ids()])
        pending = {*one.view.pending()}
    stored: dict[str, Document] = {}
    n_passages = 0
    for number in range(3):
        with manifest.open(number) as shard:
            assert shard.verify() == []
            documents = shard.get([*shard.ids()])
            assert {shard_of(doc_id, 3) for doc_id in documents} <= {number}
            assert {*shard.view.pending()} == {i for i in pending if shard_of(document_of(i), 3) == number}
            assert shard.info().deleted == 0
            n_passages += shard.view.n_passages
            stored |= documents
    assert stored == expected
    assert sum(entry.documents for entry in manifest.shards) == len(stored)
    assert n_passages > 10


def test_the_shard_of_an_id_never_changes() -> None:
    """Shards of stored folders were chosen by these numbers: BLAKE2b of 8 bytes, as computed by b2sum -l 64."""
    # printf %s d1 | b2sum -l 64, and so on
    digests = {"d1": "fcd38eb77616f227", "doc-2": "cd0ec706efd37a02", "é": "cb1abf8beff3192f"}
    for doc_id, digest in digests.items():
        assert shard_of(doc_id, 7) == int(digest, 16) % 7
        assert shard_of(f"{doc_id}#p-0123456789ab", 7) == shard_of(doc_id, 7)


def test_a_shard_that_was_changed_alone_is_refused(index: Path, tmp_path: Path) -> None:
    manifest = split_index(index, tmp_path / "shards", 2, progress=False)
    with IndexWriter.open(manifest.path(1)) as writer:
        writer.delete([*manifest.open(1).ids()][:1])
    manifest.open(0).close()
    with pytest.raises(InvalidInput, match=r"shard-0001 was changed after .* split it again"):
        manifest.open(1)


def test_a_folder_of_shards_is_replaced_and_nothing_else(index: Path, tmp_path: Path) -> None:
    first = split_index(index, tmp_path / "shards", 2, progress=False)
    with pytest.raises(AlreadyExists):
        split_index(index, tmp_path / "shards", 3, progress=False)
    second = split_index(index, tmp_path / "shards", 3, overwrite=True, progress=False)
    assert (len(first.shards), len(second.shards)) == (2, 3)
    assert first.version != second.version
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo").touch()
    with pytest.raises(AlreadyExists, match=MANIFEST_FILE):
        split_index(index, tmp_path / "notes", 2, overwrite=True, progress=False)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["todo"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "shards"]


def test_bad_numbers_and_places_are_refused(index: Path, tmp_path: Path) -> None:
    for n_shards in (0, -1, 1001, 2.0):
        with pytest.raises(InvalidInput, match="from 1 to 1000"):
            split_index(index, tmp_path / "shards", n_shards)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is the index or inside it"):
        split_index(index, index / "shards", 2)
    with pytest.raises(NotFound):
        split_index(tmp_path / "nothing", tmp_path / "shards", 2)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 2},
        {"shards": []},
        {"shards": [{"folder": "shard-0000"}]},
        {"shards": [{"folder": 1, "documents": 2, "generation": 3}]},
        {"branches": []},
        {"branches": ["other"]},
        {"passages": 1},
        {"version": None},
    ],
)
def test_a_damaged_manifest_is_refused(index: Path, tmp_path: Path, change: dict[str, object]) -> None:
    split_index(index, tmp_path / "shards", 2, progress=False)
    path = tmp_path / "shards" / MANIFEST_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError, match=MANIFEST_FILE):
        ShardedManifest.read(tmp_path / "shards")


def test_a_folder_name_that_leads_elsewhere_is_refused(index: Path, tmp_path: Path) -> None:
    split_index(index, tmp_path / "shards", 1, progress=False)
    path = tmp_path / "shards" / MANIFEST_FILE
    path.write_text(path.read_text().replace("shard-0000", "../index"))
    with pytest.raises(FormatError, match="invalid file name"):
        ShardedManifest.read(tmp_path / "shards").open(0)


def test_the_command(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shards = str(tmp_path / "shards")
    assert main(["split", str(index), "--shards", "2", "--out", shards, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["documents"] == [entry.documents for entry in ShardedManifest.read(shards).shards]
    assert main(["split", str(index), "--shards", "2", "--out", shards]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["split", str(index), "--shards", "1", "--out", shards, "--overwrite"]) == 0
    assert re.search(r"\d+ documents in 1 shard of \d+ to \d+", capsys.readouterr().err)
