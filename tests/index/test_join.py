"""A join of segments and rows in memory writes the arrays of a plain loop, whether held in memory or streamed."""

from __future__ import annotations

import dataclasses
import errno
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.errors import WriteFailed
from lightir.index import Index, IndexInfo, IndexOptions, IndexWriter, build_index
from lightir.index import build as build_module
from lightir.index.bm25 import K1, B, saturation
from lightir.index.intake import Intake, selected
from lightir.index.segments import graph, join, segment_writer
from lightir.index.segments.join import Join, Part, Streamed, inverted
from lightir.index.segments.rows import DocumentRows, WeightedTerms, count_terms
from lightir.index.segments.segment import Segment
from lightir.index.segments.segment_writer import write_segment
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors, row_starts
from small_collections import VOCAB_SIZE, build_flat, csr, word_contract, word_table, write_folder

WORDS = ("cat", "dog", "fish", "runs", "sleeps", "well", "the", "on")


def shard(ids: range, seed: int, *, vectors: bool = True) -> Shard:
    """Return documents d0000, … of random words; one in six repeats a word 300 times, one in six has no text."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 9))) + f" only{i}" for i in ids]
    texts = [("", text + " cat" * 300, text)[min(int(rng.integers(6)), 2)] for text in texts]
    documents = [Document(f"d{i:04d}", text) for i, text in zip(ids, texts, strict=True)]
    if not vectors:
        return Shard(documents, None, None)
    rows = [{int(t): int(rng.integers(1, 9)) for t in rng.choice(VOCAB_SIZE, 3, False)} for _ in ids]
    dense = rng.standard_normal((len(documents), 4)).astype(np.float16)
    return Shard(documents, dense, csr(rows, vocab_size=VOCAB_SIZE, dtype=np.uint8))


def plain_arrays(parts: list[Part], mean: float, *, copies: bool, coded: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a segment, computed from one document after the other."""
    of = sorted((rows.doc_ids[i], rows, i) for rows, numbers in parts for i in numbers.tolist())
    of = [(rows, i) for _, rows, i in of]
    ids = [rows.doc_ids[i] for rows, i in of]
    pending = np.array([rows.pending[i] for rows, i in of])
    arrays: dict[str, npt.NDArray[Any]] = {
        "documents.ids.text": np.frombuffer("".join(ids).encode(), np.uint8),
        "documents.ids.indptr": row_starts([len(doc_id.encode()) for doc_id in ids]),
        "documents.keys": np.array([rows.doc_keys[i] for rows, i in of]),
    }
    if pending.any():
        arrays["documents.pending"] = pending
    encoded = [rows for rows, i in of if not rows.pending[i]]
    model = next((rows.dense for rows in encoded if rows.dense is not None), None)
    if model is not None:
        zeros = np.zeros(model.rows.shape[1], model.rows.dtype)
        dense = np.array([zeros if rows.dense is None else rows.dense.rows[i] for rows, i in of])
        arrays["dense.rows"] = dense
        if model.scales is not None:
            scales = [
                0.0 if rows.dense is None or rows.dense.scales is None else rows.dense.scales[i] for rows, i in of
            ]
            arrays["dense.scales"] = np.array(scales, np.float32)
        elif copies:
            made = kernel.copy_rows(dense)
            arrays |= {"dense.copies": made.rows, "dense.copy_scales": made.scales, "dense.copy_errors": made.errors}
        if coded:
            codes = kernel.code_rows(dense, scales=arrays.get("dense.scales"))
            names = ("codes", "scales", "errors", "center")
            arrays |= {f"dense.rotated_{name}": array for name, array in zip(names, codes.arrays(), strict=True)}
    if any(rows.sparse is not None for rows in encoded):
        arrays |= branch_arrays("sparse", [term_weights(rows.sparse, i) for rows, i in of], np.uint8, VOCAB_SIZE)
    if of[0][0].tokens is not None:
        arrays |= token_arrays(of, mean)
    return arrays


def term_weights(rows: WeightedTerms | None, i: int) -> dict[int, float]:
    """Return the weights of one document by term id."""
    if rows is None:
        return {}
    span = slice(rows.indptr[i], rows.indptr[i + 1])
    return dict(zip(rows.term_ids[span].tolist(), rows.weights[span].tolist(), strict=True))


