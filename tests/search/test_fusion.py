"""Fusion: every document of every list, by its true scores, whatever the order of the lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lightir.search import BranchList, Fused, fuse
from lightir.types import Branch

Scores = dict[int, float]


def listed(scores: Scores) -> BranchList:
    ranked = sorted(scores, key=lambda doc: (-scores[doc], doc))
    return BranchList(np.array(ranked, np.uint32), np.array([scores[doc] for doc in ranked], np.float32))


def fused(lists: dict[Branch, Scores], outside: dict[Branch, Scores] | None = None, method: str = "linear") -> Fused:
    def pair_scores(branch: Branch, docs: np.ndarray) -> np.ndarray:
        return np.array([(outside or {}).get(branch, {}).get(int(doc), 0.0) for doc in docs], np.float32)

    weights: dict[Branch, float] = {"dense": 0.5, "sparse": 0.25, "tokens": 0.25}
    return fuse({b: listed(scores) for b, scores in lists.items()}, pair_scores, method=method, weights=weights)  # type: ignore[arg-type]


def as_dict(result: Fused) -> Scores:
    return dict(zip(result.doc_ords.tolist(), result.scores.tolist(), strict=True))


def test_linear_is_the_weighted_sum_of_min_max_scores() -> None:
    result = fused({"dense": {1: 0.75, 2: 0.5, 3: 0.25}, "sparse": {3: 9.0, 4: 5.0}}, {"dense": {4: 0.5}})
    assert as_dict(result) == {1: 0.5, 2: 0.25, 3: 0.25, 4: 0.25}
    assert result.doc_ords.tolist() == [1, 2, 3, 4]
    assert result.columns["dense"].ranks.tolist() == [1, 2, 3, 0]
    assert result.columns["sparse"].scores.tolist() == [0, 0, 9, 5]


def test_a_missing_document_counts_by_its_true_score_and_never_below_zero() -> None:
    lists: dict[Branch, Scores] = {"dense": {1: 1.0, 2: 0.5}, "sparse": {3: 2.0, 1: 1.0, 4: 1.5}}
    result = fused(lists, {"dense": {3: 0.75, 4: -9.0}, "sparse": {2: 0.0}})
    assert as_dict(result) == {1: 0.5, 3: 0.5, 4: 0.125, 2: 0.0}
    assert result.doc_ords.tolist() == [1, 3, 4, 2]


@pytest.mark.parametrize("found", [{5: 3.0}, {5: 3.0, 6: 3.0}])
def test_equal_scores_and_single_hits_count_one_and_lower_ones_nothing(found: Scores) -> None:
    result = fused({"dense": found, "sparse": {7: 1.0, 8: 1.0}}, {"dense": {7: 3.0, 8: 2.0}})
    assert as_dict(result) == {**dict.fromkeys(found, 0.5), 7: 0.75, 8: 0.25}


def test_an_empty_list_adds_nothing() -> None:
    assert as_dict(fused({"dense": {}, "sparse": {1: 2.0, 2: 1.0}})) == {1: 0.25, 2: 0.0}
    assert as_dict(fused({"dense": {}, "sparse": {}})) == {}


def test_reciprocal_ranks() -> None:
    result = fused({"dense": {1: 3.0, 2: 2.0}, "sparse": {2: 7.0, 3: 7.0}}, method="rrf")
    assert as_dict(result) == {1: 0.5 / 61, 2: 0.5 / 62 + 0.25 / 61, 3: 0.25 / 62}
    assert result.doc_ords.tolist() == [2, 1, 3]


@pytest.mark.parametrize("method", ["linear", "rrf"])
def test_fusion_does_not_depend_on_the_order_of_the_lists(method: str) -> None:
    rng = np.random.default_rng(1)
    lists: dict[Branch, Scores] = {
        branch: {int(doc): float(rng.random()) for doc in rng.choice(30, 20, replace=False)}
        for branch in ("dense", "sparse", "tokens")
    }
    results = [fused(dict(order), method=method) for order in itertools.permutations(lists.items())]  # type: ignore[arg-type]
    for result in results[1:]:
        np.testing.assert_array_equal(result.doc_ords, results[0].doc_ords)
        np.testing.assert_array_equal(result.scores, results[0].scores)
