"""Both sides of a model for texts: queries by its table, at once, and documents by the model, loaded when needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np

from lightir.addresses import resolve_query_encoder
from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.query import CachedQueryEncoder
from lightir.runtime.model_encoder import ModelEncoder
from lightir.shards import DocumentEncoder, Shard
from lightir.types import Branch, Document
from lightir.vectors import Floats, SparseVectors


class TextModel:
    """A model as embedding interfaces use it. It is also a `lightir.shards.DocumentEncoder`.

    Documents require the extra `encode` or `train` and the whole model, which is loaded for the first of them. Queries
    require the query table alone.
    """

    def __init__(self, address: str | os.PathLike[str], *, threads: int = 1) -> None:
        """Load the query table.

        Args:
            address: model folder or name of a shipped model; for queries alone also a query-encoder, vectors or index
                folder.
            threads: maximum number of threads per batch of queries.

        Raises:
            NotFound: there is no such model, or it has no query table.
        """
        self.address = os.fspath(address)
        self._queries = CachedQueryEncoder.load(resolve_query_encoder(address), threads=threads)
        self._loading = threading.Lock()
        self._documents: DocumentEncoder | None = None

    @property
    def contract(self) -> Contract:
        """Contract of the model."""
        return self._queries.contract

    def require(self, branch: Branch) -> None:
        """Refuse a model without a branch.

        Raises:
            InvalidInput: the model has no dense or no sparse vectors.
        """
        if (self.contract.dense if branch == "dense" else self.contract.sparse) is None:
            raise InvalidInput(f"{self.address} has no {branch} vectors")

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Encode documents, in their order, for all branches of the model.

        Raises:
            MissingExtra: the program or the package that runs the model is missing.
            NotFound: the address is that of a query table without the model.
        """
        with self._loading:
            if self._documents is None:
                self._documents = ModelEncoder.load(self.address, fitting=self.contract)
        return self._documents.encode(documents)

    def dense_queries(self, texts: Sequence[str]) -> Floats:
        """Return the vectors of queries, (n, dim) float32 of length 1; zeros for a text without terms.

        Raises:
            InvalidInput: the model has no dense vectors.
        """
        self.require("dense")
        dense = self._queries.encode(texts).dense
        assert dense is not None
        return dense

    def dense_texts(self, texts: Sequence[str]) -> Floats:
        """Return the model's vectors of texts, (n, dim) float32 with the precision of float16; errors as `encode`.

        Raises:
            InvalidInput: the model has no dense vectors.
        """
        self.require("dense")
        dense = self.encode(_documents(texts)).dense
        assert dense is not None
        return dense.astype(np.float32)

    def sparse_queries(self, texts: Sequence[str]) -> SparseVectors:
        """Return the sparse vectors of queries, with float32 weights.

        Raises:
            InvalidInput: the model has no sparse vectors.
        """
        self.require("sparse")
        sparse = self._queries.encode(texts).sparse
        assert sparse is not None
        return sparse

    def sparse_texts(self, texts: Sequence[str]) -> SparseVectors:
        """Return the model's sparse vectors of texts, with float32 weights: impacts over the contract's scale.

        Raises:
            InvalidInput: the model has no sparse vectors; also as `encode`.
        """
        self.require("sparse")
        sparse, head = self.encode(_documents(texts)).sparse, self.contract.sparse
        assert sparse is not None
        assert head is not None
        return sparse.with_weights(sparse.weights.astype(np.float32) / np.float32(head.scale))


def _documents(texts: Sequence[str]) -> list[Document]:
    return [Document(str(number), text) for number, text in enumerate(texts)]
