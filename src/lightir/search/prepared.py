"""One prepared query: a plan bound to a view, and its search of any number of queries.

Every search takes the same path. The queries become vectors and terms, and one call of the kernel returns the
candidates (`lightir.kernel.candidates`). The kernel starts from the texts if it can make all vectors. Lists of a
language model of counted words are made outside it and handed in.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.index import View
from lightir.index.listing import Listing
from lightir.index.passages.naming import document_of, first_of_documents
from lightir.index.segments.columns import Mask
from lightir.kernel import DocOrds
from lightir.kernel.candidates import (
    BoundBranch,
    BranchList,
    Candidates,
    CandidateSearch,
    GivenLists,
    PendingDocuments,
    Request,
    Scale,
)
from lightir.kernel.query import TextEncoder
from lightir.kernel.segments import Allowed
from lightir.query import CachedQueryEncoder
from lightir.search.branches import BranchSearch, EncodedQueries, documents, has_graphs
from lightir.search.conditions import NO_DOCUMENTS, read_query
from lightir.search.encoding import QueryCoding, checked_text
from lightir.search.plan import WHOLE_DEPTH, Plan, default_depth, span
from lightir.search.search_options import MAX_COUNT, SearchOptions, is_count
from lightir.types import Branch, Query, Ranking
from lightir.vectors import Floats, row_starts

NO_DOCUMENT = 2**32 - 1
"""A doc_ord that no document has: an excluded id that the index lacks deepens the lists like any other."""


@dataclass(frozen=True, slots=True)
class BoundPlan:
    """A plan bound to a view's arrays; it keeps no view, so a view can hold it.

    Attributes:
        plan: the branches, and how they are joined.
        coding: encoding of the queries.
        kernel: the search of the plan's branches.
        takes_texts: whether the kernel makes all vectors itself.
        depth: default number of documents that each branch gives to the fusion.
        encoded: search of the fused branches from texts, for queries that match no pending document; None if the
            tokens branch ranks no pending documents by words, or if the kernel does not make the vectors.
    """

    plan: Plan
    coding: QueryCoding
    kernel: CandidateSearch
    takes_texts: bool
    depth: int
    encoded: CandidateSearch | None = None


def bind(view: View, plan: Plan, coding: QueryCoding) -> BoundPlan:
    """Bind a plan to a view.

    Raises:
        NotFound: the encoder has no table for the task.
    """
    unbound = BranchSearch(view, EncodedQueries(0, None, None, None))
    branches = [
        BoundBranch(
            branch,
            documents(view, branch),
            float(plan.fusion.weights.get(branch, 0.0)),
            _is_complete(view, plan, coding, branch),
            unbound.allowed(branch),
            span(plan.fusion, view.contract, branch, of_counts=not view.holds_bags),
        )
        for branch in plan.searched
    ]
    texts = _text_encoder(view, plan, coding)
    kernel = CandidateSearch(
        branches,
        scale=scale_of(plan.fusion),
        rrf_k=plan.fusion.rrf_k,
        ids=None if view.ids_ascend else view.ids,
        texts=texts,
        names=view.ids,
        pending=PendingDocuments(view.waits, not plan.ranks_by_tokens) if plan.finds_pending else None,
    )
    by_language_model = coding.smoothing is not None and "tokens" in plan.branches
    # A language model's scores are negative, so its list's end measures them.
    depth = WHOLE_DEPTH if by_language_model else default_depth(plan.fusion)
    return BoundPlan(plan, coding, kernel, texts is not None, depth, _encoded_alone(view, plan, coding))


def _encoded_alone(view: View, plan: Plan, coding: QueryCoding) -> CandidateSearch | None:
    """Return `BoundPlan.encoded`."""
    if not plan.ranks_by_tokens or view.counts_model_terms or coding.smoothing is not None:
        return None
    alone = bind(view, dataclasses.replace(plan, finds_pending=False), coding)
    return alone.kernel if alone.takes_texts else None


def scale_of(fusion: Fusion) -> Scale:
    """Return the kernel's name of a fusion's normalization."""
    return fusion.normalization if fusion.method == "linear" else fusion.method


class PreparedSearch:
    """Searches one view with fixed options; made by `Searcher.prepare`. Safe to use from several threads.

    Attributes:
        view: the view.
        plan: the branches, and how they are joined.
        options: the options.
        threads: maximum number of threads.
        depth: number of documents that each branch gives to the fusion.
        matching: mask of each segment's documents that pass the filter, and the conditions of the query; None without.
        named: documents that the query names, which are ranked first.
        lists_all: whether all documents of `matching` are the result, because the query has conditions alone.
    """

    __slots__ = ("_bound", "depth", "lists_all", "matching", "named", "options", "plan", "threads", "view")

    def __init__(self, view: View, bound: BoundPlan, options: SearchOptions, *, threads: int = 1) -> None:
        """Put a bound plan and the options of a search together.

        Raises:
            InvalidInput: a malformed filter.
        """
        self.view = view
        self.plan = bound.plan
        self.options = options
        self.threads = threads
        self.depth = bound.depth if options.depth is None else options.depth
        self._bound = bound
        self.matching = None if options.filter is None else view.matching(options.filter)
        self.named: DocOrds = NO_DOCUMENTS
        self.lists_all = False

    def read(self, query: str, query_id: str = "") -> tuple[PreparedSearch, str]:
        """Return the search of one query by its syntax, and the text to rank by.

        Without the option `syntax`, or if the query has no conditions and names no document, it is this search.

        Args:
            query: text of the query.
            query_id: id of the query, which a mapping of exclusions is asked for.

        Raises:
            InvalidInput: the text is no str.
        """
        checked_text(query_id, query)
        if not self.options.syntax:
            return self, query
        reading = read_query(self.view, query)
        if reading.matching is None and not len(reading.named):
            return self, reading.text
        own = copy.copy(self)
        if reading.matching is not None:
            before = reading.matching if self.matching is None else self.matching
            own.matching = [mask & other for mask, other in zip(reading.matching, before, strict=True)]
            own.lists_all = not reading.text.strip()
        if len(reading.named) and not own.lists_all:
            masks = own.selectable(query_id)
            at, rows = self.view.locate(reading.named)
            is_found = [bool(masks[i][row]) for i, row in zip(at.tolist(), rows.tolist(), strict=True)]
            own.named = reading.named[np.array(is_found, dtype=np.bool_)]
        return own, reading.text

    def encoded_only(self) -> PreparedSearch:
        """Return the same search of the documents that have their vectors."""
        if not self.view.n_pending:
            return self
        plan = dataclasses.replace(self.plan, finds_pending=False)
        prepared = PreparedSearch(
            self.view, bind(self.view, plan, self._bound.coding), self.options, threads=self.threads
        )
        masks = [~live.segment.pending for live in self.view.segments]
        if prepared.matching is not None:
            masks = [mask & other for mask, other in zip(masks, prepared.matching, strict=True)]
        prepared.matching = masks
        return prepared

    @property
    def takes_texts(self) -> bool:
        """Whether the kernel searches texts, so that they need not be encoded before."""
        return self._bound.takes_texts

    def rank(
        self, queries: Sequence[Query], k: int, *, columns: bool = True, encoded: EncodedQueries | None = None
    ) -> list[Candidates]:
        """Return each query's k best documents, without excluded ones and those below the minimum score.

        Args:
            queries: the queries.
            k: number of documents; fewer are returned if fewer match.
            columns: whether to return the branches' scores of them.
            encoded: the queries, if they are encoded already.

        Raises:
            InvalidInput: a text that is no str, or k is no count.
        """
        if self.lists_all:
            ranked = [self._listed(query.query_id, k) for query in queries]
        elif self.by_document:
            ranked = self._best_passages(queries, k, columns=columns, encoded=encoded)
        else:
            ranked = self._rank(queries, k, columns=columns, encoded=encoded)
        return [above_score(candidates, self.options.min_score) for candidates in ranked]

    @property
    def by_document(self) -> bool:
        """Whether of the passages of a document only the best one is returned."""
        return self.view.has_passages and not self.options.passages

    def _listed(self, query_id: str, k: int) -> Candidates:
        """Return the first k documents that may be found, in the order of their ids, with score 0."""
        require_count(k)
        listing = Listing(self.view, self.selectable(query_id))
        doc_ords = (listing.one_per_document() if self.by_document else listing).first(k)
        return Candidates(doc_ords, np.zeros(len(doc_ords)), {})

    def _best_passages(
        self, queries: Sequence[Query], k: int, *, columns: bool, encoded: EncodedQueries | None
    ) -> list[Candidates]:
        """Return the best passage of each of the k best documents: as many passages are ranked as that takes."""
        require_count(k)
        n = min(2 * k + 8, MAX_COUNT)
        while True:
            ranked = self._rank(queries, n, columns=columns, encoded=encoded)
            best = [first_of_documents(self.view.doc_ids(candidates.doc_ords))[:k] for candidates in ranked]
            complete = all(len(at) == k or len(top.doc_ords) < n for at, top in zip(best, ranked, strict=True))
            if complete or n == MAX_COUNT:
                return [top.take(at) for at, top in zip(best, ranked, strict=True)]
            n = min(4 * n, MAX_COUNT)

    def _rank(
        self, queries: Sequence[Query], k: int, *, columns: bool, encoded: EncodedQueries | None
    ) -> list[Candidates]:
        require_count(k)
        query_ids = [query.query_id for query in queries]
        request = Request(k, max(k, self.depth), self.threads, columns, self._excluded(query_ids))
        if encoded is None and self._bound.takes_texts and not len(self.named):
            texts = [query.text for query in queries]
            try:
                return self._bound.kernel.search_texts(texts, request, allowed=self._allowed)
            except InvalidInput:
                _check_texts(query_ids, texts)
                raise
        return self.rank_encoded(self.encode(queries) if encoded is None else encoded, request)

    def rankings(self, query_ids: Sequence[str], texts: Sequence[str], k: int) -> list[Ranking]:
        """Return each query's ranking of its k best documents, without excluded ones and those below the minimum score.

        Args:
            query_ids: id of each query.
            texts: text of each query.
            k: number of documents; fewer are returned if fewer match.

        Raises:
            InvalidInput: a text that is no str, or k is no count.
        """
        if self.by_document or self.lists_all or len(self.named):
            queries = [Query(query_id, text) for query_id, text in zip(query_ids, texts, strict=True)]
            return [
                Ranking(query.query_id, self._result_ids(candidates.doc_ords), candidates.scores)
                for query, candidates in zip(queries, self.rank(queries, k, columns=False), strict=True)
            ]
        bound = self._bound
        require_count(k)
        request = Request(k, max(k, self.depth), self.threads, False, self._excluded(query_ids))
        if bound.takes_texts or self._matches_encoded_only(query_ids, texts):
            kernel = bound.encoded or bound.kernel
            allowed = None if self.matching is None else self._allowed_of(self.plan.branches)
            try:
                ranked = kernel.rankings_of_texts(texts, query_ids, request, allowed=allowed)
            except InvalidInput:
                _check_texts(query_ids, texts)
                raise
        else:
            ranked = self._rankings_of_vectors(query_ids, texts, request)
        least = self.options.min_score
        if least is None:
            return ranked
        counted = [(ranking, _n_above(ranking.scores, least)) for ranking in ranked]
        return [Ranking(ranking.query_id, ranking.doc_ids[:n], ranking.scores[:n]) for ranking, n in counted]

    def _result_ids(self, doc_ords: DocOrds) -> list[str]:
        doc_ids = self.view.doc_ids(doc_ords)
        return [document_of(doc_id) for doc_id in doc_ids] if self.by_document else doc_ids

    def _rankings_of_vectors(self, query_ids: Sequence[str], texts: Sequence[str], request: Request) -> list[Ranking]:
        """Return each query's ranking where the kernel does not make all vectors of the queries."""
        queries = [Query(query_id, text) for query_id, text in zip(query_ids, texts, strict=True)]
        searched = self.branches(self.encode(queries))
        asked = [searched.queries(branch) for branch in self.plan.searched]
        lists = self._lists(searched, request)
        return self._bound.kernel.rankings(asked, query_ids, request, lists=lists, allowed=self._allowed)

    def encode(self, queries: Sequence[Query]) -> EncodedQueries:
        """Encode a batch of queries for the plan's branches."""
        return self._bound.coding.encode(self.view, queries, self.plan)

    def rank_encoded(self, encoded: EncodedQueries, request: Request) -> list[Candidates]:
        """Return each query's best candidates, named documents first: one call of the kernel."""
        searched = self.branches(encoded)
        asked = request
        if len(self.named):
            also = self.named if request.also is None else np.union1d(request.also, self.named)
            asked = request._replace(k=MAX_COUNT, also=also)
        ranked = self._bound.kernel.search(
            [searched.queries(branch) for branch in self.plan.searched],
            asked,
            lists=self._lists(searched, asked),
            allowed=self._allowed,
        )
        if not len(self.named):
            return ranked
        least = self.options.min_score
        first = [named_first(candidates, self.named, least, self.view.break_ties) for candidates in ranked]
        return [candidates.take(slice(request.k)) for candidates in first]

    def rank_with(self, encoded: EncodedQueries, also: DocOrds) -> Candidates:
        """Return all candidates of one query, and some other documents that no branch needs to list."""
        request = Request(MAX_COUNT, self.depth, self.threads, also=also)
        return self.rank_encoded(encoded, request)[0]

    def rank_all(self, encoded: EncodedQueries, depth: int) -> Candidates:
        """Return all candidates of one query, of which each branch lists `depth`, without the excluded ones.

        The query_id, which a mapping of exclusions is asked for, is "".
        """
        k = depth if len(self.plan.branches) == 1 else MAX_COUNT
        return self.rank_encoded(encoded, Request(k, depth, self.threads, excluded=self._excluded([""])))[0]

    def that_match(self, doc_ords: Sequence[int]) -> DocOrds:
        """Return those of some stored documents that match the filter and the query's conditions."""
        stored = np.array(doc_ords, dtype=np.uint32)
        if self.matching is None:
            return stored
        at, rows = self.view.locate(stored)
        places = zip(at.tolist(), rows.tolist(), strict=True)
        return stored[np.array([self.matching[segment][row] for segment, row in places], dtype=np.bool_)]

    def selectable(self, query_id: str = "") -> list[Mask]:
        """Return for each segment the mask of the documents that the search may find: live, matching, not excluded."""
        masks = [live.live for live in self.view.segments] if self.matching is None else self.matching
        masks = [mask.copy() for mask in masks]
        for doc_id in self.options.excluded(query_id) if self.options.excludes else ():
            at, rows = self.view.locate(np.array(self.view.doc_ords(doc_id), dtype=np.uint32))
            for segment, row in zip(at.tolist(), rows.tolist(), strict=True):
                masks[segment][row] = False
        return masks

    def rank_given(self, encoded: EncodedQueries, doc_ords: Sequence[DocOrds]) -> list[Candidates]:
        """Return given documents of each query, ranked as if there were no others.

        Args:
            encoded: n queries.
            doc_ords: doc_ords of each query, (m,) uint32, all different.
        """
        searched = self.branches(encoded)

        def ordered(branch: Branch, query: int) -> BranchList:
            docs = doc_ords[query]
            if self.plan.finds_pending and branch != "tokens":
                docs = docs[~self.view.waits[docs]]
            scores = searched.pair_scores(branch, docs, query)
            order = np.lexsort((docs, -scores))
            return BranchList(docs[order], scores[order])

        def listed(branch: Branch) -> GivenLists:
            def score(query: int, asked: DocOrds) -> Floats:
                return searched.pair_scores(branch, asked, query)

            return GivenLists.join([ordered(branch, query) for query in range(encoded.n)], score)

        lists: list[GivenLists | None] = [listed(branch) for branch in self.plan.searched]
        request = Request(MAX_COUNT, MAX_COUNT, self.threads)
        queries = [searched.queries(branch) for branch in self.plan.searched]
        return self._bound.kernel.search(queries, request, lists=lists)

    def branches(self, encoded: EncodedQueries) -> BranchSearch:
        """Return the search of single branches for a batch of queries."""
        return BranchSearch(self.view, encoded, matching=self.matching, threads=self.threads)

    def _matches_encoded_only(self, query_ids: Sequence[str], texts: Sequence[str]) -> bool:
        """Whether no query has a word of a pending document, so that `BoundPlan.encoded` ranks as the plan does."""
        if self._bound.encoded is None:
            return False
        _check_texts(query_ids, texts)
        words = self._bound.coding.words(self.view, texts)
        others = [term for of_query in words.alternatives for group in of_query for term in group.terms]
        return not self.view.words.pending_match([*words.rows, others])

    @property
    def _allowed(self) -> list[Allowed] | None:
        """Bitmaps of the documents that each searched branch may find; None without a filter."""
        return self._allowed_of(self.plan.searched)

    def _allowed_of(self, branches: Sequence[Branch]) -> list[Allowed] | None:
        if self.matching is None:
            return None
        searched = self.branches(EncodedQueries(0, None, None, None))
        return [searched.allowed(branch) for branch in branches]

    def _excluded(self, query_ids: Sequence[str]) -> tuple[npt.NDArray[np.int64], DocOrds] | None:
        """Return the documents that each query is not given, see `Request`; None if there are none."""
        if not self.options.excludes:
            return None
        excluded = [self.options.excluded(query_id) for query_id in query_ids]
        doc_ords = [[doc for doc_id in row for doc in self.view.doc_ords(doc_id) or [NO_DOCUMENT]] for row in excluded]
        return row_starts([len(row) for row in doc_ords]), np.array([*itertools.chain(*doc_ords)], dtype=np.uint32)

    def _lists(self, searched: BranchSearch, request: Request) -> list[GivenLists | None] | None:
        """Return the lists that the kernel does not make itself; None if it makes all."""
        alone = len(self.plan.branches) == 1 and request.also is None
        deepest = request.k if alone else request.depth
        if request.excluded is not None:
            deepest += int(np.diff(request.excluded[0]).max(initial=0))
        lists: dict[Branch, GivenLists] = {}
        if searched.likelihood is not None and "tokens" in self.plan.searched:

            def likelihoods(query: int, doc_ords: DocOrds) -> Floats:
                return searched.pair_scores("tokens", doc_ords, query)

            lists["tokens"] = GivenLists.join(searched.top("tokens", deepest), likelihoods)
        return [lists.get(branch) for branch in self.plan.searched] if lists else None


