"""LangChain's own suites: vector store, retriever and embeddings, sync and async."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_lightir import LightIREmbeddings, LightIRRetriever, LightIRVectorStore
from langchain_tests.integration_tests import (
    EmbeddingsIntegrationTests,
    RetrieversIntegrationTests,
    VectorStoreIntegrationTests,
)
from langchain_tests.unit_tests import EmbeddingsUnitTests


class TestVectorStoreOfOtherEmbeddings(VectorStoreIntegrationTests):
    """Documents and queries are embedded by an Embeddings object that is not lightir's."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path) -> Iterator[VectorStore]:
        store = LightIRVectorStore.create(tmp_path / "index", self.get_embeddings())
        yield store
        store.live.close()


class TestVectorStoreOfAModel(VectorStoreIntegrationTests):
    """Documents are encoded by a model of lightir; queries need none."""

    @pytest.fixture
    def vectorstore(self, tmp_path: Path, minilm: LightIREmbeddings) -> Iterator[VectorStore]:
        store = LightIRVectorStore.create(tmp_path / "index", minilm)
        yield store
        store.live.close()


class TestRetriever(RetrieversIntegrationTests):
    @pytest.fixture(autouse=True)
    def _index(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "index"
        texts = [f"The kettle number {number} boils water." for number in range(5)]
        LightIRVectorStore.from_texts(texts, VectorStoreIntegrationTests.get_embeddings(), folder=self.folder)

    @property
    def retriever_constructor(self) -> type[LightIRRetriever]:
        return LightIRRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"folder": self.folder, "embedding": VectorStoreIntegrationTests.get_embeddings()}

    @property
    def retriever_query_example(self) -> str:
        return "boiling water"


class TestEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LightIREmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "minilm"}


class TestEmbeddingsUnit(EmbeddingsUnitTests):
    @property
    def embeddings_class(self) -> type[Embeddings]:
        return LightIREmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "minilm"}
