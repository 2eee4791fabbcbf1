"""The fusion that suits a collection, fitted on judged queries, and how sure that is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.eval.significance import randomization_test
from lightir.search.fusion import Fused, normalized
from lightir.search.index_evaluation import missing_documents
from lightir.search.language_model import Smoothing
from lightir.search.options import DEFAULT_OPTIONS, SearchOptions, fusion_text, parse_fusion, weights_text
from lightir.search.plan import WHOLE_DEPTH, default_depth, plan
from lightir.search.searcher import Searcher
from lightir.types import Branch, Qrels, Query

METHODS = (
    *("linear", "linear:min-max", "linear:z-score", "linear:none", "dbsf"),
    *("rrf:2", "rrf:10", "rrf:20", "rrf:60", "rrf:100"),
)
"""What is tried, each with every weight of weight_grid."""

CUTOFF = 10
FOLDS = 5
ALPHA = 0.05
N_RESAMPLES = 10_000
_STEPS = {2: 20, 3: 10}
"""Steps between 0 and 1 of a weight, by the number of branches."""

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tuning:
    """What fitting found. All figures are nDCG@10 over the judged queries.

    Attributes:
        branches: what is joined.
        n_queries: number of judged queries.
        folds: number of parts of the cross-validation.
        default: the fusion that a search takes now.
        default_value: its figure.
        chosen: the best fusion over all queries.
        chosen_value: its figure, on the queries that chose it: too high.
        by_method: method -> its best fusion and that one's figure, on the queries that chose it.
        held_out_value: each query measured with the best fusion of the other folds' queries: what tuning gives.
        difference: held_out_value - default_value.
        interval: the difference's 95 % bootstrap interval over queries.
        p_value: of the paired randomisation test on the difference.
        smoothing: the searcher's, with which the weights belong together; None for BM25.
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
        """What was found as `lightir tune --json` prints it."""
        return {
            "branches": list(self.branches),
            "n_queries": self.n_queries,
            "folds": self.folds,
            "default": _fusion_json(self.default, self.default_value),
            "chosen": _fusion_json(self.chosen, self.chosen_value),
            "by_method": [_fusion_json(*found) for found in self.by_method.values()],
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
        searcher: over an index of the collection.
        queries: at least the judged ones.
        qrels: the judgements; a query without a relevant document counts 0 whatever the fusion.
        options: mode (two branches or more), depth, exclude_same_id and smoothing of the searches. Without a depth each
            method has its own, as in a search.
        folds: parts of the cross-validation, drawn from the seed.
        seed: of folds, resamples and the randomisation test.
        progress: show a bar where a terminal looks.

    Raises:
        InvalidInput: one branch alone, fewer than two judged queries a fold, or the index holds no relevant document.
    """
    judged = [query for query in queries if query.query_id in qrels]
    if folds < 2 or len(judged) < 2 * folds:
        raise InvalidInput(
            f"{len(judged)} judged queries in {folds} folds; two folds or more of two queries are needed: judge more, "
            "or take fewer folds (--folds)"
        )
    now = plan(searcher.index.branches, searcher.index.contract, options)
    if len(now.branches) < 2:
        raise InvalidInput(f"there is nothing to join in {now.branches[0]} alone; name two branches or more")
    missing_documents(searcher, qrels, "the judgements")
    tried = [now.fusion, *fusion_grid(now.branches)]
    values = fusion_values(searcher, judged, qrels, tried, options=options, progress=progress)
    found = _fitted(now.branches, tried, values, folds=folds, rng=np.random.default_rng(seed))
    return dataclasses.replace(found, smoothing=options.smoothing if "tokens" in now.branches else None)


def fusion_values(
    searcher: Searcher,
    judged: Sequence[Query],
    qrels: Qrels,
    tried: Sequence[Fusion],
    *,
    options: SearchOptions = DEFAULT_OPTIONS,
    progress: bool = True,
) -> Scores:
    """(n_queries, n_fusions) nDCG@10 of every query under every fusion, out of one search; arguments as in `tune`."""
    values = np.zeros((len(judged), len(tried)))
    depths = [max(CUTOFF, options.depth or _own_depth(options, fusion)) + options.exclude_same_id for fusion in tried]
    deepest = dataclasses.replace(options, depth=max(depths))  # as searches for ten documents ask each branch
    found = searcher.candidates(judged, deepest)
    shown = tqdm(found, "tuning", len(judged), unit="query", disable=None if progress else True)
    for i, (query, (doc_ids, fused)) in enumerate(zip(judged, shown, strict=True)):
        banned = query.query_id if options.exclude_same_id else None
        values[i] = _ndcg(doc_ids, fused, qrels[query.query_id], tried, depths, banned)
    return values


def weight_grid(n_branches: int) -> list[tuple[float, ...]]:
    """Weights above 0 that add up to 1, in steps of 0.05 for two branches and of 0.1 for three."""
    steps = _STEPS[n_branches]
    parts = itertools.product(range(1, steps), repeat=n_branches - 1)
    return [tuple(part / steps for part in (*first, steps - sum(first))) for first in parts if sum(first) < steps]


def fusion_grid(branches: Sequence[Branch]) -> list[Fusion]:
    """Every method with every weight: method by method."""
    return [
        dataclasses.replace(parse_fusion(method), weights=dict(zip(branches, weights, strict=True)))
        for method in METHODS
        for weights in weight_grid(len(branches))
    ]


def _fitted(
    branches: tuple[Branch, ...],
    tried: Sequence[Fusion],
    values: Scores,
    *,
    folds: int,
    rng: np.random.Generator,
) -> Tuning:
    """What (n_queries, n_fusions) values say; the first fusion is the default."""
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


def _held_out(values: Scores, folds: int, rng: np.random.Generator) -> Scores:
    """(n_queries,) each query's value with the fusion that is best for the other folds."""
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
    fused: Fused,
    grades: Mapping[str, int],
    tried: Sequence[Fusion],
    depths: Sequence[int],
    banned: str | None,
) -> Scores:
    """(n_fusions,) nDCG@10 of one query's candidates under each fusion; the gain is the grade, as in trec_eval."""
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[:CUTOFF]
    if not ideal or not doc_ids:
        return np.zeros(len(tried))
    order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
    kept = [place for place in order if doc_ids[place] != banned]
    scores, ids = _scores(fused, tried, depths)[:, kept], [doc_ids[place] for place in kept]
    gained = np.zeros(len(tried))
    for place, doc_id in enumerate(ids):
        if (grade := grades.get(doc_id, 0)) > 0:
            rank = 1 + (scores > scores[:, place, None]).sum(axis=1)
            rank += (scores[:, :place] == scores[:, place, None]).sum(axis=1)  # ties go to the smaller doc_id
            found = (rank <= CUTOFF) & (scores[:, place] > -np.inf)
            gained += np.where(found, grade / np.log2(rank + 1.0), 0.0)
    return gained / float(sum(grade / np.log2(rank + 1.0) for rank, grade in enumerate(ideal, 1)))


def _scores(fused: Fused, tried: Sequence[Fusion], depths: Sequence[int]) -> Scores:
    """(n_fusions, n_candidates): to the last bit what `fuse` would give each candidate; -inf where no list has it."""
    said: dict[tuple[Branch, str, int], Scores] = {}
    scores = np.zeros((len(tried), len(fused.doc_ords)))
    for row, fusion, depth in zip(scores, tried, depths, strict=True):
        nowhere = np.ones(len(row), dtype=bool)
        for branch, column in fused.columns.items():
            ranks = np.where(column.ranks <= depth, column.ranks, 0)
            nowhere &= ranks == 0
            key = (branch, fusion_text(fusion), depth)
            if key not in said:
                listed = np.flatnonzero(ranks)
                own = column.scores[listed[np.argsort(ranks[listed])]].astype(np.float64)
                said[key] = normalized(column.scores.astype(np.float64), own, ranks, fusion)
            row += fusion.weights[branch] * said[key]
        row[nowhere] = -np.inf
    return scores


def _fusion_json(fusion: Fusion, value: float) -> dict[str, Any]:
    return {"fusion": fusion_text(fusion), "weights": dict(fusion.weights), "nDCG@10": value}
