"""nDCG from ranks, for many rankings of the same documents at once; ir-measures has the same for run files."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]
Grades = npt.NDArray[np.float64]


def ndcg(ranks: Ranks, grades: Grades, *, k: int = 10) -> npt.NDArray[np.float64]:
    """Return nDCG@k with the grade as gain, as in trec_eval (Järvelin & Kekäläinen, TOIS 20(4), 2002).

    Args:
        ranks: (..., n) 1-based ranks of a query's judged documents; 0 for a document that is not ranked.
        grades: (n,) grades of these documents, which must be all that are relevant; a grade below 1 gains nothing.
        k: number of ranks that count.

    Returns:
        (...,) float64; 0 for a query without a relevant document.
    """
    gains = np.maximum(grades, 0.0)
    ideal = float(np.sum(-np.sort(-gains)[:k] / np.log2(np.arange(2, min(k, len(gains)) + 2))))
    counts = (ranks >= 1) & (ranks <= k)
    gained = np.where(counts, gains / np.log2(np.maximum(ranks, 1) + 1.0), 0.0).sum(axis=-1)
    return gained / ideal if ideal else np.zeros(ranks.shape[:-1])
