"""Evaluation: measures, run files, significance tests, tables and plots."""

from __future__ import annotations

from lightir.eval.comparison import Comparison, compare, plot
from lightir.eval.measures import DEFAULT_MEASURES, EvaluationResult, evaluate
from lightir.eval.runs import rank_by_score, read_run, write_qrels, write_run
from lightir.eval.significance import correct_p_values, paired_t_test, randomization_test

__all__ = [
    "DEFAULT_MEASURES",
    "Comparison",
    "EvaluationResult",
    "compare",
    "correct_p_values",
    "evaluate",
    "paired_t_test",
    "plot",
    "randomization_test",
    "rank_by_score",
    "read_run",
    "write_qrels",
    "write_run",
]
