"""The words of a view: which documents have a term, and queries for the tokens branch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightir.analysis import OF_A_MODEL, Analyzer
from lightir.index.bm25 import idf
from lightir.index.known_words import KnownWords, TermFacts
from lightir.index.segments.dictionary import SortedStrings
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.shared_property import shared_property
from lightir.index.token_queries import Alternatives, TokenQueries
from lightir.index.word_dictionary import WordDictionary
from lightir.vectors import SparseVectors, row_entries

if TYPE_CHECKING:
    from lightir.index.collection import CollectionCounts

TERMS_KEPT = 100_000
"""Maximum number of query terms whose positions in the segments are cached."""

PENDING_ASKED = 4096
"""Maximum number of pending documents whose terms are listed, to tell which queries match none of them."""


class ViewWords:
    """The terms of the tokens branch over the segments of a view: words, or term ids of the model."""

    def __init__(
        self,
        segments: Sequence[LiveSegment],
        analyzer: Analyzer | None,
        n_counted: int,
        collection: CollectionCounts | None,
    ) -> None:
        """Take the segments of a view, but not the view, which would keep closed files open.

        Args:
            segments: the view's segments.
            analyzer: the view's analyzer.
            n_counted: number of documents by which words are weighted.
            collection: counts of all shards if the index is one of several; None if it is alone.
        """
        self._segments = segments
        self._analyzer = analyzer
        self._n_counted = n_counted
        self._collection = collection
        self._terms: dict[str | int, TermFacts] = {}

    def queries(
        self,
        rows: Sequence[Sequence[str | int]],
        *,
        idfs: bool = True,
        alternatives: Sequence[Sequence[Alternatives]] = (),
        analyzed: Sequence[Sequence[str]] = (),
    ) -> TokenQueries:
        """Return analyzed queries for the tokens branch.

        Args:
            rows: the terms of each query: words, or term ids of the model.
            idfs: whether weights are count x idf, for BM25, or counts.
            alternatives: further words of each query, for BM25; empty if no query has any. A term's weight is the sum
                of its own and those that groups of alternatives give it: factor x idf of the group's most frequent one.
            analyzed: `TokenQueries.analyzed`.
        """
        groups = alternatives if any(alternatives) else ()
        named = {term for row in rows for term in row}
        named.update(term for of_query in groups for group in of_query for term in group.terms)
        terms, places, idf_of = [], [], []
        for term in sorted(named):
            df, positions, weight = self.facts(term)
            if df:
                terms.append(term)
                places.append(positions)
                idf_of.append(weight if idfs else 1.0)
        position_of = {term: position for position, term in enumerate(terms)}
        of_unknown = idf(self._n_counted, 0) if idfs else 1.0
        # One query at a time in plain Python, since for a few queries each array operation costs more than it saves.
        weights: list[list[tuple[int, float]]] = []
        unknown = []
        for row in rows:
            counts: dict[int, int] = {}
            for term in row:
                position = position_of.get(term, -1)
                counts[position] = counts.get(position, 0) + 1
            unknown.append(of_unknown * counts.pop(-1, 0))
            weights.append([(at, counts[at] * idf_of[at]) for at in sorted(counts)])
        for i, of_query in enumerate(groups):
            if of_query:
                before = sum(value for _, value in weights[i])
                weights[i] = self._with_alternatives(weights[i], of_query, position_of)
                unknown[i] += before - sum(value for _, value in weights[i])
                unknown[i] += self._weight_of_replaced(rows[i], of_query)
        pairs = [pair for row in weights for pair in row]
        vectors = SparseVectors.unchecked(
            np.array([0, *itertools.accumulate(map(len, weights))], dtype=np.int64),
            np.array([position for position, _ in pairs], dtype=np.uint32),
            np.array([weight for _, weight in pairs], dtype=np.float32),
            vocab_size=len(terms),
        )
        words = {term: group.word for of_query in groups for group in of_query for term in group.terms}
        ids = np.ascontiguousarray(np.array(places, dtype=np.int64).reshape(len(terms), len(self._segments)).T)
        return TokenQueries(terms, vectors, ids, words, np.array(unknown, dtype=np.float64), analyzed)

    def _with_alternatives(
        self, row: Sequence[tuple[int, float]], groups: Sequence[Alternatives], position_of: Mapping[str | int, int]
    ) -> list[tuple[int, float]]:
        """Return a query's positions and weights with those of its alternatives added, by ascending position."""
        weights = dict(row)
        for group in groups:
            shared = idf(self._n_counted, max(self.frequency(term) for term in (*group.terms, group.own)))
            for term, factor in zip(group.terms, group.factors, strict=True):
                if (position := position_of.get(term)) is not None:
                    weights[position] = weights.get(position, 0.0) + factor * shared
        return sorted(weights.items())

    def _weight_of_replaced(self, row: Sequence[str | int], groups: Sequence[Alternatives]) -> float:
        """Return the weight of the words that have alternatives and are no terms of the query any more, each once."""
        assert self._analyzer is not None  # there are alternatives to words alone
        most: dict[str, float] = {}
        for group in groups:
            if not set(self._analyzer.terms([group.word])[0]) & set(row):
                shared = idf(self._n_counted, max(self.frequency(term) for term in group.terms))
                most[group.word] = max(most.get(group.word, 0.0), max(group.factors) * shared)
        return sum(most.values())

    def frequency(self, term: str | int) -> int:
        """Return the number of documents that have a term."""
        return self.facts(term)[0]

    @shared_property
    def vocabulary(self) -> WordDictionary:
        """The words of the tokens branch, of all shards; none where its terms are the model's."""
        if self._collection is not None:
            terms = self._collection.terms
            return WordDictionary([(terms, self._collection.df)] if isinstance(terms, SortedStrings) else [])
        if self._analyzer is not None and self._analyzer.name in OF_A_MODEL:
            return WordDictionary([])
        parts = [(live.segment.terms, live.segment.df) for live in self._segments if live.segment.has("tokens")]
        return WordDictionary([(terms, df) for terms, df in parts if isinstance(terms, SortedStrings)])

    def pending_match(self, rows: Sequence[Sequence[str | int]]) -> bool:
        """Return whether a pending document may have a term of a query; True if there are too many to ask.

        Args:
            rows: the terms of each query, as for `queries`.
        """
        if sum(live.n_pending for live in self._segments) > PENDING_ASKED:
            return True
        asked = {term for row in rows for term in row}
        return any(self.facts(term)[1][number] in held for number, held in self._pending_terms for term in asked)

    @shared_property
    def _pending_terms(self) -> list[tuple[int, frozenset[int]]]:
        """Number of each segment with pending documents, and their terms' positions in its dictionary."""
        held = []
        for number, live in enumerate(self._segments):
            stored = live.segment.tokens
            if live.n_pending and stored is not None:
                with live.segment.naming_damage():
                    _, entries = row_entries(stored.indptr, np.flatnonzero(live.segment.pending & live.live))
                    held.append((number, frozenset(stored.term_ids[entries].tolist())))
        return held

    def bag_queries(self, queries: SparseVectors) -> TokenQueries:
        """Return queries with weights over the model's vocabulary for a branch of bags; weights are unchanged."""
        distinct, positions = np.unique(queries.term_ids, return_inverse=True)
        places = np.empty((len(self._segments), len(distinct)), dtype=np.int64)
        for row, live in zip(places, self._segments, strict=True):
            row[:] = live.segment.term_positions(distinct)
        vectors = SparseVectors(queries.indptr, positions.astype(np.uint32), queries.weights, max(len(distinct), 1))
        return TokenQueries(distinct.tolist(), vectors, places)

    def known_queries(
        self, texts: Sequence[str], corrects: Callable[[str], bool], *, asking: bool
    ) -> TokenQueries | None:
        """Return what `queries` returns for the words of texts; None if the kernel cannot read them.

        Args:
            texts: texts of n queries.
            corrects: function that tells whether a term that no document has gets alternatives; always the same one.
            asking: whether words such as "what" count beside other words.
        """
        known = self._known_words
        return None if known is None else known.queries(texts, self.facts, corrects, asking=asking)

    @shared_property
    def _known_words(self) -> KnownWords | None:
        if self._analyzer is None or self._analyzer.name in (*OF_A_MODEL, "chinese"):
            return None  # ASCII texts are split in another way
        return KnownWords(self._analyzer, len(self._segments))

    def facts(self, term: str | int) -> TermFacts:
        """Return a term's number of documents, its position in each segment's dictionary or -1, and its IDF."""
        facts = self._terms.get(term)
        if facts is None:
            positions = [live.segment.terms.find(term) for live in self._segments]  # type: ignore[arg-type]
            pairs = zip(self._segments, positions, strict=True)
            if self._collection is not None:
                df = self._collection.frequency(term)
            else:
                df = sum(live.df(position) for live, position in pairs if position is not None)
            facts = df, tuple(-1 if position is None else position for position in positions), idf(self._n_counted, df)
            if len(self._terms) >= TERMS_KEPT:
                self._terms.clear()
            self._terms[term] = facts
        return facts
