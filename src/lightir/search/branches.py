"""What each branch says over all segments of a view: its best documents, and the scores of given ones.

Scores do not depend on which segment a document is in. Dense and sparse ones depend on query and document alone.
BM25 needs the collection's mean length, which moves with every change, while a segment's postings hold saturations
for the mean at the time they were written. A saturation falls as its penalty 1 / mean rises, never faster than in
proportion: for r = mean now / mean then, the true score lies between min(1, r) and max(1, r) times the stored one. So
the stored scores pick the candidates, whose true scores are then computed from their counts, and a segment is asked
for more until none that it withholds can belong to the best. After a bulk build and after compaction r is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index import TokenQueries, View
from lightir.index.bm25 import saturation
from lightir.index.segments.columns import Mask
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.segments.segment import Segment, SparseBranch
from lightir.index.token_queries import QueryTerms
from lightir.kernel import DocOrds
from lightir.kernel.segments import BranchQuery, DenseSegments, Lists, pair_scores
from lightir.search.fusion import BranchList
from lightir.search.language_model import Smoothing
from lightir.search.word_likelihood import WordLikelihood
from lightir.types import Branch
from lightir.vectors import Floats, SparseVectors, row_entries

Row = tuple[npt.NDArray[np.uint32], kernel.Weights]
"""Term ids, ascending, and their weights."""


@dataclass(frozen=True, slots=True)
class EncodedQueries:
    """A batch of n queries as the branches want them; a branch that is not searched is None.

    With a smoothing the tokens branch is a language model of counted words, and its queries' weights are counts.
    """

    n: int
    dense: Floats | None
    sparse: SparseVectors | None
    tokens: TokenQueries | None
    smoothing: Smoothing | None = None


class BranchSearch:
    """A batch of queries over one view."""

    def __init__(
        self, view: View, queries: EncodedQueries, *, matching: Sequence[Mask] | None = None, threads: int = 1
    ) -> None:
        """Put a view and encoded queries together.

        Args:
            view: see `Index.view`.
            queries: of the branches that will be asked.
            matching: for each segment the documents that may be found, see `View.matching`; None for all.
            threads: at most this many work at the same time.
        """
        self.view = view
        self.queries = queries
        self.matching = matching
        self.threads = threads
        self._token_terms: dict[int, QueryTerms] = {}
        self._sparse_terms = None if queries.sparse is None else _as_floats(queries.sparse)

    def top(self, branch: Branch, k: int) -> list[BranchList]:
        """Each query's k best documents: score down, then doc_id up."""
        if branch == "dense" and has_graphs(self.view):
            lists = self._graph_lists(k)
            return [self.merged([each[i] for each in lists], k) for i in range(self.queries.n)]
        if branch == "tokens" and self._likelihood is not None:
            found = [self._likelihood.top(i, k, self.matching) for i in range(self.queries.n)]
            return [self._in_order(each, k) for each in found]
        return [self._in_order(found, k) for found in _split(self._best(branch, k))]

    def complete(self, branches: Collection[Branch]) -> list[Branch]:
        """The branches whose lists are exact: nothing else that may be found scores more than the last one of `top`."""
        lacking = has_graphs(self.view) or self.view.n_pending > 0
        return [branch for branch in branches if branch != "dense" or not lacking]

    def pair_scores(self, branch: Branch, doc_ords: DocOrds, query: int) -> npt.NDArray[np.float32]:
        """The branch's scores of some documents for one query; 0 for a document that has no vector yet."""
        if branch == "tokens" and self._likelihood is not None:
            return self._likelihood.scores(doc_ords, query)
        return pair_scores(doc_ords, self.query(branch, query))

    def query(self, branch: Branch, query: int) -> BranchQuery:
        """One query as the kernel takes it for a branch's documents; a language model's query has no such form."""
        if branch == "dense":
            assert self.queries.dense is not None  # the plan's branches were encoded
            return self.view.dense_rows.query(np.ascontiguousarray(self.queries.dense[query]))
        if branch == "sparse":
            assert self._sparse_terms is not None
            return self.view.sparse_rows.query(*self._sparse_terms.row(query))
        assert self.queries.tokens is not None
        assert self.queries.smoothing is None
        term_ids, weights = self.queries.tokens.vectors.row(query)
        weights = weights.astype(np.float32, copy=False)
        return self.view.token_rows.query(term_ids, weights, places=self._places, mean=self.view.mean_length)

    @cached_property
    def _likelihood(self) -> WordLikelihood | None:
        """The tokens branch as a language model; None where it is BM25 or bags."""
        tokens, smoothing = self.queries.tokens, self.queries.smoothing
        return None if tokens is None or smoothing is None else WordLikelihood(self.view, tokens, smoothing)

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        """(n_segments, n_terms) the places of the tokens branch's query terms."""
        assert self.queries.tokens is not None
        return np.array(self.queries.tokens.places, dtype=np.int64).reshape(
            len(self.view.segments), len(self.queries.tokens.terms)
        )

    def pair(self, branch: Branch, doc_ord: int, query: int) -> tuple[Row, Row, Callable[[int], str | int]]:
        """A query's and a document's row in a sparse branch, and what their ids stand for: words, or themselves.

        Of a language model the document's row has every word of the query, with ln p(w|d).
        """
        if branch == "tokens" and self._likelihood is not None:
            assert self.queries.tokens is not None
            return (
                _as_floats(self.queries.tokens.vectors).row(query),
                self._likelihood.terms(doc_ord, query),
                self.queries.tokens.terms.__getitem__,
            )
        at, places = self.view.locate(np.array([doc_ord], dtype=np.uint32))
        segment, place = self.view.segments[int(at[0])].segment, places.astype(np.uint32)
        stored = _stored(segment, branch)
        wanted = self._terms_of_segment(branch, int(at[0])).row(query)
        if stored is None:
            return wanted, (np.zeros(0, np.uint32), np.zeros(0, np.float32)), int
        if branch == "sparse":
            return wanted, stored.row(int(place[0])), int
        if segment.holds_bags:
            return wanted, stored.row(int(place[0])), segment.terms.__getitem__
        _, term_ids, weights = self._true_weights(segment, stored, place)
        return wanted, (term_ids, weights), segment.terms.__getitem__

    def _best(self, branch: Branch, k: int) -> Lists:
        """Each query's best documents with all that tie with the k-th."""
        allowed = self.allowed(branch)
        if branch == "dense":
            return self._dense_best(self.view.dense_rows, k, allowed)
        if branch == "sparse":
            assert self._sparse_terms is not None
            terms = self._sparse_terms
            return self.view.sparse_rows.top_k(
                terms.indptr, terms.term_ids, terms.weights, k=k, threads=self.threads, allowed=allowed
            )
        assert self.queries.tokens is not None
        vectors = self.queries.tokens.vectors
        return self.view.token_rows.top_k(
            vectors.indptr,
            vectors.term_ids,
            vectors.weights.astype(np.float32, copy=False),
            k=k,
            places=self._places,
            mean=self.view.mean_length,
            threads=self.threads,
            allowed=allowed,
        )

    # Graphs

    def _dense_best(self, rows: DenseSegments, k: int, allowed: list[npt.NDArray[np.uint8] | None] | None) -> Lists:
        assert self.queries.dense is not None  # the plan's branches were encoded
        # A query without terms has no direction: it finds nothing, not everything with score 0.
        directed = self.queries.dense.any(axis=1)
        found = rows.top_k(self.queries.dense[directed], k=k, threads=self.threads, allowed=allowed)
        counts = np.zeros(self.queries.n + 1, dtype=np.int64)
        counts[1:][directed] = np.diff(found[0])
        return np.cumsum(counts), found[1], found[2]

    def _graph_lists(self, k: int) -> list[list[BranchList]]:
        """The best documents of all segments without a graph by one scan, and of each other segment by its graph.

        A graph is first asked for a few more than the segment's share of the k best, then for more as long as all that
        it gave belong to them. Where it costs no less than a scan, its segment is scanned too.
        """
        n_allowed = [self._n_allowed(position) for position in range(len(self.view.segments))]
        asked = {
            position: _likely_share(k, n, sum(n_allowed))
            for position, n in enumerate(n_allowed)
            if self.view.segments[position].segment.graph is not None
        }
        rows = self.view.graphless_rows
        # With all that tie with the k-th.
        scanned = [] if rows is None else [_split(self._dense_best(rows, k, self.allowed("dense")))]
        lists: dict[int, list[BranchList]] = {}
        lacking = list(asked)
        while lacking:
            for position in lacking:
                asked[position] = asked[position] if self._walks(position, asked[position], n_allowed[position]) else k
                lists[position] = self._graph_top(position, asked[position], n_allowed[position])
            every = [*scanned, *lists.values()]
            lacking = [i for i, n in asked.items() if n < k and _may_hold_more(every, lists[i], n, k)]
            for position in lacking:
                asked[position] = min(k, 4 * asked[position])
        return [*scanned, *lists.values()]

    def _walks(self, position: int, k: int, n_allowed: int) -> bool:
        graph = self.view.segments[position].segment.graph
        return graph is not None and graph.serves(k, n_allowed)

    def _graph_top(self, position: int, k: int, n_allowed: int) -> list[BranchList]:
        each, queries = self.view.segments[position], self.queries.dense
        assert queries is not None  # the plan's branches were encoded
        graph = each.segment.graph
        assert graph is not None  # see _graph_lists
        if not graph.serves(k, n_allowed):
            return self._dense_top(each, self._allowed("dense", position), k)
        allowed = self._allowed("dense", position)
        found = graph.top_k(queries, k, n_allowed=n_allowed, allowed=allowed, threads=self.threads)
        first = np.uint32(each.first_ord)
        lists = [BranchList(doc_ords + first, scores) for doc_ords, scores in found]
        return [one if query.any() else _nothing() for one, query in zip(lists, queries, strict=True)]

    def _n_allowed(self, position: int) -> int:
        """How many of a segment's documents the dense branch may return."""
        allowed = self._allowed("dense", position)
        if allowed is None:
            return len(self.view.segments[position].segment)
        return int(np.unpackbits(allowed).sum())

    def allowed(self, branch: Branch) -> list[npt.NDArray[np.uint8] | None] | None:
        """For each segment the bitmap of the documents that a branch may return; None where it may return all."""
        if self.matching is None and self.view.is_whole:
            return None
        limited = [self._allowed(branch, position) for position in range(len(self.view.segments))]
        return None if all(each is None for each in limited) else limited

    def _allowed(self, branch: Branch, position: int) -> npt.NDArray[np.uint8] | None:
        matching = None if self.matching is None else self.matching[position]
        return self.view.segments[position].searchable(branch, matching)

    # One segment

    def _dense_top(self, each: LiveSegment, allowed: npt.NDArray[np.uint8] | None, k: int) -> list[BranchList]:
        queries = self.queries.dense
        assert queries is not None  # the plan's branches were encoded
        if each.segment.dense is None:
            return [_nothing()] * self.queries.n
        rows, scales = each.segment.dense
        k = min(k, len(each.segment))
        indptr, doc_ords, scores = kernel.dense_top_k_batch(
            rows,
            queries,
            k=k,
            scales=scales,
            threads=self.threads,
            allowed=allowed,
            copies=each.segment.dense_copies,
        )
        # A query without terms has no direction: it finds nothing, not everything with score 0.
        ends = np.where(queries.any(axis=1), indptr[1:], indptr[:-1])
        doc_ords = doc_ords + np.uint32(each.first_ord)
        spans = [slice(*span) for span in zip(indptr[:-1].tolist(), ends.tolist(), strict=True)]
        return [BranchList(doc_ords[span], scores[span]) for span in spans]

    def _true_weights(
        self, segment: Segment, stored: SparseBranch, places: DocOrds
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], Floats]:
        """The documents' rows with saturations for the mean length of the view."""
        indptr, entries = row_entries(stored.indptr, places.astype(np.int64))
        lengths = segment.lengths[places]
        weights = saturation(stored.weights[entries], indptr, lengths, self.view.mean_length)
        return indptr, stored.term_ids[entries], weights

    # All segments

    def merged(self, lists: Sequence[BranchList], k: int) -> BranchList:
        """The k best documents of lists of different ones: score down, then doc_id up."""
        if len(lists) == 1:
            return BranchList(lists[0].doc_ords[:k], lists[0].scores[:k])
        if not lists:
            return _nothing()
        doc_ords = np.concatenate([each.doc_ords for each in lists])
        scores = np.concatenate([each.scores for each in lists])
        order = np.lexsort((doc_ords, -scores))
        if len(order) > k:
            order = order[: np.searchsorted(-scores[order], -scores[order[k - 1]], side="right")]
        return self._in_order(BranchList(doc_ords[order], scores[order]), k)

    def _in_order(self, found: BranchList, k: int) -> BranchList:
        """The k best of a list whose scores fall already and that holds all ties of the k-th."""
        if not self.view.ids_ascend:
            order = self.view.break_ties(found.doc_ords, found.scores)
            found = BranchList(found.doc_ords[order], found.scores[order])
        return BranchList(found.doc_ords[:k], found.scores[:k])

    def _terms_of_segment(self, branch: Branch, position: int) -> QueryTerms:
        if branch == "sparse":
            assert self._sparse_terms is not None  # the plan's branches were encoded
            return self._sparse_terms
        if position not in self._token_terms:
            assert self.queries.tokens is not None
            self._token_terms[position] = self.queries.tokens.of_segment(position)
        return self._token_terms[position]


