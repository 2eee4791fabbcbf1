"""Documents of several segments written as one, piece by piece: the bytes are those of writing them out of memory."""

from __future__ import annotations

import dataclasses
import errno
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir import kernel
from lightir.errors import WriteFailed
from lightir.index import Index, IndexInfo, IndexOptions, IndexWriter, build_index
from lightir.index import build as build_module
from lightir.index.segments import graph, segment_writer
from lightir.index.segments import join as joined
from lightir.index.segments.join import Part, Streamed, inverted
from lightir.index.segments.rows import DocumentRows, count_terms, join, of_segment
from lightir.index.segments.segment import Segment
from lightir.index.segments.segment_writer import write_joined, write_rows
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors, row_starts
from small_collections import VOCAB_SIZE, build_flat, csr, word_contract, word_table, write_folder

WORDS = ("cat", "dog", "fish", "runs", "sleeps", "well", "the", "on")


def shard(ids: range, seed: int, *, vectors: bool = True) -> Shard:
    """Documents d0000 and on of random words; one in six repeats a word 300 times, one in six has no text."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) + f" only{i}" for i in ids]
    texts = [("", text + " cat" * 300, text)[min(int(rng.integers(6)), 2)] for text in texts]
    documents = [Document(f"d{i:04d}", text) for i, text in zip(ids, texts, strict=True)]
    if not vectors:
        return Shard(documents, None, None)
    rows = [{int(t): int(rng.integers(1, 9)) for t in rng.choice(VOCAB_SIZE, 3, False)} for _ in ids]
    dense = rng.standard_normal((len(documents), 4)).astype(np.float16)
    return Shard(documents, dense, csr(rows, vocab_size=VOCAB_SIZE, dtype=np.uint8))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that end inside documents' and terms' rows."""
    monkeypatch.setattr(joined, "PIECE_DOCUMENTS", 7)
    monkeypatch.setattr(joined, "PIECE_POSTINGS", 5)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kinds", ["all", "pending", "some pending", "vectors alone", "tokens alone"])
@pytest.mark.parametrize("dtype", ["fp16", "int8", "fp16+int8"])
def test_joined_segments_are_those_of_rows_in_memory(tmp_path: Path, kinds: str, dtype: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {"dense_dtype": dtype, "contract": word_contract()}
    if kinds == "vectors alone":
        options["analyzer"] = None
    if kinds == "tokens alone":
        options = {"analyzer": "words"}
    # Ids of different segments lie among each other.
    ids = [range(i, 60, 3) for i in range(3)]
    waits = range(3) if kinds == "pending" else [seed % 3] if kinds == "some pending" else []
    encoded = [kinds != "tokens alone" and i not in waits for i in range(3)]
    shards = [shard(each, seed + i, vectors=encoded[i]) for i, each in enumerate(ids)]
    build_flat(shards, tmp_path / "index", segment_documents=20, progress=False, **options)
    with Index.open(tmp_path / "index") as index:
        segments = [each.segment for each in index.view.segments]
        stored = index.view.options
        parts = [(each, np.flatnonzero(rng.random(len(each)) < (1, 0.5, 0.9)[i])) for i, each in enumerate(segments)]
        rows = join([of_segment(segment, places) for segment, places in parts])
        expected = write_rows(tmp_path / "index", rows, number=50, mean=5.5, options=stored)
        written: list[int] = []
        found = write_joined(tmp_path / "index", parts, number=51, mean=5.5, options=stored, told=written.append)
        assert found == dataclasses.replace(expected, number=51)  # of which the manifest has all files' checksums
        files = (tmp_path / "index" / "segments" / found.name).glob("*.bin")
        assert 0 <= sum(each.stat().st_size for each in files) - sum(written) < 64 * 40


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("analyzer", ["bag", "model"])
def test_joined_terms_of_a_model_are_those_of_rows_in_memory(tmp_path: Path, analyzer: str) -> None:
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"": {"embeddings": word_table()}})
    shards = [shard(range(i, 40, 2), i, vectors=False) for i in range(2)]
    options: dict[str, Any] = {"query_encoder": encoder, "analyzer": analyzer, "segment_documents": 20}
    build_flat(shards, tmp_path / "i", progress=False, **options)
    with Index.open(tmp_path / "i") as index:
        parts: list[Part] = [(each.segment, np.arange(3, 17)) for each in index.view.segments]
        rows = join([of_segment(segment, places) for segment, places in parts])
        expected = write_rows(tmp_path / "i", rows, number=50, mean=2.5, options=index.view.options)
        found = write_joined(tmp_path / "i", parts, number=51, mean=2.5, options=index.view.options)
    assert found == dataclasses.replace(expected, number=51)


