"""Fitting of fusion methods and weights on judged queries, with a significance test on held-out queries."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.eval.ndcg import ndcg
from lightir.eval.significance import randomization_test
from lightir.kernel.candidates import Candidates, normalize
from lightir.progress import followed
from lightir.quantities import counted
from lightir.search.index_evaluation import missing_documents
from lightir.search.language_model import Smoothing
from lightir.search.plan import WHOLE_DEPTH, default_depth, has_spans, plan
from lightir.search.prepared import scale_of
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions, fusion_text, parse_fusion, weights_text
from lightir.search.searcher import Searcher
from lightir.types import Branch, Qrels, Query

METHODS = (
    *("absolute", "linear", "linear:min-max", "linear:z-score", "linear:none", "dbsf"),
    *("rrf:2", "rrf:10", "rrf:20", "rrf:60", "rrf:100"),
)
"""Methods that are tried, each with every weight of `weight_grid`."""

CUTOFF = 10
FOLDS = 5
ALPHA = 0.05
N_RESAMPLES = 10_000
_STEPS = {2: 20, 3: 10}
"""Steps between 0 and 1 of a weight, by the number of branches."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of fitting. All figures are nDCG@10 over the judged queries.

    Attributes:
        branches: branches that are joined.
        n_queries: number of judged queries.
        folds: number of parts of the cross-validation.
        default: present default fusion of a search.
        default_value: figure of the default.
        chosen: best fusion over all queries.
        chosen_value: figure of the chosen fusion on the queries that selected it, which is too high.
        by_method: method -> its best fusion and that fusion's figure on the queries that selected it.
        held_out_value: expected figure after tuning: each query measured with the best fusion of the other folds.
        difference: held_out_value - default_value.
        interval: the difference's 95 % bootstrap interval over queries.
        p_value: p-value of the paired randomization test on the difference.
        smoothing: smoothing of the tokens branch that the weights are fitted for; None for BM25.
    """

    branches: tuple[Branch, ...]
    n_queries: int
    folds: int
    default: Fusion
    default_value: float
    chosen: Fusion
    chosen_value: float
    by_method: Mapping[str, tuple[Fusion, float]]
    held_out_value: float
    difference: float
    interval: tuple[float, float]
    p_value: float
    smoothing: Smoothing | None = None

    @property
    def recommended(self) -> bool:
        """Whether the chosen fusion should replace the default: the gain is significant on queries held out."""
        return self.difference > 0 and self.p_value < ALPHA

    @property
    def options(self) -> str:
        """The chosen fusion as options of `lightir search`."""
        tokens = "" if self.smoothing is None else f" --tokens {self.smoothing}"
        return f"--fusion {fusion_text(self.chosen)} --weights {weights_text(self.chosen)}{tokens}"

    def to_json(self) -> dict[str, Any]:
        """Return the result in the form of `lightir tune --json`."""
        return {
            "branches": list(self.branches),
            "n_queries": self.n_queries,
            "folds": self.folds,
            "default": _fusion_json(self.default, self.default_value),
            "chosen": _fusion_json(self.chosen, self.chosen_value),
            "by_method": [_fusion_json(*best) for best in self.by_method.values()],
            "held_out_nDCG@10": self.held_out_value,
            "difference": self.difference,
            "interval": list(self.interval),
            "p_value": self.p_value,
            "recommended": self.recommended,
            "options": self.options,
        }


def tune(
    searcher: Searcher,
    queries: Sequence[Query],
    qrels: Qrels,
    *,
    options: SearchOptions = DEFAULT_OPTIONS,
    folds: int = FOLDS,
    seed: int = 0,
    progress: bool = True,
) -> Tuning:
    """Fit method and weights by nDCG@10, and measure what that gives on queries held out.

    Among fusions of equal value the default comes first, then METHODS' order.

    Args:
        searcher: searcher of an index of the collection.
        queries: queries, of which those without qrels are ignored.
        qrels: relevance of documents; a query without a relevant document counts 0 whatever the fusion.
        options: mode (two branches or more), depth, exclude_same_id and smoothing of the searches. Without a depth each
            method has its own, as in a search.
        folds: number of parts of the cross-validation, drawn from the seed.
        seed: seed of folds, resamples and the randomization test.
        progress: show a progress bar, or log messages if stderr is no terminal.

    Raises:
        InvalidInput: one branch alone, fewer than two judged queries a fold, or the index holds no relevant document.
    """
    judged = [query for query in queries if query.query_id in qrels]
    if folds < 2 or len(judged) < 2 * folds:
        raise InvalidInput(
            f"{counted(len(judged), 'judged query')} in {folds} folds; expected at least two folds of two queries: "
            "judge more queries, or use fewer folds (--folds)"
        )
    now = plan(searcher.index.branches, searcher.index.contract, options)
    if len(now.branches) < 2:
        raise InvalidInput(f"there is nothing to join in {now.branches[0]} alone; name two branches or more")
    missing_documents(searcher, qrels, "the qrels")
    tried = [now.fusion, *fusion_grid(now.branches, absolute=has_spans(searcher.index.contract, options))]
    values = fusion_values(searcher, judged, qrels, tried, options=options, progress=progress)
    fitted = _fitted(now.branches, tried, values, folds=folds, rng=np.random.default_rng(seed))
    return dataclasses.replace(fitted, smoothing=options.smoothing if "tokens" in now.branches else None)


def fusion_values(
    searcher: Searcher,
    judged: Sequence[Query],
    qrels: Qrels,
    tried: Sequence[Fusion],
    *,
    options: SearchOptions = DEFAULT_OPTIONS,
    progress: bool = True,
) -> Doubles:
    """Return (n_queries, n_fusions) nDCG@10 of every query under every fusion, from one search.

    Args:
        searcher: searcher of an index of the collection.
        judged: queries that have qrels.
        qrels: relevance of documents.
        tried: fusions to measure.
        options: mode, depth, exclude_same_id and smoothing of the search.
        progress: show a progress bar, or log messages if stderr is no terminal.
    """
    values = np.zeros((len(judged), len(tried)))
    depths = [max(CUTOFF, options.depth or _own_depth(options, fusion)) + options.exclude_same_id for fusion in tried]
    deepest = dataclasses.replace(options, depth=max(depths))  # as searches for ten documents ask each branch
    if any(fusion.method == "absolute" for fusion in tried):
        deepest = dataclasses.replace(deepest, fusion="absolute")  # its normalized scores do not depend on the lists
    rankings = searcher.candidates(judged, deepest)
    shown = followed(rankings, "tuning", unit="query", total=len(judged), shown=progress)
    for i, (query, (doc_ids, candidates)) in enumerate(zip(judged, shown, strict=True)):
        excluded = query.query_id if options.exclude_same_id else None
        values[i] = _ndcg(doc_ids, candidates, qrels[query.query_id], tried, depths, excluded)
    return values


def weight_grid(n_branches: int) -> list[tuple[float, ...]]:
    """Return weights above 0 that add up to 1, in steps of 0.05 for two branches and of 0.1 for three."""
    steps = _STEPS[n_branches]
    parts = itertools.product(range(1, steps), repeat=n_branches - 1)
    return [tuple(part / steps for part in (*first, steps - sum(first))) for first in parts if sum(first) < steps]


def fusion_grid(branches: Sequence[Branch], *, absolute: bool = True) -> list[Fusion]:
    """Return every method with every weight, method by method; without "absolute" if it cannot be searched."""
    return [
        dataclasses.replace(parse_fusion(method), weights=dict(zip(branches, weights, strict=True)))
        for method in METHODS
        if absolute or method != "absolute"
        for weights in weight_grid(len(branches))
    ]


def _fitted(
    branches: tuple[Branch, ...],
    tried: Sequence[Fusion],
    values: Doubles,
    *,
    folds: int,
    rng: np.random.Generator,
) -> Tuning:
    """Return the result for (n_queries, n_fusions) values; the first fusion is the default."""
    means = values.mean(axis=0)
    chosen = int(np.argmax(means))
    difference = _held_out(values, folds, rng) - values[:, 0]
    resampled = [difference[rng.integers(0, len(values), len(values))].mean() for _ in range(N_RESAMPLES)]
    low, high = np.quantile(resampled, (ALPHA / 2, 1 - ALPHA / 2))
    p_value = randomization_test(difference, np.zeros(len(difference)), rng=rng)
    by_method: dict[str, tuple[Fusion, float]] = {}
    for fusion, mean in zip(tried[1:], means[1:].tolist(), strict=True):
        method = fusion_text(fusion)
        if method not in by_method or mean > by_method[method][1]:
            by_method[method] = (fusion, mean)
    return Tuning(
        branches=branches,
        n_queries=len(values),
        folds=folds,
        default=tried[0],
        default_value=float(means[0]),
        chosen=tried[chosen],
        chosen_value=float(means[chosen]),
        by_method=by_method,
        held_out_value=float(means[0] + difference.mean()),
        difference=float(difference.mean()),
        interval=(float(low), float(high)),
        p_value=p_value,
    )


def _held_out(values: Doubles, folds: int, rng: np.random.Generator) -> Doubles:
    """Return (n_queries,) each query's value with the fusion that is best for the other folds."""
    fold_of = rng.permutation(len(values)) % folds
    held_out = np.zeros(len(values))
    for fold in range(folds):
        inside = fold_of == fold
        held_out[inside] = values[inside, int(np.argmax(values[~inside].mean(axis=0)))]
    return held_out


