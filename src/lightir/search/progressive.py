"""Estimated vector scores of pending documents, so that they are ranked together with encoded ones.

The tokens branch scores every document, the vector branches only the encoded ones. For each query a straight line is
fitted through the encoded documents of the tokens list, from tokens score to vector score (see `fitted`). A pending
document enters the list of a vector branch with the score that the line gives for its tokens score, and fusion treats
it like any other document. Scores of encoded documents do not change, and without pending documents nothing is
estimated. Lines rise, so pending documents keep the order of the tokens branch among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.kernel import DocOrds
from lightir.search.fusion import BranchList, PairScores
from lightir.types import Branch
from lightir.vectors import Floats

PRIOR_DOCUMENTS = 4.0
"""Weight of the two artificial documents together, in encoded documents."""

PRIOR_RISE = 5.0
"""Standard deviations above the list's mean that the artificial document with the best tokens score has."""

LEAST_RISE = 1e-3
"""Minimum rise of a line in standard deviations, even if the branch contradicts the tokens branch."""


@dataclass(frozen=True, slots=True)
class Line:
    """Expected score of a document in a vector branch, as a function of its tokens score.

    Attributes:
        at_zero: expected score at a tokens score of 0.
        slope: rise of the expected score per unit of tokens score.
    """

    at_zero: float
    slope: float

    def at(self, tokens: Floats) -> Floats:
        """Return the expected scores, (n,) float32, of n tokens scores; equal ones get equal bits."""
        return (self.at_zero + self.slope * tokens.astype(np.float64)).astype(np.float32)


def fitted(tokens: Floats, scores: Floats, listed: Floats, most: float) -> Line:
    """Fit a rising least-squares line through encoded documents and two artificial ones.

    Let m be the mean and d the standard deviation of the branch's list. The first artificial document has tokens score
    0 and score m, the second the best tokens score and score m + PRIOR_RISE x d; each has the weight PRIOR_DOCUMENTS /
    2. If all listed scores are equal, d is |m|, or 1 if m is 0. For an empty list m is 0 and d is 1. Sums are exact
    before they are rounded, so the result does not depend on the order of the documents.

    Args:
        tokens: (n,) tokens scores of the encoded documents of the tokens list.
        scores: (n,) scores of these documents in the branch.
        listed: (n_listed,) scores in the branch's own list.
        most: best tokens score in the list, above 0.
    """
    mean = float(listed.mean(dtype=np.float64)) if len(listed) else 0.0
    deviation = (float(listed.std(dtype=np.float64)) if len(listed) else 0.0) or abs(mean) or 1.0
    rise = PRIOR_RISE * deviation
    x, y = tokens.astype(np.float64) / most, scores.astype(np.float64) - mean
    weight, half = len(x) + PRIOR_DOCUMENTS, PRIOR_DOCUMENTS / 2
    mean_x, mean_y = (math.fsum(x) + half) / weight, (math.fsum(y) + half * rise) / weight
    spread = math.fsum(x * x) + half - weight * mean_x**2
    together = math.fsum(x * y) + half * rise - weight * mean_x * mean_y
    slope = max(together / spread, LEAST_RISE * deviation)
    return Line(mean + mean_y - slope * mean_x, slope / most)


def with_estimates(
    lists: Mapping[Branch, BranchList],
    tokens: BranchList,
    pair_scores: PairScores,
    *,
    pending: Callable[[DocOrds], npt.NDArray[np.bool_]],
    best: Callable[[BranchList, BranchList], BranchList],
) -> tuple[dict[Branch, BranchList], PairScores]:
    """One query's lists and pair scores with estimates in them wherever a vector branch is asked of a pending document.

    Args:
        lists: the lists to fuse; those of vector branches hold encoded documents alone.
        tokens: the tokens branch's list, whether it is fused or not.
        pair_scores: the branches' scores of given documents.
        pending: (n,) whether documents wait for their vectors.
        best: the best documents of two lists of different ones, as many as a branch's list may have, in the order of
            a ranking.
    """
    waits = pending(tokens.doc_ords)
    known, waiting = BranchList(tokens.doc_ords[~waits], tokens.scores[~waits]), tokens.doc_ords[waits]
    most = float(tokens.scores[0]) if len(tokens.scores) else 1.0
    lines = {
        branch: fitted(known.scores, pair_scores(branch, known.doc_ords), found.scores, most)
        for branch, found in lists.items()
        if branch != "tokens"
    }

    def estimated_pairs(branch: Branch, doc_ords: DocOrds) -> Floats:
        scores = pair_scores(branch, doc_ords)
        if branch in lines and (among := pending(doc_ords)).any():
            scores = scores.copy()
            scores[among] = lines[branch].at(pair_scores("tokens", doc_ords[among]))
        return scores

    estimates = {branch: BranchList(waiting, line.at(tokens.scores[waits])) for branch, line in lines.items()}
    extended = {branch: best(found, estimates[branch]) if branch in lines else found for branch, found in lists.items()}
    return extended, estimated_pairs
