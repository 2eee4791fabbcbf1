"""`--one-in N` draws about one test in N; each draw takes other tests, so that in time all are run."""

from __future__ import annotations

from conftest import is_drawn

TESTS = [f"tests/test_some.py::test_it[{i}]" for i in range(3000)]


def test_a_draw_takes_about_one_test_in_n() -> None:
    assert 900 < sum(is_drawn(test, 3, "a commit") for test in TESTS) < 1100


def test_without_a_draw_all_tests_run() -> None:
    assert all(is_drawn(test, 1, "") for test in TESTS)


def test_forty_draws_leave_out_no_test() -> None:
    assert all(any(is_drawn(test, 3, str(draw)) for draw in range(40)) for test in TESTS)
