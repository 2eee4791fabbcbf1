"""Explanations: each branch's part of a document's score, and each term's part of a branch's score."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.index import View
from lightir.index.passages.naming import passage_of, without_place
from lightir.kernel import Weights
from lightir.kernel.candidates import Candidates
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.query.bigrams import Bigrams, FoundRuns
from lightir.search.branches import BranchSearch, EncodedQueries
from lightir.search.search_options import fusion_text
from lightir.search.snippets import Snippet
from lightir.text import query_term_ids
from lightir.types import BRANCHES, Branch, BranchScore, Document, Hit, Part, TermScore
from lightir.vectors import Floats, IntArray, Ragged, TermIds


@dataclass(frozen=True, slots=True)
class Explanation:
    """A document's score for a query, by branch and by term.

    Attributes:
        doc_id: id of the document.
        score: the sum of weight x normalized over the branches, added in their order: the score in a ranking.
        rank: 1-based place among the candidates; None when no branch lists the document, so that no search finds it.
        n_candidates: number of documents that at least one branch lists.
        fusion: name of the fusion method; one branch alone is "linear:none", its raw score.
        branches: each branch's raw score, normalized score, rank and weight.
        terms: branch -> its terms, strongest first. Their scores add up to the branch's raw score, except for float32
            rounding. Sparse and tokens have the terms that query and document share; tokens under a language model has
            all terms of the query that occur in the collection; dense has all terms if the query's vector is a mean of
            table rows, else none. A branch without a score has no terms.
        pending: True if the document has no vectors yet. Among fused documents it keeps its place in the tokens branch,
            and its score is that of the document before it.
        named: True if the query names the document by its id or key. Its score is then at least 1, and above those of
            the other documents.
    """

    doc_id: str
    score: float
    rank: int | None
    n_candidates: int
    fusion: str
    branches: Mapping[Branch, BranchScore]
    terms: Mapping[Branch, tuple[TermScore, ...]]
    pending: bool = False
    named: bool = False


def explained(
    doc_id: str,
    doc_ord: int,
    candidates: Candidates,
    terms: Mapping[Branch, Sequence[TermScore]],
    fusion: Fusion,
    *,
    pending: bool,
    named: bool = False,
) -> Explanation:
    """Return the explanation of one document.

    Args:
        doc_id: id of the document.
        doc_ord: number of the document.
        candidates: all candidates, the document among them.
        terms: branch -> its terms, see `Explanation`.
        fusion: method and weights.
        pending: whether the document has no vectors yet.
        named: whether the query names the document.
    """
    position = int(np.flatnonzero(candidates.doc_ords == doc_ord)[0])
    (branches,) = branch_scores(candidates.take(slice(position, position + 1)), [pending])
    listed = named or any(column.ranks[position] for column in candidates.columns.values())
    return Explanation(
        doc_id=doc_id,
        score=float(candidates.scores[position]),
        rank=position + 1 if listed else None,
        n_candidates=len(candidates.doc_ords) - (not listed),
        fusion=fusion_text(fusion),
        branches=branches,
        terms={branch: tuple(terms[branch]) for branch in BRANCHES if branch in terms},
        pending=pending,
        named=named,
    )


def unmatched(doc_id: str) -> InvalidInput:
    """Return the error of a document that the filter or the query's conditions leave out."""
    return InvalidInput(
        f"document {doc_id!r} does not match the filter or the query's conditions, so no search ranks it"
    )


def make_hit(
    document: Document,
    score: float,
    branches: Mapping[Branch, BranchScore],
    shown: Snippet,
    terms: Sequence[TermScore],
    *,
    pending: bool,
    named: bool = False,
) -> Hit:
    """Return a document as a page of results shows it.

    Args:
        document: document with its text.
        score: its score.
        branches: each branch's part of the score.
        shown: passage of the text.
        terms: matched terms.
        pending: whether the document has no vectors yet.
        named: whether the query names the document.
    """
    return Hit(
        document.doc_id,
        score,
        document.title,
        shown.text,
        document.metadata,
        cast(Mapping[Part, BranchScore], branches),
        tuple(terms),
        shown.highlights,
        pending=pending,
        named=named,
    )


def as_passage_hit(hit: Hit, document: Document, by_document: bool) -> Hit:
    """Return the hit of a passage with its place; the hit of a whole document is unchanged.

    Args:
        hit: the hit.
        document: the stored document or passage.
        by_document: whether the hit stands for the whole document of a passage.
    """
    passage = passage_of(document)
    if passage is None:
        return hit
    doc_id = passage.document if by_document else hit.doc_id
    return dataclasses.replace(hit, doc_id=doc_id, metadata=without_place(document.metadata), passage=passage)


def with_words(
    terms: Sequence[TermScore], query: str, analyzer: Analyzer, alternatives: Mapping[str, str]
) -> list[TermScore]:
    """Return the terms, each stem with the query's first word for it: "memory" for "memori".

    Args:
        terms: matched terms.
        query: text of the query.
        analyzer: analyzer that made the terms of the query.
        alternatives: term -> word of the query that it is an alternative to.
    """
    words: dict[str, str] = {}
    for word in analyzer.occurrences(query, frozenset(term.term for term in terms)):
        for term in word.terms:
            words.setdefault(term, query[word.start : word.end])
    given = [words.get(term.term, alternatives.get(term.term, "")) for term in terms]
    return [
        term if word.lower() in ("", term.term) else dataclasses.replace(term, word=word)
        for term, word in zip(terms, given, strict=True)
    ]


