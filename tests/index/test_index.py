"""An index folder holds every document once, is reproducible to the byte, and names a damaged file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.analysis import Analyzer
from lightir.contract import DenseHead, Fusion
from lightir.errors import AlreadyExists, ContractMismatch, FormatError, InvalidInput, LightirError, NotFound
from lightir.index import Index, IndexInfo, IndexWriter, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document
from small_collections import VOCAB_SIZE, animal_shard, build_flat, csr, word_contract, word_table, write_folder


def build(out: Path, *shards: Shard, **options: Any) -> IndexInfo:
    return build_flat(shards or [animal_shard()], out, **{"contract": word_contract(), "progress": False, **options})


def only_segment(index: Index) -> Any:
    (live,) = index.view.segments
    return live.segment


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_documents_are_returned_whole_with_their_vectors(tmp_path: Path) -> None:
    shard = animal_shard()
    build(tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        assert len(index) == 3
        assert index.documents(["c", "b", "a"]) == [shard.documents[i] for i in (2, 0, 1)]
        assert index.doc_ids(np.array([0, 1, 2], np.uint32)) == ["a", "b", "c"]
        assert [index.doc_ord(doc_id) for doc_id in ("b", "", "bb")] == [1, None, None]
        np.testing.assert_array_equal(only_segment(index).dense[0], shard.dense[[1, 0, 2]])  # type: ignore[index]
        assert [only_segment(index).sparse.row(i)[1].tolist() for i in range(3)] == [[1, 4, 3], [5, 2], []]
        with pytest.raises(NotFound, match="'x'"):
            index.documents(["x"])
        index.verify()


def test_a_width_that_was_not_trained_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dense = word_contract().dense
    assert dense is not None
    trained = dataclasses.replace(word_contract(), dense=dataclasses.replace(dense, dims=(4, 2)))
    build(tmp_path / "trained", dense_dim=2, contract=trained)
    build(tmp_path / "whole")
    assert not caplog.records
    build(tmp_path / "between", dense_dim=3, contract=trained)
    build(tmp_path / "unknown", dense_dim=3)
    between, unknown = (record.getMessage() for record in caplog.records)
    assert between.startswith("dense_dim: the model was trained at 4, 2 columns, not at 3")
    assert unknown.startswith("dense_dim: the model records no Matryoshka widths, so its first 3 columns")


def test_info_counts_documents_branches_and_bytes(tmp_path: Path) -> None:
    info = build(tmp_path / "index", dense_dim=2)
    assert (info.documents, info.segments, info.branches, info.dense_dim) == (3, 1, ("dense", "sparse", "tokens"), 2)
    assert info.analyzer == "auto-english"
    assert info.contract is not None
    assert info.contract["fingerprint"] == word_contract().fingerprint
    on_disk = sum(map(len, contents(tmp_path / "index").values()))
    assert 0 < on_disk - sum(info.bytes.values()) < 4096  # the manifest
    json.dumps(dataclasses.asdict(info))


@pytest.mark.parametrize("n", [0, 1, 2, 10])
def test_an_index_of_tokens_alone(tmp_path: Path, n: int) -> None:
    documents = [Document(f"d{i}", f"word{i} everywhere") for i in range(n)]
    info = build_index(document_shards(documents, size=3), tmp_path / "index", progress=False)
    assert (info.documents, info.branches, info.contract) == (n, ("tokens",), None)
    with Index.open(tmp_path / "index") as index:
        index.verify()
        queries = index.view.words.queries(Analyzer().terms(["everywhere word0 word0 nowhere", ""]))
        assert list(queries.terms) == ["everywher", "word0"][: 2 * n]
        idfs = [math.log1p(0.5 / (n + 0.5)), 2 * math.log1p((n - 0.5) / 1.5)]
        np.testing.assert_allclose(queries.vectors.weights, idfs[: 2 * n], rtol=1e-6)
        with pytest.raises(InvalidInput, match="no dense branch; it has tokens"):
            index.view.require("dense")


def test_the_same_documents_give_the_same_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    script = """
import sys
from lightir.index import build_index, document_shards
from lightir.types import Document
words = "zebra apple house cat dog fish blue well".split()
texts = [" ".join(words[(i * k) % 8] for k in range(1, 6)) for i in range(40)]
build_index(document_shards((Document(f"d{i}", t) for i, t in enumerate(texts)), size=7), sys.argv[1], progress=False)
"""
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", script, tmp_path / seed], check=True, env=environment)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")


def test_arrays_do_not_depend_on_the_order_or_the_shards(tmp_path: Path) -> None:
    shard = animal_shard()
    assert shard.dense is not None
    turned = [
        Shard([shard.documents[i]], shard.dense[[i]], csr([row], vocab_size=VOCAB_SIZE, dtype=np.uint8))
        for i, row in [(2, {}), (1, {2: 4, 4: 3, 1: 1}), (0, {1: 5, 5: 2})]
    ]
    build(tmp_path / "one")
    build(tmp_path / "two", *turned)
    assert contents(tmp_path / "one" / "segments") == contents(tmp_path / "two" / "segments")


def test_a_narrow_index_is_renormalised(tmp_path: Path) -> None:
    shard = dataclasses.replace(animal_shard(), dense=np.array([[3, 4, 9, 9], [0, 0, 1, 0], [0, 2, 0, 0]], np.float16))
    build(tmp_path / "index", shard, dense_dim=2)
    with Index.open(tmp_path / "index") as index:
        np.testing.assert_allclose(only_segment(index).dense[0], [[0, 0], [0.6, 0.8], [0, 1]], atol=1e-3)


def test_int8_rows_are_multiplied_by_their_scales(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)
    rows[2] = 0
    build(tmp_path / "index", dataclasses.replace(animal_shard(), dense=rows), dense_dtype="int8")
    with Index.open(tmp_path / "index") as index:
        stored, scales = only_segment(index).dense
        assert stored.dtype == np.int8
        assert scales is not None
        np.testing.assert_allclose(stored * scales[:, None], rows[[1, 0, 2]], atol=np.abs(rows).max() / 127)


def test_only_the_strongest_impacts_are_kept(tmp_path: Path) -> None:
    rows = csr([{1: 5, 2: 5, 3: 5, 4: 0}, {2: 4, 4: 9, 6: 5}, {}], vocab_size=VOCAB_SIZE, dtype=np.uint8)
    build(tmp_path / "index", dataclasses.replace(animal_shard(), sparse=rows), sparse_top_k=2)
    with Index.open(tmp_path / "index") as index:
        assert [only_segment(index).sparse.row(i)[0].tolist() for i in range(3)] == [[4, 6], [1, 2], []]


def test_the_model_s_terms_can_be_counted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build(tmp_path / "index", query_encoder=folder, analyzer="model")
    with Index.open(tmp_path / "index") as index:
        tokens, terms = only_segment(index).tokens, only_segment(index).terms
        term_ids = [[terms[position] for position in tokens.row(i)[0]] for i in range(3)]
        assert term_ids == [[1, 2, 4, 6], [1, 5, 6, 7], []]
        assert index.query_encoder() is not None
    with pytest.raises(InvalidInput, match="query encoder"):
        build(tmp_path / "other", analyzer="model")


def with_documents(*documents: Document) -> Shard:
    return Shard(documents, None, None)


@pytest.mark.parametrize(
    ("shards", "options", "says"),
    [
        ([with_documents(Document("x", "")), with_documents(Document("x", ""))], {}, "duplicate document 'x'"),
        ([with_documents(Document("", "text"))], {}, "0 bytes"),
        ([with_documents(Document("ü" * 5001, ""))], {}, "10002 bytes"),
        ([with_documents(Document("x", "\ud800"))], {}, "text of document 'x'"),
        ([with_documents(Document("x", "", "", {"a": float("nan")}))], {}, "metadata of document 'x'"),
        ([with_documents(Document("x", "", "", {"a": object()}))], {}, "metadata of document 'x'"),
        ([with_documents(Document("x", ""))], {"analyzer": None}, "nothing to search"),
        ([with_documents(Document("x", ""))], {"analyzer": "klingon"}, "klingon"),
        ([animal_shard(), dataclasses.replace(animal_shard(), sparse=None)], {}, "shard"),
        ([animal_shard()], {"contract": None}, "contract is missing"),
        ([animal_shard()], {"contract": word_contract(sparse=None)}, "sparse vectors"),
        ([animal_shard()], {"contract": word_contract(dense=None)}, "dense vectors"),
        ([animal_shard()], {"contract": word_contract(dense=DenseHead(dims=(8, 4)))}, "width 8"),
        ([animal_shard()], {"contract": word_contract(vocab_size=9)}, "vocabulary 8.*9"),
        ([animal_shard()], {"dense_dim": 5}, "dense_dim is 5"),
        ([animal_shard()], {"dense_dtype": "fp8"}, "fp8"),
        ([animal_shard()], {"sparse_top_k": 0}, "sparse_top_k is 0"),
    ],
)
def test_refused_documents_leave_no_index(
    tmp_path: Path, shards: list[Shard], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(LightirError, match=says):
        build(tmp_path / "index", *shards, **options)
    assert list(tmp_path.iterdir()) == []


def test_widest_ids_are_accepted(tmp_path: Path) -> None:
    ids = ["x" * 10_000, "\U0010ffff", " ", "\n", "a/b", "-1"]
    build_index(document_shards(Document(doc_id, "same") for doc_id in ids), tmp_path / "index", progress=False)
    with Index.open(tmp_path / "index") as index:
        assert index.doc_ids(np.arange(6, dtype=np.uint32)) == sorted(ids)
        assert [index.doc_ord(doc_id) for doc_id in sorted(ids)] == list(range(6))
        assert [document.doc_id for document in index.documents(ids)] == ids


def test_a_vectors_folder_provides_its_contract_and_query_encoder(tmp_path: Path) -> None:
    with VectorsWriter(tmp_path / "vectors", word_contract()) as writer:
        writer.add(animal_shard())
        writer.finish()
    build_index(str(tmp_path / "vectors"), tmp_path / "bare", progress=False)
    write_folder(tmp_path / "vectors" / "query-encoder", word_contract(), {"": {"embeddings": word_table()}})
    build_index(tmp_path / "vectors", tmp_path / "carried", progress=False)
    build(tmp_path / "told", query_encoder=tmp_path / "vectors" / "query-encoder")
    assert contents(tmp_path / "carried") == contents(tmp_path / "told")
    with Index.open(tmp_path / "bare") as index:
        assert index.contract == word_contract()
        assert index.query_encoder() is None
    build_index(tmp_path / "vectors", tmp_path / "other", query_encoder=narrow_encoder(tmp_path), progress=False)
    with Index.open(tmp_path / "other") as index:
        assert index.query_encoder().tasks == ("narrow",)  # type: ignore[union-attr]
    fused = word_contract(fusion=Fusion("rrf"))
    build_index(tmp_path / "vectors", tmp_path / "fused", contract=fused, progress=False)
    with Index.open(tmp_path / "fused") as index:
        assert index.contract == fused
    with pytest.raises(NotFound, match="nowhere"):
        build_index(tmp_path / "nowhere", tmp_path / "index", progress=False)


def narrow_encoder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "narrow", word_contract(), {"narrow": {"embeddings": word_table()}})


def test_a_query_encoder_of_another_model_is_refused(tmp_path: Path) -> None:
    other = word_contract(dense=DenseHead(pooling="mean"))
    folder = write_folder(tmp_path / "q", other, {"": {"embeddings": word_table()}})
    with pytest.raises(ContractMismatch, match=r"'eos'.*'mean'"):
        build(tmp_path / "index", query_encoder=folder)


@pytest.mark.parametrize("first", [0, 1])
def test_shards_of_different_branches_are_refused(tmp_path: Path, first: int) -> None:
    whole = animal_shard()
    kinds = [
        Shard(whole.documents[:1], np.ones((1, 4), np.float16), None),
        Shard(whole.documents[1:2], None, csr([{1: 5}], vocab_size=VOCAB_SIZE, dtype=np.uint8)),
    ]
    shards = [Shard([Document("text", "alone")], None, None), kinds[first], kinds[1 - first]]
    with pytest.raises(InvalidInput, match=r"a shard has \(dense, sparse\) = .*, but earlier shards have \("):
        build_index(shards, tmp_path / "i", contract=word_contract(), progress=False)
    assert not (tmp_path / "i").exists()


def test_an_existing_index_is_replaced_only_on_request(tmp_path: Path) -> None:
    build(tmp_path / "index")
    before = contents(tmp_path / "index")
    with pytest.raises(AlreadyExists):
        build(tmp_path / "index")
    with pytest.raises(InvalidInput):
        build(tmp_path / "index", with_documents(Document("", "")), overwrite=True)
    left = contents(tmp_path / "index")
    assert "writer.lock" in left  # of the refused build
    assert {name: content for name, content in left.items() if name != "writer.lock"} == before
    assert build(tmp_path / "index", with_documents(Document("x", "y")), overwrite=True).documents == 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("name", "damage", "on_open"),
    [
        ("tokens.bin", cut, True),
        ("dense.bin", Path.unlink, True),
        ("manifest.json", flip, True),
        ("sparse.bin", flip, False),
        ("documents.bin", flip, False),
    ],
)
def test_damage_is_named_by_file(tmp_path: Path, name: str, damage: Callable[[Path], None], on_open: bool) -> None:
    build(tmp_path / "index")
    damage(tmp_path / "index" / "segments" / "segment-000001" / name)
    if on_open:
        with pytest.raises(FormatError, match=name):
            Index.open(tmp_path / "index")
        return
    with Index.open(tmp_path / "index") as index, pytest.raises(FormatError, match=name):
        index.verify()


SEGMENT = Path("segments", "segment-000001")


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest of the only segment, and its checksum in the store."""
    content = json.dumps(manifest).encode()
    (folder / SEGMENT / "manifest.json").write_bytes(content)
    connection = sqlite3.connect(folder / "store.sqlite")
    connection.execute("UPDATE segments SET manifest_sha256 = ?", (hashlib.sha256(content).hexdigest(),))
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("format_version",), None),
        (("files",), []),
        (("files", "../dense.bin"), {"bytes": 1, "sha256": ""}),
        (("documents",), 10**12),
        (("arrays", "documents.keys"), 0),
        (("arrays", "dense.rows", "shape"), [2**40, 2**40]),
        (("arrays", "dense.rows", "shape"), [3, "4"]),
        (("arrays", "dense.rows", "shape"), [True, 4]),
        (("arrays", "dense.rows", "offset"), -64),
        (("arrays", "dense.rows", "offset"), 2**62),
        (("arrays", "tokens.lengths", "offset"), 1),
        (("arrays", "dense.rows", "dtype"), "O"),
        (("arrays", "dense.rows", "dtype"), "no dtype"),
        (("mean_length",), float("nan")),
        (("total_length",), -1),
        (("vocab_sizes",), {"sparse": 8}),
        (("vocab_sizes", "tokens"), None),
    ],
)
def test_a_manifest_whose_arrays_exceed_its_files_is_refused(
    tmp_path: Path, path: tuple[str, ...], value: object
) -> None:
    build(tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / SEGMENT / "manifest.json").read_text())
    at = manifest
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    sign(tmp_path / "index", manifest)
    with pytest.raises(FormatError, match="segment-000001"):
        Index.open(tmp_path / "index")


