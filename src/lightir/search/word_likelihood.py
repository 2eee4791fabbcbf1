"""Query likelihood of counted words over a view of an index: the tokens branch as a language model instead of BM25.

lightir.search.language_model defines the scores; its `LanguageModel` is the slow twin. An index stores the counts and
length of every document. p(w|C) is counted over the live documents, so an index of any history gives the bits of an
index built at once. With t over a query's distinct words, c_t their counts in it, and
n = Σ c_t:

    Jelinek-Mercer:  Σ c_t [ln(1 + (1 - λ) tf / (|d| λ p(t|C))) + ln(λ p(t|C))]
    Dirichlet:       Σ c_t [ln(1 + tf / (μ p(t|C))) + ln(μ p(t|C))] - n ln(|d| + μ)

The computation is numpy, term by term over postings, in double precision: for comparisons, not for speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lightir.index import TokenQueries, View
from lightir.index.segments.columns import Mask
from lightir.index.segments.rows import RowNumbers
from lightir.kernel import BLOCK_SIZE, DocOrds, Postings
from lightir.kernel.candidates import BranchList
from lightir.search.language_model import Smoothing
from lightir.vectors import Floats

Sums = npt.NDArray[np.float64]


class WordLikelihood:
    """A batch of queries over one view."""

    def __init__(self, view: View, queries: TokenQueries, smoothing: Smoothing) -> None:
        """Count the queries' words in the collection.

        Args:
            view: view with a tokens branch of counts.
            queries: query terms, whose weights are counts.
            smoothing: method and weight.
        """
        self._view = view
        self._queries = queries
        self._smoothing = smoothing
        total = sum(live.total_length for live in view.segments)
        counts = np.array([self._in_collection(term) for term in range(len(queries.terms))], dtype=np.float64)
        self._alone = smoothing.weight * counts / (total or 1)  # λ p(t|C) or μ p(t|C)

    def top(self, query: int, k: int, matching: Sequence[Mask] | None) -> BranchList:
        """Return the k likeliest documents of those with one of the query's words, with all that tie with the last.

        Args:
            query: number of the query in the batch.
            k: number of documents.
            matching: masks of the documents that may be found, one per segment; None for all.
        """
        doc_ords, scores = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for position, live in enumerate(self._view.segments):
            sums, holds = self._sums(position, query)
            holds &= live.live
            if matching is not None:
                holds &= matching[position]
            rows = np.flatnonzero(holds)
            doc_ords.append(rows + live.first_ord)
            scores.append(self._finished(sums[rows], position, rows, query))
        return _best_and_ties(np.concatenate(doc_ords), np.concatenate(scores), k)

    def scores(self, doc_ords: DocOrds, query: int) -> Floats:
        """Return (n,) float32 likelihoods of some documents, whether they hold a word of the query or not."""
        at, places = self._view.locate(doc_ords)
        scores = np.zeros(len(doc_ords), dtype=np.float32)
        for position in np.unique(at).tolist():
            here = at == position
            wanted = places[here].astype(np.int64)
            sums, _ = self._sums(position, query)
            scores[here] = self._finished(sums[wanted], position, wanted, query)
        return scores

    def terms(self, doc_ord: int, query: int) -> tuple[npt.NDArray[np.uint32], Floats]:
        """Return the query's words, as positions among the batch's terms, and ln p(w|d) of each."""
        at, rows = self._view.locate(np.array([doc_ord], dtype=np.uint32))
        position, row = int(at[0]), rows.astype(np.int64)
        term_ids, _ = self._queries.vectors.row(query)
        told = []
        for term in term_ids.tolist():
            sums, _ = self._sums_of(position, {term: 1.0})
            told.append(float(sums[row][0] + self._constants(position, row, {term: 1.0})[0]))
        return term_ids, np.array(told, dtype=np.float32)

    def _counted(self, query: int) -> dict[int, float]:
        """Return the query's words, as ascending positions among the batch's terms, and their counts."""
        term_ids, counts = self._queries.vectors.row(query)
        return dict(zip(term_ids.tolist(), counts.astype(float).tolist(), strict=True))

    def _sums(self, position: int, query: int) -> tuple[Sums, Mask]:
        return self._sums_of(position, self._counted(query))

    def _sums_of(self, position: int, words: dict[int, float]) -> tuple[Sums, Mask]:
        """Return the part of the likelihood from each document's own words, and a mask of those that hold one."""
        segment = self._view.segments[position].segment
        sums, holds = np.zeros(len(segment)), np.zeros(len(segment), dtype=np.bool_)
        for term, count in words.items():
            rows, own = self._postings(position, term)
            if self._smoothing.method == "jelinek-mercer":
                own = (1 - self._smoothing.weight) * own / segment.lengths[rows]
            sums[rows] += count * np.log1p(own / self._alone[term])
            holds[rows] = True
        return sums, holds

    def _finished(self, sums: Sums, position: int, places: RowNumbers, query: int) -> Floats:
        constants = self._constants(position, places, self._counted(query))
        return (sums + constants).astype(np.float32)

    def _constants(self, position: int, places: RowNumbers, words: dict[int, float]) -> Sums:
        """Return the likelihoods of documents without any of the words, by their lengths."""
        constant = sum(count * float(np.log(self._alone[term])) for term, count in words.items())
        constants = np.full(len(places), constant, dtype=np.float64)
        if self._smoothing.method == "dirichlet":
            lengths = self._view.segments[position].segment.lengths[places].astype(np.float64)
            constants -= sum(words.values()) * np.log(lengths + self._smoothing.weight)
        return constants

    def _in_collection(self, term: int) -> float:
        """Return the count of a term in the live documents."""
        total = 0.0
        for position, live in enumerate(self._view.segments):
            rows, counts = self._postings(position, term)
            total += float(counts[live.live[rows]].sum() if live.deleted is not None else counts.sum())
        return total

    def _postings(self, position: int, term: int) -> tuple[RowNumbers, Sums]:
        """Return the rows of a segment that hold a term, ascending, and its counts; deleted ones too."""
        term_id = int(self._queries.places[position][term])
        counts = self._view.segments[position].segment.counts
        if term_id < 0 or counts is None:
            return np.zeros(0, np.int64), np.zeros(0)
        return _of_term(counts, term_id)


def _of_term(postings: Postings, term_id: int) -> tuple[RowNumbers, Sums]:
    """Return the rows that hold a term, ascending, and its weights."""
    at = int(np.searchsorted(postings.term_ids, term_id))
    if at == len(postings.term_ids) or postings.term_ids[at] != term_id:
        return np.zeros(0, np.int64), np.zeros(0)
    runs = slice(int(postings.term_indptr[at]), int(postings.term_indptr[at + 1]))
    begins = postings.run_indptr[runs.start : runs.stop + 1]
    blocks = np.repeat(postings.run_blocks[runs].astype(np.int64), np.diff(begins))
    span = slice(int(begins[0]), int(begins[-1]))
    return blocks * BLOCK_SIZE + postings.offsets[span], postings.weights[span].astype(np.float64)


def _best_and_ties(doc_ords: RowNumbers, scores: Floats, k: int) -> BranchList:
    """Return the k best and those that tie with the last of them: score down, then doc_ord up."""
    if k < len(scores):
        kept = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
        doc_ords, scores = doc_ords[kept], scores[kept]
    order = np.lexsort((doc_ords, -scores))
    return BranchList(doc_ords[order].astype(np.uint32), scores[order])
