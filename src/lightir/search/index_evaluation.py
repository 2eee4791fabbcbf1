"""Evaluation of an index by mode, or of run files, on the judged queries of a data set."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lightir.data import Dataset
from lightir.errors import InvalidInput
from lightir.eval import DEFAULT_MEASURES, Comparison, EvaluationResult, compare, evaluate, write_run
from lightir.eval.measures import parse_measures
from lightir.files import make_folder
from lightir.index import Index
from lightir.progress import followed
from lightir.quantities import counted
from lightir.search.explain import Explanation
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.searcher import Searcher
from lightir.types import BRANCHES, Branch, Qrels, Query, Run

WHOLE_DEPTH = 1000
"""Depth of the rankings for measures without a cutoff, as in TREC."""


class Ranker(Protocol):
    """A searcher of an index: a `Searcher`, or several put together."""

    @property
    def index(self) -> Index:
        """The index whose documents are ranked."""

    def search(self, queries: Iterable[Query | str], k: int = 10, options: SearchOptions = DEFAULT_OPTIONS) -> Run:
        """Return the k best documents of each query."""

    def explain(self, query: str, doc_id: str, options: SearchOptions = DEFAULT_OPTIONS) -> Explanation:
        """Explain one document's score for a query."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Measures of several systems on one split.

    Attributes:
        dataset: name of the data set.
        split: name of the split.
        systems: mode or name of a run -> its measures, all over the same queries.
        missing_documents: number of relevant documents (grade 1 or more) that are not in the index; 0 for runs.
        seconds: duration of searching and measuring all modes.
    """

    dataset: str
    split: str
    systems: Mapping[str, EvaluationResult]
    missing_documents: int
    seconds: float

    @property
    def n_queries(self) -> int:
        """Number of judged queries."""
        return next(iter(self.systems.values())).n_queries

    def to_json(self) -> dict[str, Any]:
        """Return the report in the form of `lightir evaluate --json`."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "n_queries": self.n_queries,
            "missing_documents": self.missing_documents,
            "systems": {mode: dict(evaluation.measures) for mode, evaluation in self.systems.items()},
            "seconds": self.seconds,
        }

    def comparison(self, *, reference: str, measure: str = "nDCG@10") -> Comparison:
        """Compare the systems with one of them, by paired tests."""
        by_mode = {mode: {self.dataset: evaluation} for mode, evaluation in self.systems.items()}
        return compare(by_mode, reference=reference, measure=measure)


def evaluate_index(
    searcher: Searcher,
    dataset: Dataset | Path | str,
    split: str = "test",
    *,
    modes: Sequence[str] | None = None,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
    run_dir: Path | str | None = None,
) -> EvaluationReport:
    """Measure each mode over the split's judged queries.

    Args:
        searcher: searcher of an index of the data set's corpus.
        dataset: data set, or its folder.
        split: split that gives queries and qrels.
        modes: modes to measure, see SearchOptions; None for `all_modes` of the index.
        measures: names of measures in ir-measures.
        k: depth of the rankings; None for the deepest cutoff among the measures (WHOLE_DEPTH if one has none).
        options: options of every search but the mode. Weights apply to the modes that join branches, which must all
            join the branches named by the weights.
        run_dir: folder to which each mode's run is written as <dataset>.<split>.<mode>.trec; None to write none.

    Raises:
        InvalidInput: none of the relevant documents is in the index, k is less than a cutoff, or an unknown mode.
        MissingExtra: ir-measures is not installed.
    """
    chosen = all_modes(searcher.index.branches) if modes is None else modes
    if modes is None and options.weights is not None:
        chosen = tuple(mode for mode in chosen if mode != "hybrid+tokens")  # "hybrid" joins what the weights name
    return evaluate_systems(
        {mode: (searcher, mode) for mode in chosen},
        dataset,
        split,
        measures=measures,
        k=k,
        options=options,
        run_dir=run_dir,
    )


