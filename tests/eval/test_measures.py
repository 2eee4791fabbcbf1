"""Measures: hand-computed values, our order of ties, and what counts 0."""

from __future__ import annotations

import ast
import math
import subprocess
import sys

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir.errors import InvalidInput
from lightir.eval import evaluate
from lightir.eval.measures import MAX_GRADE, parse_measures
from lightir.types import Qrels, Ranking, Run


def run_of(**rankings: list[str]) -> Run:
    """Rankings whose scores are all equal: only their order can tell."""
    return {query_id: Ranking(query_id, ids, np.zeros(len(ids))) for query_id, ids in rankings.items()}


def slow_ndcg(ids: list[str], grades: dict[str, int], k: int) -> float:
    ideal = sorted((max(g, 0) for g in grades.values()), reverse=True)[:k]
    best = sum(g / math.log2(rank + 1) for rank, g in enumerate(ideal, 1))
    got = sum(max(grades.get(d, 0), 0) / math.log2(rank + 1) for rank, d in enumerate(ids[:k], 1))
    return got / best if best else 0.0


def slow_recall(ids: list[str], grades: dict[str, int], k: int) -> float:
    relevant = {d for d, g in grades.items() if g >= 1}
    return len(relevant & set(ids[:k])) / len(relevant) if relevant else 0.0


def slow_rr(ids: list[str], grades: dict[str, int], k: int) -> float:
    return next((1 / rank for rank, d in enumerate(ids[:k], 1) if grades.get(d, 0) >= 1), 0.0)


DOCS = [f"d{i}" for i in range(30)]


