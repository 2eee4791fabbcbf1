"""The branches of a view for a batch of queries: their best documents, and the scores of given ones.

Scores do not depend on which segment a document is in. Dense and sparse scores depend on query and document alone.
BM25 needs the collection's mean length, which every change moves, while a segment's postings hold saturations for the
mean at the time they were written. A saturation falls as its penalty 1 / mean rises, never faster than in proportion:
for r = mean now / mean then, the true score is between min(1, r) and max(1, r) times the stored one. So the stored
scores select the candidates, their true scores are computed from their counts, and a segment is asked for more until no
document that it withholds can belong to the best. After a bulk build and after compaction r is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index import TokenQueries, View
from lightir.index.bm25 import saturation
from lightir.index.segments.columns import Mask
from lightir.index.segments.segment import Segment, SparseBranch
from lightir.index.token_queries import QueryTerms
from lightir.kernel import DocOrds
from lightir.kernel.candidates import BoundBranch, BranchList, CandidateSearch, Request
from lightir.kernel.segments import Allowed, BranchQueries, DenseSegments, DocumentIds, SparseSegments, pair_scores
from lightir.search.language_model import Smoothing
from lightir.search.word_likelihood import WordLikelihood
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors, row_entries

TermRow: TypeAlias = tuple[npt.NDArray[np.uint32], kernel.Weights]
"""Term ids, ascending, and their weights."""


@dataclass(frozen=True, slots=True)
class EncodedQueries:
    """A batch of queries, encoded for the branches that are searched.

    Attributes:
        n: number of queries.
        dense: (n, dim) vectors; None if the dense branch is not searched.
        sparse: learned sparse vectors; None if the sparse branch is not searched.
        tokens: terms of the tokens branch; None if it is not searched. With a smoothing their weights are counts.
        smoothing: language model that scores the tokens branch; None for BM25 and bags.
    """

    n: int
    dense: Floats | None
    sparse: SparseVectors | None
    tokens: TokenQueries | None
    smoothing: Smoothing | None = None


class BranchSearch:
    """A batch of queries over one view, branch by branch."""

    def __init__(
        self, view: View, queries: EncodedQueries, *, matching: Sequence[Mask] | None = None, threads: int = 1
    ) -> None:
        """Put a view and encoded queries together.

        Args:
            view: the view to search.
            queries: encoded for the branches that will be searched.
            matching: masks of the documents that may be found, one per segment (`View.matching`); None for all.
            threads: maximum number of threads.
        """
        self.view = view
        self.encoded = queries
        self.matching = matching
        self.threads = threads
        self._token_terms: dict[int, QueryTerms] = {}
        self._sparse_terms = None if queries.sparse is None else _as_floats(queries.sparse)

    def top(self, branch: Branch, k: int) -> list[BranchList]:
        """Return each query's k best documents: score down, then doc_id up."""
        if branch == "tokens" and self.likelihood is not None:
            lists = [[self.likelihood.top(i, k, self.matching) for i in range(self.encoded.n)]]
            return [self.merge([ranked[i] for ranked in lists], k) for i in range(self.encoded.n)]
        queries = self.queries(branch)
        assert queries is not None  # only a language model has none
        ids = None if self.view.ids_ascend else self.view.ids
        request = Request(k, k, self.threads)
        return _kernel_lists(documents(self.view, branch), queries, request, self.allowed(branch), ids)

    def merge(self, lists: Sequence[BranchList], k: int) -> BranchList:
        """Return the k best documents of lists of different ones: score down, then doc_id up."""
        doc_ords = np.concatenate([np.zeros(0, np.uint32), *(ranked.doc_ords for ranked in lists)])
        scores = np.concatenate([np.zeros(0, np.float32), *(ranked.scores for ranked in lists)])
        order = np.lexsort((doc_ords, -scores))
        if not self.view.ids_ascend:
            order = order[self.view.break_ties(doc_ords[order], scores[order])]
        return BranchList(doc_ords[order[:k]], scores[order[:k]])

    def queries(self, branch: Branch) -> BranchQueries | None:
        """Return the batch for the kernel; None for a language model, which the kernel does not have."""
        if branch == "dense":
            return dense_documents(self.view).queries(self._vectors)
        if branch == "sparse":
            assert self._sparse_terms is not None
            terms = self._sparse_terms
            return self.view.sparse_rows.queries(terms.indptr, terms.term_ids, terms.weights)
        if self.likelihood is not None:
            return None
        assert self.encoded.tokens is not None
        vectors = self.encoded.tokens.vectors
        return self.view.token_rows.queries(
            vectors.indptr,
            vectors.term_ids,
            vectors.weights.astype(np.float32, copy=False),
            places=self.encoded.tokens.places,
            mean=self.view.mean_length,
            unknown=self.encoded.tokens.unknown,
        )

    def pair_scores(self, branch: Branch, doc_ords: DocOrds, query: int) -> npt.NDArray[np.float32]:
        """Return the branch's scores of some documents for one query; 0 for a document that has no vector yet."""
        if branch == "tokens" and self.likelihood is not None:
            return self.likelihood.scores(doc_ords, query)
        queries = self._cached_queries.get(branch)
        if queries is None:
            queries = self.queries(branch)
            assert queries is not None
            self._cached_queries[branch] = queries
        return pair_scores(doc_ords, queries, query)

    @cached_property
    def likelihood(self) -> WordLikelihood | None:
        """The tokens branch as a language model; None where it is BM25 or bags."""
        tokens, smoothing = self.encoded.tokens, self.encoded.smoothing
        return None if tokens is None or smoothing is None else WordLikelihood(self.view, tokens, smoothing)

    def allowed(self, branch: Branch) -> Allowed:
        """Return for each segment the bitmap of the documents that a branch may find; None where it may find all."""
        if self.matching is None and self.view.is_whole:
            return None
        limited = [self._allowed(branch, position) for position in range(len(self.view.segments))]
        return None if all(bitmap is None for bitmap in limited) else limited

    def containing(self, query: int = 0) -> list[Mask]:
        """Return for each segment the mask of the documents that contain a term of a query; requires tokens."""
        masks = []
        for position, live in enumerate(self.view.segments):
            stored = live.segment.tokens
            if stored is None:
                masks.append(np.zeros(len(live.segment), dtype=np.bool_))
                continue
            term_ids, weights = self._terms_of_segment("tokens", position).row(query)
            with live.segment.naming_damage():
                masks.append(stored.documents_with(term_ids[weights > 0]))
        return masks

    def term_rows(
        self, branch: Branch, doc_ord: int, query: int
    ) -> tuple[TermRow, TermRow, Callable[[int], str | int]]:
        """Return a query's and a document's row in a sparse branch, and a function from their ids to terms.

        The terms are words, or ids of the model's vocabulary. Under a language model the document's row has every word
        of the query, with ln p(w|d).
        """
        if branch == "tokens" and self.likelihood is not None:
            assert self.encoded.tokens is not None
            return (
                _as_floats(self.encoded.tokens.vectors).row(query),
                self.likelihood.terms(doc_ord, query),
                self.encoded.tokens.terms.__getitem__,
            )
        at, rows = self.view.locate(np.array([doc_ord], dtype=np.uint32))
        segment, row = self.view.segments[int(at[0])].segment, rows.astype(np.uint32)
        stored = segment.sparse if branch == "sparse" else segment.tokens
        query_row = self._terms_of_segment(branch, int(at[0])).row(query)
        if stored is None:
            return query_row, (np.zeros(0, np.uint32), np.zeros(0, np.float32)), int
        if branch == "sparse":
            return query_row, stored.row(int(row[0])), int
        if segment.holds_bags:
            return query_row, stored.row(int(row[0])), segment.terms.__getitem__
        return query_row, self._saturated_row(segment, stored, row), segment.terms.__getitem__

    @cached_property
    def _vectors(self) -> Floats:
        """(n, dim) dense queries."""
        assert self.encoded.dense is not None  # the plan's branches were encoded
        return np.ascontiguousarray(self.encoded.dense)

    @cached_property
    def _cached_queries(self) -> dict[Branch, BranchQueries]:
        return {}

    def _allowed(self, branch: Branch, position: int) -> npt.NDArray[np.uint8] | None:
        matching = None if self.matching is None else self.matching[position]
        return self.view.segments[position].searchable(branch, matching)

    # One segment

    def _saturated_row(self, segment: Segment, stored: SparseBranch, row: DocOrds) -> TermRow:
        """Return a document's row with saturations for the mean length of the view."""
        indptr, entries = row_entries(stored.indptr, row.astype(np.int64))
        weights = saturation(stored.weights[entries], indptr, segment.lengths[row], self.view.mean_length)
        return stored.term_ids[entries], weights

    def _terms_of_segment(self, branch: Branch, position: int) -> QueryTerms:
        if branch == "sparse":
            assert self._sparse_terms is not None  # the plan's branches were encoded
            return self._sparse_terms
        if position not in self._token_terms:
            assert self.encoded.tokens is not None
            self._token_terms[position] = self.encoded.tokens.of_segment(position)
        return self._token_terms[position]


