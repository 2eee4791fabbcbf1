"""Queries for the tokens branch: the terms of a batch, their weights, and their ids in each segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lightir.vectors import SparseVectors


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """A batch of queries over the term ids of one segment; SparseVectors without their checks.

    Attributes:
        indptr: (n + 1,) int64, start of each query.
        term_ids: (nnz,) uint32, ascending within a query.
        weights: (nnz,) float32, weight of each term.
    """

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]

    def row(self, position: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
        """Return the term ids and weights of one query."""
        span = slice(self.indptr[position], self.indptr[position + 1])
        return self.term_ids[span], self.weights[span]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Words that stand for a word of a query. They share the idf of the most frequent one.

    With `own` a word of the query keeps its weight, and the alternatives share its idf if it is more frequent.

    Attributes:
        word: word of the query.
        terms: distinct terms.
        factors: factor of each term's weight, above 0.
        own: term of the query whose idf is the greatest that the alternatives may have; "" for none.
    """

    word: str
    terms: tuple[str, ...]
    factors: tuple[float, ...]
    own: str = ""


@dataclass(frozen=True, slots=True)
class TokenQueries:
    """A batch of queries for the tokens branch.

    Attributes:
        terms: distinct terms of the batch, ascending: words, or term ids of the model. For BM25 those that occur.
        vectors: one row per query over positions in terms. A weight is count x idf over the whole collection, the count
            alone, or for bags the weight by the query encoder.
        places: (n_segments, n_terms) int64 ids of the terms in the dictionary of each segment, -1 for a missing term.
        words: term -> word of a query that the term is an alternative to.
        unknown: (n,) float64, what the sum of a query's weights lacks of the weight of all its own words: that of words
            without a document, less that of alternatives. None for bags.
        analyzed: the terms of each query's words, also of those that the search leaves out or replaces; empty where
            terms are the model's.
    """

    terms: Sequence[str | int]
    vectors: SparseVectors
    places: npt.NDArray[np.int64]
    words: Mapping[str, str] = field(default_factory=dict)
    unknown: npt.NDArray[np.float64] | None = None
    analyzed: Sequence[Sequence[str]] = ()

    def of_segment(self, position: int) -> QueryTerms:
        """Return the queries over the term ids of one segment; terms that it lacks are omitted."""
        places = self.places[position][self.vectors.term_ids]
        weights = self.vectors.weights.astype(np.float32, copy=False)
        known = places >= 0
        if known.all():
            return QueryTerms(self.vectors.indptr, places.astype(np.uint32), weights)
        before = np.zeros(len(known) + 1, dtype=np.int64)
        np.cumsum(known, out=before[1:])
        indptr = before[self.vectors.indptr]
        return QueryTerms(indptr, places[known].astype(np.uint32), weights[known])
