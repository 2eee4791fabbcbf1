"""BM25 as Lucene counts it, in the two parts that a growing collection needs apart.

A document's score is the sum over query terms of count x idf x saturation. The idf changes with every document that
comes or goes, so it is part of the query's weights. The saturation depends on the collection only through its mean
length; a segment stores it for the mean at the time it was written (lightir.search.branches says what follows).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lightir.vectors import Floats

K1 = 0.9
B = 0.4
"""Robertson & Zaragoza's parameters as Anserini sets them (Lin et al., 2016)."""


def idf(n_docs: int, df: int) -> float:
    """ln(1 + (N - df + 0.5) / (df + 0.5)): above 0 for every df from 0 to N."""
    return math.log1p((n_docs - df + 0.5) / (df + 0.5))


def mean_length(total: int, n_docs: int) -> float:
    """The mean number of terms a document; 1 where there are none, so that nothing is divided by 0."""
    return total / n_docs if total else 1.0


def saturation(
    counts: npt.NDArray[np.uint8] | npt.NDArray[np.float32],
    indptr: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.uint32],
    mean: float,
) -> Floats:
    """tf / (tf + k1 (1 - b + b |d| / mean |d|)) of every posting, float32, from 0 to 1.

    Lucene's form, which leaves out the constant factor k1 + 1 (Kamphuis et al., ECIR 2020). A posting's value depends
    on its own document and the mean alone, so it is the same bits wherever the document is stored.

    Args:
        counts: (nnz,) how often each term occurs, document by document.
        indptr: (n + 1,) where each document's counts begin.
        lengths: (n,) number of terms, repeats counted.
        mean: `mean_length` of the whole collection.
    """
    penalty = np.repeat(K1 * (1 - B + B * lengths.astype(np.float64) / mean), np.diff(indptr))
    tf = counts.astype(np.float64)
    return (tf / (tf + penalty)).astype(np.float32)