@pytest.mark.parametrize(
    "name", ["documents.ids.indptr", "tokens.postings.run_indptr", "dense.rows", "tokens.terms.text"]
)
def test_a_manifest_without_an_array_is_refused_when_it_is_asked_for(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build(tmp_path / "index", query_encoder=folder)
    manifest = json.loads((tmp_path / "index" / SEGMENT / "manifest.json").read_text())
    del manifest["arrays"][name]
    sign(tmp_path / "index", manifest)
    with Index.open(tmp_path / "index") as index, pytest.raises(FormatError, match=name):
        Searcher(index).hits("the cat", options=SearchOptions(mode="hybrid+tokens"))


@pytest.mark.parametrize("numbers", [[0, -1, 2, 3], [0, 2**62, 2, 3], [0, 5, 2, 3], [-9, 1, 2, 3]])
def test_deleted_documents_with_rows_outside_their_arrays_are_damage(tmp_path: Path, numbers: list[int]) -> None:
    """Opening does not check a segment's arrays; deleted documents are still subtracted from each term's df."""
    build(tmp_path / "index")
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete(["a", "b"])
    path = tmp_path / "index" / SEGMENT
    start = json.loads((path / "manifest.json").read_text())["arrays"]["tokens.forward.indptr"]["offset"]
    content = bytearray((path / "tokens.bin").read_bytes())
    content[start : start + 32] = np.array(numbers, np.int64).tobytes()
    (path / "tokens.bin").write_bytes(content)
    with Index.open(tmp_path / "index") as index, pytest.raises(FormatError, match=r"tokens\.bin is damaged"):
        Searcher(index).search(["cat"], options=SearchOptions(mode="tokens"))


def change_record(folder: Path, **changes: Any) -> None:
    connection = sqlite3.connect(folder / "store.sqlite")
    record = json.loads(connection.execute("SELECT value FROM record").fetchone()[0])
    connection.execute("UPDATE record SET value = ?", (json.dumps({**record, **changes}),))
    connection.commit()
    connection.close()


def flip_bit(folder: Path, file: str, offset: int, bit: int) -> None:
    path = folder / "segments" / "segment-000001" / file
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.parametrize("branch", ["sparse", "tokens"])
def test_any_flipped_bit_of_a_forward_index_raises_only_our_errors(tmp_path: Path, branch: str) -> None:
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build(tmp_path / "index", query_encoder=encoder)
    manifest = json.loads((tmp_path / "index" / "segments" / "segment-000001" / "manifest.json").read_text())
    rows, ids = (int(manifest["arrays"][f"{branch}.forward.{name}"]["offset"]) for name in ("indptr", "term_ids"))
    flips = [(rows + 8 + i, 3 * i % 8) for i in range(16)] + [(rows + 15, 7), (ids, 3), (ids + 4, 3)]
    messages = ""
    for offset, bit in flips:
        flip_bit(tmp_path / "index", f"{branch}.bin", offset, bit)
        with Index.open(tmp_path / "index") as index:
            for doc_id in "abc":
                try:
                    Searcher(index).explain("the cat fish dog", doc_id, SearchOptions(mode=branch))
                except FormatError as error:
                    messages += str(error)
        flip_bit(tmp_path / "index", f"{branch}.bin", offset, bit)
    assert f"{branch}.bin is damaged: its checksum" in messages
    assert "`lightir verify` says which file" in messages


@pytest.mark.parametrize("change", ["add", "compact"])
def test_damage_is_not_rewritten_with_a_valid_checksum(tmp_path: Path, change: str) -> None:
    build(tmp_path / "index")
    flip_bit(tmp_path / "index", "dense.bin", 3, 0)
    before = contents(tmp_path / "index" / "segments")
    documents = [Document(str(i), "a new document") for i in range(5)]
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.delete(["a"])
        make_it = writer.compact if change == "compact" else lambda: writer.add(documents)
        with pytest.raises(FormatError, match=r"dense\.bin is damaged"):
            make_it()
    assert contents(tmp_path / "index" / "segments") == before


def test_an_index_of_the_first_format_must_be_rebuilt(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "store.sqlite")
    connection.execute("CREATE TABLE record (value TEXT NOT NULL)")
    connection.execute("INSERT INTO record VALUES (?)", (json.dumps({"format_version": 1, "written_by": "0.1.0"}),))
    connection.commit()
    connection.close()
    for opened in (Index, IndexWriter):
        with pytest.raises(FormatError, match=r"format 1.*'0\.1\.0'.*reads 2.*rebuild it"):
            opened.open(tmp_path)


def test_other_versions_and_other_files_are_refused(tmp_path: Path) -> None:
    build(tmp_path / "index")
    shutil.copytree(tmp_path / "index", tmp_path / "words")
    change_record(tmp_path / "index", format_version=99, written_by="7.8.9")
    with pytest.raises(FormatError, match=r"99.*7\.8\.9"):
        Index.open(tmp_path / "index")
    change_record(tmp_path / "words", analyzer={"name": "english", "version": 0})
    with pytest.raises(FormatError, match="analysis version 0"):
        Index.open(tmp_path / "words")
    (tmp_path / "words" / "store.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(FormatError, match=r"store\.sqlite"):
        Index.open(tmp_path / "words")
    (tmp_path / "file").touch()
    for name, error in (("nowhere", "nowhere does not exist; expected an index"), ("file", "file is a file; expected")):
        with pytest.raises(NotFound, match=error):
            Index.open(tmp_path / name)
    with pytest.raises(NotFound, match="is not an index"):
        Index.open(tmp_path)
