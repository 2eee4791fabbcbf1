"""An index folder of lightir as LangChain's VectorStore."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance

from langchain_lightir.opening import Folder, create_index, open_index
from lightir import Document as StoredDocument
from lightir import Hit, IndexOptions, LiveIndex, SearchOptions
from lightir.errors import InvalidInput
from lightir.index import Filter


class LightIRVectorStore(VectorStore):
    """Documents in an index folder, found by hybrid search: dense vectors, sparse ones if the model has them, and BM25.

    Every method sees what other processes have committed, and every change is durable when the method returns.
    """

    def __init__(
        self,
        folder: Folder,
        embedding: Embeddings | None = None,
        *,
        name: str | None = None,
        options: SearchOptions | None = None,
        threads: int = 1,
    ) -> None:
        """Open an existing index folder; see `create` for a new one.

        Args:
            folder: index folder, also one that the command `lightir index` wrote.
            embedding: embeds new documents, and queries if the index has no query table. None searches an index with a
                table, and leaves new documents to BM25 until `lightir worker` encodes them.
            name: name of the model behind `embedding`, which the index must have; None for its attribute `model`, else
                its class.
            options: options of searches that give none; None for hybrid search with the index's fusion.
            threads: maximum number of threads per search.

        Raises:
            NotFound: the folder is not an index.
            ContractMismatch: the index has vectors of another model.
        """
        self._open(open_index(folder, embedding, name, threads), embedding, options)

    @classmethod
    def create(
        cls,
        folder: Folder,
        embedding: Embeddings | None = None,
        *,
        model: Folder | None = None,
        name: str | None = None,
        similarity: Literal["cosine", "dot"] = "cosine",
        index_options: IndexOptions | None = None,
        options: SearchOptions | None = None,
        threads: int = 1,
    ) -> LightIRVectorStore:
        """Create an empty index folder and open it.

        Args:
            folder: index folder to write; it must not exist.
            embedding: embeds documents. `LightIREmbeddings` has a table for queries; other ones embed them too.
            model: lightir model whose query table the index gets, for documents that `lightir worker` encodes; excludes
                `embedding`. An index with neither has BM25 alone.
            name: name of the model behind `embedding`; None for its attribute `model`, else its class.
            similarity: similarity of the vectors of an `embedding` that is not lightir's.
            index_options: fields, passages, sizes and so on; None for the defaults.
            options: options of searches that give none.
            threads: maximum number of threads per search.

        Raises:
            AlreadyExists: the folder exists.
        """
        live = create_index(
            folder,
            embedding,
            model=model,
            name=name,
            similarity=similarity,
            options=index_options,
            threads=threads,
        )
        store = cls.__new__(cls)
        store._open(live, embedding, options)
        return store

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        folder: Folder | None = None,
        **kwargs: Any,
    ) -> LightIRVectorStore:
        """Create an index of texts in a new folder; the other arguments are those of `create`.

        Raises:
            InvalidInput: no folder, or as `add_texts`.
            AlreadyExists: the folder exists.
        """
        if folder is None:
            raise InvalidInput("folder is missing; expected the index folder to write")
        store = cls.create(folder, embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def _open(self, live: LiveIndex, embedding: Embeddings | None, options: SearchOptions | None) -> None:
        self.live = live
        self.options = options or SearchOptions()
        self._embedding = embedding

    @property
    def embeddings(self) -> Embeddings | None:
        """The embeddings of documents, if there are any."""
        return self._embedding

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Embed texts and add them in one change; each replaces the text with its id.

        Args:
            texts: the texts.
            metadatas: metadata of each text, of JSON's types; None for none.
            ids: id of each text; None, also for one of them, for a new random one.
            kwargs: no further arguments are known.

        Returns:
            The ids.

        Raises:
            InvalidInput: different numbers of texts, metadatas and ids, a repeated id, or bad vectors. Nothing was
                changed.
            TypeError: an unknown argument.
        """
        _refuse(kwargs, "add_texts")
        texts = list(texts)
        metadatas = [{} for _ in texts] if metadatas is None else metadatas
        given = [None for _ in texts] if ids is None else list(ids)
        if not len(texts) == len(metadatas) == len(given):
            raise InvalidInput(f"{len(texts)} texts, but {len(metadatas)} metadatas and {len(given)} ids")
        doc_ids = [doc_id or str(uuid.uuid4()) for doc_id in given]
        parts = zip(doc_ids, texts, metadatas, strict=True)
        self.live.upsert([StoredDocument(doc_id, text, metadata=metadata) for doc_id, text, metadata in parts])
        return doc_ids

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents, or all of them for None; ids without a document are ignored."""
        _refuse(kwargs, "delete")
        if ids is None:
            self.live.delete_where({})
        else:
            self.live.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Return the documents with the given ids, in that order; ids without a document are omitted."""
        return [
            _document(doc_id, stored.text, stored.title, stored.metadata)
            for doc_id, stored in self.live.index.get(list(ids)).items()
        ]

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the k best documents of a query.

        Args:
            query: text of the query.
            k: number of documents.
            kwargs: `filter`, a condition on the metadata in lightir's form, such as {"year": {"gte": 2020}}; `options`,
                a `lightir.SearchOptions` in place of the store's.
        """
        return [document for document, _ in self.similarity_search_with_score(query, k, **kwargs)]

    def similarity_search_with_score(
        self,
        query: str,
        k: int = 4,
        *,
        filter: Filter | None = None,
        options: SearchOptions | None = None,
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        """Return the k best documents of a query with their fused scores, best first; see `similarity_search`."""
        _refuse(kwargs, "similarity_search")
        return _scored(self.live.hits(query, k, self._options(filter, options)))

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        *,
        filter: Filter | None = None,
        options: SearchOptions | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return the k documents whose dense vectors are closest to a vector; see `similarity_search`."""
        _refuse(kwargs, "similarity_search_by_vector")
        return [document for document, _ in _scored(self._by_vector(embedding, k, filter, options))]

    def _similarity_search_with_relevance_scores(
        self, query: str, k: int = 4, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the k best documents with scores from 0 to 1 that do not depend on the other documents found.

        They are those of lightir's fusion "absolute" (docs/fusion.md), whatever fusion the options name.
        """
        filter, options = kwargs.pop("filter", None), kwargs.pop("options", None)
        _refuse(kwargs, "similarity_search_with_relevance_scores")
        asked = dataclasses.replace(self._options(filter, options), fusion="absolute")
        return [(document, min(max(score, 0.0), 1.0)) for document, score in _scored(self.live.hits(query, k, asked))]

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return k of the fetch_k best documents of a query that differ from each other.

        Args:
            query: text of the query.
            k: number of documents.
            fetch_k: number of documents to choose from.
            lambda_mult: weight of relevance against difference, 0 to 1.
            kwargs: `filter` and `options`, as in `similarity_search`.

        Raises:
            InvalidInput: the index or its query encoder has no dense vectors.
        """
        filter, options = kwargs.pop("filter", None), kwargs.pop("options", None)
        _refuse(kwargs, "max_marginal_relevance_search")
        searcher = self.live.searcher
        dense = None if searcher.encoder is None else searcher.encoder.encode([query]).dense
        if dense is None:
            raise InvalidInput(f"{self.live.folder} has no dense query vectors, which this search compares")
        hits = self.live.hits(query, fetch_k, self._options(filter, options))
        return self._diverse(dense[0].tolist(), hits, k, lambda_mult)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return k of the fetch_k documents closest to a vector; see `max_marginal_relevance_search`."""
        filter, options = kwargs.pop("filter", None), kwargs.pop("options", None)
        _refuse(kwargs, "max_marginal_relevance_search_by_vector")
        return self._diverse(embedding, self._by_vector(embedding, fetch_k, filter, options), k, lambda_mult)

    def _diverse(self, query: list[float], hits: Sequence[Hit], k: int, lambda_mult: float) -> list[Document]:
        if not hits:
            return []
        vectors = list(self.live.index.dense_vectors([hit.doc_id for hit in hits]))
        asked = np.array(query[: len(vectors[0])], dtype=np.float32)
        chosen = maximal_marginal_relevance(asked, vectors, lambda_mult=lambda_mult, k=k)
        scored = _scored(hits)
        return [scored[at][0] for at in chosen]

    def _by_vector(
        self, vector: list[float], k: int, filter: Filter | None, options: SearchOptions | None
    ) -> list[Hit]:
        asked = dataclasses.replace(self._options(filter, options), mode="dense")
        return self.live.hits("", k, asked, vector=vector)

    def _options(self, filter: Filter | None, options: SearchOptions | None) -> SearchOptions:
        options = options or self.options
        return options if filter is None else dataclasses.replace(options, filter=filter)


def _scored(hits: Sequence[Hit]) -> list[tuple[Document, float]]:
    return [(_document(hit.doc_id, hit.snippet, hit.title, hit.metadata), hit.score) for hit in hits]


def _document(doc_id: str, text: str, title: str, metadata: Any) -> Document:
    """Return a document of LangChain; a title of lightir's becomes the metadata `title`."""
    return Document(id=doc_id, page_content=text, metadata={**({"title": title} if title else {}), **metadata})


def _refuse(unknown: dict[str, Any], method: str) -> None:
    if unknown:
        raise TypeError(f"{method} got unknown arguments: {', '.join(unknown)}")