def test_ids_are_held_by_pieces_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's part of the memory, to a tenth of the ids' bytes: numbers are held of all documents, texts of a few."""
    monkeypatch.setattr(joined, "PIECE_DOCUMENTS", 10)
    ids = [f"{i:04d}" + "ü" * 4000 for i in range(500)]
    shards = [Shard([Document(each, "") for each in ids[i::2]], None, None) for i in range(2)]
    build_index(shards, tmp_path / "i", options=IndexOptions(segment_documents=250, analyzer="words"), progress=False)
    with Index.open(tmp_path / "i") as index:
        parts: list[Part] = [(each.segment, np.arange(250)) for each in index.view.segments]
        tracemalloc.start()
        try:
            found = write_joined(tmp_path / "i", parts, number=51, mean=1.0, options=index.view.options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8000 * 500 / 10
        assert Segment(tmp_path / "i" / "segments" / found.name, found.manifest_sha256).doc_ids.terms() == ids


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("n_docs", [1, 65_536, 150_000])
def test_blocks_inverted_one_by_one_are_the_inverted_file_of_all(tmp_path: Path, n_docs: int, dtype: Any) -> None:
    rng = np.random.default_rng(n_docs)
    lengths = rng.integers(0, 3, n_docs)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    # Ascending within a document: the first of its terms is even, the second odd and larger.
    term_ids = (2 * rng.integers(0, 9, indptr[-1])).astype(np.uint32)
    term_ids[indptr[1:][lengths == 2] - 1] += 19
    weights = rng.integers(0, 256, indptr[-1]).astype(dtype)
    rows = SparseVectors(indptr, term_ids, weights, 60)
    blocks = (rows.take(np.arange(i, min(i + 65_536, n_docs))) for i in range(0, n_docs, 65_536))
    found = inverted(blocks, 60, tmp_path)
    expected = kernel.invert(indptr, term_ids, weights, vocab_size=60, n_docs=n_docs).arrays()
    for name, array in expected.items():
        here = found[name]
        whole = np.concatenate([here.dtype.type([]), *here.pieces()]) if isinstance(here, Streamed) else here
        assert (here.dtype, here.shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(whole, array, name)
    assert not list(tmp_path.iterdir())


def test_each_block_of_documents_has_its_own_lengths(tmp_path: Path) -> None:
    """More documents than are inverted at a time: BM25's saturations go by the documents' lengths."""
    n = 70_000
    ids = [f"{i:05d}" for i in range(n)]
    indptr = row_starts(1 + np.arange(n) % 5)
    tokens = count_terms(["a"], Ragged(np.zeros(indptr[-1], np.uint32), indptr))
    rows = DocumentRows(ids, np.arange(n), np.zeros(n, np.bool_), None, None, tokens)
    options = IndexOptions()
    (tmp_path / "segments").mkdir()
    expected = write_rows(tmp_path, rows, number=1, mean=2.0, options=options)
    parts: list[Part] = []
    for number in (2, 3):
        places = np.arange(number - 2, n, 2)
        piece = write_rows(tmp_path, rows.take(places), number=number, mean=9.0, options=options)
        parts.append((Segment(tmp_path / "segments" / piece.name, piece.manifest_sha256), np.arange(len(places))))
    found = write_joined(tmp_path, parts, number=4, mean=2.0, options=options)
    assert found == dataclasses.replace(expected, number=4)


def test_rows_without_any_term_have_an_empty_inverted_file(tmp_path: Path) -> None:
    found = inverted(iter([SparseVectors.empty(3, vocab_size=9, dtype=np.uint8)]), 9, tmp_path)
    expected = kernel.invert(
        np.zeros(4, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint8), vocab_size=9, n_docs=3
    )
    for name, array in expected.arrays().items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name


def built(folder: Path, shards: list[Shard], **options: Any) -> IndexInfo:
    return build_flat(shards, folder, contract=word_contract(), progress=False, **options)


def test_what_is_built_of_pieces_is_what_is_built_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the keys in the store, which follow the pieces."""
    shards = [shard(range(i, 60, 3), i) for i in range(3)]
    info = built(tmp_path / "once", shards)
    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    assert dataclasses.replace(built(tmp_path / "pieces", shards), bytes=info.bytes) == info
    assert built(tmp_path / "two", shards, segment_documents=50).segments == 2
    assert [each.name for each in (tmp_path / "pieces" / "segments").iterdir()] == ["segment-000001"]
    for name in ("dense.bin", "sparse.bin", "tokens.bin"):
        once = (tmp_path / "once" / "segments" / "segment-000001" / name).read_bytes()
        assert (tmp_path / "pieces" / "segments" / "segment-000001" / name).read_bytes() == once
    with Index.open(tmp_path / "pieces") as index, IndexWriter.open(tmp_path / "two") as writer:
        index.verify()
        text = {document.doc_id: document.text for each in shards for document in each.documents}
        assert {document.doc_id: document.text for document in index.documents(text)} == text
        writer.add([Document("new", "cat")])
        writer.delete(["d0000"])
        assert writer.compact(progress=False).segments == 2
        assert [len(each.segment) for each in writer.view.segments] == [50, 10]


