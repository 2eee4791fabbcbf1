"""Cached expansions: for each term, the strongest terms of the sparse head's output for this term alone.

This applies LightRetriever's caching to SiDR's queries. A query's sparse vector is the mean of its terms' rows. The sum
would give the same ranking because it differs by one factor per query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import InvalidInput
from lightir.vectors import Ragged, SparseVectors


@dataclass(frozen=True, slots=True)
class CachedExpansions:
    """Expansions of all terms, one row per term id.

    Attributes:
        term_ids: (n_terms, width) uint32 ids of the expansion terms; ignored if the weight is 0.
        weights: (n_terms, width) float16 or float32 weights, finite and not negative.
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
        """Return the number of terms."""
        return len(self.term_ids)

    def means(self, queries: Ragged, *, vocab_size: int, threads: int = 1) -> SparseVectors:
        """Average the rows of each query's terms, repeats included.

        Args:
            queries: term ids below len(self), one ragged row per query.
            vocab_size: width of the result.
            threads: maximum number of threads.

        Returns:
            One float32 row per query, term ids ascending, without zeros; empty for a query without terms. A row
            depends on its query only, not on the batch.

        Raises:
            InvalidInput: a term id without a row, or an expansion outside the vocabulary.
        """
        means = kernel.mean_expansions(
            self.term_ids, self.weights, queries.term_ids, queries.indptr, vocab_size=vocab_size, threads=threads
        )
        return SparseVectors(*means, vocab_size)
