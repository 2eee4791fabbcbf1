"""Why a document was found: each branch's part of its score, and each term's part of a branch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lightir.analysis import Analyzer
from lightir.kernel import Weights
from lightir.search.fusion import Fused
from lightir.search.snippets import snippet
from lightir.types import BranchScore, Document, Hit, TermScore
from lightir.vectors import TermIds


def make_hit(query: str, document: Document, fused: Fused, analyzer: Analyzer, terms: Sequence[TermScore]) -> Hit:
    """One found document as a page of results shows it; `fused` holds this document alone."""
    branches = {
        branch: BranchScore(float(column.scores[0]), float(column.normalized[0]), int(column.ranks[0]) or None)
        for branch, column in fused.columns.items()
    }
    shown = snippet(document.text, query, analyzer)
    score = float(fused.scores[0])
    return Hit(document.doc_id, score, document.title, shown, document.metadata, branches, tuple(terms))


def matched_terms(
    query: tuple[TermIds, Weights], document: tuple[TermIds, Weights], text_of: Callable[[int], str]
) -> list[TermScore]:
    """The terms that query and document share, strongest first, ties by term id; their scores are the branch's.

    Args:
        query: term ids, ascending and different, and their weights.
        document: the same of one document.
        text_of: a term id's text.
    """
    (wanted, weights), (term_ids, impacts) = query, document
    shared, i, j = np.intersect1d(wanted, term_ids, assume_unique=True, return_indices=True)
    scores = weights[i].astype(np.float32) * impacts[j].astype(np.float32)
    order = np.lexsort((shared, -scores))
    return [TermScore(text_of(int(shared[p])), float(weights[i[p]]), float(scores[p])) for p in order]