def matched_terms(
    query: tuple[TermIds, Weights], document: tuple[TermIds, Weights], text_of: Callable[[int], str]
) -> list[TermScore]:
    """Return the terms that query and document share, strongest first; ties go to the smaller term id.

    Args:
        query: term ids of the query, ascending and different, and their weights.
        document: term ids of the document, ascending and different, and their weights.
        text_of: function from a term id to its text.
    """
    (wanted, weights), (term_ids, impacts) = query, document
    shared, i, j = np.intersect1d(wanted, term_ids, assume_unique=True, return_indices=True)
    scores = weights[i].astype(np.float32) * impacts[j].astype(np.float32)
    order = np.lexsort((shared, -scores))
    return [TermScore(text_of(int(shared[p])), float(weights[i[p]]), float(scores[p])) for p in order]


def term_vectors(
    encoder: CachedQueryEncoder, query: str, *, task: str | None, dim: int | None
) -> tuple[TermIds, IntArray, Floats]:
    """Return a query's distinct term ids, their counts, and each term's part of the query's vector.

    Args:
        encoder: query encoder with tables.
        query: text of the query.
        task: name of the table; None for the default.
        dim: width of the parts; None for the encoder's.

    Returns:
        Term ids (n,) uint32 ascending, counts (n,) int64, and parts (n, dim) float32 whose sum has length 1. Rows are
        multiplied by their weights of the gate. A bigram's row, or that of a longer run of
        terms, belongs to its terms in equal parts.
    """
    table = encoder.tables[next(iter(encoder.tables)) if task is None else task]
    token_ids = query_term_ids(encoder.tokenizer, encoder.contract.query, [query]).term_ids
    term_ids, counts = np.unique(token_ids, return_counts=True)
    runs = _runs(encoder, token_ids)
    pairs = runs.rows.term_ids.astype(np.int64)
    weights = np.ones(len(token_ids) + len(pairs))
    if encoder.gate is not None:
        weights = encoder.gate.weights(np.concatenate([token_ids.astype(np.int64), len(table.embeddings) + pairs]))
    parts = np.zeros((len(term_ids), dim or encoder.dim or 0))
    places = np.searchsorted(term_ids, token_ids)
    np.add.at(parts, places, weights[: len(token_ids), None] * _table_rows(table, token_ids, parts.shape[1]))
    if encoder.bigrams is not None:
        rows = weights[len(token_ids) :, None] * _table_rows(encoder.bigrams.table, pairs, parts.shape[1])
        owners = np.repeat(np.arange(len(pairs)), runs.lengths)
        steps = np.arange(len(owners)) - np.repeat(np.cumsum(runs.lengths) - runs.lengths, runs.lengths)
        np.add.at(parts, places[runs.starts[owners] + steps], (rows / runs.lengths[:, None])[owners])
    length = float(np.linalg.norm(parts.sum(axis=0)))
    return term_ids, counts.astype(np.int64), (parts / (length or 1.0)).astype(np.float32)


def dense_terms(
    encoder: CachedQueryEncoder, view: View, query: str, doc_ord: int, *, task: str | None
) -> list[TermScore]:
    """Return a query's terms with their parts of a document's dense score, largest first; none without a known term."""
    term_ids, counts, parts = term_vectors(encoder, query, task=task, dim=view.dense_dim)
    if set(term_ids.tolist()) <= {encoder.tokenizer.unknown_id}:
        return []
    searched = BranchSearch(view, EncodedQueries(len(parts), parts, None, None))
    doc_ords = np.array([doc_ord], dtype=np.uint32)
    scores = [float(searched.pair_scores("dense", doc_ords, i)[0]) for i in range(len(parts))]
    names = [encoder.tokenizer.term(term_id) for term_id in term_ids.tolist()]
    terms = [TermScore(*values) for values in zip(names, counts.astype(float).tolist(), scores, strict=True)]
    return sorted(terms, key=lambda term: -term.score)


def _runs(encoder: CachedQueryEncoder, token_ids: TermIds) -> FoundRuns:
    """Return a text's pairs and longer runs of terms that have rows."""
    bigrams = Bigrams(np.zeros((0, 2), dtype=np.uint32)) if encoder.bigrams is None else encoder.bigrams.bigrams
    return bigrams.find(Ragged(token_ids, np.array([0, len(token_ids)], dtype=np.int64)))


def _table_rows(table: CachedTable, rows: IntArray | TermIds, dim: int) -> Floats:
    """Return rows of a table as (n, dim) float32."""
    alone = np.arange(len(rows) + 1, dtype=np.int64)
    ids = rows.astype(np.uint32)
    return kernel.mean_rows(table.embeddings, ids, alone, normalize=False, scales=table.scales, dim=dim)


def branch_scores(candidates: Candidates, pending: Sequence[bool]) -> list[dict[Branch, BranchScore]]:
    """Return each branch's part of each candidate; a branch that only ranks pending documents is one of theirs alone.

    Args:
        candidates: n candidates.
        pending: whether each candidate has no vectors yet.
    """
    parts: list[dict[Branch, BranchScore]] = [{} for _ in pending]
    for name, column in candidates.columns.items():
        branch, weight = cast(Branch, name), column.weight
        values = zip(column.scores.tolist(), column.normalized.tolist(), column.ranks.tolist(), strict=True)
        for part, is_pending, (score, normalized, rank) in zip(parts, pending, values, strict=True):
            if is_pending and branch != "tokens":
                part[branch] = BranchScore(None, None, None, weight)
            elif not math.isnan(score):
                part[branch] = BranchScore(score, None if math.isnan(normalized) else normalized, rank or None, weight)
    return parts
