"""Documents without vectors among those that have them, ranked on one scale.

The tokens branch scores every document, the vector branches only the encoded ones. Where a query's tokens list holds
both, the encoded documents show how a vector branch's score goes with the tokens score, and each pending one is given
the score to be expected from its own. It is a straight line, fitted query by query (see `fitted`). A pending document
stands in the branch's list by its estimate, and the fusion goes on as if the list were the branch's own: nothing
encoded changes its score, and with nothing pending nothing here is called. Lines rise, so among themselves pending
documents keep the order of the tokens branch.
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
"""How many documents the line that is expected before any is seen counts as."""

PRIOR_RISE = 5.0
"""How many standard deviations above the list's mean the best document of the tokens branch is expected."""

LEAST_RISE = 1e-3
"""A line rises by so many deviations at least, even where the branch contradicts the tokens."""


@dataclass(frozen=True, slots=True)
class Line:
    """The score that a vector branch is expected to give a document, by the document's tokens score."""

    at_zero: float
    slope: float

    def at(self, tokens: Floats) -> Floats:
        """(n,) float32 for n tokens scores; equal ones get equal bits."""
        return (self.at_zero + self.slope * tokens.astype(np.float64)).astype(np.float32)


def fitted(tokens: Floats, scores: Floats, listed: Floats, most: float) -> Line:
    """A least-squares line through encoded documents and two expected ones, which rises.

    Of a document without any of the query's terms the mean m of the branch's list is expected, of one with the best
    tokens score m + PRIOR_RISE x d, d being the list's deviation; each counts PRIOR_DOCUMENTS / 2. Where all listed
    scores are equal d is |m|; in an empty list m is 0 and d 1, as where m is 0 and all are equal. Sums are exact
    before they are rounded, so the order of the documents changes nothing.

    Args:
        tokens: (n,) tokens scores of the encoded documents of the tokens list.
        scores: (n,) what the branch says of them.
        listed: (n_listed,) the scores in the branch's own list.
        most: the best tokens score in the list, above 0.
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
