"""Measures, run files, significance, tables and plots."""

from __future__ import annotations

from lightir.eval.comparison import Comparison, compare, plot
from lightir.eval.measures import DEFAULT_MEASURES, Evaluation, evaluate
from lightir.eval.runs import ranking_of, read_run, write_qrels, write_run
from lightir.eval.significance import corrected, paired_t_test, randomization_test

__all__ = [
    "DEFAULT_MEASURES",
    "Comparison",
    "Evaluation",
    "compare",
    "corrected",
    "evaluate",
    "paired_t_test",
    "plot",
    "randomization_test",
    "ranking_of",
    "read_run",
    "write_qrels",
    "write_run",
]
