"""Retrievers over an index folder of lightir."""

from __future__ import annotations

import asyncio
from typing import Any

from haystack import component, default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack_integrations.document_stores.lightir import LightIRDocumentStore


@component
class LightIRRetriever:
    """Finds documents by hybrid search: dense vectors, sparse ones if the model has them, and BM25.

    With a store that has a model's query table, a query needs no model. With other embeddings, connect a text embedder
    to `query_embedding`.
    """

    def __init__(
        self,
        document_store: LightIRDocumentStore,
        *,
        filters: dict[str, Any] | None = None,
        top_k: int = 10,
        mode: str | None = None,
    ) -> None:
        """Note the arguments.

        Args:
            document_store: the store.
            filters: condition on the metadata, for runs that give none.
            top_k: number of documents, for runs that give none.
            mode: branches to search, such as "tokens" for BM25 alone; None for all (`lightir.SearchOptions`).
        """
        self.document_store, self.filters, self.top_k, self.mode = document_store, filters, top_k, mode

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        return default_to_dict(
            self,
            document_store=self.document_store.to_dict(),
            filters=self.filters,
            top_k=self.top_k,
            mode=self.mode,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LightIRRetriever:
        """Return a retriever with the arguments that `to_dict` returned."""
        return default_from_dict(cls, _with_store(data))

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the best documents of a query, with fused scores.

        Args:
            query: text of the query.
            query_embedding: its vector, for a store without a query table.
            filters: condition on the metadata, in place of the retriever's.
            top_k: number of documents, in place of the retriever's.

        Raises:
            FilterError: a malformed filter.
            InvalidInput: the store has no query table and no vector is given, or a vector of another width.
        """
        wanted, k = filters if filters is not None else self.filters, self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search(query, k, wanted, mode=self.mode, vector=query_embedding)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self,
        query: str,
        query_embedding: list[float] | None = None,
        filters: dict[str, Any] | None = None,
        top_k: int | None = None,
    ) -> dict[str, list[Document]]:
        """Return the best documents of a query; see `run`."""
        return await asyncio.to_thread(self.run, query, query_embedding, filters, top_k)


@component
class LightIREmbeddingRetriever:
    """Finds the documents whose embeddings are closest to that of a query."""

    def __init__(
        self, document_store: LightIRDocumentStore, *, filters: dict[str, Any] | None = None, top_k: int = 10
    ) -> None:
        """Note the arguments.

        Args:
            document_store: the store.
            filters: condition on the metadata, for runs that give none.
            top_k: number of documents, for runs that give none.
        """
        self.document_store, self.filters, self.top_k = document_store, filters, top_k

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        store = self.document_store.to_dict()
        return default_to_dict(self, document_store=store, filters=self.filters, top_k=self.top_k)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LightIREmbeddingRetriever:
        """Return a retriever with the arguments that `to_dict` returned."""
        return default_from_dict(cls, _with_store(data))

    @component.output_types(documents=list[Document])
    def run(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the documents closest to a vector, with their similarities.

        Args:
            query_embedding: vector of the query.
            filters: condition on the metadata, in place of the retriever's.
            top_k: number of documents, in place of the retriever's.

        Raises:
            FilterError: a malformed filter.
            InvalidInput: a vector of another width than the store's.
        """
        wanted, k = filters if filters is not None else self.filters, self.top_k if top_k is None else top_k
        return {"documents": self.document_store.search("", k, wanted, mode="dense", vector=query_embedding)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query_embedding: list[float], filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the documents closest to a vector; see `run`."""
        return await asyncio.to_thread(self.run, query_embedding, filters, top_k)


def _with_store(data: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a component with the store that they describe."""
    arguments = data["init_parameters"]
    store = LightIRDocumentStore.from_dict(arguments["document_store"])
    return {**data, "init_parameters": {**arguments, "document_store": store}}
