"""Cached expansions: for each term the strongest terms that a sparse head gives for it alone.

LightRetriever's caching on SiDR's query side.

A query's sparse vector is the mean of its terms' rows. A sum would rank alike: they differ by a factor a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.vectors import Ragged, SparseVectors


@dataclass(frozen=True, slots=True)
class CachedExpansions:
    """One row a term id.

    Attributes:
        term_ids: (n_terms, width) uint32; where the weight is 0 an id means nothing.
        weights: (n_terms, width) float16 or float32, finite and not negative.
    """

    term_ids: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float16] | npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        ids, weights = self.term_ids, self.weights
        if ids.ndim != 2 or ids.shape != weights.shape or ids.dtype != np.uint32:
            raise InvalidInput(
                f"expansions' term ids are {ids.dtype} of shape {ids.shape}, their weights of shape {weights.shape}; "
                "expected uint32 of 2 dimensions and the same shape"
            )
        if weights.dtype not in (np.float16, np.float32):
            raise InvalidInput(f"expansions' weights are {weights.dtype}; expected float16 or float32")
        if not np.all(np.isfinite(weights)) or np.any(weights < 0):
            raise InvalidInput("expansions' weights must be finite and not negative")

    def __len__(self) -> int:
        """Number of terms."""
        return len(self.term_ids)

    def means(self, queries: Ragged, *, vocab_size: int) -> SparseVectors:
        """The mean of each query's rows, repeats counted; a query without terms is empty.

        Sums are in float64 and in the order of the query, so a query's row does not depend on its batch.

        Args:
            queries: term ids below len(self).
            vocab_size: width of the result.

        Returns:
            One row a query, float32, term ids ascending, no zero weights.

        Raises:
            InvalidInput: a term id without a row.
        """
        if len(queries.term_ids) and int(queries.term_ids.max()) >= len(self):
            raise InvalidInput(f"term id {queries.term_ids.max()} has no expansion; there are {len(self)}")
        query_of = np.repeat(np.arange(len(queries), dtype=np.int64), queries.lengths)
        keys = query_of[:, None] * vocab_size + self.term_ids[queries.term_ids]
        found, place = np.unique(keys.ravel(), return_inverse=True)
        weights = self.weights[queries.term_ids].astype(np.float64).ravel()
        sums = np.bincount(place, weights, minlength=len(found))
        means = sums / queries.lengths[found // vocab_size]
        indptr = np.searchsorted(found, np.arange(len(queries) + 1, dtype=np.int64) * vocab_size).astype(np.int64)
        term_ids = (found % vocab_size).astype(np.uint32)
        return SparseVectors(indptr, term_ids, means.astype(np.float32), vocab_size).without_zeros()
