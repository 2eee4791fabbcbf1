"""Small development sets, encoded in memory while a model trains."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.data.dataset import Dataset
from lightir.errors import InvalidInput
from lightir.train.run.stage import DevelopmentResult
from lightir.types import Document, Query

logger = logging.getLogger(__name__)

ScoreMatrix = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Development:
    """A cut-down data set: some queries, all their relevant documents, and others drawn at random.

    Attributes:
        name: the data set's.
        queries: n queries.
        documents: m documents, sorted by id.
        grades: (n, m) float32, 0 where not relevant.
    """

    name: str
    queries: tuple[Query, ...]
    documents: tuple[Document, ...]
    grades: ScoreMatrix


def load_development(dataset: Dataset, split: str, *, queries: int, documents: int) -> Development:
    """Reduce a data set; queries with many relevant documents are chosen last, so that these do not fill the corpus.

    Args:
        dataset: BEIR data set.
        split: split with the queries.
        queries: maximum number of queries, drawn at random, the same in each run.
        documents: number of documents, but at least all relevant ones.
    """
    generator = random.Random(0)
    corpus = {document.doc_id: document for document in dataset.corpus()}
    relevant = {
        query_id: {doc_id: grade for doc_id, grade in grades.items() if grade > 0 and doc_id in corpus}
        for query_id, grades in dataset.qrels(split).items()
    }
    texts = {query.query_id: query for query in dataset.queries(split)}
    candidates = sorted(query_id for query_id, grades in relevant.items() if grades)
    generator.shuffle(candidates)
    few = max(2, documents // max(1, queries))
    chosen = sorted(candidates, key=lambda query_id: len(relevant[query_id]) > few)[:queries]
    kept = {doc_id for query_id in chosen for doc_id in relevant[query_id]}
    others = sorted(corpus.keys() - kept)
    generator.shuffle(others)
    kept.update(others[: max(0, documents - len(kept))])
    ids = sorted(kept)
    grades = np.asarray([[relevant[q].get(d, 0) for d in ids] for q in chosen], dtype=np.float32)
    return Development(
        dataset.name,
        tuple(texts[query_id] for query_id in chosen),
        tuple(corpus[doc_id] for doc_id in ids),
        grades.reshape(len(chosen), len(ids)),
    )


def ndcg(scores: ScoreMatrix, grades: ScoreMatrix, *, k: int = 10) -> float:
    """Mean nDCG@k with linear gains, as trec_eval; ties go to the smaller position; 0 without queries.

    Args:
        scores: (n, m).
        grades: (n, m), one above 0 in every row.
        k: depth.
    """
    if not len(scores):
        return 0.0
    depth = min(k, scores.shape[1])
    discounts = np.asarray([1 / math.log2(rank + 2) for rank in range(depth)])
    top = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    gained = (np.take_along_axis(grades, top, axis=1) * discounts).sum(axis=1)
    ideal = (-np.sort(-grades, axis=1)[:, :depth] * discounts).sum(axis=1)
    return float(np.mean(gained / ideal))


def fuse(branches: Mapping[str, ScoreMatrix], weights: Mapping[str, float]) -> ScoreMatrix:
    """The weighted sum of each branch's scores, which are at least 0, over their largest: a search's "max"."""
    total: ScoreMatrix | None = None
    for name, scores in branches.items():
        above: ScoreMatrix = np.maximum(scores, np.float32(0))
        most: ScoreMatrix = above.max(axis=1, keepdims=True)
        scaled = (above / np.where(most > 0, most, 1) * weights.get(name, 0.0)).astype(np.float32)
        total = scaled if total is None else total + scaled
    if total is None:
        raise ValueError("no branch to fuse")
    return np.asarray(total, dtype=np.float32)


def mean_measures(per_set: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each measure's mean over the sets; empty without sets."""
    names = per_set[0] if per_set else ()
    return {name: float(np.mean([measures[name] for measures in per_set])) for name in names}


def measured(per_set: Mapping[str, Mapping[str, float]], *, by: str) -> DevelopmentResult:
    """Several sets' measures as the loop takes them: the mean of `by` decides which state is kept.

    Raises:
        InvalidInput: the model has no such measure.
    """
    means = mean_measures(list(per_set.values()))
    logger.info("development: %s", {name: round(value, 4) for name, value in means.items()})
    if by not in means:
        raise InvalidInput(f"evaluation.by is {by!r}, but this model has {sorted(means)}")
    return DevelopmentResult(means[by], {"mean": means, **per_set})
