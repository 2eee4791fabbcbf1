"""Report of a fitted table: the share of the teacher that it keeps on held-out queries, its confidence, weak spots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from lightir.addresses import QUERY_ENCODER
from lightir.files import write_json
from lightir.query.confidence import (
    CONFIDENCE_FILE,
    FEATURES,
    STATISTICS_FILE,
    Confidence,
    features,
    to_json,
)
from lightir.text import TextTokenizer
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.held_out import DEPTH, MIN_HELD_OUT, FitData
from lightir.train.distill.table_fit import select_rows
from lightir.vectors import Floats, Ragged

REPORT_FILE = "report.json"
FOLDS = 5
RIDGE = 1.0  # of the standardized features, in held-out queries
MIN_TERM_QUERIES, SHOWN = 3, 10
LENGTHS = ((1, 3), (4, 8), (9, 16), (17, 10**9))
SHARES_SAVED = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.3, 0.0)


@dataclass(frozen=True, slots=True)
class QueryQuality:
    """Agreement of a table with its teacher, query by query.

    Attributes:
        overlap: (n,) shares of the teacher's DEPTH best documents among the table's DEPTH best.
        ndcg: (n,) nDCG at DEPTH of the table's ranking; the teacher's best document gains DEPTH, its last one gains 1.
        own: (n,) positions of the table's best documents.
        teachers: (n,) positions of the teacher's best documents.
    """

    overlap: Floats
    ndcg: Floats
    own: npt.NDArray[np.int64]
    teachers: npt.NDArray[np.int64]


def query_quality(table: FittedRows, data: FitData) -> QueryQuality:
    """Compare the rankings of a table and of the teacher; ties go to the documents that come first."""
    depth = min(DEPTH, len(data.documents))
    discounts = 1 / np.log2(np.arange(2, depth + 2))
    ideal = float((np.arange(depth, 0, -1) * discounts).sum())
    overlap, ndcg, own, teachers = [], [], [], []
    for first in range(0, len(data.queries), 256):
        rows = range(first, min(first + 256, len(data.queries)))
        sums = table.sums(select_rows(data.queries, np.arange(rows.start, rows.stop)))
        ranked, truth = _best(sums, data.documents, depth), _best(data.targets[rows], data.documents, depth)
        for mine, theirs in zip(ranked.tolist(), truth.tolist(), strict=True):
            gains = {document: depth - rank for rank, document in enumerate(theirs)}
            gained = np.array([gains.get(document, 0) for document in mine])
            overlap.append(float((gained > 0).mean()))
            ndcg.append(float((gained * discounts).sum()) / ideal)
            own.append(mine[0])
            teachers.append(theirs[0])
    return QueryQuality(np.array(overlap, np.float32), np.array(ndcg, np.float32), np.array(own), np.array(teachers))


def _best(queries: Floats, documents: Floats, depth: int) -> npt.NDArray[np.int64]:
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :depth]


@dataclass(frozen=True, slots=True)
class FittedConfidence:
    """A confidence and how well it predicts the overlap of held-out queries that it was not fitted to.

    Attributes:
        confidence: the confidence, fitted to all held-out queries.
        features: names of the features that it uses.
        predicted: (n,) float32 cross-validated confidences of the held-out queries.
        correlations: Pearson correlation of each candidate's cross-validated confidence with the overlap; "all" uses
            all features.
        rank_correlation: Spearman correlation of the chosen one.
    """

    confidence: Confidence
    features: tuple[str, ...]
    predicted: Floats
    correlations: dict[str, float]
    rank_correlation: float


def fit_confidence(table: Floats, queries: Ragged, overlap: Floats, seen: Floats, seed: int) -> FittedConfidence:
    """Choose the features that predict the overlap best, by cross-validation, and fit a linear function of them.

    Args:
        table: (V, dim) float32, the rows of single terms.
        queries: terms of n held-out queries.
        overlap: (n,) their shares of the teacher's best documents.
        seen: (V,) float32 occurrences of each term in the queries that the table was fitted to.
        seed: seed of the folds.
    """
    norms = np.linalg.norm(table, axis=1).astype(np.float32)
    means = np.stack([table[queries.row(i)].mean(axis=0) for i in range(len(queries))])
    values = features(queries, means, norms, seen)
    fold_of = np.random.default_rng(seed).permutation(len(values)) % FOLDS
    candidates = {name: [at] for at, name in enumerate(FEATURES)} | {"all": list(range(len(FEATURES)))}
    predicted = {name: _cross_validated(values, overlap, columns, fold_of) for name, columns in candidates.items()}
    correlations = {name: _correlation(rows, overlap) for name, rows in predicted.items()}
    best = max(correlations, key=lambda name: correlations[name])
    weights, bias = _linear(values, overlap, candidates[best])
    confidence = Confidence(weights, bias, seen, norms)
    ranks = _correlation(_ranks(predicted[best]), _ranks(overlap))
    names = tuple(FEATURES[at] for at in candidates[best])
    return FittedConfidence(confidence, names, predicted[best], correlations, ranks)


def _cross_validated(values: Floats, overlap: Floats, columns: list[int], fold_of: npt.NDArray[np.int64]) -> Floats:
    predicted = np.zeros(len(values), dtype=np.float32)
    for fold in range(FOLDS):
        weights, bias = _linear(values[fold_of != fold], overlap[fold_of != fold], columns)
        predicted[fold_of == fold] = np.clip(values[fold_of == fold] @ weights + bias, 0, 1)
    return predicted


def _linear(values: Floats, overlap: Floats, columns: list[int]) -> tuple[Floats, float]:
    """Return the ridge regression of the overlap on standardized columns, as weights of all raw features and a bias."""
    chosen = values[:, columns].astype(np.float64)
    middle, spread = chosen.mean(axis=0), chosen.std(axis=0)
    scaled = (chosen - middle) / np.where(spread > 1e-9, spread, 1)
    center = float(overlap.mean())
    solved = np.linalg.solve(scaled.T @ scaled + RIDGE * np.eye(len(columns)), scaled.T @ (overlap - center))
    slopes = np.where(spread > 1e-9, solved / np.where(spread > 1e-9, spread, 1), 0)
    weights = np.zeros(values.shape[1], dtype=np.float32)
    weights[columns] = slopes
    return weights, center - float(slopes @ middle)


def _ranks(values: Floats) -> Floats:
    """Return ranks from 0, the mean rank for ties."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + last - 1) / 2)[inverse], dtype=np.float32)


