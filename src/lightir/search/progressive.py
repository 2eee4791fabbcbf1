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

from lightir.kernel import DocOrds
from lightir.kernel.candidates import BranchList
from lightir.search.branches import BranchSearch
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


@dataclass(frozen=True, slots=True)
class Estimates:
    """One query's lists and pair scores with estimates of pending documents in the vector branches.

    Attributes:
        lists: the lists to fuse.
        pair_scores: function of a branch and doc_ords that returns their scores.
    """

    lists: Mapping[Branch, BranchList]
    pair_scores: Callable[[Branch, DocOrds], Floats]


def with_estimates(
    searched: BranchSearch, query: int, lists: Mapping[Branch, BranchList], tokens: BranchList, depth: int
) -> Estimates:
    """Put estimates of pending documents into one query's lists.

    Args:
        searched: the batch of queries.
        query: the query's number in it.
        lists: the lists to fuse; those of vector branches hold encoded documents alone.
        tokens: the tokens branch's list, whether it is fused or not.
        depth: maximum length of a list.
    """
    pending = searched.view.waits[tokens.doc_ords]
    encoded_docs, pending_docs = tokens.doc_ords[~pending], tokens.doc_ords[pending]
    best_tokens = float(tokens.scores[0]) if len(tokens.scores) else 1.0

    def line_of(branch: Branch) -> Line:
        scores = searched.pair_scores(branch, encoded_docs, query)
        return fitted(tokens.scores[~pending], scores, lists[branch].scores, best_tokens)

    lines = {branch: line_of(branch) for branch in lists if branch != "tokens"}

    def pair_scores(branch: Branch, doc_ords: DocOrds) -> Floats:
        scores = searched.pair_scores(branch, doc_ords, query)
        if branch in lines and (among := searched.view.waits[doc_ords]).any():
            scores = scores.copy()
            scores[among] = lines[branch].at(searched.pair_scores("tokens", doc_ords[among], query))
        return scores

    extended = dict(lists)
    for branch, line in lines.items():
        estimates = BranchList(pending_docs, line.at(tokens.scores[pending]))
        extended[branch] = searched.merge([lists[branch], estimates], depth)
    return Estimates(extended, pair_scores)
