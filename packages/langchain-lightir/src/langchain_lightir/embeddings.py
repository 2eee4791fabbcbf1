"""A model of lightir as LangChain's Embeddings."""

from __future__ import annotations

import os

from langchain_core.embeddings import Embeddings

from lightir import TextModel


class LightIREmbeddings(Embeddings):
    """Embeds queries by a table lookup, without a model, and documents by the model that the table belongs to.

    The model is loaded for the first documents, which requires `lightir[train]`.
    """

    def __init__(self, model: str | os.PathLike[str], *, threads: int = 1) -> None:
        """Load the query table.

        Args:
            model: model folder or name of an installed model, such as "minilm"; to embed queries alone, also a
                query-encoder, vectors or index folder.
            threads: maximum number of threads per batch of queries.

        Raises:
            NotFound: there is no such model, or it has no query table.
            InvalidInput: the model has no dense vectors.
        """
        self.text_model = TextModel(model, threads=threads)
        self.text_model.require("dense")

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the model's vectors of texts.

        Raises:
            MissingExtra: torch is missing.
        """
        return self.text_model.dense_texts(texts).tolist() if texts else []

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a query, by table lookup; zeros for a text without terms."""
        return self.text_model.dense_queries([text])[0].tolist()
