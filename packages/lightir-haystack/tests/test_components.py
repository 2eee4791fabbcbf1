"""Retrievers and embedders alone and in pipelines, and what the store refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack_integrations.components.embedders.lightir import LightIRDocumentEmbedder, LightIRTextEmbedder
from haystack_integrations.components.retrievers.lightir import LightIREmbeddingRetriever, LightIRRetriever
from haystack_integrations.document_stores.lightir import LightIRDocumentStore

from lightir import CachedQueryEncoder
from lightir.addresses import resolve_query_encoder
from lightir.errors import ContractMismatch, InvalidInput

TEXTS = {"k": "a kettle boils water", "p": "a pan fries eggs", "n": "a knife cuts bread"}
PRICES = {"k": 30, "p": 50, "n": 20}
CHEAP = {"field": "meta.price", "operator": "<", "value": 40}


def letters(text: str) -> list[float]:
    """Return the counts of a text's letters, plus 0.1."""
    return [text.count(letter) + 0.1 for letter in "abcdefghijklmnopqrstuvwxyz"]


def documents(*, embedded: bool) -> list[Document]:
    return [
        Document(id=i, content=text, meta={"price": PRICES[i]}, embedding=letters(text) if embedded else None)
        for i, text in TEXTS.items()
    ]


@pytest.fixture
def store(tmp_path: Path) -> LightIRDocumentStore:
    store = LightIRDocumentStore(str(tmp_path / "index"), embedding_dim=26, embedding_name="letters")
    store.write_documents(documents(embedded=True))
    return store


@pytest.fixture
def model_store(tmp_path: Path) -> LightIRDocumentStore:
    store = LightIRDocumentStore(str(tmp_path / "model"), model="minilm")
    store.write_documents(documents(embedded=False))
    return store


async def test_the_embedding_retriever_ranks_by_cosine(store: LightIRDocumentStore) -> None:
    query = np.array(letters("bread and eggs"))
    rows = np.array([letters(text) for text in TEXTS.values()])
    cosines = dict(zip(TEXTS, rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query), strict=True))
    retriever = LightIREmbeddingRetriever(store)
    results = retriever.run(query.tolist())["documents"]
    assert {document.id: document.score for document in results} == pytest.approx(cosines, abs=2e-3)
    assert [document.id for document in results] == sorted(cosines, key=lambda i: -cosines[i])
    assert (await retriever.run_async(query.tolist()))["documents"] == results
    assert [d.id for d in retriever.run(query.tolist(), filters=CHEAP, top_k=1)["documents"]] == ["n"]


async def test_the_retriever_searches_text_and_embedding(store: LightIRDocumentStore) -> None:
    retriever = LightIRRetriever(store, top_k=2)
    results = retriever.run("boil water", query_embedding=letters("boil water"))["documents"]
    assert results[0].id == "k"
    assert results[0].content == TEXTS["k"]
    assert results[0].meta == {"price": 30}
    assert len(results) == 2
    assert (await retriever.run_async("boil water", letters("boil water")))["documents"] == results
    with pytest.raises(InvalidInput, match="query encoder"):
        retriever.run("boil water")
    words = LightIRRetriever(store, mode="tokens", filters=CHEAP)
    assert [document.id for document in words.run("pan kettle")["documents"]] == ["k"]
    assert words.run("pan kettle", filters={})["documents"][0].id in ("k", "p")
    assert len(words.run("pan kettle", filters={})["documents"]) == 2


def test_queries_of_a_model_need_no_torch(model_store: LightIRDocumentStore) -> None:
    assert model_store.live.index.info().pending == 3
    assert LightIRRetriever(model_store).run("kettle")["documents"][0].id == "k"
    embedding = LightIRTextEmbedder("minilm").run("kettle")["embedding"]
    expected = CachedQueryEncoder.load(resolve_query_encoder("minilm")).encode(["kettle"]).dense
    assert embedding == expected[0].tolist()


async def test_pipelines_index_and_search(tmp_path: Path) -> None:
    store = LightIRDocumentStore(str(tmp_path / "index"), model="minilm")
    indexing = Pipeline()
    indexing.add_component("embedder", LightIRDocumentEmbedder("minilm"))
    indexing.add_component("writer", DocumentWriter(store, policy=DuplicatePolicy.OVERWRITE))
    indexing.connect("embedder.documents", "writer.documents")
    assert indexing.run({"embedder": {"documents": documents(embedded=False)}})["writer"]["documents_written"] == 3
    assert store.live.index.info().pending == 0
    searching = Pipeline()
    searching.add_component("embedder", LightIRTextEmbedder("minilm"))
    searching.add_component("retriever", LightIREmbeddingRetriever(store, top_k=1))
    searching.connect("embedder.embedding", "retriever.query_embedding")
    again = Pipeline.loads(searching.dumps())
    for pipeline in (searching, again):
        results = pipeline.run({"embedder": {"text": "breakfast in a pan"}})["retriever"]["documents"]
        assert [document.id for document in results] == ["p"]
    hybrid = Pipeline()
    hybrid.add_component("retriever", LightIRRetriever(store, top_k=1))
    results = (await hybrid.run_async({"retriever": {"query": "breakfast in a pan"}}))["retriever"]["documents"]
    assert [document.id for document in results] == ["p"]


def test_components_survive_serialization(store: LightIRDocumentStore) -> None:
    for original in (
        LightIRRetriever(store, filters=CHEAP, top_k=3, mode="tokens"),
        LightIREmbeddingRetriever(store, filters=CHEAP, top_k=3),
    ):
        again = type(original).from_dict(original.to_dict())
        assert again.to_dict() == original.to_dict()
        assert again.document_store.count_documents() == 3


def test_bad_input_writes_nothing(store: LightIRDocumentStore, tmp_path: Path) -> None:
    bad: list[Any] = [[1.0] * 25, [float("nan")] * 26, [0.0] * 26]
    for embedding in bad:
        with pytest.raises(InvalidInput):
            store.write_documents([Document(content="new"), Document(content="other", embedding=embedding)])
    with pytest.raises(InvalidInput, match="no text"):
        store.write_documents([Document(content="new"), Document(content=None, meta={"a": 1})])
    with pytest.raises(FilterError, match="content"):
        store.filter_documents({"field": "content", "operator": "==", "value": "new"})
    assert store.count_documents() == 3
    with pytest.raises(ContractMismatch):
        LightIRDocumentStore(store.folder, embedding_dim=26, embedding_name="others").count_documents()
    with pytest.raises(InvalidInput, match="exclude each other"):
        LightIRDocumentStore(store.folder, model="minilm", embedding_dim=26)
    words = LightIRDocumentStore(str(tmp_path / "words"))
    with pytest.raises(InvalidInput, match="give embedding_dim"):
        words.write_documents(documents(embedded=True))
    with pytest.raises(TypeError):
        LightIRTextEmbedder("minilm").run(["a list"])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        LightIRDocumentEmbedder("minilm").run("a text")  # type: ignore[arg-type]
