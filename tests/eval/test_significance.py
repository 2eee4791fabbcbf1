"""Paired tests and corrections against slow twins."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lightir.errors import InvalidInput
from lightir.eval import correct_p_values, paired_t_test, randomization_test, significance

TENTHS = st.integers(0, 4).map(lambda i: i / 10)
P_VALUES = st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.03, 0.05, 0.2, 0.5, 1.0]), max_size=6)


@settings(max_examples=50)
@given(st.lists(st.tuples(TENTHS, TENTHS), max_size=8))
def test_few_queries_are_tested_over_all_sign_flips(pairs: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    differences = [round(10 * (x - y)) for x, y in pairs]
    flips = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    expected = sum(flip >= abs(sum(differences)) for flip in flips) / len(flips)
    assert randomization_test(a, b, rng=np.random.default_rng(0)) == pytest.approx(expected)


def test_drawn_flips_come_near_to_all_flips() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random(15), rng.random(15) + 0.2
    exact = randomization_test(a, b, rng=rng, n_permutations=2**15)
    drawn = randomization_test(a, b, rng=rng, n_permutations=20_000)
    assert drawn == pytest.approx(exact, abs=0.01)


def test_the_seed_decides_and_the_order_of_systems_does_not() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(300), rng.random(300)
    p = randomization_test(a, b, rng=np.random.default_rng(7))
    assert randomization_test(a, b, rng=np.random.default_rng(7)) == p
    assert randomization_test(b, a, rng=np.random.default_rng(7)) == p


def test_a_clear_difference_has_the_least_p_but_never_0() -> None:
    a = np.linspace(0.5, 1, 200)
    assert randomization_test(a, a - 0.4, rng=np.random.default_rng(0), n_permutations=999) == pytest.approx(1 / 1000)


@pytest.mark.parametrize("n", [0, 1, 50])
def test_equal_systems_do_not_differ(n: int) -> None:
    a = np.linspace(0, 1, n)
    assert randomization_test(a, a, rng=np.random.default_rng(0)) == 1.0
    assert paired_t_test(a, a) == 1.0


def test_the_t_test_is_the_textbook_one() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.random(40), rng.random(40)
    assert paired_t_test(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_t_test([1.0, 1.0], [0.5, 0.5]) == 0.0
    assert paired_t_test([1.0], [0.5]) == 1.0


@pytest.mark.parametrize(("a", "b"), [([1.0], [1.0, 2.0]), ([float("nan")], [1.0]), ([1.0, 0.5], [1.0, np.inf])])
def test_unpaired_values_are_refused(a: list[float], b: list[float]) -> None:
    with pytest.raises(InvalidInput):
        randomization_test(a, b, rng=np.random.default_rng(0))


def slow_closed_test(p: list[float], combined: str) -> list[float]:
    """The largest p of all intersection hypotheses that hold a hypothesis: the definition behind both corrections."""
    n, out = len(p), []
    for i in range(n):
        worst = 0.0
        for size in range(1, n + 1):
            for subset in itertools.combinations(range(n), size):
                if i in subset:
                    values = sorted(p[j] for j in subset)
                    bonferroni = size * values[0]
                    simes = min(size * v / rank for rank, v in enumerate(values, 1))
                    worst = max(worst, min(1.0, bonferroni if combined == "holm" else simes))
        out.append(worst)
    return out


@settings(max_examples=60)
@given(P_VALUES)
def test_corrections_equal_the_closed_tests_that_define_them(p: list[float]) -> None:
    for method in ("holm", "hommel"):
        assert correct_p_values(p, method).tolist() == pytest.approx(slow_closed_test(p, method))
    assert correct_p_values(p, "none").tolist() == p


def test_what_is_no_p_value_is_refused() -> None:
    with pytest.raises(InvalidInput):
        correct_p_values([0.5, 1.5])


def test_as_many_flips_as_may_be_drawn_are_all_taken() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.random(10), rng.random(10) + 0.1
    exact = {randomization_test(a, b, rng=np.random.default_rng(i), n_permutations=2**10) for i in range(3)}
    drawn = {randomization_test(a, b, rng=np.random.default_rng(i), n_permutations=2**10 - 1) for i in range(3)}
    assert len(exact) == 1
    assert len(drawn) > 1


@pytest.mark.parametrize("chunk", [1, 3, 12, 15, 2**20])
def test_every_drawn_flip_counts_once_however_many_are_drawn_at_a_time(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No flip of differences whose sum is 0 is nearer to 0, so p is 1 to the bit."""
    monkeypatch.setattr(significance, "_CHUNK", chunk)
    for n_permutations in (1, 4, 7):
        p = randomization_test([1, 1, 0], [0, 0, 2], rng=np.random.default_rng(0), n_permutations=n_permutations)
        assert p == 1.0


@pytest.mark.parametrize("exponent", [-60, -20, 20, 60])
def test_p_does_not_depend_on_the_measures_scale(exponent: int) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.random(9), rng.random(9) + 0.1
    p = randomization_test(a, b, rng=rng)
    assert 0.002 < p < 0.9
    assert randomization_test(a * 2.0**exponent, b * 2.0**exponent, rng=rng) == p
