"""Haystack's own suites of document stores, sync and async."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DocumentStore, DuplicatePolicy
from haystack.testing.document_store import CountDocumentsByFilterTest, DocumentStoreBaseExtendedTests
from haystack.testing.document_store_async import (
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
)
from haystack_integrations.document_stores.lightir import LightIRDocumentStore


class Suite:
    """Parts that the suites leave to a store: its fixture, the equality of documents, and the default policy."""

    @pytest.fixture
    def document_store(self, tmp_path: Path) -> LightIRDocumentStore:
        return LightIRDocumentStore(str(tmp_path / "index"), embedding_dim=768)

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Compare documents in the order of their ids, and embeddings by direction: they are stored with length 1."""
        received, expected = sorted(received, key=lambda d: d.id), sorted(expected, key=lambda d: d.id)
        assert [(d.id, d.content, d.meta) for d in received] == [(d.id, d.content, d.meta) for d in expected]
        for got, wanted in zip(received, expected, strict=True):
            assert (got.embedding is None) == (wanted.embedding is None)
            if got.embedding is not None:
                a, b = np.array(got.embedding), np.array(wanted.embedding)
                assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) == pytest.approx(1, abs=1e-5)


class TestStore(Suite, DocumentStoreBaseExtendedTests, CountDocumentsByFilterTest):
    def test_write_documents(self, document_store: DocumentStore) -> None:
        document = Document(content="a text")
        assert document_store.write_documents([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(content="new"), document])
        assert document_store.count_documents() == 1


class TestAsyncStore(
    Suite,
    CountDocumentsAsyncTest,
    CountDocumentsByFilterAsyncTest,
    DeleteAllAsyncTest,
    DeleteByFilterAsyncTest,
    DeleteDocumentsAsyncTest,
    FilterDocumentsAsyncTest,
    UpdateByFilterAsyncTest,
    WriteDocumentsAsyncTest,
):
    async def test_write_documents_async(self, document_store: LightIRDocumentStore) -> None:
        document = Document(content="a text")
        assert await document_store.write_documents_async([document]) == 1
        with pytest.raises(DuplicateDocumentError):
            await document_store.write_documents_async([document], DuplicatePolicy.NONE)
