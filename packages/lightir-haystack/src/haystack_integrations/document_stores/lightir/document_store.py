"""An index folder of lightir as Haystack's document store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from haystack import default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy
from haystack_integrations.document_stores.lightir.filters import lightir_filter

from lightir import Document as StoredDocument
from lightir import LiveIndex, SearchOptions, external_contract
from lightir.addresses import resolve_query_encoder
from lightir.contract import Contract
from lightir.data.stored_vectors import storable_vectors
from lightir.errors import InvalidInput
from lightir.query import CachedQueryEncoder
from lightir.vectors import Floats


class LightIRDocumentStore:
    """Documents in an index folder. It is created when it is first used, unless it exists.

    A document that comes with an embedding is stored with it. One without is found by BM25, until `lightir worker`
    encodes it with the index's model, or it is written again. Every method sees what other processes have committed.
    """

    def __init__(
        self,
        folder: str,
        *,
        model: str | None = None,
        embedding_dim: int | None = None,
        embedding_name: str = "embeddings",
        similarity: Literal["cosine", "dot"] = "cosine",
        threads: int = 1,
    ) -> None:
        """Note the arguments; nothing is read or written.

        Args:
            folder: index folder.
            model: lightir model whose query table a new index gets, such as "minilm". Its documents are encoded by
                LightIRDocumentEmbedder, or by `lightir worker`.
            embedding_dim: width of the embeddings that the documents of a new index have; excludes `model`.
            embedding_name: name of the model that makes these embeddings; another one's index is refused.
            similarity: similarity of these embeddings. "cosine" stores them with length 1.
            threads: maximum number of threads per search.

        Raises:
            InvalidInput: both model and embedding_dim. With neither, a new index has BM25 alone.
        """
        if model is not None and embedding_dim is not None:
            raise InvalidInput("model and embedding_dim exclude each other: a model has its width")
        self.folder, self.model, self.embedding_dim = folder, model, embedding_dim
        self.embedding_name, self.similarity, self.threads = embedding_name, similarity, threads
        self._opening = threading.Lock()
        self._live: LiveIndex | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        return default_to_dict(
            self,
            folder=self.folder,
            model=self.model,
            embedding_dim=self.embedding_dim,
            embedding_name=self.embedding_name,
            similarity=self.similarity,
            threads=self.threads,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LightIRDocumentStore:
        """Return a store with the arguments that `to_dict` returned."""
        return default_from_dict(cls, data)

    @property
    def live(self) -> LiveIndex:
        """The index, opened or created at the first use.

        Raises:
            ContractMismatch: the folder holds an index of another model.
        """
        with self._opening:
            if self._live is None:
                if Path(self.folder).exists():
                    self._live = self._opened()
                else:
                    self._live = self._created(overwrite=False)
            return self._live

    def _contract(self) -> Contract | None:
        if self.model is not None:
            return CachedQueryEncoder.load(resolve_query_encoder(self.model)).contract
        if self.embedding_dim is not None:
            return external_contract(self.embedding_name, self.embedding_dim, similarity=self.similarity)
        return None

    def _opened(self) -> LiveIndex:
        from lightir.contract import require_same_documents

        live = LiveIndex(self.folder, threads=self.threads)
        asked, held = self._contract(), live.index.contract
        if asked is not None and held is not None:
            require_same_documents(held, asked, names=("the index", "the store's arguments"))
        elif asked is not None:
            live.close()
            raise InvalidInput(f"{self.folder} has no vectors; open it without model and embedding_dim")
        return live

    def _created(self, *, overwrite: bool) -> LiveIndex:
        contract = None if self.model is not None else self._contract()
        LiveIndex.create(self.folder, contract=contract, query_encoder=self.model, overwrite=overwrite).close()
        return LiveIndex(self.folder, threads=self.threads)

    def count_documents(self) -> int:
        """Return the number of documents."""
        return len(self.live)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match a filter, ascending by id, with their embeddings as stored.

        Raises:
            FilterError: a malformed filter.
        """
        index = self.live.index
        documents = index.get(index.ids(lightir_filter(filters)))
        waiting = set(index.view.pending())
        encoded = [doc_id for doc_id in documents if doc_id not in waiting]
        vectors: dict[str, list[float]] = {}
        if encoded and index.view.dense_dim is not None and not index.view.has_passages:
            vectors = dict(zip(encoded, index.dense_vectors(encoded).tolist(), strict=True))
        return [
            Document(id=doc_id, content=stored.text, meta=_meta(stored), embedding=vectors.get(doc_id))
            for doc_id, stored in documents.items()
        ]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents and return the number of those that were written.

        Those with and those without an embedding are two changes. The former come first.

        Args:
            documents: documents with text. Sparse embeddings are required with those of a model that has both.
            policy: treatment of a document whose id exists: OVERWRITE replaces it, SKIP ignores the new one. FAIL, and
                NONE, write no document at all.

        Raises:
            ValueError: something else than a list of documents.
            DuplicateDocumentError: an id exists.
            InvalidInput: a document without text, bad embeddings, or metadata that are not of JSON's types. No document
                was written.
        """
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents are not a list of haystack.Document")
        for document in documents:
            if document.content is None or document.blob is not None:
                raise InvalidInput(f"document {document.id!r} has no text, or binary data; the index stores texts")
        if policy != DuplicatePolicy.OVERWRITE:
            existing = self.live.index.get([document.id for document in documents])
            if existing and policy != DuplicatePolicy.SKIP:
                raise DuplicateDocumentError(f"document {next(iter(existing))!r} exists ({len(existing)} of them do)")
            documents = [document for document in documents if document.id not in existing]
        encoded = [document for document in documents if document.embedding is not None]
        vectors = self._vectors(encoded) if encoded else None
        pending = [document for document in documents if document.embedding is None]
        with self.live.writer() as writer:
            n_written = 0
            if encoded:
                n_written += writer.upsert(_stored(encoded), dense=vectors)
            if pending:
                writer.upsert(_stored(pending))
                n_written += len(pending)
        return n_written

    def _vectors(self, documents: Sequence[Document]) -> Any:
        contract = self.live.index.contract
        if contract is None or contract.dense is None:
            raise InvalidInput(f"{self.folder} has no vectors, but documents have embeddings; give embedding_dim")
        if contract.sparse is not None:
            raise InvalidInput(
                f"{self.folder} is for a model with sparse vectors, which embeddings are not; write documents without "
                "embeddings, and run: lightir worker"
            )
        rows = [document.embedding for document in documents]
        width = contract.backbone.hidden_size if not contract.dense.dims else contract.dense.dims[0]
        if any(row is None or len(row) != width for row in rows):
            raise InvalidInput(f"an embedding has another width than {width}, that of {self.folder}")
        values: Floats = np.array(rows, dtype=np.float32)
        checked = storable_vectors(values, _stored(documents), contract.dense.similarity, source="embeddings")
        return checked.astype(np.float16)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents; ids without a document are ignored."""
        self.live.delete(document_ids)

    def delete_all_documents(self, recreate_index: bool = False) -> None:
        """Delete all documents; with recreate_index, replace the index by a new one with this store's arguments."""
        self.live.delete_where({})
        if recreate_index:
            with self._opening:
                if self._live is not None:
                    self._live.close()
                self._live = self._created(overwrite=True)

    def delete_by_filter(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter, and return their number.

        Raises:
            FilterError: a malformed filter.
        """
        return self.live.delete_where(lightir_filter(filters))

    def update_by_filter(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set metadata of the documents that match a filter, and return the number of those that match.

        Args:
            filters: the filter.
            meta: new values by field; other fields stay. None removes a field.

        Raises:
            FilterError: a malformed filter.
        """
        live = self.live
        with live.writer() as writer:
            doc_ids = live.index.ids(lightir_filter(filters))
            writer.set_metadata(dict.fromkeys(doc_ids, meta))
        return len(doc_ids)

    def count_documents_by_filter(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match a filter.

        Raises:
            FilterError: a malformed filter.
        """
        return self.live.index.count(lightir_filter(filters))

    async def count_documents_async(self) -> int:
        """Return the number of documents."""
        return await asyncio.to_thread(self.count_documents)

    async def filter_documents_async(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """Return the documents that match a filter; see `filter_documents`."""
        return await asyncio.to_thread(self.filter_documents, filters)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """Write documents; see `write_documents`."""
        return await asyncio.to_thread(self.write_documents, documents, policy)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """Delete documents; see `delete_documents`."""
        await asyncio.to_thread(self.delete_documents, document_ids)

    async def delete_all_documents_async(self, recreate_index: bool = False) -> None:
        """Delete all documents; see `delete_all_documents`."""
        await asyncio.to_thread(self.delete_all_documents, recreate_index)

    async def delete_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Delete the documents that match a filter; see `delete_by_filter`."""
        return await asyncio.to_thread(self.delete_by_filter, filters)

    async def update_by_filter_async(self, filters: dict[str, Any], meta: dict[str, Any]) -> int:
        """Set metadata of the documents that match a filter; see `update_by_filter`."""
        return await asyncio.to_thread(self.update_by_filter, filters, meta)

    async def count_documents_by_filter_async(self, filters: dict[str, Any]) -> int:
        """Return the number of documents that match a filter."""
        return await asyncio.to_thread(self.count_documents_by_filter, filters)

    def search(
        self,
        query: str,
        top_k: int,
        filters: dict[str, Any] | None,
        *,
        mode: str | None = None,
        vector: list[float] | None = None,
    ) -> list[Document]:
        """Return the best documents of a query with their scores, for the retrievers.

        Raises:
            FilterError: a malformed filter.
            InvalidInput: the index has no query table and no vector is given, or a vector of another width.
        """
        options = SearchOptions(mode=mode, filter=lightir_filter(filters))
        hits = self.live.hits(query, top_k, options, vector=vector)
        return [
            Document(
                id=hit.doc_id,
                content=hit.snippet,
                meta={**({"title": hit.title} if hit.title else {}), **hit.metadata},
                score=hit.score,
            )
            for hit in hits
        ]


def _stored(documents: Sequence[Document]) -> list[StoredDocument]:
    return [StoredDocument(document.id, document.content or "", metadata=document.meta) for document in documents]


def _meta(stored: StoredDocument) -> dict[str, Any]:
    return {**({"title": stored.title} if stored.title else {}), **stored.metadata}
