"""One ranking out of several branches' lists."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.contract import Fusion
from lightir.kernel import DocOrds
from lightir.kernel.segments import BranchQuery
from lightir.kernel.segments import fuse as kernel_fuse
from lightir.types import BRANCHES, Branch

Scores: TypeAlias = npt.NDArray[np.float64]

NO_DOCUMENTS: DocOrds = np.zeros(0, dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class BranchList:
    """One branch's best documents for one query: score down, then doc_ord up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float32.
    """

    doc_ords: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.float32]

    def first(self, n: int) -> BranchList:
        """The n best of them."""
        return self if len(self.doc_ords) <= n else BranchList(self.doc_ords[:n], self.scores[:n])


@dataclass(frozen=True, slots=True)
class BranchColumn:
    """What one branch says of the candidates, in their order.

    Attributes:
        scores: (n,) float32, raw, computed also for documents outside the branch's list.
        normalized: (n,) float64; the fused score is the sum over branches of weight x normalized.
        ranks: (n,) int64, 1-based in the branch's own list; 0 outside it.
        weight: the branch's.
    """

    scores: npt.NDArray[np.float32]
    normalized: Scores
    ranks: npt.NDArray[np.int64]
    weight: float

    def take(self, positions: npt.NDArray[np.int64] | slice) -> BranchColumn:
        """Some of the candidates."""
        return BranchColumn(self.scores[positions], self.normalized[positions], self.ranks[positions], self.weight)


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates of one query, best first: score down, then doc_ord up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float64.
        columns: each branch's part, in the order of BRANCHES.
    """

    doc_ords: DocOrds
    scores: Scores
    columns: Mapping[Branch, BranchColumn]

    def take(self, positions: npt.NDArray[np.int64] | slice) -> Fused:
        """Some of the candidates."""
        columns = {branch: column.take(positions) for branch, column in self.columns.items()}
        return Fused(self.doc_ords[positions], self.scores[positions], columns)


PairScores: TypeAlias = Callable[[Branch, DocOrds], npt.NDArray[np.float32]]


def alone(branch: Branch, found: BranchList) -> Fused:
    """One branch by itself: its raw scores, not normalised; what `fuse` gives for it without normalisation."""
    scores = found.scores.astype(np.float64)
    column = BranchColumn(found.scores, scores, np.arange(1, len(scores) + 1), 1.0)
    return Fused(found.doc_ords, scores, {branch: column})


def fuse(
    lists: Mapping[Branch, BranchList], pair_scores: PairScores, *, fusion: Fusion, also: DocOrds = NO_DOCUMENTS
) -> Fused:
    """All documents of all lists, by the weighted sum of what the branches say of them.

    What a branch says is measured by its own list alone, so a further document changes nothing for the others. A
    document outside the list gets its true score, normalised as the listed ones are; an empty list says 0 of all.

    "linear" with "max", the default: s / max, at least 0: what the best document has is 1, and a score of 0 says
        nothing. So a score does not hang on the list's length, which still decides what is a candidate (Bruch, Gai &
        Ingber, TOIS 2023, with 0 as the least score). A list that holds scores below 0 is taken as "min-max" takes it.
    "linear" with "min-max": (s - min) / (max - min), at least 0. In a list of equal scores, or of one hit, these
        count 1 and lower ones 0.
    "linear" with "z-score": (s - mean) / deviation (of a sample). In a list of equal scores these count 0 and lower
        ones -1.
    "linear" with "none": the raw score.
    "dbsf": distribution-based score fusion (Mazzeschi 2023), as Qdrant has it: 0 at the mean less 3 deviations, 1 at
        the mean plus 3; not cut at 1, which would make a tie of a deep list's best; at least 0. In a list of equal
        scores these count 0.5 and lower ones 0.
    "rrf": 1 / (rrf_k + rank in the list), and 0 outside it (Cormack, Clarke & Buettcher, SIGIR 2009).

    Args:
        lists: the branches' lists; their order changes nothing.
        pair_scores: gives a branch's scores of documents that its list lacks.
        fusion: the method, and a weight for each branch.
        also: more documents to score, whether a branch lists them or not.
    """
    branches = [branch for branch in BRANCHES if branch in lists]
    listed = np.sort(np.concatenate([also, *(lists[branch].doc_ords for branch in branches)]))
    candidates = listed[np.diff(listed.astype(np.int64), prepend=-1) != 0]  # np.unique hashes, five times as slow here
    columns = {branch: _column(branch, lists[branch], candidates, pair_scores, fusion) for branch in branches}
    scores = np.zeros(len(candidates))
    for column in columns.values():
        scores += column.weight * column.normalized
    # Candidates ascend and the sort is stable, so ties stay in the order of doc_ords.
    return Fused(candidates, scores, columns).take(np.argsort(-scores, kind="stable"))


