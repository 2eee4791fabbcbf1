"""Vectors folders: whole shards only, each document once, damage refused by name."""

from __future__ import annotations

import dataclasses
import hashlib
import io
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
    with pytest.raises(AlreadyExists, match="another process is writing"):
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


def test_a_folder_has_one_writer_until_it_is_finished_or_given_up(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "v"
    writer = VectorsWriter(folder, make_contract())
    with pytest.raises(AlreadyExists, match="another process"):
        VectorsWriter(folder, make_contract(), resume=True)
    with pytest.raises(FormatError, match="is incomplete"):
        VectorsReader(folder)
    writer.close()
    with pytest.raises(AlreadyExists, match="--resume"):
        VectorsWriter(folder, make_contract())
    writer = VectorsWriter(folder, make_contract(), resume=True)
    writer.finish()
    VectorsWriter(folder, make_contract(), resume=True).close()


def test_what_a_kill_left_is_removed_and_whole_shards_stay(tmp_path: Path) -> None:
    write(tmp_path / "v").close()
    for name in ("shard-00002", ".shard-00003.new-ab"):
        (tmp_path / "v" / name).mkdir()
        (tmp_path / "v" / name / "dense.npy").touch()
    for name in (".manifest.json.ab", ".lightir.json.ab", "shard-notes.txt"):
        (tmp_path / "v" / name).touch()
    with VectorsWriter(tmp_path / "v", make_contract(), resume=True) as writer:
        left = sorted(path.name for path in (tmp_path / "v").iterdir())
        assert left == ["lightir.json", "manifest.json", "shard-00000", "shard-00001", "shard-notes.txt"]
        (tmp_path / "v" / "shard-00002").mkdir()  # as if another writer had been killed there
        (tmp_path / "v" / "shard-00002" / "junk").touch()
        writer.add(make_shard(5, 1))
        writer.finish()
    assert [len(shard.documents) for shard in VectorsReader(tmp_path / "v")] == [3, 2, 1]


def test_a_folder_killed_before_its_first_manifest_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    make_contract(sparse=None).save(tmp_path / "v")
    with VectorsWriter(tmp_path / "v", make_contract(), resume=True) as writer:
        assert writer.doc_ids == set()
        writer.finish()
    assert VectorsReader(tmp_path / "v").contract == make_contract()


def test_layers_rounded_in_another_way_are_not_mixed(tmp_path: Path) -> None:
    VectorsWriter(tmp_path / "v", make_contract(), quantized="int8").close()
    with pytest.raises(ContractMismatch, match=r"int8.*None"):
        VectorsWriter(tmp_path / "v", make_contract(), resume=True)
    VectorsWriter(tmp_path / "v", make_contract(), quantized="int8", resume=True).close()


@pytest.mark.parametrize("left_out", [{"dense": None}, {"sparse": None}])
def test_a_shard_may_lack_a_branch_or_hold_nothing(tmp_path: Path, left_out: dict[str, None]) -> None:
    with VectorsWriter(tmp_path / "v", make_contract()) as writer:
        for n in (0, 2):
            writer.add(dataclasses.replace(make_shard(0, n), **left_out))
        writer.finish()
    empty, two = VectorsReader(tmp_path / "v")
    assert (len(empty.documents), len(two.documents)) == (0, 2)
    assert [two.dense is None, two.sparse is None] == ["dense" in left_out, "sparse" in left_out]


def test_a_document_goes_in_once(tmp_path: Path) -> None:
    writer = write(tmp_path / "v")
    with pytest.raises(InvalidInput, match="duplicate document id 'd4': it is already encoded"):
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


def with_other_bytes(folder: Path, name: str, content: bytes) -> VectorsReader:
    """The folder with a file of its first shard replaced, and a manifest that agrees."""
    (folder / "shard-00000" / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["shards"][0]["files"][name] = facts
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return VectorsReader(folder)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


HEADER = b"\x93NUMPY\x01\x00\x76\x00"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("dense.npy", b""),
        ("dense.npy", b"nonsense"),
        ("dense.npy", HEADER + b"{'descr': '<f2', 'fortran_order': False, 'shape': (4, 1" + b" " * 64),
        ("dense.npy", HEADER + b"{'descr': '<f2', 'fortran_order': False, 'shape': (999999999999, 8), }".ljust(118)),
        ("dense.npy", npy(np.zeros((3, 8), np.float32))),
        ("dense.npy", npy(np.zeros(3, np.float16))),
        ("dense.npy", npy(np.full((3, 8), np.nan, np.float16))),
        ("dense.npy", npy(np.zeros((2, 8), np.float16))),
        ("indptr.npy", npy(np.zeros(4, np.int32))),
        ("indptr.npy", npy(np.array([0, 2, 1, 3]))),
        ("term_ids.npy", npy(np.full(999, 5, np.uint32))),
        ("impacts.npy", npy(np.zeros(999, np.float32))),
        ("documents.jsonl", b'{"doc_id": "a"}\n' * 3),
        ("documents.jsonl", b'{"doc_id": 1, "text": ""}\n' * 3),
        ("documents.jsonl", b'{"doc_id": "a", "text": "", "metadata": []}\n' * 3),
        ("documents.jsonl", b'{"doc_id": "a", "text": ""}\n' * 2),
        ("documents.jsonl", b"\xff\n" * 3),
        ("documents.jsonl", b"[" * 100_000 + b"\n"),
    ],
)
def test_files_that_do_not_hold_a_shard_are_refused_though_the_manifest_agrees(
    tmp_path: Path, name: str, content: bytes
) -> None:
    write(tmp_path / "v").finish()
    with pytest.raises(FormatError, match="shard-00000"):
        list(with_other_bytes(tmp_path / "v", name, content))


@pytest.mark.parametrize("documents", [-1, 10**6, 2**62, 10**30, float("inf")])
def test_a_number_of_documents_that_cannot_be_is_not_believed(tmp_path: Path, documents: float) -> None:
    write(tmp_path / "v").finish()
    path = tmp_path / "v" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["shards"][0]["documents"] = documents
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"manifest\.json"):
        VectorsReader(tmp_path / "v")


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
        lambda manifest: manifest["shards"][0].update(files={}),
        lambda manifest: manifest["shards"][0].update(files=[]),
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
