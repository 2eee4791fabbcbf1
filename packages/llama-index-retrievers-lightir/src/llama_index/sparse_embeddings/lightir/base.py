"""A model of lightir as LlamaIndex's sparse embedding."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding, SparseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from lightir import TextModel
from lightir.vectors import SparseVectors


class LightIRSparseEmbedding(BaseSparseEmbedding):
    """Weights the terms of queries without a model, and those of texts by the model that the query table belongs to.

    An embedding is a dict of term id to weight; inner products rank. The model is loaded for the first text, which
    requires `lightir[train]`.
    """

    _model: TextModel = PrivateAttr()

    def __init__(self, model: str | os.PathLike[str], *, threads: int = 1, **kwargs: Any) -> None:
        """Load the query side.

        Args:
            model: model folder or name of an installed model with sparse vectors, such as "smollm2-135m"; to embed
                queries alone, also a query-encoder, vectors or index folder.
            threads: maximum number of threads per batch of queries.
            kwargs: fields of BaseSparseEmbedding, such as embed_batch_size.

        Raises:
            NotFound: there is no such model, or it has no query side.
            InvalidInput: the model has no sparse vectors.
        """
        super().__init__(**{"model_name": os.fspath(model), **kwargs})
        self._model = TextModel(model, threads=threads)
        self._model.require("sparse")

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows the class."""
        return "LightIRSparseEmbedding"

    def _get_query_embedding(self, query: str) -> SparseEmbedding:
        return _as_dicts(self._model.sparse_queries([query]))[0]

    async def _aget_query_embedding(self, query: str) -> SparseEmbedding:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> SparseEmbedding:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[SparseEmbedding]:
        return _as_dicts(self._model.sparse_texts(texts)) if texts else []

    async def _aget_text_embedding(self, text: str) -> SparseEmbedding:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[SparseEmbedding]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)


def _as_dicts(vectors: SparseVectors) -> list[SparseEmbedding]:
    rows = [vectors.row(position) for position in range(len(vectors))]
    return [dict(zip(term_ids.tolist(), weights.tolist(), strict=True)) for term_ids, weights in rows]
