"""Queries for the tokens branch: terms of a batch, their weights, and their places in each segment's dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.vectors import SparseVectors


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """A batch of queries over the term ids of one segment, as SparseVectors but not checked again.

    Attributes:
        indptr: (n + 1,) int64.
        term_ids: (nnz,) uint32, ascending within a query.
        weights: (nnz,) float32.
    """

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]

    def row(self, position: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Term ids and weights of one query."""
        span = slice(self.indptr[position], self.indptr[position + 1])
        return self.term_ids[span], self.weights[span]


@dataclass(frozen=True, slots=True)
class TokenQueries:
    """A batch of queries for the tokens branch.

    Attributes:
        terms: the batch's distinct terms, ascending: words, or the model's term ids; of BM25 those that occur.
        vectors: one row a query over places in terms; a weight is count x idf over the whole collection, or the count
            alone, or for bags what the query encoder gave the term.
        places: one array a segment: each term's place in its dictionary, or -1.
    """

    terms: Sequence[str | int]
    vectors: SparseVectors
    places: Sequence[npt.NDArray[np.int64]]

    def of_segment(self, position: int) -> QueryTerms:
        """The queries in the term ids of one segment; terms that it lacks are left out."""
        places = self.places[position][self.vectors.term_ids]
        weights = self.vectors.weights.astype(np.float32, copy=False)
        known = places >= 0
        if known.all():
            return QueryTerms(self.vectors.indptr, places.astype(np.uint32), weights)
        before = np.zeros(len(known) + 1, dtype=np.int64)
        np.cumsum(known, out=before[1:])
        indptr = before[self.vectors.indptr]
        return QueryTerms(indptr, places[known].astype(np.uint32), weights[known])