def documents(view: View, branch: Branch) -> DenseSegments | SparseSegments:
    """Return a branch's documents over all segments of a view."""
    if branch == "dense":
        return dense_documents(view)
    return view.sparse_rows if branch == "sparse" else view.token_rows


def dense_documents(view: View) -> DenseSegments:
    """Return the dense rows of all segments of a view, with their graphs unless the view is exact.

    Raises:
        FormatError: a graph is damaged.
    """
    return (None if view.exact else view.graphed_rows) or view.dense_rows


def has_graphs(view: View) -> bool:
    """Whether dense rows are searched through graphs."""
    return not view.exact and view.graphed_rows is not None


def _kernel_lists(
    rows: DenseSegments | SparseSegments,
    queries: BranchQueries,
    request: Request,
    allowed: Allowed,
    ids: DocumentIds | None = None,
) -> list[BranchList]:
    """Return one branch's best documents of each query; ties go to the smaller doc_ord where there are no ids."""
    search = CandidateSearch([BoundBranch("", rows, allowed=allowed)], scale="none", ids=ids)
    return [BranchList(ranked.doc_ords, ranked.columns[""].scores) for ranked in search.search([queries], request)]


def _as_floats(queries: SparseVectors) -> QueryTerms:
    return QueryTerms(queries.indptr, queries.term_ids, queries.weights.astype(np.float32, copy=False))