def _correlation(a: Floats, b: Floats) -> float:
    """Return Pearson's correlation; 0 if either is constant."""
    if a.std() < 1e-9 or b.std() < 1e-9:
        return 0.0
    return float(np.corrcoef(a.astype(np.float64), b.astype(np.float64))[0, 1])


@dataclass(frozen=True, slots=True)
class HeldOutQueries:
    """The held-out queries of a fit.

    Attributes:
        data: terms, targets and documents; terms beyond the vocabulary are pairs.
        texts: n texts.
        kinds: n kinds of queries, such as "title" or "span".
        doc_ids: ids of the documents; empty if the candidates are no documents.
        seen: (V,) float32 occurrences of each term in the queries of the fit.
    """

    data: FitData
    texts: Sequence[str]
    kinds: Sequence[str]
    doc_ids: Sequence[str]
    seen: Floats


@dataclass(frozen=True, slots=True)
class QualityReport:
    """A report as JSON, and the confidence to store beside the table."""

    content: dict[str, Any]
    confidence: Confidence


def quality_report(
    table: FittedRows, held_out: HeldOutQueries, tokenizer: TextTokenizer, *, truth: str, seed: int
) -> QualityReport | None:
    """Measure a table on held-out queries; None with fewer than MIN_HELD_OUT of them.

    Args:
        table: rows of terms, then of pairs, and their gate.
        held_out: queries, targets and documents.
        tokenizer: tokenizer of the terms.
        truth: name of the ranking that is the truth, for the report.
        seed: seed of the cross-validation.
    """
    data, n_terms = held_out.data, len(held_out.seen)
    if len(data.queries) < MIN_HELD_OUT:
        return None
    quality = query_quality(table, data)
    singles = Ragged.from_lists(
        [[t for t in data.queries.row(i).tolist() if t < n_terms] for i in range(len(data.queries))]
    )
    fitted = fit_confidence(table.rows[:n_terms], singles, quality.overlap, held_out.seen, seed)
    content = {
        "truth": truth,
        "queries": len(data.queries),
        "depth": min(DEPTH, len(data.documents)),
        "overlap": _mean(quality.overlap),
        "ndcg": _mean(quality.ndcg),
        "kinds": _kinds(held_out.kinds, singles, quality),
        "confidence": {
            "features": list(fitted.features),
            "correlation": round(fitted.correlations["all" if len(fitted.features) > 1 else fitted.features[0]], 3),
            "rank_correlation": round(fitted.rank_correlation, 3),
            "candidates": {name: round(value, 3) for name, value in fitted.correlations.items()},
        },
        "fallback": _curve(fitted.predicted, quality),
        "weak_terms": _weak_terms(singles, quality.overlap, held_out.seen, tokenizer),
        "weak_queries": _weak_queries(held_out, quality, fitted.predicted),
    }
    return QualityReport(content, fitted.confidence)