@settings(max_examples=40)
@given(
    rankings=st.lists(st.permutations(DOCS).flatmap(lambda p: st.integers(0, 30).map(lambda n: p[:n])), max_size=4),
    grades=st.lists(
        st.dictionaries(st.sampled_from(DOCS), st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=4
    ),
)
def test_measures_equal_their_definitions_in_the_rankings_own_order(
    rankings: list[list[str]], grades: list[dict[str, int]]
) -> None:
    run = {"q0": Ranking("q0", [], np.zeros(0))} | run_of(**{f"q{i}": ids for i, ids in enumerate(rankings)})
    qrels: Qrels = {f"q{i}": judged for i, judged in enumerate(grades)}
    result = evaluate(run, qrels, ["nDCG@10", "R@20", "RR@10"])
    twins = {"nDCG@10": (slow_ndcg, 10), "R@20": (slow_recall, 20), "RR@10": (slow_rr, 10)}
    for name, (twin, k) in twins.items():
        ids = {query_id: list(run[query_id].doc_ids) if query_id in run else [] for query_id in qrels}
        expected = {query_id: twin(ids[query_id], qrels[query_id], k) for query_id in qrels}
        assert result.per_query[name] == pytest.approx(expected)
        assert result.measures[name] == pytest.approx(sum(expected.values()) / len(expected))


def test_absent_empty_and_hopeless_queries_count_0_and_unjudged_ones_do_not_count() -> None:
    run = run_of(found=["a"], empty=[], hopeless=["a"], unjudged=["a"])
    qrels: Qrels = {"found": {"a": 1}, "empty": {"a": 1}, "hopeless": {"a": 0}, "absent": {"a": 1}, "unjudged yet": {}}
    result = evaluate(run | run_of(**{"unjudged yet": ["a"]}), qrels)
    assert result.n_queries == 5
    assert result.per_query["RR@10"] == {q: float(q == "found") for q in qrels}
    assert result.measures["nDCG@10"] == pytest.approx(0.2)


def test_a_run_of_another_split_is_refused() -> None:
    with pytest.raises(InvalidInput, match="split"):
        evaluate(run_of(q1=["a"]), {"q2": {"a": 1}})


def test_no_judgements_are_refused() -> None:
    with pytest.raises(InvalidInput, match="qrels are empty"):
        evaluate(run_of(q1=["a"]), {})


@pytest.mark.parametrize(
    "name",
    ["nDGC@10", "", "R@", "foo bar", "nDCG(", "nDCG(foo=1)@10", "nDCG(dcg=2)", "P(rel=x)@5", "é", "R@10@5", "R@1.5"],
)
def test_an_unknown_measure_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match="expected names like"):
        evaluate(run_of(q=["a"]), {"q": {"a": 1}}, [name])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nDCG@0", "its cutoff is 0; expected 1 to"),  # trec_eval would exit the process
        ("R@9999999999", "its cutoff is 9999999999"),
        ("P(rel=0)@5", "its rel is 0; expected 1 to"),
        ("R", "its cutoff is missing; expected a number, as in R@10"),
        ("alpha_nDCG@10", "requires an optional package"),
    ],
)
def test_a_measure_that_cannot_be_computed_is_refused_before_it_is(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        evaluate(run_of(q=["a"]), {"q": {"a": 1}}, ["nDCG@10", name])


def test_parameters_may_be_the_least_the_most_or_false() -> None:
    names = ["nDCG@1", f"R@{MAX_GRADE}", "P(rel=1)@1", "AP(judged_only=False)", f"AP(rel={MAX_GRADE})"]
    assert list(evaluate(run_of(q=["a"]), {"q": {"a": 1}}, names).measures.values()) == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_one_measure_is_no_list_of_them() -> None:
    with pytest.raises(InvalidInput, match=r"measures is a str, 'nDCG@10'"):
        evaluate(run_of(q=["a"]), {"q": {"a": 1}}, "nDCG@10")


def test_two_spellings_of_one_measure_both_come_back() -> None:
    result = evaluate(run_of(q=["a"]), {"q": {"a": 1}}, ["nDCG@10", "NDCG@10"])
    assert result.measures == {"nDCG@10": 1.0, "NDCG@10": 1.0}


def test_a_measure_may_be_named_as_trec_eval_does_and_without_capitals() -> None:
    names = {"ndcg_cut_10": "nDCG@10", "map": "AP", "recall_100": "R@100", "P_5": "P@5", "recip_rank": "RR"}
    names |= {"ndcg@10": "nDCG@10", "recall@100": "R@100", "mrr@10": "RR@10", "p(rel=2)@5": "P(rel=2)@5"}
    parsed = parse_measures([*names, *names.values()])
    assert {name: parsed[name] for name in names} == {name: parsed[other] for name, other in names.items()}
    assert list(evaluate(run_of(q=["b", "a"]), {"q": {"a": 1}}, ["recip_rank"]).measures.items()) == [
        ("recip_rank", 0.5)
    ]
    with pytest.raises(InvalidInput, match="unknown measure 'ndcg_cut'"):  # many cutoffs at once
        parse_measures(["ndcg_cut"])


def test_a_query_whose_grades_are_all_negative_counts_zero() -> None:
    """Grades below 0 (TREC's spam) give 0, although trec_eval would exit the process."""
    qrels = {"q": {"a": 1, "b": -2}, "spam": {"a": -2, "c": -1}}
    run = run_of(q=["a", "b"], spam=["a", "b"])
    result = evaluate(run, qrels, ["nDCG@10", "R@10", "AP", "RR@10"])
    assert {name: dict(values) for name, values in result.per_query.items()} == {
        name: {"q": 1.0, "spam": 0.0} for name in ("nDCG@10", "R@10", "AP", "RR@10")
    }


@pytest.mark.parametrize("grade", [2**31 - 1, 10**14, -(10**14)])
def test_grades_that_trec_eval_has_no_room_for_are_refused(grade: int) -> None:
    with pytest.raises(InvalidInput, match=r"the grade of 'a' for query 'q'"):
        evaluate(run_of(q=["a"]), {"q": {"a": grade}})


def test_the_largest_grades_are_borne() -> None:
    result = evaluate(run_of(q=["a", "b"]), {"q": {"a": MAX_GRADE, "b": -MAX_GRADE}}, ["nDCG@10", "RR@10"])
    assert result.measures == {"nDCG@10": 1.0, "RR@10": 1.0}


def test_a_measure_whose_script_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise subprocess.CalledProcessError(2, ["perl", "gdeval.pl"])

    monkeypatch.setattr(ir_measures, "iter_calc", fails)
    with pytest.raises(InvalidInput, match=r"cannot compute all of ERR@20: .*gdeval\.pl"):
        evaluate(run_of(q=["a"]), {"q": {"a": 1}}, ["ERR@20"])


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="ir_measures cannot parse names on Python 3.14")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ir_measures itself
def test_names_have_ir_measures_own_meaning() -> None:
    names = ["nDCG@10", "R@5", "P(rel=2)@3", "AP", "nDCG(dcg='exp-log2')@20", "Judged@10", "RR(rel=2)", "AP(rel=2)@100"]
    assert parse_measures(names) == {name: ir_measures.parse_measure(name) for name in names}


def test_measures_need_no_class_that_python_3_14_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Num", "Str", "NameConstant"):
        monkeypatch.setitem(vars(ast), name, None)  # isinstance(node, None) is a TypeError
    with pytest.raises(TypeError):
        ir_measures.parse_measure("R@5")
    result = evaluate(run_of(q1=["a", "b"]), {"q1": {"b": 1}}, ["R@1", "RR(rel=1)@10", "recip_rank"])
    assert result.measures == {"R@1": 0.0, "RR(rel=1)@10": 0.5, "recip_rank": 0.5}
