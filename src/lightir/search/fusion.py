"""One ranking out of several branches' lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from lightir.types import BRANCHES, Branch

RRF_CONSTANT = 60.0  # Cormack, Clarke & Buettcher, SIGIR 2009

FusionMethod = Literal["linear", "rrf"]


@dataclass(frozen=True, slots=True)
class BranchList:
    """One branch's best documents for one query: score down, then doc_ord up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float32.
    """

    doc_ords: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BranchColumn:
    """What one branch says of the candidates, in their order.

    Attributes:
        scores: (n,) float32, raw, computed also for documents outside the branch's list.
        normalized: (n,) float64; the fused score is the sum over branches of weight x normalized.
        ranks: (n,) int64, 1-based in the branch's own list; 0 outside it.
    """

    scores: npt.NDArray[np.float32]
    normalized: npt.NDArray[np.float64]
    ranks: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates of one query, best first: score down, then doc_ord up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float64.
        columns: each branch's part.
    """

    doc_ords: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.float64]
    columns: Mapping[Branch, BranchColumn]

    def take(self, positions: npt.NDArray[np.int64] | slice) -> Fused:
        """Some of the candidates."""
        columns = {
            branch: BranchColumn(column.scores[positions], column.normalized[positions], column.ranks[positions])
            for branch, column in self.columns.items()
        }
        return Fused(self.doc_ords[positions], self.scores[positions], columns)


def alone(branch: Branch, found: BranchList) -> Fused:
    """One branch by itself: its raw scores, not normalised."""
    scores = found.scores.astype(np.float64)
    column = BranchColumn(found.scores, scores, np.arange(1, len(scores) + 1))
    return Fused(found.doc_ords, scores, {branch: column})


def fuse(
    lists: Mapping[Branch, BranchList],
    pair_scores: Callable[[Branch, npt.NDArray[np.uint32]], npt.NDArray[np.float32]],
    *,
    method: FusionMethod,
    weights: Mapping[Branch, float],
) -> Fused:
    """All documents of all lists, by the weighted sum of what the branches say of them.

    "linear": a score counts (s - min) / (max - min) over the branch's own list. A document outside the list gets its
    true score, and 0 if that is below the list's least. In a list of equal scores (or one hit) these count 1 and
    lower ones 0; an empty list counts 0 for all.
    "rrf": a document counts 1 / (60 + its rank in the list), and 0 outside it.

    Args:
        lists: the branches' lists; their order changes nothing.
        pair_scores: gives a branch's scores of documents that its list lacks.
        method: see above.
        weights: each branch's.
    """
    branches = [branch for branch in BRANCHES if branch in lists]
    listed = np.sort(np.concatenate([lists[branch].doc_ords for branch in branches]))
    candidates = listed[np.diff(listed.astype(np.int64), prepend=-1) != 0]  # np.unique hashes, five times as slow here
    columns = {branch: _column(branch, lists[branch], candidates, pair_scores, method) for branch in branches}
    scores = np.zeros(len(candidates))
    for branch in branches:
        scores += weights[branch] * columns[branch].normalized
    # Candidates ascend and the sort is stable, so ties stay in the order of doc_ords.
    return Fused(candidates, scores, columns).take(np.argsort(-scores, kind="stable"))


def _column(
    branch: Branch,
    found: BranchList,
    candidates: npt.NDArray[np.uint32],
    pair_scores: Callable[[Branch, npt.NDArray[np.uint32]], npt.NDArray[np.float32]],
    method: FusionMethod,
) -> BranchColumn:
    places = np.searchsorted(candidates, found.doc_ords)
    ranks = np.zeros(len(candidates), dtype=np.int64)
    ranks[places] = np.arange(1, len(places) + 1)
    scores = np.zeros(len(candidates), dtype=np.float32)
    scores[places] = found.scores
    outside = ranks == 0
    if outside.any():
        scores[outside] = pair_scores(branch, candidates[outside])
    normalized = _reciprocal(ranks) if method == "rrf" else _min_max(scores, found.scores)
    return BranchColumn(scores, normalized, ranks)


def _reciprocal(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.where(ranks > 0, 1.0 / (RRF_CONSTANT + ranks), 0.0)


def _min_max(scores: npt.NDArray[np.float32], listed: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    if not len(listed):
        return np.zeros(len(scores))
    least, most = float(listed.min()), float(listed.max())
    if least == most:
        return (scores >= most).astype(np.float64)
    return np.clip((scores.astype(np.float64) - least) / (most - least), 0.0, 1.0)
