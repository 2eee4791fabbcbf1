"""Fusion: every document of every list, by its true scores, whatever the order of the lists."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.kernel.candidates import BoundBranch, BranchList, Candidates, CandidateSearch, GivenLists, Request
from lightir.kernel.segments import DenseSegments
from lightir.search.prepared import scale_of
from lightir.search.search_options import fusion_text, parse_fusion
from lightir.types import BRANCHES, Branch

Scores = dict[int, float]
METHODS = ("linear", "linear:min-max", "linear:z-score", "linear:none", "dbsf", "rrf", "rrf:5")
WEIGHTS: dict[Branch, float] = {"dense": 0.5, "sparse": 0.25, "tokens": 0.25}
DOCUMENTS = DenseSegments([None], [1000])


def listed(scores: Scores) -> BranchList:
    ranked = sorted(scores, key=lambda doc: (-scores[doc], doc))
    return BranchList(np.array(ranked, np.uint32), np.array([scores[doc] for doc in ranked], np.float32))


def fused(
    lists: dict[Branch, Scores],
    outside: dict[Branch, Scores] | None = None,
    method: str = "linear",
    also: tuple[int, ...] = (),
) -> Candidates:
    """All documents of the lists, joined by a search; `outside` has the scores of documents that a list lacks."""
    fusion = parse_fusion(method)
    branches = [branch for branch in BRANCHES if branch in lists]

    def given(branch: Branch) -> GivenLists:
        def score(query: int, docs: np.ndarray) -> np.ndarray:
            return np.array([(outside or {}).get(branch, {}).get(int(doc), 0.0) for doc in docs], np.float32)

        return GivenLists.join([listed(lists[branch])], score)

    bound = [BoundBranch(branch, DOCUMENTS, WEIGHTS[branch], complete=False) for branch in branches]
    search = CandidateSearch(bound, scale=scale_of(fusion), rrf_k=fusion.rrf_k)
    request = Request(1000, 1000, also=np.array(also, np.uint32))
    return search.search([None] * len(branches), request, lists=[given(branch) for branch in branches])[0]


def as_dict(result: Candidates) -> Scores:
    return dict(zip(result.doc_ords.tolist(), result.scores.tolist(), strict=True))


def test_linear_is_the_weighted_sum_of_scores_over_the_best_of_their_list() -> None:
    result = fused({"dense": {1: 0.75, 2: 0.375, 3: 0.1875}, "sparse": {3: 8.0, 4: 4.0}}, {"dense": {4: 0.5625}})
    assert as_dict(result) == {1: 0.5, 4: 0.5 * 0.75 + 0.25 * 0.5, 3: 0.5 * 0.25 + 0.25, 2: 0.25}
    assert result.doc_ords.tolist() == [1, 4, 3, 2]
    assert result.columns["dense"].ranks.tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize("n_listed", [1, 2, 5, 9])
def test_how_long_a_list_is_changes_no_linear_score(n_listed: int) -> None:
    scores = {doc: 1.0 / (1 + doc) for doc in range(10)}
    whole = fused({"dense": scores, "sparse": {9: 8.0, 3: 5.0}})
    cut = fused({"dense": dict(list(scores.items())[:n_listed]), "sparse": {9: 8.0, 3: 5.0}}, {"dense": scores})
    assert as_dict(cut) == {doc: as_dict(whole)[doc] for doc in as_dict(cut)}


@pytest.mark.parametrize(("least", "others"), [(0.0, [0.5, 0.0]), (-1.0, [0.75, 0.5]), (-4.0, [0.9, 0.8])])
def test_where_scores_below_zero_are_listed_the_least_is_nothing(least: float, others: list[float]) -> None:
    scores: Scores = {1: 1.0, 2: 0.5, 3: 0.0, 4: least} if least else {1: 1.0, 2: 0.5, 3: 0.0}
    result = fused({"dense": scores, "sparse": {9: 1.0}}, {"dense": {9: -9.0}}, also=(9,))
    dense = dict(zip(result.doc_ords.tolist(), result.columns["dense"].normalized.tolist(), strict=True))
    assert [dense[2], dense[3]] == others
    assert dense[9] == dense.get(4, 0.0) == 0.0


def test_scores_that_are_all_below_zero_keep_their_order() -> None:
    result = fused({"dense": {1: -1.0, 2: -2.0, 3: -3.0}, "sparse": {4: 1.0}}, {"dense": {4: -7.0}})
    assert as_dict(result) == {1: 0.5, 2: 0.25, 4: 0.25, 3: 0.0}


def test_min_max_puts_the_end_of_the_list_at_nothing() -> None:
    lists: dict[Branch, Scores] = {"dense": {1: 0.75, 2: 0.5, 3: 0.25}, "sparse": {3: 9.0, 4: 5.0}}
    result = fused(lists, {"dense": {4: 0.5}}, "linear:min-max")
    assert as_dict(result) == {1: 0.5, 2: 0.25, 3: 0.25, 4: 0.25}
    assert result.doc_ords.tolist() == [1, 2, 3, 4]
    assert result.columns["dense"].ranks.tolist() == [1, 2, 3, 0]
    assert result.columns["sparse"].scores.tolist() == [0, 0, 9, 5]


def test_a_missing_document_counts_by_its_true_score_and_never_below_zero() -> None:
    lists: dict[Branch, Scores] = {"dense": {1: 1.0, 2: 0.5}, "sparse": {3: 2.0, 1: 1.0, 4: 1.5}}
    result = fused(lists, {"dense": {3: 0.75, 4: -9.0}, "sparse": {2: 0.0}}, "linear:min-max")
    assert as_dict(result) == {1: 0.5, 3: 0.5, 4: 0.125, 2: 0.0}
    assert result.doc_ords.tolist() == [1, 3, 4, 2]


@pytest.mark.parametrize("scores", [{5: 3.0}, {5: 3.0, 6: 3.0}])
def test_equal_scores_and_single_hits_count_one_and_lower_ones_nothing(scores: Scores) -> None:
    lists: dict[Branch, Scores] = {"dense": scores, "sparse": {7: 1.0, 8: 1.0}}
    result = fused(lists, {"dense": {7: 3.0, 8: 2.0}}, "linear:min-max")
    assert as_dict(result) == {**dict.fromkeys(scores, 0.5), 7: 0.75, 8: 0.25}


def test_an_empty_list_adds_nothing() -> None:
    assert as_dict(fused({"dense": {}, "sparse": {1: 2.0, 2: 1.0}})) == {1: 0.25, 2: 0.125}
    assert as_dict(fused({"dense": {}, "sparse": {}})) == {}


def test_reciprocal_ranks() -> None:
    result = fused({"dense": {1: 3.0, 2: 2.0}, "sparse": {2: 7.0, 3: 7.0}}, method="rrf")
    assert as_dict(result) == {1: 0.5 / 61, 2: 0.5 / 62 + 0.25 / 61, 3: 0.25 / 62}
    assert result.doc_ords.tolist() == [2, 1, 3]


@pytest.mark.parametrize("method", METHODS)
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


def test_z_scores_are_deviations_from_the_list_s_mean() -> None:
    result = fused({"dense": {1: 3.0, 2: 2.0, 3: 1.0}, "sparse": {4: 1.0}}, {"dense": {4: -1.0}}, "linear:z-score")
    assert as_dict(result) == {1: 0.5 - 0.25, 2: -0.25, 3: -0.5 - 0.25, 4: -1.5}


def test_dbsf_puts_the_mean_at_a_half_and_three_deviations_at_the_ends() -> None:
    lists: dict[Branch, Scores] = {"dense": {1: 3.0, 2: 2.0, 3: 1.0}, "sparse": {4: 1.0}}
    result = fused(lists, {"dense": {4: -1.0}}, "dbsf")
    expected = {1: 0.5 * 4 / 6, 2: 0.5 * 3 / 6, 3: 0.5 * 2 / 6, 4: 0.25 * 0.5}
    assert as_dict(result) == pytest.approx(expected)


def test_dbsf_goes_above_one_and_never_below_zero() -> None:
    scores = {doc: 1.0 + doc / 1000 for doc in range(100)} | {100: 9.0, 101: 8.0}
    result = fused({"dense": scores, "sparse": {200: 1.0}}, {"dense": {200: -50.0}}, "dbsf")
    dense = dict(zip(result.doc_ords.tolist(), result.columns["dense"].normalized.tolist(), strict=True))
    assert dense[100] > dense[101] > 1
    assert dense[200] == 0


def test_without_normalization_raw_scores_are_summed() -> None:
    result = fused({"dense": {1: 3.0}, "sparse": {2: 8.0}}, {"dense": {2: -1.0}, "sparse": {1: 4.0}}, "linear:none")
    assert as_dict(result) == {1: 2.5, 2: 1.5}


@pytest.mark.parametrize("scores", [{5: 3.0}, {5: 3.0, 6: 3.0}, {5: 0.1, 6: 0.1, 7: 0.1}])
@pytest.mark.parametrize(
    ("method", "listed_part", "lower_part"),
    [("linear", 1.0, 0.5), ("linear:min-max", 1.0, 0.0), ("linear:z-score", 0.0, -1.0), ("dbsf", 0.5, 0.0)],
)
def test_a_list_of_equal_scores_has_no_spread(
    scores: Scores, method: str, listed_part: float, lower_part: float
) -> None:
    score = next(iter(scores.values()))
    result = fused({"dense": scores, "sparse": {8: 1.0, 9: 1.0}}, {"dense": {8: score, 9: score / 2}}, method)
    dense = dict(zip(result.doc_ords.tolist(), result.columns["dense"].normalized.tolist(), strict=True))
    assert dense == {**dict.fromkeys(scores, listed_part), 8: listed_part, 9: lower_part}


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_list_says_nothing_whatever_the_method(method: str) -> None:
    result = fused({"dense": {}, "sparse": {1: 2.0, 2: 1.0}}, {"dense": {1: -3.0, 2: 5.0}}, method)
    assert result.columns["dense"].normalized.tolist() == [0, 0]
    assert result.doc_ords.tolist() == [1, 2]
    assert as_dict(fused({"dense": {}, "sparse": {}}, method=method)) == {}


@pytest.mark.parametrize("method", METHODS)
def test_further_documents_are_scored_and_change_nothing_for_the_others(method: str) -> None:
    lists: dict[Branch, Scores] = {"dense": {1: 0.75, 2: 0.5, 9: 0.25}, "sparse": {3: 9.0, 4: 5.0, 1: 2.0}}
    outside: dict[Branch, Scores] = {"dense": {3: 0.1, 4: 0.2, 7: -0.5}, "sparse": {2: 1.0, 9: 0.5, 7: 1.5}}
    without, together = fused(lists, outside, method), fused(lists, outside, method, also=(7, 1))
    assert as_dict(together) == as_dict(without) | {7: as_dict(together)[7]}
    row = together.doc_ords.tolist().index(7)
    assert [column.ranks[row] for column in together.columns.values()] == [0, 0]
    assert [column.scores[row] for column in together.columns.values()] == [-0.5, 1.5]


@pytest.mark.parametrize("method", METHODS)
def test_a_score_is_exactly_the_sum_of_its_columns(method: str) -> None:
    rng = np.random.default_rng(2)
    lists: dict[Branch, Scores] = {
        branch: {int(doc): float(rng.random()) for doc in rng.choice(30, 20, replace=False)}
        for branch in ("dense", "sparse", "tokens")
    }
    result = fused(lists, method=method)
    added = np.zeros(len(result.scores))
    for column in result.columns.values():
        added += column.weight * column.normalized
    np.testing.assert_array_equal(added, result.scores)
    pairs = list(zip((-result.scores).tolist(), result.doc_ords.tolist(), strict=True))
    assert pairs == sorted(pairs)


@pytest.mark.parametrize(
    ("text", "fusion"),
    [
        ("linear", Fusion("linear", {})),
        ("linear:min-max", Fusion("linear", {}, "min-max")),
        ("linear:z-score", Fusion("linear", {}, "z-score")),
        ("linear:none", Fusion("linear", {}, "none")),
        ("rrf:20", Fusion("rrf", {}, rrf_k=20.0)),
        ("rrf:60", Fusion("rrf", {})),
        ("rrf:0.5", Fusion("rrf", {}, rrf_k=0.5)),
        ("dbsf", Fusion("dbsf", {})),
        ("absolute", Fusion("absolute", {})),
    ],
)
def test_a_fusion_is_written_in_one_word(text: str, fusion: Fusion) -> None:
    assert parse_fusion(text) == fusion
    assert fusion_text(fusion) == text


def test_shorter_words_mean_the_usual_settings() -> None:
    assert parse_fusion("linear:max") == parse_fusion("linear")
    assert parse_fusion("rrf") == parse_fusion("rrf:60")


@pytest.mark.parametrize(
    "text", ["", "max", "linear:", "linear:mean", "absolute:max", "rrf:", "rrf:-1", "rrf:nan", "rrf:inf", "dbsf:3"]
)
def test_an_unknown_fusion_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is unknown; expected absolute"):
        parse_fusion(text)


def test_a_branch_alone_is_what_fusing_it_without_normalization_gives() -> None:
    scores = {3: 9.0, 1: 5.0, 2: 5.0, 7: -1.0}
    alone, joined = fused({"dense": scores}), fused({"dense": scores, "sparse": {}}, method="linear:none")
    assert as_dict(alone) == scores
    assert as_dict(joined) == {doc: 0.5 * score for doc, score in scores.items()}
    one, other = alone.columns["dense"], joined.columns["dense"]
    assert one.ranks.tolist() == other.ranks.tolist() == [1, 2, 3, 4]
    assert one.scores.tolist() == other.scores.tolist()
    assert one.normalized.tolist() == other.normalized.tolist()