def _check_texts(query_ids: Sequence[str], texts: Sequence[str]) -> None:
    """Raise InvalidInput that names the query whose text is refused, if there is one."""
    for query_id, text in zip(query_ids, texts, strict=True):
        checked_text(query_id, text)


def named_first(
    candidates: Candidates,
    named: DocOrds,
    min_score: float | None,
    break_ties: Callable[[DocOrds, npt.NDArray[np.float64]], npt.NDArray[np.int64]],
) -> Candidates:
    """Return candidates with named documents first, whose scores are at least 1 and above those of the others.

    Args:
        candidates: the candidates, best first.
        named: documents that the query names.
        min_score: score that they have at least; None for none.
        break_ties: function from documents and their descending scores to their positions in the total order.
    """
    is_named = np.isin(candidates.doc_ords, named)
    first, others = candidates.take(np.flatnonzero(is_named)), np.flatnonzero(~is_named)
    above = np.nextafter(candidates.scores[others].max(initial=0.0), np.inf)
    least = max(1.0, float(above), min_score or 0.0)
    scores = np.maximum(first.scores, least)
    order = np.lexsort((first.doc_ords, -scores))
    order = order[break_ties(first.doc_ords[order], scores[order])]
    positions = np.concatenate([np.flatnonzero(is_named)[order], others])
    every = np.concatenate([scores[order], candidates.scores[others]])
    return dataclasses.replace(candidates.take(positions), scores=every)


