"""BM25 as Lucene counts it, with the weight of every posting computed when the index is built."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightir.vectors import SparseVectors

K1 = 0.9
B = 0.4
"""Robertson & Zaragoza's parameters as Anserini sets them (Lin et al., 2016)."""


def bm25_weights(counts: SparseVectors, doc_lengths: npt.NDArray[np.int64]) -> SparseVectors:
    """Each posting's BM25 weight, float32: a document's score is the sum over query terms of count x weight.

    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5)), times tf / (tf + k1 (1 - b + b |d| / mean |d|)): Lucene's form,
    which leaves out the constant factor k1 + 1 (Kamphuis et al., ECIR 2020).

    Args:
        counts: n documents' term counts.
        doc_lengths: (n,) number of terms, repeats counted.
    """
    n_docs = len(counts)
    df = np.bincount(counts.term_ids, minlength=counts.vocab_size)
    idf = np.log1p((n_docs - df + 0.5) / (df + 0.5))
    mean_length = doc_lengths.mean() if doc_lengths.any() else 1.0
    penalty = np.repeat(K1 * (1 - B + B * doc_lengths / mean_length), np.diff(counts.indptr))
    tf = counts.weights.astype(np.float64)
    return counts.with_weights((idf[counts.term_ids] * tf / (tf + penalty)).astype(np.float32))