def _mean(values: Floats) -> float:
    return round(float(values.mean()), 4)


def _kinds(kinds: Sequence[str], queries: Ragged, quality: QueryQuality) -> list[dict[str, Any]]:
    """Return the quality by kind and by number of terms."""
    groups = {kind: np.array([other == kind for other in kinds]) for kind in dict.fromkeys(kinds)}
    for low, high in LENGTHS:
        name = f"{low} to {high} terms" if high < LENGTHS[-1][1] else f"{low} terms or more"
        groups[name] = (queries.lengths >= low) & (queries.lengths <= high)
    return [
        {
            "kind": name,
            "queries": int(rows.sum()),
            "overlap": _mean(quality.overlap[rows]),
            "ndcg": _mean(quality.ndcg[rows]),
        }
        for name, rows in groups.items()
        if rows.any()
    ]


def _curve(predicted: Floats, quality: QueryQuality) -> list[dict[str, float]]:
    """Return what thresholds of confidence save and give; a query of the teacher's own has an overlap and nDCG of 1."""
    points = []
    for saved in SHARES_SAVED:
        threshold = 0.0 if saved == 1 else 1.0 if saved == 0 else float(np.quantile(predicted, 1 - saved))
        kept = predicted >= threshold
        points.append(
            {
                "threshold": round(threshold, 4),
                "saved": _mean(kept.astype(np.float32)),
                "overlap": _mean(np.where(kept, quality.overlap, 1)),
                "ndcg": _mean(np.where(kept, quality.ndcg, 1)),
            }
        )
    return points


def _weak_terms(queries: Ragged, overlap: Floats, seen: Floats, tokenizer: TextTokenizer) -> list[dict[str, Any]]:
    """Return the terms of at least MIN_TERM_QUERIES held-out queries whose queries have the lowest mean overlap."""
    of_term: dict[int, list[float]] = {}
    for row in range(len(queries)):
        for term in set(queries.row(row).tolist()):
            of_term.setdefault(term, []).append(float(overlap[row]))
    known = {term: shares for term, shares in of_term.items() if len(shares) >= MIN_TERM_QUERIES}
    weakest = sorted(known, key=lambda term: (np.mean(known[term]), term))[:SHOWN]
    return [
        {
            "term": tokenizer.term(term),
            "seen": int(seen[term]),
            "queries": len(known[term]),
            "overlap": round(float(np.mean(known[term])), 4),
        }
        for term in weakest
    ]


def _weak_queries(held_out: HeldOutQueries, quality: QueryQuality, predicted: Floats) -> list[dict[str, Any]]:
    weakest = np.lexsort((quality.ndcg, quality.overlap))[:SHOWN]
    return [
        {
            "query": held_out.texts[at],
            "overlap": round(float(quality.overlap[at]), 4),
            "confidence": round(float(predicted[at]), 4),
            **_best_ids(held_out.doc_ids, int(quality.own[at]), int(quality.teachers[at])),
        }
        for at in weakest.tolist()
    ]


def _best_ids(doc_ids: Sequence[str], own: int, teachers: int) -> dict[str, str]:
    """Return the ids of both best documents; {} if the candidates are no documents."""
    return {"table": doc_ids[own], "truth": doc_ids[teachers]} if doc_ids else {}


def write_report(folder: Path, report: QualityReport) -> None:
    """Write a report into a model folder, and the confidence beside its query table."""
    write_json(folder / REPORT_FILE, report.content)
    write_json(folder / QUERY_ENCODER / CONFIDENCE_FILE, to_json(report.confidence))
    stored = {name: np.ascontiguousarray(getattr(report.confidence, name), np.float32) for name in ("seen", "norms")}
    save_file(stored, str(folder / QUERY_ENCODER / STATISTICS_FILE))


def counted_terms(queries: Ragged, vocab_size: int) -> Floats:
    """Return the occurrences of each term, (vocab_size,) float32; pairs are not counted."""
    terms = queries.term_ids[queries.term_ids < vocab_size]
    return np.bincount(terms, minlength=vocab_size).astype(np.float32)


def held_out_queries(
    data: FitData,
    unseen: npt.NDArray[np.int64],
    texts: Sequence[str],
    kinds: Sequence[str],
    doc_ids: Sequence[str],
    *,
    vocab_size: int,
) -> HeldOutQueries:
    """Return the held-out part of the queries of a fit, with the occurrences of the terms in the other part."""
    seen = data.take(np.setdiff1d(np.arange(len(data.queries)), unseen)).queries
    at = unseen.tolist()
    return HeldOutQueries(
        data.take(unseen), [texts[i] for i in at], [kinds[i] for i in at], doc_ids, counted_terms(seen, vocab_size)
    )