def _own_depth(options: SearchOptions, fusion: Fusion) -> int:
    return default_depth(fusion) if options.smoothing is None or "tokens" not in fusion.weights else WHOLE_DEPTH


def _ndcg(
    doc_ids: Sequence[str],
    candidates: Candidates,
    grades: Mapping[str, int],
    tried: Sequence[Fusion],
    depths: Sequence[int],
    excluded: str | None,
) -> Doubles:
    """Return (n_fusions,) nDCG@10 of one query's candidates under each fusion."""
    relevant = {doc_id: grade for doc_id, grade in grades.items() if grade > 0}
    ranks = np.zeros((len(tried), len(relevant)), dtype=np.int64)
    order = sorted((i for i, doc_id in enumerate(doc_ids) if doc_id != excluded), key=doc_ids.__getitem__)
    scores = _fused_scores(candidates, tried, depths)[:, order]
    columns = {doc_ids[i]: column for column, i in enumerate(order)}
    for i, doc_id in enumerate(relevant):
        if (column := columns.get(doc_id)) is None:
            continue
        own = scores[:, column, None]
        better = (scores > own).sum(axis=1) + (scores[:, :column] == own).sum(axis=1)  # ties go to the smaller doc_id
        ranks[:, i] = np.where(own[:, 0] > -np.inf, 1 + better, 0)
    return ndcg(ranks, np.array(list(relevant.values()), dtype=np.float64), k=CUTOFF)


