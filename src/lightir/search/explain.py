"""Why a document was found: each branch's part of its score, and each term's part of a branch's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.contract import Fusion
from lightir.index import View
from lightir.kernel import Weights
from lightir.query import CachedQueryEncoder
from lightir.query.tables import CachedBigrams
from lightir.search.branches import BranchSearch, EncodedQueries
from lightir.search.fusion import Fused
from lightir.search.options import fusion_text
from lightir.search.snippets import snippet
from lightir.text import query_term_ids
from lightir.types import Branch, BranchScore, Document, Hit, TermScore
from lightir.vectors import Floats, IntArray, Ragged, TermIds


@dataclass(frozen=True, slots=True)
class Explanation:
    """What makes a document's score for a query.

    Attributes:
        doc_id: the document.
        score: the sum of weight x normalized over the branches, added in their order: the score in a ranking.
        rank: 1-based place among the candidates; None when no branch lists the document, so that no search finds it.
        n_candidates: documents that at least one branch lists.
        fusion: how branches are joined, in one word; one branch alone is "linear:none", its raw score.
        branches: what each says.
        terms: branch -> its terms, strongest first, whose scores add up to the branch's raw score (but for float32's
            rounding): of sparse and tokens those that query and document share, of tokens under a language model all
            of the query's that the collection has, and of dense all, where the query's vector is a mean of table rows
            (otherwise none are told). An estimated score has none.
    """

    doc_id: str
    score: float
    rank: int | None
    n_candidates: int
    fusion: str
    branches: Mapping[Branch, BranchScore]
    terms: Mapping[Branch, tuple[TermScore, ...]]

    @property
    def estimated(self) -> bool:
        """Whether any branch's score is an estimate, since the document waits for its vectors."""
        return any(branch.estimated for branch in self.branches.values())


def explained(
    doc_id: str,
    doc_ord: int,
    fused: Fused,
    terms: Mapping[Branch, Sequence[TermScore]],
    fusion: Fusion,
    *,
    estimated: bool,
) -> Explanation:
    """The explanation of one document.

    Args:
        doc_id: the document.
        doc_ord: its number.
        fused: all candidates, the document among them.
        terms: branch -> its terms, see `Explanation`.
        fusion: how branches are joined.
        estimated: the vector branches' scores are estimates.
    """
    place = int(np.flatnonzero(fused.doc_ords == doc_ord)[0])
    listed = any(column.ranks[place] for column in fused.columns.values())
    return Explanation(
        doc_id=doc_id,
        score=float(fused.scores[place]),
        rank=place + 1 if listed else None,
        n_candidates=len(fused.doc_ords) - (not listed),
        fusion=fusion_text(fusion),
        branches=_branch_scores(fused, place, estimated),
        terms={branch: tuple(terms[branch]) for branch in fused.columns if branch in terms},
    )


def make_hit(
    query: str, document: Document, fused: Fused, analyzer: Analyzer, terms: Sequence[TermScore], *, estimated: bool
) -> Hit:
    """One found document as a page of results shows it.

    Args:
        query: its text.
        document: the document.
        fused: this document alone.
        analyzer: finds the query's terms in the text.
        terms: the matched terms.
        estimated: the vector branches' scores are estimates.
    """
    shown = snippet(document.text, query, analyzer)
    score = float(fused.scores[0])
    branches = _branch_scores(fused, 0, estimated)
    return Hit(
        document.doc_id,
        score,
        document.title,
        shown.text,
        document.metadata,
        branches,
        tuple(terms),
        shown.highlights,
    )


def with_words(terms: Sequence[TermScore], query: str, analyzer: Analyzer) -> list[TermScore]:
    """The terms, each stem with the query's first word that gave it: "memory" for "memori"."""
    words: dict[str, str] = {}
    for place in analyzer.occurrences(query, frozenset(term.term for term in terms)):
        for term in place.terms:
            words.setdefault(term, query[place.start : place.end])
    given = [words.get(term.term, "") for term in terms]
    return [
        term if word.lower() in ("", term.term) else dataclasses.replace(term, word=word)
        for term, word in zip(terms, given, strict=True)
    ]


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


def term_vectors(
    encoder: CachedQueryEncoder, query: str, *, task: str | None, dim: int | None
) -> tuple[TermIds, IntArray, Floats]:
    """A query's distinct term ids, how often each comes, and each one's part of the query's vector.

    Args:
        encoder: one with tables.
        query: its text.
        task: the table to use; None for the default.
        dim: width of the parts; None for the encoder's.

    Returns:
        Term ids (n,) uint32 ascending, counts (n,) int64, and parts (n, dim) float32 whose sum has length 1. Half of a
        bigram's row belongs to either of its terms.
    """
    table = encoder.tables[next(iter(encoder.tables)) if task is None else task]
    found = query_term_ids(encoder.tokenizer, encoder.contract.query, [query]).term_ids
    term_ids, counts = np.unique(found, return_counts=True)
    each_alone = np.arange(len(term_ids) + 1, dtype=np.int64)
    rows = kernel.mean_rows(
        table.embeddings, term_ids, each_alone, normalize=False, scales=table.scales, dim=dim or encoder.dim
    )
    parts = rows.astype(np.float64) * counts[:, None]
    if encoder.bigrams is not None:
        parts += _halves(encoder.bigrams, found, term_ids, dim=dim or encoder.dim)
    length = float(np.linalg.norm(parts.sum(axis=0)))
    return term_ids, counts.astype(np.int64), (parts / (length or 1.0)).astype(np.float32)


def dense_terms(
    encoder: CachedQueryEncoder, view: View, query: str, doc_ord: int, *, task: str | None
) -> list[TermScore]:
    """A query's terms with what each adds to a document's dense score, largest first; none without a known term."""
    term_ids, counts, parts = term_vectors(encoder, query, task=task, dim=view.dense_dim)
    if set(term_ids.tolist()) <= {encoder.tokenizer.unknown_id}:
        return []
    searched = BranchSearch(view, EncodedQueries(len(parts), parts, None, None))
    place = np.array([doc_ord], dtype=np.uint32)
    scores = [float(searched.pair_scores("dense", place, i)[0]) for i in range(len(parts))]
    names = [encoder.tokenizer.term(term_id) for term_id in term_ids.tolist()]
    terms = [TermScore(*each) for each in zip(names, counts.astype(float).tolist(), scores, strict=True)]
    return sorted(terms, key=lambda term: -term.score)


def _halves(bigrams: CachedBigrams, found: TermIds, term_ids: TermIds, *, dim: int | None) -> npt.NDArray[np.float64]:
    """(n, dim) half of the rows of the bigrams in a text `found`, summed for each of its distinct terms."""
    pairs, places = bigrams.bigrams.find(Ragged(found, np.asarray([0, len(found)], dtype=np.int64)))
    alone = np.arange(len(places) + 1, dtype=np.int64)
    table = bigrams.table
    rows = kernel.mean_rows(table.embeddings, pairs.term_ids, alone, normalize=False, scales=table.scales, dim=dim)
    halves = np.zeros((len(term_ids), rows.shape[1]))
    for ends in (found[places], found[places + 1]):
        np.add.at(halves, np.searchsorted(term_ids, ends), rows / 2)
    return halves


def _branch_scores(fused: Fused, place: int, estimated: bool) -> dict[Branch, BranchScore]:
    return {
        branch: BranchScore(
            float(column.scores[place]),
            float(column.normalized[place]),
            int(column.ranks[place]) or None,
            column.weight,
            estimated and branch != "tokens",
        )
        for branch, column in fused.columns.items()
    }
