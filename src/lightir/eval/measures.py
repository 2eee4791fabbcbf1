"""Evaluation of runs by the measures of ir-measures."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightir.errors import InvalidInput, MissingExtra
from lightir.types import Qrels, Run, require_list

MAX_GRADE = 1_000_000
DEFAULT_MEASURES = ("nDCG@10", "R@20", "R@50", "R@100", "RR@10")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The measures of a run on one data set.

    Attributes:
        measures: measure -> mean over all judged queries.
        per_query: measure -> query_id -> value, for every judged query in the order of the qrels.
    """

    measures: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]

    @property
    def n_queries(self) -> int:
        """Number of judged queries."""
        return len(next(iter(self.per_query.values()), {}))


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES) -> EvaluationResult:
    """Compute measures per query and their means.

    Means are over the queries of the qrels. A query counts 0 if the run lacks it, its ranking is empty, or it has no
    relevant document. Queries of the run without qrels are ignored. Documents are evaluated in the order of the
    rankings, so the rankings decide ties. The gain of nDCG is the grade, as in trec_eval and BEIR; recall and RR treat
    grades of 1 or more as relevant.

    Args:
        run: rankings of a system.
        qrels: relevance judgments.
        measures: names as in ir-measures (nDCG@10, case is ignored) or in trec_eval (ndcg_cut_10); the result has them
            as given.

    Raises:
        MissingExtra: ir-measures is not installed.
        InvalidInput: empty qrels, no judged query in the run, an unknown measure, or a grade above MAX_GRADE.
    """
    if not qrels:
        raise InvalidInput("the qrels are empty")
    if not run.keys() & qrels.keys():
        raise InvalidInput(
            f"none of the run's {len(run)} queries is among the {len(qrels)} queries of the qrels "
            f"({next(iter(qrels))!r}, …); is it the right split?"
        )
    ir_measures, parsed = _ir_measures(), parse_measures(measures)
    # trec_eval sorts by score and breaks ties by descending id; distinct descending scores make it keep our order.
    scores = {
        query_id: {doc_id: float(len(ranking) - rank) for rank, doc_id in enumerate(ranking.doc_ids)}
        for query_id, ranking in run.items()
        if query_id in qrels and len(ranking)
    }
    values: dict[Any, dict[str, float]] = defaultdict(dict)
    if scores:
        try:
            for metric in ir_measures.iter_calc(list(set(parsed.values())), _supported_by_trec_eval(qrels), scores):
                values[metric.measure][metric.query_id] = float(metric.value)
        except subprocess.SubprocessError as error:  # ir-measures computes some measures by scripts
            raise InvalidInput(f"ir-measures cannot compute all of {', '.join(measures)}: {error}") from error
    per_query = {
        name: {query_id: values[measure].get(query_id, 0.0) for query_id in qrels} for name, measure in parsed.items()
    }
    means = {name: sum(by_query.values()) / len(by_query) for name, by_query in per_query.items()}
    return EvaluationResult(means, per_query)


def parse_measures(measures: Sequence[str]) -> dict[str, Any]:
    """Return ir-measures' object for each name.

    Raises:
        MissingExtra: ir-measures is not installed.
        InvalidInput: unknown measure.
    """
    require_list(measures, "measures")
    ir_measures = _ir_measures()
    return {name: _parse(ir_measures, name) for name in measures}


def _supported_by_trec_eval(qrels: Qrels) -> Qrels:
    """Return qrels that trec_eval can process: it allocates an array of a query's maximum grade.

    trec_eval exits the process for a query whose grades are all negative. With zeros instead, all its measures are 0.
    """
    supported: Qrels = {}
    for query_id, grades in qrels.items():
        for doc_id, grade in grades.items():
            if abs(grade) > MAX_GRADE:
                raise InvalidInput(
                    f"the grade of {doc_id!r} for query {query_id!r} is {grade}; the maximum is {MAX_GRADE:,}"
                )
        best = max(grades.values(), default=0)
        supported[query_id] = grades if best >= 0 else dict.fromkeys(grades, 0)
    return supported


def _ir_measures() -> Any:
    try:
        return importlib.import_module("ir_measures")
    except ImportError:
        raise MissingExtra("evaluation requires ir-measures: pip install 'lightir[eval]'") from None


def _parse(ir_measures: Any, name: str) -> Any:
    try:
        measure = _named(ir_measures, name)
        _check_parameters(measure)
        measure.validate_params()
    except (ValueError, NameError, SyntaxError, AssertionError) as error:
        raise InvalidInput(
            f"unknown measure {name!r} ({error}); expected names like {', '.join(DEFAULT_MEASURES)}"
        ) from None
    if not ir_measures.DefaultPipeline.supports(measure):
        raise InvalidInput(f"measure {name!r} requires an optional package of ir-measures; see its documentation")
    return measure


def _named(ir_measures: Any, name: str) -> Any:
    """Return the measure of a name of ir-measures, ignoring case, or of trec_eval (ndcg_cut_10)."""
    own = {known.lower(): known for known in ir_measures.measures.registry}
    word = str(re.split(r"\W", name, maxsplit=1)[0])
    try:
        return _measure(ir_measures.measures.registry, own.get(word.lower(), word) + name[len(word) :])
    except (ValueError, NameError, SyntaxError):
        try:
            (measure,) = ir_measures.parse_trec_measure(name)
        except ValueError:  # unknown, or several measures
            pass
        else:
            return measure
        raise


def _measure(registry: Mapping[str, Any], text: str) -> Any:
    """Return the measure that a text like `Judged(cutoff=5)`, `nDCG@10` or `P(rel=2)@5` describes.

    ir_measures.parse_measure does this by classes of `ast` that Python 3.14 removed.
    """
    node, parameters = ast.parse(text, mode="eval").body, {}
    cutoff = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        cutoff, node = ast.literal_eval(node.right), node.left
    if isinstance(node, ast.Call):
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("its parameters need names, as in P(rel=2)@5")
        parameters = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        node = node.func
    if not isinstance(node, ast.Name):
        raise ValueError("it does not begin with a measure's name")
    if node.id not in registry:
        raise NameError(f"no measure is named {node.id}")
    kind = registry[node.id]
    if cutoff is not None:
        parameters[kind.AT_PARAM] = cutoff
    return kind(**parameters)


def _check_parameters(measure: Any) -> None:
    """Refuse parameters that ir-measures accepts and that make trec_eval exit the process, such as a cutoff of 0."""
    for key, info in measure.SUPPORTED_PARAMS.items():
        value = measure.params.get(key)
        if info.required and value is None:
            raise ValueError(f"its {key} is missing; expected a number, as in R@10")
        least = 0 if key == "min_rel" else 1
        if type(value) is int and not least <= value <= MAX_GRADE:
            raise ValueError(f"its {key} is {value}; expected {least} to {MAX_GRADE}")
