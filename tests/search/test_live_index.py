"""A live index is searched and changed; vectors come from functions outside lightir."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lightir.contract import Contract, external_contract
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.search import ExternalDocumentEncoder, ExternalQueryEncoder, LiveIndex, SearchOptions
from lightir.types import Document
from small_collections import animal_shard, word_contract, word_table, write_folder

CONTRACT = external_contract("letters", 3, maker="tests")
DENSE = SearchOptions(mode="dense")


def letters(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return each text's counts of a, b and c, plus 0.1."""
    return np.array([[text.count(letter) + 0.1 for letter in "abc"] for text in texts], dtype=np.float32)


def cosine(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Return the cosine of two vectors in double precision."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


def letter_index(folder: Path, contract: Contract = CONTRACT) -> LiveIndex:
    return LiveIndex.create(
        folder,
        documents=ExternalDocumentEncoder(contract, letters),
        queries=ExternalQueryEncoder(contract, letters),
    )


def test_the_score_of_the_dense_branch_is_the_cosine_of_the_functions_vectors(tmp_path: Path) -> None:
    texts = {"1": "a aa", "2": "b cab", "3": "cc"}
    with letter_index(tmp_path / "index") as live:
        assert live.hits("a") == []
        assert live.upsert([Document(doc_id, text) for doc_id, text in texts.items()]) == 3
        for query in ("a", "bca", "xyz"):
            results = {hit.doc_id: hit.score for hit in live.hits(query, 5, DENSE)}
            expected = {doc_id: cosine(*letters([query, text])) for doc_id, text in texts.items()}
            assert results == pytest.approx(expected, abs=2e-3)
        assert live.hits("  ", 5) == []


def test_an_inner_product_is_not_scaled(tmp_path: Path) -> None:
    contract = external_contract("letters", 3, similarity="dot")
    with letter_index(tmp_path / "index", contract) as live:
        live.upsert([Document("1", "aaaa"), Document("2", "ab")])
        results = {hit.doc_id: hit.score for hit in live.hits("ab", 2, DENSE)}
        assert results == pytest.approx({"1": 4.1 * 1.1 + 0.1 * 1.1 + 0.01, "2": 1.1**2 * 2 + 0.01}, abs=1e-2)


def test_a_title_is_encoded_with_its_text(tmp_path: Path) -> None:
    seen: list[str] = []

    def noted(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        seen.extend(texts)
        return letters(texts)

    encoder = ExternalDocumentEncoder(external_contract("letters", 3, document_prompt="passage: "), noted)
    with LiveIndex.create(tmp_path / "index", documents=encoder) as live:
        live.upsert([Document("1", "text", title="title"), Document("2", "only text")])
    assert seen == [f"passage: {Document('1', 'text', title='title').full_text()}", "passage: only text"]


def test_a_given_vector_takes_the_place_of_the_querys(tmp_path: Path) -> None:
    with letter_index(tmp_path / "index") as live:
        live.upsert([Document("1", "aaa"), Document("2", "bbb"), Document("3", "ccc")])
        assert live.hits("", 1, vector=[0, 5, 0])[0].doc_id == "2"
        assert live.hits("aaa", 1, DENSE, vector=[0, 0, 1])[0].doc_id == "3"
        assert [hit.snippet for hit in live.hits("aaa", 1, DENSE)] == ["aaa"]
        for bad in ([1, 2], [1, 2, float("nan")], [[1, 2, 3]]):
            with pytest.raises(InvalidInput, match="'letters' returned vectors of shape"):
                live.hits("aaa", vector=bad)
    build_index([], tmp_path / "words", progress=False)
    with LiveIndex(tmp_path / "words") as words, pytest.raises(InvalidInput, match="cannot be searched by a vector"):
        words.hits("a", vector=[1])


def test_a_search_sees_what_others_have_committed(tmp_path: Path) -> None:
    with letter_index(tmp_path / "index") as first, LiveIndex(tmp_path / "index") as second:
        first.upsert([Document("1", "aaa"), Document("2", "bbb")])
        assert len(second) == 2
        assert second.hits("aaa", options=SearchOptions(mode="tokens"))[0].doc_id == "1"
        assert first.upsert([Document("1", "ccc")]) == 1
        assert second.index.get(["1"])["1"].text == "ccc"
        assert second.delete(["1", "missing"]) == 1
        assert first.delete_where({}) == 1
        assert len(second) == 0
        build_index([animal_shard()], tmp_path / "index", contract=word_contract(), progress=False, overwrite=True)
        assert len(second) == len(animal_shard().documents)
        with pytest.raises(ContractMismatch):
            first.hits("a")


def test_an_index_that_is_replaced_just_before_it_is_refreshed_brings_its_query_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, refresh = tmp_path / "index", Index.refresh
    encoder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index([animal_shard()], folder, query_encoder=encoder, progress=False)

    def late(index: Index, **options: bool) -> bool:
        build_index(document_shards([Document("new", "quagga")]), folder, progress=False, overwrite=True)
        return refresh(index, **options)

    with LiveIndex(folder) as live:
        assert live.searcher.encoder is not None
        monkeypatch.setattr(Index, "refresh", late)
        assert live.searcher.encoder is None
        monkeypatch.setattr(Index, "refresh", refresh)
        assert [hit.doc_id for hit in live.hits("quagga")] == ["new"]


def test_bad_vectors_change_nothing(tmp_path: Path) -> None:
    answer: list[object] = [None]
    encoder = ExternalDocumentEncoder(CONTRACT, lambda texts: answer[0])  # type: ignore[arg-type,return-value]
    with LiveIndex.create(tmp_path / "index", documents=encoder) as live:
        for bad in (np.zeros((1, 3)), np.ones((1, 2)), np.ones((2, 3)), np.full((1, 3), np.nan), np.ones(3)):
            answer[0] = bad
            with pytest.raises(InvalidInput, match="letters"):
                live.upsert([Document("1", "a")])
        assert len(live) == 0
        assert live.upsert([]) == 0


def test_documents_without_an_encoder_are_pending(tmp_path: Path) -> None:
    table = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    with LiveIndex.create(tmp_path / "index", query_encoder=table) as live:
        live.upsert(animal_shard().documents)
        assert live.index.info().pending == len(animal_shard().documents)
        assert all(hit.pending for hit in live.hits("cat"))
    with pytest.raises(AlreadyExists):
        LiveIndex.create(tmp_path / "index", query_encoder=table)
    with pytest.raises(NotFound):
        LiveIndex(tmp_path / "missing")


def test_another_models_encoders_are_refused(tmp_path: Path) -> None:
    letter_index(tmp_path / "index").close()
    other = external_contract("letters", 3, maker="others")
    with pytest.raises(ContractMismatch, match="maker"):
        LiveIndex(tmp_path / "index", documents=ExternalDocumentEncoder(other, letters))
    with pytest.raises(ContractMismatch):
        LiveIndex(tmp_path / "index", queries=ExternalQueryEncoder(other, letters))
    build_index([], tmp_path / "words", progress=False)
    with pytest.raises(InvalidInput, match="cannot get vectors"):
        LiveIndex(tmp_path / "words", documents=ExternalDocumentEncoder(CONTRACT, letters))
    with pytest.raises(InvalidInput, match="a sparse branch"):
        ExternalDocumentEncoder(word_contract(), letters)
    with pytest.raises(InvalidInput, match="task"):
        ExternalQueryEncoder(CONTRACT, letters).encode(["a"], task="web")


def test_threads_change_and_search_at_the_same_time(tmp_path: Path) -> None:
    with letter_index(tmp_path / "index") as live:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(5):
                    live.upsert([Document(f"{number}-{turn}", "abc")])
                    assert len(live.hits("abc", 100)) >= turn + 1
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(live) == 15


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_stored_vectors_are_read_by_id(tmp_path: Path, dtype: str) -> None:
    shard = animal_shard()
    assert shard.dense is not None
    options = IndexOptions(dense_dtype=dtype)  # type: ignore[arg-type]
    build_index([shard], tmp_path / "index", contract=word_contract(), options=options, progress=False)
    doc_ids = [document.doc_id for document in shard.documents][::-1]
    with Index.open(tmp_path / "index") as index:
        vectors = index.dense_vectors(doc_ids)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(
            vectors, shard.dense[::-1].astype(np.float32), atol=1e-3 if dtype == "fp16" else 1e-2
        )
        assert index.dense_vectors([]).shape == (0, shard.dense.shape[1])
        with pytest.raises(NotFound, match="'missing'"):
            index.dense_vectors([doc_ids[0], "missing"])
    build_index([], tmp_path / "words", progress=False)
    with Index.open(tmp_path / "words") as words, pytest.raises(InvalidInput, match="no dense vectors"):
        words.dense_vectors([])