def above_score(candidates: Candidates, least: float | None) -> Candidates:
    """Return the candidates that do not score below a minimum; None for no minimum."""
    return candidates if least is None else candidates.take(slice(_n_above(candidates.scores, least)))


def _n_above(scores: npt.NDArray[np.float64], least: float) -> int:
    """Return the number of descending scores that are not below a minimum."""
    return int(np.searchsorted(-scores, -least, side="right"))


def require_count(k: int) -> None:
    """Raise InvalidInput unless k is a whole number of at least 1."""
    if not is_count(k):
        raise InvalidInput(f"k is {k!r}; expected a whole number from 1 to {MAX_COUNT}")


def _is_complete(view: View, plan: Plan, coding: QueryCoding, branch: Branch) -> bool:
    """Whether no document outside a branch's list scores more than the list's last one.

    A graph may miss documents, and likelihoods of documents outside the list are not bounded by it. A pending document
    scores 0, where the last one may score less, but a plan that finds pending documents does not fuse them.
    """
    if branch == "dense":
        return not has_graphs(view) and (view.n_pending == 0 or plan.finds_pending)
    return branch != "tokens" or coding.smoothing is None


def _text_encoder(view: View, plan: Plan, coding: QueryCoding) -> tuple[TextEncoder, int | None] | None:
    """Return the encoder by which the kernel makes the vectors of all branches, and its unknown term.

    None where more than the kernel makes them: for words, bigrams or expansions, by an encoder of another kind, or in
    another width than the index's.

    Raises:
        NotFound: the encoder has no table for the task.
    """
    encoder = coding.encoder
    if "tokens" in plan.searched or not isinstance(encoder, CachedQueryEncoder):
        return None
    texts = encoder.text_encoder(coding.task)
    if texts is None or ("sparse" in plan.branches and not texts.counts_terms):
        return None
    if "dense" in plan.branches and (texts.dim is None or texts.dim != view.dense_dim):
        return None
    return texts, encoder.tokenizer.unknown_id