def test_pieces_of_other_lengths_become_segments_without_being_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    shards = [shard(range(i, i + 15), i) for i in range(0, 75, 15)]
    built(tmp_path / "i", shards, segment_documents=40)
    with Index.open(tmp_path / "i") as index:
        assert [len(each.segment) for each in index.view.segments] == [30, 30, 15]


@pytest.mark.parametrize("place", ["segments.segment_writer.write_segment", "segments.join.tempfile.TemporaryFile"])
def test_a_full_disk_leaves_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Whether a piece is written then, or pieces are joined."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    monkeypatch.setattr(f"lightir.index.{place}", full)
    with pytest.raises(WriteFailed, match=r"/i cannot be written: .*No space left on device"):
        built(tmp_path / "i", [shard(range(i, 60, 3), i) for i in range(3)])
    assert not list(tmp_path.iterdir())


def test_a_piece_gets_its_graph_when_it_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("usearch")
    monkeypatch.setattr(segment_writer, "LEAST_DOCUMENTS", 10)
    calls: list[int] = []

    def counted(rows: Any, scales: Any, wanted: Any) -> Any:
        calls.append(int(wanted.sum()))
        return graph.build_graph(rows, scales, wanted)

    monkeypatch.setattr(segment_writer, "build_graph", counted)
    shards = [shard(range(i, i + 20), i) for i in range(0, 60, 20)]
    for analyzer in (None, "words"):
        built(tmp_path / f"once-{analyzer}", shards, dense_graph=True, analyzer=analyzer)
        assert calls == [60]
        with monkeypatch.context() as patched:
            patched.setattr(build_module, "GATHERED_DOCUMENTS", 20)
            info = built(tmp_path / f"pieces-{analyzer}", shards, dense_graph=True, analyzer=analyzer)
            assert calls == [60, 60]
            assert info.segments == 1
            built(tmp_path / f"own-{analyzer}", shards, dense_graph=True, segment_documents=20, analyzer=analyzer)
            assert calls == [60, 60, 20, 20, 20]
        once, pieces = (
            next((tmp_path / f"{each}-{analyzer}" / "segments").glob("*/graph.bin")) for each in ("once", "pieces")
        )
        assert once.read_bytes() == pieces.read_bytes()
        calls.clear()