def fuse_best(
    lists: Mapping[Branch, BranchList],
    queries: Mapping[Branch, BranchQuery],
    *,
    fusion: Fusion,
    k: int,
    ties: bool,
    complete: Collection[Branch] = (),
) -> Fused:
    """The k best of what `fuse` gives, to the bit, in one call of the kernel.

    Args:
        lists: the branches' lists; their order changes nothing.
        queries: give a branch's scores of documents that its list lacks.
        fusion: the method, and a weight for each branch.
        k: number wanted.
        ties: also those that have the k-th one's score.
        complete: the branches whose lists are exact: no document outside scores more than the last one. The result is
            the same, found with fewer scores of documents outside lists.
    """
    branches = [branch for branch in BRANCHES if branch in lists]
    weights = [float(fusion.weights[branch]) for branch in branches]
    doc_ords, scores, columns = kernel_fuse(
        [(lists[branch].doc_ords, lists[branch].scores) for branch in branches],
        [queries[branch] for branch in branches],
        weights=weights,
        scale=fusion.normalization if fusion.method == "linear" else fusion.method,
        k=k,
        rrf_k=fusion.rrf_k,
        ties=ties,
        complete=[branch in complete for branch in branches],
    )
    made = {
        branch: BranchColumn(*column, weight) for branch, column, weight in zip(branches, columns, weights, strict=True)
    }
    return Fused(doc_ords, scores, made)


def normalized(scores: Scores, listed: Scores, ranks: npt.NDArray[np.int64], fusion: Fusion) -> Scores:
    """What a branch says of documents: (n,), by `fuse`'s definitions.

    Args:
        scores: (n,) their raw scores.
        listed: the scores in the branch's list.
        ranks: (n,) their ranks in the list; 0 outside it.
        fusion: the method.
    """
    if not len(listed):
        return np.zeros(len(scores))
    if fusion.method == "rrf":
        return _reciprocal(ranks, fusion.rrf_k)
    if fusion.method == "dbsf":
        return _dbsf(scores, listed)
    if fusion.normalization == "z-score":
        return _z_score(scores, listed)
    if fusion.normalization == "none":
        return scores.copy()
    least = float(listed.min())
    return _between(scores, min(least, 0.0) if fusion.normalization == "max" else least, float(listed.max()))


def _column(
    branch: Branch, found: BranchList, candidates: DocOrds, pair_scores: PairScores, fusion: Fusion
) -> BranchColumn:
    places = np.searchsorted(candidates, found.doc_ords)
    ranks = np.zeros(len(candidates), dtype=np.int64)
    ranks[places] = np.arange(1, len(places) + 1)
    scores = np.zeros(len(candidates), dtype=np.float32)
    scores[places] = found.scores
    outside = ranks == 0
    if outside.any():
        scores[outside] = pair_scores(branch, candidates[outside])
    said = normalized(scores.astype(np.float64), found.scores.astype(np.float64), ranks, fusion)
    return BranchColumn(scores, said, ranks, float(fusion.weights[branch]))


def _reciprocal(ranks: npt.NDArray[np.int64], k: float) -> Scores:
    said = np.zeros(len(ranks))
    listed = ranks > 0
    said[listed] = 1.0 / (k + ranks[listed])
    return said


def _between(scores: Scores, least: float, most: float) -> Scores:
    if least == most:
        return (scores >= most).astype(np.float64)
    return np.clip((scores - least) / (most - least), 0.0, 1.0)


def _z_score(scores: Scores, listed: Scores) -> Scores:
    if listed.min() == listed.max():
        return np.where(scores >= listed[0], 0.0, -1.0)
    mean = _sum(listed) / len(listed)
    deviation = math.sqrt(_sum((listed - mean) ** 2) / (len(listed) - 1))
    return (scores - mean) / deviation


def _sum(values: Scores) -> float:
    """In their order, as the kernel sums; numpy's own sum goes by pairs."""
    return float(np.cumsum(values)[-1])


def _dbsf(scores: Scores, listed: Scores) -> Scores:
    if listed.min() == listed.max():
        return np.where(scores >= listed[0], 0.5, 0.0)
    return np.maximum(0.5 + _z_score(scores, listed) / 6, 0.0)
