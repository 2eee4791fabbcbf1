"""Vectors folders: whole shards only, each document once, damage refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from factories import make_contract
from lightir.errors import AlreadyExists, ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.shards import Shard, VectorsReader, VectorsWriter
from lightir.text import QueryPolicy
from lightir.types import Document
from lightir.vectors import SparseVectors


def make_shard(first: int, n: int) -> Shard:
    documents = [Document(f"d{i}", f"text {i}", "Titel ü", {"year": i}) for i in range(first, first + n)]
    dense = np.arange(n * 4, dtype=np.float16).reshape(n, 4)
    indptr = np.arange(n + 1, dtype=np.int64)
    impacts = np.full(n, 7, dtype=np.uint8)
    return Shard(documents, dense, SparseVectors(indptr, np.full(n, 999, np.uint32), impacts, 1000))


def write(folder: Path) -> VectorsWriter:
    writer = VectorsWriter(folder, make_contract())
    writer.add(make_shard(0, 3))
    writer.add(make_shard(3, 2))
    return writer


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "v").finish()
    reader = VectorsReader(tmp_path / "v")
    first, second = list(reader)
    assert len(reader) == 5
    assert [d.doc_id for d in first.documents] == ["d0", "d1", "d2"]
    assert first.documents[1] == Document("d1", "text 1", "Titel ü", {"year": 1})
    assert second.dense is not None
    assert second.dense.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert second.sparse is not None
    assert second.sparse.weights.dtype == np.uint8


def test_an_unfinished_folder_is_refused_until_it_is_resumed(tmp_path: Path) -> None:
    write(tmp_path / "v")
    with pytest.raises(FormatError, match="--resume"):
        VectorsReader(tmp_path / "v")
    with pytest.raises(AlreadyExists, match="--resume"):
        VectorsWriter(tmp_path / "v", make_contract())
    writer = VectorsWriter(tmp_path / "v", make_contract(), resume=True)
    assert writer.doc_ids == {"d0", "d1", "d2", "d3", "d4"}
    writer.add(make_shard(5, 1))
    writer.finish()
    assert len(VectorsReader(tmp_path / "v")) == 6


def test_a_half_written_shard_is_swept_away_on_resume(tmp_path: Path) -> None:
    write(tmp_path / "v")
    (tmp_path / "v" / "shard-00002").mkdir()
    (tmp_path / "v" / "shard-00002" / "dense.npy").write_bytes(b"half")
    VectorsWriter(tmp_path / "v", make_contract(), resume=True).finish()
    assert not (tmp_path / "v" / "shard-00002").exists()
    assert len(VectorsReader(tmp_path / "v")) == 5


def test_a_complete_folder_that_grows_is_not_complete_until_it_is_finished_again(tmp_path: Path) -> None:
    write(tmp_path / "v").finish()
    with VectorsWriter(tmp_path / "v", make_contract(), resume=True) as writer:
        writer.add(make_shard(5, 1))
    with pytest.raises(FormatError, match="--resume"):
        VectorsReader(tmp_path / "v")
    VectorsWriter(tmp_path / "v", make_contract(), resume=True).finish()
    assert len(VectorsReader(tmp_path / "v")) == 6


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    first = write(tmp_path / "v")
    with pytest.raises(AlreadyExists, match="is being written by another process"):
        VectorsWriter(tmp_path / "v", make_contract(), resume=True)
    first.add(make_shard(5, 1))
    first.close()
    with VectorsWriter(tmp_path / "v", make_contract(), resume=True) as second:
        second.finish()
    assert len(VectorsReader(tmp_path / "v")) == 6


def test_another_contract_cannot_resume(tmp_path: Path) -> None:
    write(tmp_path / "v")
    other = make_contract(query=QueryPolicy("something else"))
    with pytest.raises(ContractMismatch) as caught:
        VectorsWriter(tmp_path / "v", other, resume=True)
    assert other.fingerprint in str(caught.value)
    assert make_contract().fingerprint in str(caught.value)


def test_a_document_goes_in_once(tmp_path: Path) -> None:
    writer = write(tmp_path / "v")
    with pytest.raises(InvalidInput, match="'d4' is encoded already"):
        writer.add(make_shard(4, 1))
    twice = Shard([Document("x", ""), Document("x", "")], None, None)
    with pytest.raises(InvalidInput, match="'x'"):
        writer.add(twice)
    writer.finish()
    assert len(VectorsReader(tmp_path / "v")) == 5


@pytest.mark.parametrize("name", ["dense.npy", "impacts.npy", "documents.jsonl", "indptr.npy"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, name: str, damage: str) -> None:
    write(tmp_path / "v").finish()
    path = tmp_path / "v" / "shard-00001" / name
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
        path.write_bytes(content)
    elif damage == "truncate":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(FormatError, match=name.replace(".", r"\.")):
        list(VectorsReader(tmp_path / "v"))


def test_another_format_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "v").finish()
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    (tmp_path / "v" / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    with pytest.raises(FormatError, match="vectors format 2"):
        VectorsReader(tmp_path / "v")


@pytest.mark.parametrize("content", ["null", "[[1]]", "5", "["])
def test_a_manifest_that_is_no_object_is_refused_by_name(tmp_path: Path, content: str) -> None:
    write(tmp_path / "v").finish()
    (tmp_path / "v" / "manifest.json").write_text(content)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        VectorsReader(tmp_path / "v")


def test_a_folder_that_is_none_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        VectorsReader(tmp_path / "nothing")


def test_vectors_that_are_not_finite_or_too_few_are_refused() -> None:
    documents = [Document("a", ""), Document("b", "")]
    with pytest.raises(InvalidInput, match="NaN"):
        Shard(documents, np.array([[np.nan], [0]], dtype=np.float16), None)
    with pytest.raises(InvalidInput, match="2 documents but 1 dense"):
        Shard(documents, np.zeros((1, 1), dtype=np.float16), None)


def test_no_documents_make_a_valid_empty_folder(tmp_path: Path) -> None:
    VectorsWriter(tmp_path / "v", make_contract()).finish()
    assert list(VectorsReader(tmp_path / "v")) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda manifest: manifest.pop("shards"),
        lambda manifest: manifest.update(shards=[1]),
        lambda manifest: manifest["shards"][0].update(files={"dense.npy": 1.5}),
        lambda manifest: manifest["shards"][0]["files"]["dense.npy"].pop("bytes"),
        lambda manifest: manifest["shards"][0].update(documents="many"),
        lambda manifest: manifest["shards"][0].update(name="../other/shard-00000"),
        lambda manifest: manifest["shards"][0].update(name="/etc"),
        lambda manifest: manifest["shards"][0].update(name=".."),
    ],
)
def test_a_manifest_that_lists_no_shards_of_the_folder_is_refused(tmp_path: Path, damage) -> None:
    for name in ("v", "other"):
        write(tmp_path / name).finish()
    path = tmp_path / "v" / "manifest.json"
    manifest = json.loads(path.read_text())
    damage(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError):
        list(VectorsReader(tmp_path / "v"))


def test_a_shards_files_lie_in_it(tmp_path: Path) -> None:
    write(tmp_path / "v").finish()
    path = tmp_path / "v" / "manifest.json"
    manifest = json.loads(path.read_text())
    files = manifest["shards"][0]["files"]
    files["../shard-00000/dense.npy"] = files["dense.npy"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="plain name"):
        list(VectorsReader(tmp_path / "v"))