def _fused_scores(candidates: Candidates, tried: Sequence[Fusion], depths: Sequence[int]) -> Doubles:
    """Return (n_fusions, n_candidates) scores, to the bit those of a search; -inf where no list has the document."""
    normalized: dict[tuple[str, str, int], Doubles] = {}
    scores = np.zeros((len(tried), len(candidates)))
    for row, fusion, depth in zip(scores, tried, depths, strict=True):
        is_listed = np.zeros(len(row), dtype=bool)
        for branch, column in candidates.columns.items():
            ranks = np.where(column.ranks <= depth, column.ranks, 0)
            is_listed |= ranks > 0
            key = (branch, fusion_text(fusion), depth)
            if fusion.method == "absolute":
                normalized[key] = column.normalized
            elif key not in normalized:
                listed = np.flatnonzero(ranks)
                own = column.scores[listed[np.argsort(ranks[listed])]]
                scale = scale_of(fusion)
                normalized[key] = normalize(column.scores, own, ranks, scale=scale, rrf_k=fusion.rrf_k)
            row += fusion.weights[cast(Branch, branch)] * normalized[key]
        row[~is_listed] = -np.inf
    return scores


def _fusion_json(fusion: Fusion, value: float) -> dict[str, Any]:
    return {"fusion": fusion_text(fusion), "weights": dict(fusion.weights), "nDCG@10": value}