def token_arrays(of: list[tuple[DocumentRows, int]], mean: float) -> dict[str, npt.NDArray[Any]]:
    counts: list[dict[Any, float]] = []
    lengths = []
    for rows, i in of:
        assert rows.tokens is not None
        dictionary = list(rows.tokens.terms)
        counts.append({dictionary[t]: count for t, count in term_weights(rows.tokens.counts, i).items()})
        lengths.append(None if rows.tokens.lengths is None else int(rows.tokens.lengths[i]))
    terms = sorted({term for document in counts for term in document})
    dtype = np.uint8 if max((c for d in counts for c in d.values()), default=0) <= 255 else np.float32
    by_id = [{terms.index(term): count for term, count in document.items()} for document in counts]
    arrays = branch_arrays("tokens", by_id, dtype, len(terms))
    if isinstance(terms[0], str):
        text = [term.encode() for term in terms]
        arrays["tokens.terms.text"] = np.frombuffer(b"".join(text), np.uint8)
        arrays["tokens.terms.indptr"] = row_starts([len(term) for term in text])
    else:
        arrays["tokens.terms.ids"] = np.array(terms, np.uint32)
    if lengths[0] is None:
        return arrays
    saturated = [
        {t: tf / (tf + K1 * (1 - B + B * length / mean)) for t, tf in document.items()}
        for document, length in zip(by_id, lengths, strict=True)
    ]
    weighted = branch_arrays("tokens", saturated, np.float32, len(terms))
    df = [sum(t in document for document in by_id) for t in range(len(terms))]
    return {
        **arrays,
        **{name: array for name, array in weighted.items() if "postings" in name},
        "tokens.lengths": np.array(lengths, np.uint32),
        "tokens.df": np.array(df, np.uint32),
    }


def branch_arrays(
    branch: str, documents: list[dict[int, float]], dtype: Any, vocab_size: int
) -> dict[str, npt.NDArray[Any]]:
    indptr = row_starts([len(document) for document in documents])
    term_ids = np.array([t for document in documents for t in sorted(document)], np.uint32)
    weights = np.array([document[t] for document in documents for t in sorted(document)], dtype)
    postings = kernel.invert(indptr, term_ids, weights, vocab_size=vocab_size, n_docs=len(documents))
    forward = {"indptr": indptr, "term_ids": term_ids, "weights": weights}
    return {
        **{f"{branch}.forward.{name}": array for name, array in forward.items()},
        **{f"{branch}.postings.{name}": array for name, array in postings.arrays().items()},
    }


def require_plain_arrays(folder: Path, parts: list[Part], options: IndexOptions) -> None:
    """Require a written join to have the arrays computed one document after the other."""
    written: list[int] = []
    number = 50 + len(list((folder / "segments").iterdir()))
    stored = write_segment(folder, Join(parts), number=number, mean=5.5, options=options, on_bytes=written.append)
    segment = Segment(folder / "segments" / stored.name, stored.manifest_sha256)
    expected = plain_arrays(
        parts,
        5.5,
        copies=options.dense_dtype == "fp16+int8",
        coded=sum(len(numbers) for _, numbers in parts) > segment_writer.CODED_ABOVE,
    )
    assert segment.manifest["arrays"].keys() == expected.keys()
    for name, array in expected.items():
        assert segment.array(name).dtype == array.dtype, name
        np.testing.assert_array_equal(segment.array(name), array, name)
    files = (folder / "segments" / stored.name).glob("*.bin")
    assert 0 <= sum(path.stat().st_size for path in files) - sum(written) < 64 * 40


