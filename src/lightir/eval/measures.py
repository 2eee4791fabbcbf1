"""How good a run is, by the field's own measures (ir-measures)."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightir.errors import InvalidInput, MissingExtra
from lightir.types import Qrels, Run, require_list

MOST_GRADE = 1_000_000
DEFAULT_MEASURES = ("nDCG@10", "R@20", "R@50", "R@100", "RR@10")


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A run's quality on one set of judgements.

    Attributes:
        measures: measure -> mean over all judged queries.
        per_query: measure -> query_id -> value, for every judged query in the judgements' order.
    """

    measures: Mapping[str, float]
    per_query: Mapping[str, Mapping[str, float]]

    @property
    def n_queries(self) -> int:
        """Number of judged queries."""
        return len(next(iter(self.per_query.values()), {}))


def evaluate(run: Run, qrels: Qrels, measures: Sequence[str] = DEFAULT_MEASURES) -> EvaluationResult:
    """The run's measures, each query's and their means.

    The mean is over the queries that the judgements hold: one that the run lacks, whose ranking is empty, or that has
    no relevant document counts 0; queries of the run without judgements are left aside. Documents count in the
    rankings' own order, so ties are broken as the rankings break them. nDCG's gain is the grade itself, as in
    trec_eval and BEIR; recall and RR take grade 1 and more as relevant.

    Args:
        run: what a system found.
        qrels: the judgements.
        measures: names as ir-measures writes them (nDCG@10), in capitals or not, or as trec_eval does (ndcg_cut_10);
            results keep your spelling.

    Raises:
        MissingExtra: ir-measures is not installed.
        InvalidInput: no judgements, no judged query in the run, an unknown measure, or a grade beyond MOST_GRADE.
    """
    if not qrels:
        raise InvalidInput("there are no judgements to evaluate against")
    if not run.keys() & qrels.keys():
        raise InvalidInput(
            f"none of the run's {len(run)} queries is among the {len(qrels)} judged ones "
            f"(the judgements have {next(iter(qrels))!r}); is it the right split?"
        )
    ir_measures, parsed = _ir_measures(), parse_measures(measures)
    # trec_eval orders by score and breaks ties by id, downward; falling whole numbers make it keep our order.
    scores = {
        query_id: {doc_id: float(len(ranking) - place) for place, doc_id in enumerate(ranking.doc_ids)}
        for query_id, ranking in run.items()
        if query_id in qrels and len(ranking)
    }
    found: dict[Any, dict[str, float]] = defaultdict(dict)
    if scores:
        try:
            for metric in ir_measures.iter_calc(list(set(parsed.values())), _bearable(qrels), scores):
                found[metric.measure][metric.query_id] = float(metric.value)
        except subprocess.SubprocessError as error:  # some measures are computed by scripts
            raise InvalidInput(f"ir-measures cannot compute all of {', '.join(measures)}: {error}") from error
    per_query = {
        name: {query_id: found[measure].get(query_id, 0.0) for query_id in qrels} for name, measure in parsed.items()
    }
    means = {name: sum(values.values()) / len(values) for name, values in per_query.items()}
    return EvaluationResult(means, per_query)


def parse_measures(measures: Sequence[str]) -> dict[str, Any]:
    """ir-measures' object for each name.

    Raises:
        MissingExtra: ir-measures is not installed.
        InvalidInput: an unknown measure.
    """
    require_list(measures, "measures")
    ir_measures = _ir_measures()
    return {name: _parse(ir_measures, name) for name in measures}


def _bearable(qrels: Qrels) -> Qrels:
    """The judgements as trec_eval bears them: it has a place for each grade up to a query's best, which must be one.

    A query whose grades are all negative ends the process there; with zeros all its measures are 0, as they should be.
    """
    bearable: Qrels = {}
    for query_id, grades in qrels.items():
        for doc_id, grade in grades.items():
            if abs(grade) > MOST_GRADE:
                raise InvalidInput(
                    f"the grade of {doc_id!r} for query {query_id!r} is {grade}; expected {MOST_GRADE:,} at most"
                )
        best = max(grades.values(), default=0)
        bearable[query_id] = grades if best >= 0 else dict.fromkeys(grades, 0)
    return bearable


def _ir_measures() -> Any:
    try:
        return importlib.import_module("ir_measures")
    except ImportError:
        raise MissingExtra("ir-measures is needed to evaluate: pip install 'lightir[eval]'") from None


def _parse(ir_measures: Any, name: str) -> Any:
    try:
        measure = _named(ir_measures, name)
        _check_parameters(measure)
        measure.validate_params()
    except (ValueError, NameError, SyntaxError, AssertionError) as error:
        raise InvalidInput(
            f"measure {name!r} is not known ({error}); expected names like {', '.join(DEFAULT_MEASURES)}"
        ) from None
    if not ir_measures.DefaultPipeline.supports(measure):
        raise InvalidInput(f"measure {name!r} needs a package that ir-measures does not bring; see its documentation")
    return measure


def _named(ir_measures: Any, name: str) -> Any:
    """The measure of a name that ir-measures has, in capitals or not, or that trec_eval has (ndcg_cut_10)."""
    own = {each.lower(): each for each in ir_measures.measures.registry}
    word = str(re.split(r"\W", name, maxsplit=1)[0])
    try:
        return ir_measures.parse_measure(own.get(word.lower(), word) + name[len(word) :])
    except (ValueError, NameError, SyntaxError):
        try:
            (measure,) = ir_measures.parse_trec_measure(name)
        except ValueError:  # not known, or several
            pass
        else:
            return measure
        raise


def _check_parameters(measure: Any) -> None:
    """Refuse what ir-measures takes and trec_eval ends the process at: a cutoff of 0 is one."""
    for key, info in measure.SUPPORTED_PARAMS.items():
        value = measure.params.get(key)
        if info.required and value is None:
            raise ValueError(f"its {key} is missing, as the 10 of R@10")
        least = 0 if key == "min_rel" else 1
        if type(value) is int and not least <= value <= MOST_GRADE:
            raise ValueError(f"its {key} is {value}; expected {least} to {MOST_GRADE}")
