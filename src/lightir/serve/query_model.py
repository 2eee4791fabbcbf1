"""The model of a served index, as far as queries need it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.vectors import Floats, QueryEncoder, QueryVectors, SparseVectors, normalized


class QueryModel:
    """Encodes queries; an index without a model has no vectors."""

    def __init__(self, encoder: QueryEncoder | None, contract: Contract | None, index: str) -> None:
        """Take the parts of an index.

        Args:
            encoder: its query encoder; None without one.
            contract: contract of its model; None without one.
            index: name of the index, for messages.
        """
        self._encoder, self._contract, self._index = encoder, contract, index

    @property
    def name(self) -> str:
        """Name of the model; "bm25" for an index without a model."""
        return "bm25" if self._contract is None else self._contract.backbone.address.rstrip("/").rpartition("/")[2]

    def encode(self, texts: Sequence[str]) -> QueryVectors | None:
        """Return the vectors of texts; None without an encoder."""
        return None if self._encoder is None else self._encoder.encode(texts)

    def dense(self, texts: Sequence[str], dimensions: int | None = None) -> Floats:
        """Return the dense query vectors (n, dim) float32 of length 1; zeros for a text without terms.

        Args:
            texts: n texts.
            dimensions: width of the vectors, a prefix scaled to length 1; None for the encoder's.

        Raises:
            InvalidInput: the index has no dense branch, or `dimensions` is above its width.
        """
        encoded = self.encode(texts)
        vectors = None if encoded is None else encoded.dense
        if vectors is None:
            raise InvalidInput(f"{self._index} has no dense query vectors: it was built without a model that has them")
        if dimensions is None or dimensions == vectors.shape[1]:
            return vectors
        if not 1 <= dimensions < vectors.shape[1]:
            raise InvalidInput(f"dimensions is {dimensions}; expected 1 to {vectors.shape[1]}")
        return normalized(np.ascontiguousarray(vectors[:, :dimensions]))

    def sparse(self, texts: Sequence[str]) -> SparseVectors:
        """Return the sparse query vectors.

        Raises:
            InvalidInput: the index has no sparse branch.
        """
        encoded = self.encode(texts)
        vectors = None if encoded is None else encoded.sparse
        if vectors is None:
            raise InvalidInput(f"{self._index} has no sparse query vectors: it was built without a model that has them")
        return vectors
