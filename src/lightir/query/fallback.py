"""Queries below a confidence go to the model that a query table was fitted to; the others need no model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from lightir.errors import InvalidInput, LightirError
from lightir.query.cached_encoder import CachedQueryEncoder
from lightir.query.confidence import Confidence
from lightir.vectors import Floats, QueryVectors

EncodeTexts: TypeAlias = Callable[[Sequence[str]], Floats]
"""Returns the model's vectors of texts, (n, dim) float32: a function that runs a model or asks an endpoint."""


class FallbackFailed(LightirError):
    """A model that could not encode the queries below the confidence; no query was searched without it in silence."""


class FallbackQueryEncoder:
    """Encodes queries by table lookup, and those whose confidence is below a threshold by the model.

    A `Searcher` takes it in place of the query encoder that the index has. Term ids and sparse vectors stay those of
    the table's encoder.
    """

    def __init__(
        self, encoder: CachedQueryEncoder, confidence: Confidence | None, fallback: EncodeTexts, *, threshold: float
    ) -> None:
        """Join table and model.

        Args:
            encoder: query encoder with a dense table.
            confidence: confidence of the table, from `Confidence.load`.
            fallback: function that returns the model's vectors; called for the queries below the threshold only.
            threshold: confidence from 0 (no query goes to the model) to 1.

        Raises:
            InvalidInput: no table, no confidence, or a threshold outside 0 to 1.
        """
        if encoder.contract.dense is None:
            raise InvalidInput("a fallback requires a query encoder with a dense table")
        if confidence is None:
            raise InvalidInput(
                "the query encoder has no confidence, which a fallback requires; lightir distill stores one (of tables "
                "that this release fitted, with enough held-out queries)"
            )
        if not 0 <= threshold <= 1:
            raise InvalidInput(f"the fallback's confidence is {threshold}; expected 0 to 1")
        self.encoder, self.confidence, self.threshold = encoder, confidence, threshold
        self.n_queries = self.n_fallback = 0
        self._fallback = fallback
        self._counting = threading.Lock()

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the document side that the query vectors are comparable with."""
        return self.encoder.document_fingerprint

    def confidences(self, texts: Sequence[str], *, task: str | None = None) -> Floats:
        """Return the confidence of each query, (n,) float32 from 0 to 1; nothing goes to the model."""
        return self.confidence.of_queries(self.encoder, self.encoder.encode(texts, task=task).term_ids, task=task)

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Encode queries; blank ones never go to the model.

        Raises:
            FallbackFailed: the model failed, or returned other vectors than the table's.
        """
        vectors = self.encoder.encode(texts, task=task)
        confidences = self.confidence.of_queries(self.encoder, vectors.term_ids, task=task)
        blank = np.array([not text.strip() for text in texts], dtype=bool)
        low = np.flatnonzero((confidences < self.threshold) & ~blank)
        with self._counting:
            self.n_queries += len(texts)
            self.n_fallback += len(low)
        if not len(low):
            return vectors
        assert vectors.dense is not None
        dense = vectors.dense.copy()
        dense[low] = self._by_model([texts[at] for at in low.tolist()], dense.shape[1])
        return replace(vectors, dense=dense)

    def _by_model(self, texts: Sequence[str], dim: int) -> Floats:
        """Return the model's vectors in the table's width, of length 1."""
        try:
            rows = np.asarray(self._fallback(texts), dtype=np.float32)
        except Exception as error:
            raise FallbackFailed(
                f"the model failed to encode {len(texts)} of the queries, whose confidence is below "
                f"{self.threshold:g}: {error}. Search without a fallback to use the query table alone"
            ) from error
        if rows.ndim != 2 or len(rows) != len(texts) or rows.shape[1] < dim or not np.isfinite(rows).all():
            raise FallbackFailed(
                f"the model returned vectors of shape {rows.shape} for {len(texts)} queries; expected {dim} finite "
                "numbers for each"
            )
        rows = rows[:, :dim]
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return np.asarray(rows / np.where(lengths > 0, lengths, 1), dtype=np.float32)
