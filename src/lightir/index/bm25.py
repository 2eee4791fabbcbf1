"""BM25 in Lucene's form, split into idf and saturation.

A document's score is the sum over query terms of count x idf x saturation. The idf changes with every added or deleted
document, so it is part of the query weights. The saturation depends on the collection only through its mean length. A
segment stores it for the mean length at the time of writing; lightir.search.branches corrects for a later mean.
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
    """Return ln(1 + (N - df + 0.5) / (df + 0.5)), which is above 0 for every df from 0 to N."""
    return math.log1p((n_docs - df + 0.5) / (df + 0.5))


def mean_length(total: int, n_docs: int) -> float:
    """Return the mean number of terms per document; 1 without terms, to avoid a division by 0."""
    return total / n_docs if total else 1.0


def saturation(
    counts: npt.NDArray[np.uint8] | npt.NDArray[np.float32],
    indptr: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.uint32],
    mean: float,
) -> Floats:
    """Return tf / (tf + k1 (1 - b + b |d| / mean |d|)) of every posting, float32, from 0 to 1.

    Lucene's form omits the constant factor k1 + 1 (Kamphuis et al., ECIR 2020). The value of a posting depends only on
    its document and the mean, so its bits do not depend on where the document is stored.

    Args:
        counts: (nnz,) count of each term, document by document.
        indptr: (n + 1,) start of each document.
        lengths: (n,) number of terms of each document, including repetitions.
        mean: `mean_length` of the whole collection.
    """
    penalty = np.repeat(K1 * (1 - B + B * lengths.astype(np.float64) / mean), np.diff(indptr))
    tf = counts.astype(np.float64)
    return (tf / (tf + penalty)).astype(np.float32)
