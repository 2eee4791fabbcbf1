"""Encoding of queries for the branches of a plan: vectors by a query encoder, words by the index's analyzer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lightir.errors import InvalidInput
from lightir.index import TokenQueries, View
from lightir.index.token_queries import Alternatives
from lightir.query import CachedQueryEncoder
from lightir.search.branches import EncodedQueries
from lightir.search.external_vectors import GivenQueryVectors
from lightir.search.language_model import Smoothing
from lightir.search.plan import Plan
from lightir.search.word_matching import EXACT_WORDS, WordMatching
from lightir.text import check_text
from lightir.types import Query
from lightir.vectors import Floats, QueryEncoder, QueryVectors, SparseVectors, normalized


class QueryWords(NamedTuple):
    """The words of n queries.

    Attributes:
        rows: terms of each query.
        alternatives: further words of each query; empty if no query has any.
        analyzed: terms of each query's own words, also of those that are left out or replaced.
    """

    rows: list[list[str]]
    alternatives: list[list[Alternatives]]
    analyzed: list[list[str]]


@dataclass(frozen=True, slots=True)
class QueryCoding:
    """Turns queries into vectors and terms.

    Attributes:
        encoder: query encoder; None for an index of words alone.
        task: name of the encoder's table; None for its default.
        smoothing: language model of counted words; its queries' weights are counts. None for BM25 and bags.
        overlap: whether queries over bags have the weight 1 for each of their terms.
        matching: how words match other words of the index by BM25.
    """

    encoder: QueryEncoder | None
    task: str | None
    smoothing: Smoothing | None
    overlap: bool = False
    matching: WordMatching = EXACT_WORDS

    def encode(self, view: View, queries: Sequence[Query], chosen: Plan) -> EncodedQueries:
        """Encode a batch of queries for the branches of a plan over a view.

        Raises:
            InvalidInput: a text that is no str, or an encoder without a branch that the plan searches.
        """
        texts = [checked_text(query.query_id, query.text) for query in queries]
        by_tokens = "tokens" in chosen.searched
        by_words = by_tokens and not view.counts_model_terms
        tokens = self._word_queries(view, texts) if by_words else None
        if self.encoder is None or (chosen.branches == ("tokens",) and by_words):
            return EncodedQueries(len(texts), None, None, tokens, self.smoothing)
        given = self.encoder if isinstance(self.encoder, GivenQueryVectors) else None
        vectors = self._vectors(self.encoder, texts) if given is None else given.of(queries)
        if by_tokens and tokens is None:
            tokens = self._model_queries(view, self.encoder, vectors)
        dense = _fitting_dense(view, vectors) if "dense" in chosen.branches else None
        if "sparse" in chosen.branches and vectors.sparse is None:
            raise InvalidInput("the query encoder has no sparse branch, but the mode searches it")
        return EncodedQueries(len(texts), dense, vectors.sparse, tokens, self.smoothing)

    def _word_queries(self, view: View, texts: Sequence[str]) -> TokenQueries:
        view.require("tokens")
        if self.smoothing is None and (known := self.matching.known_queries(view, texts)) is not None:
            return known
        words = self.words(view, texts)
        return view.words.queries(
            words.rows, idfs=self.smoothing is None, alternatives=words.alternatives, analyzed=words.analyzed
        )

    def words(self, view: View, texts: Sequence[str]) -> QueryWords:
        """Return the words of queries as they are searched."""
        assert view.analyzer is not None  # the tokens branch is there
        if self.matching == EXACT_WORDS:
            rows = view.analyzer.terms(texts)
            return QueryWords(rows, [], rows)
        expanded = [self.matching.expand(view, text) for text in texts]
        return QueryWords(
            [row for row, _, _ in expanded], [groups for _, groups, _ in expanded], [own for _, _, own in expanded]
        )

    def _vectors(self, encoder: QueryEncoder, texts: Sequence[str]) -> QueryVectors:
        """Return the queries' vectors; a query that holds only unknown terms has those of the empty query.

        The row of the unknown term would find the same documents for all such queries.
        """
        vectors = encoder.encode(texts, task=self.task)
        unknown = encoder.tokenizer.unknown_id if isinstance(encoder, CachedQueryEncoder) else None
        if unknown is None or unknown not in vectors.term_ids.term_ids:
            return vectors
        known = vectors.term_ids.without(np.array([unknown], dtype=np.uint32)).lengths
        if known.all():
            return vectors
        return encoder.encode([text if n else "" for text, n in zip(texts, known, strict=True)], task=self.task)

    def _model_queries(self, view: View, encoder: QueryEncoder, vectors: QueryVectors) -> TokenQueries:
        if not view.holds_bags:
            rows = [vectors.term_ids.row(i).tolist() for i in range(len(vectors))]
            return view.words.queries(rows, idfs=self.smoothing is None)
        if vectors.sparse is None:
            raise InvalidInput(
                "the query encoder has no sparse branch, but bags of tokens are searched with its weights"
            )
        if self.overlap:
            counted = SparseVectors.count(vectors.term_ids, vocab_size=vectors.sparse.vocab_size)
            return view.words.bag_queries(counted.with_weights(np.ones_like(counted.weights)))
        if not weights_terms(encoder):
            raise InvalidInput(
                f"the query encoder has no learned term weights, so {view.folder}, an index of bags, would be ranked "
                "by the number of shared tokens, which is far worse than beta search. Search with queries through "
                "the model (--mode beta --model MODEL; in Python FullQueryEncoder), or ask for plain token overlap "
                "(--tokens overlap; in Python SearchOptions(overlap=True))"
            )
        return view.words.bag_queries(vectors.sparse)


def weights_terms(encoder: QueryEncoder) -> bool:
    """Whether an encoder's sparse queries have learned or IDF weights; True for one that does not say so."""
    if not isinstance(encoder, CachedQueryEncoder):
        return bool(getattr(encoder, "weights_terms", True))
    return encoder.contract.query.weights_terms


def checked_text(query_id: str, text: str) -> str:
    """Return a query's text; raise InvalidInput that names the query if it is no str."""
    return check_text(text, f"query {query_id!r}" if query_id else "the query")


def _fitting_dense(view: View, vectors: QueryVectors) -> Floats:
    if vectors.dense is None:
        raise InvalidInput("the query encoder has no dense branch, but the mode searches it")
    dim, width = view.dense_dim, vectors.dense.shape[1]
    if dim is None or width == dim:
        return vectors.dense
    if width < dim:
        raise InvalidInput(f"the query encoder's vectors are {width} wide, but the index's {dim}")
    return normalized(vectors.dense[:, :dim])
