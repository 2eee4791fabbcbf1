"""Embedders by a model of lightir."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from haystack import component, default_to_dict
from haystack.dataclasses import Document

from lightir import TextModel


class _Embedder:
    """A model that is loaded by `warm_up`, or by the first run."""

    def __init__(self, model: str = "minilm", *, threads: int = 1) -> None:
        """Note the arguments.

        Args:
            model: model folder or name of an installed model; for queries alone also a query-encoder, vectors or index
                folder.
            threads: maximum number of threads per batch of queries.
        """
        self.model, self.threads = model, threads
        self._loaded: TextModel | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments."""
        return default_to_dict(self, model=self.model, threads=self.threads)

    def warm_up(self) -> None:
        """Load the query table.

        Raises:
            NotFound: there is no such model.
            InvalidInput: the model has no dense vectors.
        """
        self._text_model()

    def _text_model(self) -> TextModel:
        if self._loaded is None:
            loaded = TextModel(self.model, threads=self.threads)
            loaded.require("dense")
            self._loaded = loaded
        return self._loaded


@component
class LightIRTextEmbedder(_Embedder):
    """Embeds queries by a table lookup, without a model."""

    @component.output_types(embedding=list[float])
    def run(self, text: str) -> dict[str, list[float]]:
        """Return the embedding of a query; zeros for a text without terms.

        Raises:
            TypeError: the text is no str.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text is {type(text).__name__}; expected str (documents have LightIRDocumentEmbedder)")
        return {"embedding": self._text_model().dense_queries([text])[0].tolist()}

    @component.output_types(embedding=list[float])
    async def run_async(self, text: str) -> dict[str, list[float]]:
        """Return the embedding of a query; see `run`."""
        return await asyncio.to_thread(self.run, text)


@component
class LightIRDocumentEmbedder(_Embedder):
    """Embeds documents by the model, which requires `lightir[train]`. The model is loaded for the first of them."""

    @component.output_types(documents=list[Document])
    def run(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return the documents with embeddings of their texts.

        Raises:
            TypeError: something else than a list of documents.
            MissingExtra: torch is missing.
        """
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise TypeError("documents are not a list of haystack.Document (texts have LightIRTextEmbedder)")
        if not documents:
            return {"documents": []}
        rows = self._text_model().dense_texts([document.content or "" for document in documents]).tolist()
        return {"documents": [dataclasses.replace(d, embedding=row) for d, row in zip(documents, rows, strict=True)]}

    @component.output_types(documents=list[Document])
    async def run_async(self, documents: list[Document]) -> dict[str, list[Document]]:
        """Return the documents with embeddings; see `run`."""
        return await asyncio.to_thread(self.run, documents)