@pytest.fixture(params=["held", "streamed"])
def any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Join with arrays in memory, and with streamed arrays whose pieces end inside the rows of documents and terms."""
    if request.param == "streamed":
        monkeypatch.setattr(join, "HELD_DOCUMENTS", 0)
        monkeypatch.setattr(join, "PIECE_DOCUMENTS", 7)
        monkeypatch.setattr(join, "PIECE_POSTINGS", 5)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kinds", ["all", "pending", "some pending", "vectors alone", "tokens alone"])
@pytest.mark.parametrize("dtype", ["fp16", "int8", "fp16+int8"])
def test_a_join_of_segments_and_rows_has_the_arrays_of_its_documents(
    tmp_path: Path, kinds: str, dtype: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    contract = None if kinds == "tokens alone" else word_contract()
    analyzer = None if kinds == "vectors alone" else "words"
    options = IndexOptions(dense_dtype=dtype, analyzer=analyzer, segment_documents=20)
    ids = [range(i, 60, 3) for i in range(3)]  # ids of different sources alternate
    pending = range(3) if kinds == "pending" else [seed % 3] if kinds == "some pending" else []
    encoded = [kinds != "tokens alone" and i not in pending for i in range(3)]
    shards = [shard(numbers, seed + i, vectors=encoded[i]) for i, numbers in enumerate(ids)]
    build_index(shards[:2], tmp_path / "i", options=options, contract=contract, progress=False)
    intake = Intake(contract, None if analyzer is None else Analyzer(analyzer), None, options)
    shuffled = selected(shards[2], rng.permutation(20).tolist())  # rows in memory are in any order
    with Index.open(tmp_path / "i") as index:
        sources = [live.segment.rows() for live in index.view.segments]
        sources.append(dataclasses.replace(intake.rows(shuffled), doc_keys=np.arange(100, 120)))
        require_plain_arrays(
            tmp_path / "i",
            [(rows, np.flatnonzero(rng.random(20) < (1, 0.5, 0.9)[i])) for i, rows in enumerate(sources)],
            options,
        )
        require_plain_arrays(tmp_path / "i", [(sources[2], np.arange(20))], options)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", ["fp16", "int8", "fp16+int8"])
def test_a_join_of_many_rows_has_their_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Any) -> None:
    monkeypatch.setattr(segment_writer, "CODED_ABOVE", 20)
    options = IndexOptions(dense_dtype=dtype, analyzer=None, segment_documents=20)
    shards = [shard(range(i, 60, 3), i) for i in range(3)]
    build_index(shards, tmp_path / "i", options=options, contract=word_contract(), progress=False)
    with Index.open(tmp_path / "i") as index:
        parts: list[Part] = [(live.segment.rows(), np.arange(20)) for live in index.view.segments]
        assert all(live.segment.dense_codes is None for live in index.view.segments)
        require_plain_arrays(tmp_path / "i", parts, options)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("analyzer", ["bag", "model"])
def test_a_join_of_a_model_s_terms_has_the_arrays_of_its_documents(tmp_path: Path, analyzer: str) -> None:
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"": {"embeddings": word_table()}})
    shards = [shard(range(i, 40, 2), i, vectors=False) for i in range(2)]
    options = IndexOptions(analyzer=analyzer, segment_documents=20)
    build_index(shards, tmp_path / "i", options=options, query_encoder=encoder, progress=False)
    with Index.open(tmp_path / "i") as index:
        parts: list[Part] = [(live.segment.rows(), np.arange(3, 17)) for live in index.view.segments]
        require_plain_arrays(tmp_path / "i", parts, options)


def test_the_ids_of_a_large_join_are_in_memory_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory of Python is below an eighth of the bytes of the ids."""
    monkeypatch.setattr(join, "PIECE_DOCUMENTS", 10)
    ids = [f"{i:04d}" + "ü" * 4000 for i in range(500)]
    shards = [Shard([Document(doc_id, "") for doc_id in ids[i::2]], None, None) for i in range(2)]
    options = IndexOptions(segment_documents=250, analyzer="words")
    build_index(shards, tmp_path / "i", options=options, progress=False)
    with Index.open(tmp_path / "i") as index:
        parts: list[Part] = [(live.segment.rows(), np.arange(250)) for live in index.view.segments]
        tracemalloc.start()
        try:
            stored = write_segment(tmp_path / "i", Join(parts), number=51, mean=1.0, options=options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8000 * 500 / 8
        assert list(Segment(tmp_path / "i" / "segments" / stored.name, stored.manifest_sha256).doc_ids) == ids


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
    streamed = inverted(blocks, 60, tmp_path)
    expected = kernel.invert(indptr, term_ids, weights, vocab_size=60, n_docs=n_docs).arrays()
    for name, array in expected.items():
        here = streamed[name]
        whole = np.concatenate([here.dtype.type([]), *here.pieces()]) if isinstance(here, Streamed) else here
        assert (here.dtype, here.shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(whole, array, name)
    assert not list(tmp_path.iterdir())


def test_each_block_of_documents_has_its_own_lengths(tmp_path: Path) -> None:
    """There are more documents than are inverted at a time; BM25's saturations depend on the documents' lengths."""
    n = 70_000
    ids = [f"{i:05d}" for i in range(n)]
    indptr = row_starts(1 + np.arange(n) % 5)
    tokens = count_terms(["a"], Ragged(np.zeros(indptr[-1], np.uint32), indptr))
    rows = DocumentRows(ids, np.arange(n), np.zeros(n, np.bool_), None, None, tokens)
    options = IndexOptions()
    (tmp_path / "segments").mkdir()
    parts: list[Part] = []
    for number in (1, 2):
        numbers = np.arange(number - 1, n, 2)
        half = write_segment(tmp_path, Join([(rows, numbers)]), number=number, mean=9.0, options=options)
        segment = Segment(tmp_path / "segments" / half.name, half.manifest_sha256)
        parts.append((segment.rows(), np.arange(len(segment))))
    stored = write_segment(tmp_path, Join(parts), number=3, mean=2.0, options=options)
    expected = saturation(tokens.counts.weights, tokens.counts.indptr, tokens.lengths, 2.0)
    written = Segment(tmp_path / "segments" / stored.name, stored.manifest_sha256)
    np.testing.assert_array_equal(written.array("tokens.postings.weights"), expected)
    np.testing.assert_array_equal(written.array("tokens.postings.offsets"), np.arange(n) % 65_536)


def test_rows_without_any_term_have_an_empty_inverted_file(tmp_path: Path) -> None:
    streamed = inverted(iter([SparseVectors.empty(3, vocab_size=9, dtype=np.uint8)]), 9, tmp_path)
    expected = kernel.invert(
        np.zeros(4, np.int64), np.zeros(0, np.uint32), np.zeros(0, np.uint8), vocab_size=9, n_docs=3
    )
    for name, array in expected.arrays().items():
        assert (streamed[name].dtype, streamed[name].shape) == (array.dtype, array.shape), name


def built(folder: Path, shards: list[Shard], **options: Any) -> IndexInfo:
    return build_flat(shards, folder, contract=word_contract(), progress=False, **options)


def test_an_index_built_in_pieces_equals_one_built_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the keys in the store differ: they follow the order of the pieces."""
    shards = [shard(range(i, 60, 3), i) for i in range(3)]
    info = built(tmp_path / "once", shards)
    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    assert dataclasses.replace(built(tmp_path / "pieces", shards), bytes=info.bytes) == info
    assert built(tmp_path / "two", shards, segment_documents=50).segments == 2
    assert [path.name for path in (tmp_path / "pieces" / "segments").iterdir()] == ["segment-000001"]
    for name in ("dense.bin", "sparse.bin", "tokens.bin"):
        once = (tmp_path / "once" / "segments" / "segment-000001" / name).read_bytes()
        assert (tmp_path / "pieces" / "segments" / "segment-000001" / name).read_bytes() == once
    with Index.open(tmp_path / "pieces") as index, IndexWriter.open(tmp_path / "two") as writer:
        index.verify()
        text = {document.doc_id: document.text for part in shards for document in part.documents}
        assert {document.doc_id: document.text for document in index.documents(text)} == text
        writer.add([Document("new", "cat")])
        writer.delete(["d0000"])
        assert writer.compact(progress=False).segments == 2
        assert [len(live.segment) for live in writer.view.segments] == [50, 10]


def test_pieces_of_other_lengths_become_segments_without_being_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    shards = [shard(range(i, i + 15), i) for i in range(0, 75, 15)]
    built(tmp_path / "i", shards, segment_documents=40)
    with Index.open(tmp_path / "i") as index:
        assert [len(live.segment) for live in index.view.segments] == [30, 30, 15]


@pytest.mark.parametrize("target", ["segments.segment_writer.write_arrays", "segments.join.tempfile.TemporaryFile"])
def test_a_full_disk_leaves_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """This holds for a piece that is written at once, and for joined pieces."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_module, "GATHERED_DOCUMENTS", 20)
    monkeypatch.setattr(join, "HELD_DOCUMENTS", 30)
    monkeypatch.setattr(f"lightir.index.{target}", full)
    with pytest.raises(WriteFailed, match=r"cannot write .*/i: .*No space left on device"):
        built(tmp_path / "i", [shard(range(i, 60, 3), i) for i in range(3)])
    assert not list(tmp_path.iterdir())


def test_a_piece_gets_its_graph_when_it_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_writer, "LEAST_DOCUMENTS", 10)
    calls: list[int] = []

    def counted(rows: Any, scales: Any, wanted: Any, **more: Any) -> Any:
        calls.append(int(wanted.sum()))
        return graph.build_graph(rows, scales, wanted, **more)

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
            next((tmp_path / f"{name}-{analyzer}" / "segments").glob("*/graph.bin")) for name in ("once", "pieces")
        )
        assert once.read_bytes() == pieces.read_bytes()
        calls.clear()
