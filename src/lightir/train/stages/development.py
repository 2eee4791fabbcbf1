"""Small development sets, encoded in memory while a model trains."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.contract import Fusion
from lightir.data.dataset import Dataset
from lightir.errors import InvalidInput
from lightir.eval.ndcg import ndcg
from lightir.kernel import DocOrds
from lightir.kernel.candidates import BoundBranch, BranchList, Candidates, CandidateSearch, GivenLists, Request
from lightir.kernel.segments import DenseSegments
from lightir.search.plan import default_depth
from lightir.search.prepared import scale_of
from lightir.train.run.stage import DevelopmentResult
from lightir.types import BRANCHES, Branch, Document, Query

logger = logging.getLogger(__name__)

CUTOFF = 10

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


def ndcg_of_scores(scores: ScoreMatrix, grades: ScoreMatrix) -> float:
    """Return mean nDCG@10 of the rankings by score; ties go to the smaller position; 0 without queries.

    Args:
        scores: (n, m).
        grades: (n, m), one above 0 in every row.
    """
    if not len(scores):
        return 0.0
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(1, scores.shape[1] + 1)[None], axis=1)
    return _mean_ndcg(ranks, grades)


def ndcg_of_fusion(branches: Mapping[Branch, ScoreMatrix], grades: ScoreMatrix, fusion: Fusion) -> float:
    """Return mean nDCG@10 of the rankings that a search gives for the branches' scores; 0 without queries.

    Args:
        branches: (n, m) scores of each branch. The sparse branch finds documents with a score above 0.
        grades: (n, m), one above 0 in every row.
        fusion: method and weights; a branch without a weight does not count.
    """
    if not len(grades):
        return 0.0
    ranks = np.zeros(grades.shape, dtype=np.int64)
    for row, candidates in zip(ranks, fused(branches, fusion, k=CUTOFF), strict=True):
        row[candidates.doc_ords] = np.arange(1, len(candidates) + 1)
    return _mean_ndcg(ranks, grades)


def fused(branches: Mapping[Branch, ScoreMatrix], fusion: Fusion, *, k: int) -> list[Candidates]:
    """Return each query's k best documents by the fusion of a search; document j has doc_ord j.

    In place of "absolute", for which queries are not known here, scores are normalized by the list's best one.

    Args:
        branches: (n, m) scores of each branch.
        fusion: method and weights.
        k: number of documents.
    """
    depth = max(k, default_depth(fusion))
    names = [branch for branch in BRANCHES if branch in branches]
    n_documents = branches[names[0]].shape[1]
    bound = [BoundBranch(name, DenseSegments([None], [n_documents]), fusion.weights.get(name, 0.0)) for name in names]

    def listed(branch: Branch) -> GivenLists:
        scores = np.ascontiguousarray(branches[branch], dtype=np.float32)

        def score(query: int, doc_ords: DocOrds) -> ScoreMatrix:
            return np.asarray(scores[query, doc_ords], dtype=np.float32)

        return GivenLists.join([_best(row, depth, every=branch == "dense") for row in scores], score)

    scale = "max" if fusion.method == "absolute" else scale_of(fusion)
    search = CandidateSearch(bound, scale=scale, rrf_k=fusion.rrf_k)
    return search.search([None] * len(names), Request(k, depth), lists=[listed(name) for name in names])


def _best(scores: ScoreMatrix, k: int, *, every: bool) -> BranchList:
    """Return the k best documents, of all or of those that score above 0; ties go to the smaller position."""
    order = np.argsort(-scores, kind="stable")
    order = order[:k] if every else order[scores[order] > 0][:k]
    return BranchList(order.astype(np.uint32), scores[order])


def _mean_ndcg(ranks: npt.NDArray[np.int64], grades: ScoreMatrix) -> float:
    pairs = zip(ranks, grades.astype(np.float64), strict=True)
    return float(np.mean([ndcg(row, own, k=CUTOFF) for row, own in pairs]))


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