def has_graphs(view: View) -> bool:
    """Whether dense rows are searched through graphs."""
    return not view.exact and any(each.segment.graph is not None for each in view.segments)


def _as_floats(queries: SparseVectors) -> QueryTerms:
    return QueryTerms(queries.indptr, queries.term_ids, queries.weights.astype(np.float32, copy=False))


def _stored(segment: Segment, branch: Branch) -> SparseBranch | None:
    return segment.sparse if branch == "sparse" else segment.tokens


def _likely_share(k: int, n: int, total: int) -> int:
    """How many of the k best a segment with n of all documents holds at most, were they spread by chance."""
    expected = k * n / max(total, 1)
    return min(k, int(expected + 4 * math.sqrt(expected)) + 16)


def _split(found: Lists) -> list[BranchList]:
    indptr, doc_ords, scores = found
    spans = [slice(indptr[i], indptr[i + 1]) for i in range(len(indptr) - 1)]
    return [BranchList(doc_ords[span], scores[span]) for span in spans]


def _may_hold_more(lists: Sequence[Sequence[BranchList]], given: Sequence[BranchList], asked: int, k: int) -> bool:
    """Whether for any query all that a segment gave, as much as it was asked for, is among the k best of all lists."""
    for i, mine in enumerate(given):
        if len(mine.scores) < asked:
            continue
        scores = np.concatenate([each[i].scores for each in lists])
        reached = np.partition(scores, len(scores) - k)[len(scores) - k] if len(scores) >= k else -np.inf
        if mine.scores[-1] >= reached:
            return True
    return False


def _nothing() -> BranchList:
    return BranchList(np.zeros(0, np.uint32), np.zeros(0, np.float32))
