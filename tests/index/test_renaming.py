"""Renaming of documents: new ids, the same texts, metadata and vectors."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import numpy as np
import pytest

from lightir import Index, IndexOptions, IndexWriter, PassageOptions, Searcher, SearchOptions
from lightir.errors import InvalidInput, NotFound
from lightir.pending import WorkOptions, work
from lightir.types import Document
from pending_documents import FakeEncoder, documents, require_right_vectors
from small_collections import word_contract, word_table, write_folder


@pytest.fixture(params=["fp16", "int8"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An index of encoded, pending and split documents in several segments."""
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    options = IndexOptions(analyzer="words", dense_dtype=request.param, passages=PassageOptions(16))
    long = Document("long", "cat dog bird. " * 40, "Title", {"n": 1})
    with IndexWriter.create(
        tmp_path / "index", options=options, contract=word_contract(), query_encoder=encoder
    ) as writer:
        writer.add([*documents(20), long])
    work(tmp_path / "index", FakeEncoder(), WorkOptions(once=True), progress=False)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.add([*documents(5, first=20), dataclasses.replace(long, doc_id="pending")])
    return tmp_path / "index"


def rankings(folder: Path, new_ids: dict[str, str]) -> list[tuple[str, float]]:
    """Return what searches of all branches return, with old ids replaced by new ones, in order of id within ties."""
    results = []
    with Index.open(folder) as index:
        for mode in ("tokens", "dense", "sparse"):
            for doc_id, ranking in Searcher(index).search(["cat dog", "bird 3"], 100, SearchOptions(mode=mode)).items():
                scored = zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
                results += sorted((f"{mode} {doc_id} {new_ids.get(name, name)}", score) for name, score in scored)
    return results


def test_renamed_documents_keep_texts_metadata_vectors_and_scores(folder: Path) -> None:
    rng = random.Random(2)
    with Index.open(folder) as index:
        before = index.get(index.ids())
        pending = index.info().pending
    new_ids = {doc_id: f"new/{i}" for i, doc_id in enumerate(rng.sample(sorted(before), 12))}
    new_ids |= {"long": "moved/long", "pending": "moved/pending"}
    expected = rankings(folder, new_ids)
    with IndexWriter.open(folder) as writer:
        writer.rename(new_ids)
        assert writer.info().pending == pending
    assert rankings(folder, {}) == expected
    with Index.open(folder) as index:
        wanted = {new_ids.get(doc_id, doc_id): document for doc_id, document in before.items()}
        assert index.get(sorted(wanted)) == {
            doc_id: dataclasses.replace(wanted[doc_id], doc_id=doc_id) for doc_id in sorted(wanted)
        }
        assert index.ids() == sorted(wanted)
    with IndexWriter.open(folder) as writer:
        writer.compact()
    with Index.open(folder) as index:
        index.verify()
        assert index.ids() == sorted(wanted)


def test_vectors_stay_those_of_the_texts(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index", contract=word_contract()) as writer:
        writer.add(documents(9))
    work(tmp_path / "index", FakeEncoder(), WorkOptions(once=True), progress=False)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.rename({f"d{i:04d}": f"e{8 - i}" for i in range(9)})  # in another order
    with Index.open(tmp_path / "index") as index:
        assert require_right_vectors(index) == {f"e{i}" for i in range(9)}
        assert np.array_equal(index.view.waits, np.zeros(len(index.view.waits), bool))


@pytest.mark.parametrize(
    ("new_ids", "error", "message"),
    [
        ({"absent": "x"}, NotFound, "no document 'absent'"),
        ({"d0001": "d0002"}, InvalidInput, "'d0002' is already in the index"),
        ({"d0001": "long"}, InvalidInput, "'long' is already in the index"),
        ({"d0001": "x", "d0002": "x"}, InvalidInput, "same id"),
        ({"d0001": ""}, InvalidInput, "doc_id"),
    ],
)
def test_impossible_renames_change_nothing(
    folder: Path, new_ids: dict[str, str], error: type[Exception], message: str
) -> None:
    with IndexWriter.open(folder) as writer:
        with Index.open(folder) as index:
            before = index.get(index.ids())
        with pytest.raises(error, match=message):
            writer.rename(new_ids)
        with Index.open(folder) as index:
            assert index.get(index.ids()) == before
