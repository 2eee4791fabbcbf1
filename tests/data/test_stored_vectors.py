"""Vectors of a file are joined to the documents of a corpus."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from lightir.data import StoredVectors
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.types import Document

ROWS = np.array([[3.0, 4.0], [0.0, 2.0], [5.0, 0.0]], np.float32)


def documents(*doc_ids: str) -> list[Document]:
    return [Document(doc_id, f"text of {doc_id}") for doc_id in doc_ids]


def written(folder: Path, rows: np.ndarray = ROWS) -> Path:
    np.save(folder / "v.npy", rows)
    return folder / "v.npy"


def by_id(stored: StoredVectors, doc_ids: list[str], **options: object) -> dict[str, list[float] | None]:
    vectors: dict[str, list[float] | None] = {}
    for shard in stored.shards(documents(*doc_ids), **{"similarity": "cosine", **options}):  # type: ignore[arg-type]
        for at, document in enumerate(shard.documents):
            vectors[document.doc_id] = None if shard.dense is None else shard.dense[at].astype(float).round(3).tolist()
    return vectors


@pytest.mark.parametrize("size", [1, 2, 100])
def test_rows_are_those_of_the_corpus_in_its_order(tmp_path: Path, size: int) -> None:
    stored = StoredVectors.read(written(tmp_path))
    assert by_id(stored, ["b", "a", "c"], size=size) == {"b": [0.6, 0.8], "a": [0.0, 1.0], "c": [1.0, 0.0]}
    assert by_id(stored, ["b", "a", "c"], similarity="dot")["b"] == [3.0, 4.0]
    for wrong in (["a", "b"], ["a", "b", "c", "d"]):
        with pytest.raises(InvalidInput, match=f"3 vectors, but the corpus has {len(wrong)} documents"):
            by_id(stored, wrong, size=size)


def test_ids_name_the_documents_and_others_have_no_vector(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ids").write_text("a\nb\ngone\n")
    stored = StoredVectors.read(written(tmp_path), ids=tmp_path / "ids")
    with caplog.at_level(logging.WARNING):
        assert by_id(stored, ["new", "b", "a"]) == {"new": None, "b": [0.0, 1.0], "a": [0.6, 0.8]}
    assert "1 vector of no document of the corpus skipped" in caplog.text


def test_parquet_has_ids_in_a_column_or_is_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lists, fixed = pyarrow.list_(pyarrow.float64()), pyarrow.list_(pyarrow.float32(), 2)
    for kind in (lists, fixed):
        column = pyarrow.array(ROWS.tolist(), type=kind)
        parquet.write_table(pyarrow.table({"id": ["c", "a", "b"], "embedding": column}), tmp_path / "v.parquet")
        stored = StoredVectors.read(tmp_path / "v.parquet")
        assert by_id(stored, ["a", "b", "c"]) == {"a": [0.0, 1.0], "b": [1.0, 0.0], "c": [0.6, 0.8]}
        parquet.write_table(pyarrow.table({"vector": column}), tmp_path / "w.parquet")
        assert by_id(StoredVectors.read(tmp_path / "w.parquet"), ["a", "b", "c"])["a"] == [0.6, 0.8]
    for bad, message in (([[1.0], [1.0, 2.0]], "differ in width"), ([[1.0], None], "lacks a vector")):
        parquet.write_table(pyarrow.table({"vector": pyarrow.array(bad, type=lists)}), tmp_path / "x.parquet")
        with pytest.raises(InvalidInput, match=message):
            StoredVectors.read(tmp_path / "x.parquet")
    parquet.write_table(pyarrow.table({"vector": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidInput, match="expected lists of numbers"):
        StoredVectors.read(tmp_path / "x.parquet")
    parquet.write_table(pyarrow.table({"other": [1]}), tmp_path / "x.parquet")
    with pytest.raises(InvalidInput, match="expected one of vectors"):
        StoredVectors.read(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("bad", "similarity", "message"),
    [
        ([[np.nan, 1.0]], "cosine", "document 'a' holds NaN or infinity"),
        ([[np.inf, 1.0]], "dot", "document 'a' holds NaN or infinity"),
        ([[0.0, 0.0]], "cosine", "document 'a' is zero"),
        ([[1e6, 0.0]], "dot", "document 'a' is too large for float16"),
    ],
)
def test_vectors_that_cannot_be_compared_are_refused_by_name(
    tmp_path: Path, bad: list[list[float]], similarity: str, message: str
) -> None:
    stored = StoredVectors.read(written(tmp_path, np.array(bad)))
    with pytest.raises(InvalidInput, match=message):
        by_id(stored, ["a"], similarity=similarity)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        StoredVectors.read(tmp_path / "none.npy")
    (tmp_path / "v.txt").write_text("1 2")
    with pytest.raises(InvalidInput, match=r"expected \.npy or \.parquet"):
        StoredVectors.read(tmp_path / "v.txt")
    (tmp_path / "bad.npy").write_bytes(b"\x93NUMPY\x01\x00broken")
    with pytest.raises(FormatError):
        StoredVectors.read(tmp_path / "bad.npy")
    for rows in (np.zeros(3, np.float32), np.zeros((3, 2), np.int64), np.zeros((3, 0), np.float32)):
        with pytest.raises(InvalidInput, match="expected floats"):
            StoredVectors.read(written(tmp_path, rows))
    (tmp_path / "ids").write_text("a\nb\n")
    with pytest.raises(InvalidInput, match=r"2 ids, but .* 3 vectors"):
        StoredVectors.read(written(tmp_path), ids=tmp_path / "ids")
    (tmp_path / "ids").write_text("a\nb\na\n")
    with pytest.raises(InvalidInput, match="'a' twice"):
        StoredVectors.read(written(tmp_path), ids=tmp_path / "ids")