def evaluate_systems(
    systems: Mapping[str, tuple[Ranker, str]],
    dataset: Dataset | Path | str,
    split: str = "test",
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
    run_dir: Path | str | None = None,
) -> EvaluationReport:
    """Measure named pairs of a searcher and a mode; see `evaluate_index`.

    Args:
        systems: name -> searcher and mode; all searchers' indexes hold the same documents.
        dataset: data set, or its folder.
        split: split that gives queries and qrels.
        measures: names of measures in ir-measures.
        k: depth of the rankings; None for the deepest cutoff among the measures.
        options: options of every search but the mode.
        run_dir: folder to which runs are written; None to write none.
    """
    if not systems:
        raise InvalidInput("no mode was named; leave modes out for all that the index has")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    start = time.perf_counter()
    depth, qrels = measured_depth(dataset, split, measures, k)
    missing = missing_documents(next(iter(systems.values()))[0], qrels, dataset.name)
    queries = list(dataset.queries(split))
    results = {}
    shown = followed(systems.items(), "evaluate", unit="system", total=len(systems))
    for name, (searcher, mode) in shown:
        joins = mode == "hybrid" or "+" in mode
        weights = options.weights if joins else None
        run = searcher.search(queries, depth, dataclasses.replace(options, mode=mode, weights=weights))
        results[name] = evaluate(run, qrels, measures)
        if run_dir is not None:
            make_folder(Path(run_dir))
            write_run(Path(run_dir) / f"{dataset.name}.{split}.{name}.trec", run, tag=name)
    return EvaluationReport(dataset.name, split, results, missing, time.perf_counter() - start)


def evaluate_runs(
    runs: Mapping[str, Run], qrels: Qrels, *, dataset: str, split: str = "", measures: Sequence[str] = DEFAULT_MEASURES
) -> EvaluationReport:
    """Measure existing rankings of any tool.

    Args:
        runs: name -> run. A judged query that a run lacks counts 0.
        qrels: relevance of documents.
        dataset: name of the data set in the report.
        split: name of the split in the report.
        measures: names of measures in ir-measures.

    Raises:
        InvalidInput: no run, or what `evaluate` raises, by the run's name.
        MissingExtra: ir-measures is not installed.
    """
    if not runs:
        raise InvalidInput("no run was given; there is nothing to measure")
    start = time.perf_counter()
    results = {}
    for name, run in runs.items():
        try:
            results[name] = evaluate(run, qrels, measures)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from error
    return EvaluationReport(dataset, split, results, 0, time.perf_counter() - start)


def all_modes(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Return every branch alone, "hybrid" if there are two or more, and "hybrid+tokens" if that adds a branch."""
    alone = [branch for branch in ("tokens", "dense", "sparse") if branch in branches]
    joined = ["hybrid"] if len(alone) > 1 else []
    return (*alone, *joined, *(["hybrid+tokens"] if len(alone) == len(BRANCHES) else []))


def measured_depth(dataset: Dataset, split: str, measures: Sequence[str], k: int | None) -> tuple[int, Qrels]:
    """Return the depth of the rankings that the measures need, and the split's qrels.

    Called before a corpus is encoded, so that errors come early.

    Raises:
        NotFound: there is no such split.
        InvalidInput: no qrels, an unknown measure, or k is less than a cutoff.
        MissingExtra: ir-measures is not installed.
    """
    parse_measures(measures)
    depth, qrels = _depth(measures, k), dataset.qrels(split)
    if not qrels:
        raise InvalidInput(f"{dataset.name} has no qrels in its split {split!r}")
    return depth, qrels


def _depth(measures: Sequence[str], k: int | None) -> int:
    cutoffs = [int(cutoff) for measure in measures for cutoff in re.findall(r"@(\d+)", measure)]
    if k is None:
        return max(cutoffs) if len(cutoffs) == len(measures) and cutoffs else max([WHOLE_DEPTH, *cutoffs])
    if cutoffs and k < max(cutoffs):
        raise InvalidInput(f"k is {k}, but the measures look {max(cutoffs)} deep; they would be wrong")
    return k


def missing_documents(searcher: Ranker, qrels: Qrels, name: str) -> int:
    """Return the number of relevant documents that are not in the index.

    Args:
        searcher: searcher of the index.
        qrels: relevance of documents.
        name: name of the qrels in messages.

    Raises:
        InvalidInput: it holds none of them.
    """
    relevant = {doc_id for grades in qrels.values() for doc_id, grade in grades.items() if grade >= 1}
    missing = sum(not searcher.index.view.doc_ords(doc_id) for doc_id in relevant)
    if relevant and missing == len(relevant):
        raise InvalidInput(
            f"{searcher.index.folder} holds none of the {counted(missing, 'relevant document')} of {name} "
            f"({min(relevant)!r} for one); is it an index of another corpus?"
        )
    return missing
