"""The vector store and the retriever beyond LangChain's suites: filters, vectors, relevance, models, bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_lightir import LightIREmbeddings, LightIRRetriever, LightIRVectorStore

from lightir import IndexOptions, PassageOptions, SearchOptions, encode_pending
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput, NotFound
from lightir.pending import WorkOptions

TEXTS = ["a kettle boils water", "a pan fries eggs", "a knife cuts bread", "water the plants"]
METADATAS = [{"price": 30}, {"price": 50}, {"price": 20}, {"price": 5}]
FAKE = DeterministicFakeEmbedding(size=8)


@pytest.fixture
def store(tmp_path: Path) -> LightIRVectorStore:
    return LightIRVectorStore.from_texts(TEXTS, FAKE, METADATAS, ids=["k", "p", "n", "w"], folder=tmp_path / "index")


def test_a_filter_leaves_out_other_documents(store: LightIRVectorStore) -> None:
    results = store.similarity_search("water", k=4, filter={"price": {"lt": 25}})
    assert {document.id for document in results} == {"n", "w"}
    retriever = store.as_retriever(search_kwargs={"k": 4, "filter": {"price": {"gte": 50}}})
    assert [document.id for document in retriever.invoke("water")] == ["p"]


def test_a_search_by_vector_ranks_by_cosine(store: LightIRVectorStore) -> None:
    vector = np.array(FAKE.embed_query("anything"))
    rows = np.array(FAKE.embed_documents(TEXTS))
    cosines = rows @ vector / np.linalg.norm(rows, axis=1) / np.linalg.norm(vector)
    expected = [TEXTS[at] for at in np.argsort(-cosines)]
    results = store.similarity_search_by_vector((3 * vector).tolist(), k=4)
    assert [document.page_content for document in results] == expected


def test_relevance_does_not_depend_on_the_other_documents(store: LightIRVectorStore) -> None:
    (before,) = store.similarity_search_with_relevance_scores("a kettle boils water", k=1)
    store.delete(["p", "n", "w"])
    (after,) = store.similarity_search_with_relevance_scores("a kettle boils water", k=1)
    assert before[0].id == after[0].id == "k"
    assert 0.5 < before[1] <= 1
    assert store.similarity_search_with_relevance_scores("a kettle boils water", k=4, score_threshold=1.01) == []


def test_marginal_relevance_avoids_a_repeated_text(store: LightIRVectorStore) -> None:
    store.add_texts([TEXTS[0]], ids=["again"])
    query = FAKE.embed_query(TEXTS[0])
    alike = [document.id for document in store.similarity_search_by_vector(query, k=2)]
    assert alike == ["again", "k"]
    different = store.max_marginal_relevance_search(TEXTS[0], k=2, fetch_k=5, lambda_mult=0.1)
    assert len({document.page_content for document in different}) == 2
    different = store.max_marginal_relevance_search_by_vector(query, k=2, fetch_k=5, lambda_mult=0.1)
    assert len({document.page_content for document in different}) == 2


def test_the_index_survives_and_knows_its_model(store: LightIRVectorStore, tmp_path: Path) -> None:
    again = LightIRVectorStore(tmp_path / "index", FAKE)
    assert again.similarity_search("water", k=4) == store.similarity_search("water", k=4)
    again.add_documents([Document(id="new", page_content="water again")])
    assert store.get_by_ids(["new"])[0].page_content == "water again"
    with pytest.raises(ContractMismatch, match="vectors of 'DeterministicFakeEmbedding', not those of 'other'"):
        LightIRVectorStore(tmp_path / "index", FAKE, name="other")
    with pytest.raises(AlreadyExists):
        LightIRVectorStore.create(tmp_path / "index", FAKE)
    with pytest.raises(NotFound):
        LightIRVectorStore(tmp_path / "missing", FAKE)


def test_bad_input_changes_nothing(store: LightIRVectorStore) -> None:
    with pytest.raises(InvalidInput, match="2 texts, but 1 metadatas"):
        store.add_texts(["a", "b"], [{}])
    with pytest.raises(InvalidInput):
        store.add_texts(["a", "b"], ids=["same", "same"])
    with pytest.raises(InvalidInput):
        store.add_texts(["a"], [{"when": object()}])
    with pytest.raises(TypeError, match="batch"):
        store.add_texts(["a"], batch=3)
    with pytest.raises(InvalidInput, match="filter"):
        store.similarity_search("water", filter={"price": {"under": 3}})
    with pytest.raises(InvalidInput, match=r"returned vectors of shape \(1, 3\)"):
        store.similarity_search_by_vector([1.0, 2.0, 3.0])
    assert len(store.live) == 4
    assert store.delete()
    assert store.similarity_search("water") == []


def test_a_retriever_names_scores_and_passages(tmp_path: Path) -> None:
    store = LightIRVectorStore.create(
        tmp_path / "long", model="minilm", index_options=IndexOptions(passages=PassageOptions(tokens=32))
    )
    store.add_texts([" ".join(["one"] * 40) + ".\n\n" + " ".join(["two"] * 40) + "."], [{"by": "me"}], ids=["doc"])
    retriever = LightIRRetriever(folder=tmp_path / "long", k=1)
    (results,) = retriever.invoke("two")
    assert results.metadata["by"] == "me"
    assert results.metadata["score"] > 0
    assert results.metadata["passage"]["document"] == "doc"
    assert "two" in results.page_content
    assert "one" not in results.page_content


def test_queries_of_a_model_need_no_torch(tmp_path: Path) -> None:
    """Documents are pending until a worker encodes them; BM25 finds them at once, and the table encodes queries."""
    store = LightIRVectorStore.create(tmp_path / "index", model="minilm", options=SearchOptions(mode="hybrid"))
    store.add_texts(TEXTS)
    assert store.live.index.info().pending == 4
    assert store.similarity_search("kettle", k=1)[0].page_content == TEXTS[0]


@pytest.mark.parametrize("word_weight", [None, 0.0])
def test_a_worker_and_the_store_give_a_document_the_same_vector(
    tmp_path: Path, minilm: LightIREmbeddings, word_weight: float | None
) -> None:
    options = IndexOptions(word_weight=word_weight)
    by_worker = LightIRVectorStore.create(tmp_path / "worker", model="minilm", index_options=options)
    by_worker.add_texts(TEXTS, ids=["k", "p", "n", "w"])
    encode_pending(tmp_path / "worker", options=WorkOptions(once=True), progress=False)
    by_store = LightIRVectorStore.from_texts(
        TEXTS, minilm, ids=["k", "p", "n", "w"], folder=tmp_path / "store", index_options=options
    )
    vectors = [store.live.index.dense_vectors(["k", "p", "n", "w"]) for store in (by_worker, by_store)]
    np.testing.assert_allclose(*vectors, atol=2e-3)
    if word_weight == 0.0:  # otherwise the index adds the documents' own words
        np.testing.assert_allclose(vectors[1], minilm.embed_documents(TEXTS), atol=2e-3)
    answers = [store.similarity_search("boiling", k=4) for store in (by_worker, by_store)]
    assert [d.id for d in answers[0]] == [d.id for d in answers[1]]
    assert answers[1][0].id == "k"
