"""How well an index, mode by mode, or a run of any tool answers a data set's queries."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightir.data import Dataset
from lightir.errors import InvalidInput
from lightir.eval import DEFAULT_MEASURES, Comparison, EvaluationResult, compare, evaluate, write_run
from lightir.eval.measures import parse_measures
from lightir.search.options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.searcher import Searcher
from lightir.types import BRANCHES, Branch, Qrels, Run

WHOLE_DEPTH = 1000
"""Depth of the rankings for measures without a cutoff, as TREC takes it."""


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Several modes on one split.

    Attributes:
        dataset: its name.
        split: its split.
        systems: mode, or a run's name -> evaluation, all over the same queries.
        missing_documents: relevant documents (grade 1 or more) that the index does not hold; none can be found. Of runs
            it is not known, and 0.
        seconds: searching and measuring, all modes together.
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
        """The report as `lightir evaluate --json` prints it."""
        return {
            "dataset": self.dataset,
            "split": self.split,
            "n_queries": self.n_queries,
            "missing_documents": self.missing_documents,
            "systems": {mode: dict(evaluation.measures) for mode, evaluation in self.systems.items()},
            "seconds": self.seconds,
        }

    def comparison(self, *, reference: str, measure: str = "nDCG@10") -> Comparison:
        """The modes held against one of them."""
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
    """The measures of each mode over the split's judged queries.

    Args:
        searcher: over an index of the data set's corpus.
        dataset: a data set, or its folder.
        split: whose queries and judgements.
        modes: as Searcher.search takes them; None for all_modes of the index.
        measures: names as ir-measures has them.
        k: depth of the rankings; None for the deepest cutoff among the measures (WHOLE_DEPTH where one has none).
        options: options of every search but the mode. Weights apply to the modes that join branches, which must all
            join the branches named by the weights.
        run_dir: write each mode's run there as <dataset>.<split>.<mode>.trec.

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
    systems: Mapping[str, tuple[Searcher, str]],
    dataset: Dataset | Path | str,
    split: str = "test",
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int | None = None,
    options: SearchOptions = DEFAULT_OPTIONS,
    run_dir: Path | str | None = None,
) -> EvaluationReport:
    """As evaluate_index, for named pairs of a searcher and a mode; all searchers' indexes hold the same documents."""
    if not systems:
        raise InvalidInput("no mode was named; leave modes out for all that the index has")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    start = time.perf_counter()
    depth, qrels = measured_depth(dataset, split, measures, k)
    missing = missing_documents(next(iter(systems.values()))[0], qrels, dataset.name)
    queries = list(dataset.queries(split))
    found = {}
    for name, (searcher, mode) in systems.items():
        joins = mode == "hybrid" or "+" in mode
        weights = options.weights if joins else None
        run = searcher.search(queries, depth, dataclasses.replace(options, mode=mode, weights=weights))
        found[name] = evaluate(run, qrels, measures)
        if run_dir is not None:
            Path(run_dir).mkdir(parents=True, exist_ok=True)
            write_run(Path(run_dir) / f"{dataset.name}.{split}.{name}.trec", run, tag=name)
    return EvaluationReport(dataset.name, split, found, missing, time.perf_counter() - start)


def evaluate_runs(
    runs: Mapping[str, Run], qrels: Qrels, *, dataset: str, split: str = "", measures: Sequence[str] = DEFAULT_MEASURES
) -> EvaluationReport:
    """The measures of rankings that are there already, of whichever tool.

    Args:
        runs: name -> run. A judged query that a run lacks counts 0.
        qrels: the judgements.
        dataset: their name, for the report.
        split: likewise.
        measures: names as ir-measures has them.

    Raises:
        InvalidInput: no run, or what `evaluate` raises, by the run's name.
        MissingExtra: ir-measures is not installed.
    """
    if not runs:
        raise InvalidInput("no run was given; there is nothing to measure")
    start = time.perf_counter()
    found = {}
    for name, run in runs.items():
        try:
            found[name] = evaluate(run, qrels, measures)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error}") from error
    return EvaluationReport(dataset, split, found, 0, time.perf_counter() - start)


def all_modes(branches: Sequence[Branch]) -> tuple[str, ...]:
    """Every branch alone, "hybrid" where there are two or more, and "hybrid+tokens" where that adds a branch."""
    alone = [branch for branch in ("tokens", "dense", "sparse") if branch in branches]
    joined = ["hybrid"] if len(alone) > 1 else []
    return (*alone, *joined, *(["hybrid+tokens"] if len(alone) == len(BRANCHES) else []))


def measured_depth(dataset: Dataset, split: str, measures: Sequence[str], k: int | None) -> tuple[int, Qrels]:
    """How deep rankings must be, and the split's judgements; whoever encodes a corpus first asks before that.

    Raises:
        NotFound: there is no such split.
        InvalidInput: no judgements, an unknown measure, or k is less than a cutoff.
        MissingExtra: ir-measures is not installed.
    """
    parse_measures(measures)
    depth, qrels = _depth(measures, k), dataset.qrels(split)
    if not qrels:
        raise InvalidInput(f"{dataset.name} has no judgements in its split {split!r}")
    return depth, qrels


def _depth(measures: Sequence[str], k: int | None) -> int:
    cutoffs = [int(cutoff) for measure in measures for cutoff in re.findall(r"@(\d+)", measure)]
    if k is None:
        return max(cutoffs) if len(cutoffs) == len(measures) and cutoffs else max([WHOLE_DEPTH, *cutoffs])
    if cutoffs and k < max(cutoffs):
        raise InvalidInput(f"k is {k}, but the measures look {max(cutoffs)} deep; they would be wrong")
    return k


def missing_documents(searcher: Searcher, qrels: Qrels, name: str) -> int:
    """How many relevant documents the index does not hold; `name` says whose judgements they are.

    Raises:
        InvalidInput: it holds none of them.
    """
    relevant = {doc_id for grades in qrels.values() for doc_id, grade in grades.items() if grade >= 1}
    missing = sum(searcher.index.doc_ord(doc_id) is None for doc_id in relevant)
    if relevant and missing == len(relevant):
        raise InvalidInput(
            f"{searcher.index.folder} holds none of the {missing} relevant documents of {name} "
            f"({min(relevant)!r} for one); is it an index of another corpus?"
        )
    return missing
