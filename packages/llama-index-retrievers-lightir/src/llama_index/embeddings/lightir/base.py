"""A model of lightir as LlamaIndex's embedding."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from lightir import TextModel


class LightIREmbedding(BaseEmbedding):
    """Embeds queries by a table lookup, without a model, and texts by the model that the table belongs to.

    The model is loaded for the first text, which requires `lightir[train]`.
    """

    _model: TextModel = PrivateAttr()

    def __init__(self, model: str | os.PathLike[str], *, threads: int = 1, **kwargs: Any) -> None:
        """Load the query table.

        Args:
            model: model folder or name of an installed model, such as "minilm"; to embed queries alone, also a
                query-encoder, vectors or index folder.
            threads: maximum number of threads per batch of queries.
            kwargs: fields of BaseEmbedding, such as embed_batch_size.

        Raises:
            NotFound: there is no such model, or it has no query table.
            InvalidInput: the model has no dense vectors.
        """
        super().__init__(**{"model_name": os.fspath(model), **kwargs})
        self._model = TextModel(model, threads=threads)
        self._model.require("dense")

    @classmethod
    def class_name(cls) -> str:
        """Return the name by which LlamaIndex knows the class."""
        return "LightIREmbedding"

    @property
    def text_model(self) -> TextModel:
        """The model."""
        return self._model

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._model.dense_queries([query])[0].tolist()

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return self._model.dense_texts(texts).tolist() if texts else []

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
