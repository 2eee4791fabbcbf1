"""Searches shards of an index as one index: questions to all shards, one fusion of their answers by the kernel.

The documents of a query's lists are numbered in the order of their ids. Then `CandidateSearch` gets the merged lists
and the raw scores, so fusion, ties and places of pending documents are those of one index, to the last bit. What
differs:

- Graphs over dense rows are approximate, and each shard has its own.
- Language models of counted words (`smoothing`) and groups of a page are refused.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput, LightirError
from lightir.index.listing import FacetCount
from lightir.index.passages.naming import document_of, first_of_documents
from lightir.kernel import DocOrds, Scores
from lightir.kernel.candidates import (
    BoundBranch,
    BranchList,
    Candidates,
    CandidateSearch,
    GivenLists,
    PendingDocuments,
    Request,
)
from lightir.kernel.segments import BranchQueries, DenseSegments, SparseSegments
from lightir.search.index_shard import (
    HitsQuestion,
    IndexShard,
    ListsQuestion,
    MatchesQuestion,
    Method,
    ShardLists,
    ShardMatches,
    require_supported,
)
from lightir.search.pages import Page, PageOptions
from lightir.search.prepared import NO_DOCUMENT, above_score, named_first, require_count, scale_of
from lightir.search.search_options import DEFAULT_OPTIONS, MAX_COUNT, SearchOptions
from lightir.search.searcher import BATCH_QUERIES, DEFAULT_PAGE, ids_and_texts
from lightir.types import Branch, Hit, Query, Ranking, Run


class ShardsMissing(LightirError):
    """Shards do not answer, and an answer without their documents was not allowed.

    Attributes:
        numbers: numbers of the shards, ascending.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self.numbers = sorted(numbers)
        listed = ", ".join(map(str, self.numbers))
        super().__init__(
            f"shards that do not answer: {listed}; try again, or allow partial results, which lack their documents"
        )


class Shards(Protocol):
    """Shards that can be asked."""

    def __len__(self) -> int:
        """Number of shards."""
        ...

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Ask shards at the same time, and return the answers of those that answer.

        Args:
            method: name of a method of `IndexShard`.
            questions: question to each shard, by its number.

        Raises:
            LightirError: a shard refuses the question.
        """
        ...


class LocalShards:
    """Shards in this process."""

    def __init__(self, shards: Sequence[IndexShard]) -> None:
        """Take the shards in their order."""
        self._shards = [*shards]
        self._threads = ThreadPoolExecutor(max(len(self._shards), 1), thread_name_prefix="lightir-shard")

    def __len__(self) -> int:
        """Number of shards."""
        return len(self._shards)

    def ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        """Ask shards; see `Shards`."""
        asked = {
            number: self._threads.submit(getattr(self._shards[number], method), question)
            for number, question in questions.items()
        }
        return {number: future.result() for number, future in asked.items()}


@dataclass(frozen=True)
class _Ranked:
    """The ranking of one query.

    Attributes:
        method: how it was ranked; None if no shard answered.
        doc_ids: ids of the documents that the candidates number, ascending.
        owners: number of the shard of each.
        candidates: the ranking.
        named: documents that the query names.
    """

    method: Method | None
    doc_ids: Sequence[str]
    owners: Sequence[int]
    candidates: Candidates
    named: DocOrds

    @cached_property
    def ranked_ids(self) -> list[str]:
        """Ids of the ranked documents and passages, best first."""
        return [self.doc_ids[doc_ord] for doc_ord in self.candidates.doc_ords.tolist()]

    def take(self, positions: npt.NDArray[np.int64] | slice) -> _Ranked:
        """Return some of the ranking."""
        return dataclasses.replace(self, candidates=self.candidates.take(positions))

    def by_owner(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return the positions of the ranked documents of each shard that has some."""
        owners = np.array([self.owners[doc_ord] for doc_ord in self.candidates.doc_ords.tolist()], dtype=np.int64)
        return {int(number): np.flatnonzero(owners == number) for number in np.unique(owners)}


class ShardedSearcher:
    """Searches all shards of an index, with the results of one index. See the module for what differs.

    Each search takes a set for the numbers of shards that do not answer. The result then lacks the documents of these
    shards, and what depends on their lists, such as normalized scores. Without a set, `ShardsMissing` is raised.
    """

    def __init__(self, shards: Shards, branches: Sequence[Branch], *, passages: bool) -> None:
        """Put shards together.

        Args:
            shards: the shards, which were opened with the counts of all.
            branches: branches that can be searched, see `ShardedManifest`.
            passages: whether long documents are stored as passages.
        """
        self.shards = shards
        self.branches = tuple(branches)
        self.passages = passages

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none: all branches of the index, or its only one."""
        return "hybrid" if len(self.branches) > 1 else self.branches[0]

    def search(
        self,
        queries: Iterable[Query | str],
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        missing: set[int] | None = None,
    ) -> Run:
        """Return the k best documents of each query: score down, then doc_id up.

        Args:
            queries: queries, or texts, whose query_id is their position.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            missing: set for the numbers of shards that do not answer; None to raise an error.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, a malformed filter, or a smoothing.
            ShardsMissing: a shard does not answer, and there is no set for it.
        """
        asked = [Query(*pair) for pair in zip(*ids_and_texts(queries), strict=True)]
        rankings = []
        for start in range(0, len(asked), BATCH_QUERIES):
            batch = asked[start : start + BATCH_QUERIES]
            for query, ranked in zip(batch, self._rank(batch, k, options, missing), strict=True):
                doc_ids = ranked.ranked_ids
                if self.passages and not options.passages:
                    doc_ids = [document_of(doc_id) for doc_id in doc_ids]
                rankings.append(Ranking(query.query_id, doc_ids, ranked.candidates.scores))
        return {ranking.query_id: ranking for ranking in rankings}

    def hits(
        self,
        query: str,
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        explain: bool = False,
        full_text: bool = False,
        missing: set[int] | None = None,
    ) -> list[Hit]:
        """Return the k best documents of one query with titles, snippets, metadata and each branch's scores.

        Args:
            query: the query's text.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms.
            full_text: return the whole text of each document as its snippet.
            missing: set for the numbers of shards that do not answer; None to raise an error.

        Raises:
            InvalidInput, ShardsMissing: as `search`.
        """
        (ranked,) = self._rank([Query("", query)], k, options, missing)
        shown = HitsQuestion(query, options, (), ranked.candidates, explain, full_text)
        return self._hits(ranked, shown, missing)

    def page(
        self,
        query: str,
        page: PageOptions = DEFAULT_PAGE,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        explain: bool = False,
        full_text: bool = False,
        missing: set[int] | None = None,
    ) -> Page:
        """Return a page of the results of one query, with the number of all matches and counts of fields' values.

        Args:
            query: text of the query; white space alone lists the documents that pass the filter.
            page: the part of the results, the fields to count, and the order; without groups.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms.
            full_text: return the whole text of each document as its snippet.
            missing: set for the numbers of shards that do not answer; None to raise an error.

        Raises:
            InvalidInput: groups are asked for, or an error of `search`.
            ShardsMissing: as `search`.
        """
        if page.group is not None:
            raise InvalidInput("groups are not supported over shards; search the index that was split")
        if options.min_score is not None:
            raise InvalidInput("a page counts all matches, whatever their scores; search it without min_score")
        ranked = None
        if query.strip():
            ranked = self._ranked_deep(query, page.end, options, missing)
            if ranked.method is None or not ranked.method.text.strip():
                ranked = None  # conditions alone list the documents that meet them
        matches = self._matches(query, page, options, ranked, missing)
        total = sum(of_shard.total for of_shard in matches.values())
        if ranked is None or page.sort is not None:
            shown = self._listed(query, page, options, ranked, matches, missing)
        else:
            shown = self._window(query, ranked, page, options, missing)
        asked = HitsQuestion(query, options, (), shown.candidates, explain, full_text)
        return Page(self._hits(shown, asked, missing), total, _facets(page, matches))

    # Rankings

    def _rank(
        self, queries: Sequence[Query], k: int, options: SearchOptions, missing: set[int] | None
    ) -> list[_Ranked]:
        """Return each query's k best documents, without excluded ones and those below the minimum score."""
        require_count(k)
        by_document = self.passages and not options.passages
        n = min(2 * k + 8, MAX_COUNT) if by_document else k
        while True:  # as many passages are ranked as k documents take
            ranked = self._fused(queries, ListsQuestion(tuple(queries), options, n), missing)
            if not by_document:
                break
            first = [first_of_documents(one.ranked_ids)[:k] for one in ranked]
            complete = all(len(at) == k or len(one.candidates) < n for at, one in zip(first, ranked, strict=True))
            if complete or n == MAX_COUNT:
                ranked = [one.take(at) for at, one in zip(first, ranked, strict=True)]
                break
            n = min(4 * n, MAX_COUNT)
        least = options.min_score
        return [dataclasses.replace(one, candidates=above_score(one.candidates, least)) for one in ranked]

    def _fused(
        self, queries: Sequence[Query], question: ListsQuestion, missing: set[int] | None, *, rank_all: bool = False
    ) -> list[_Ranked]:
        """Ask for lists and fuse those of each query."""
        require_supported(question.options)
        options = question.options
        longest = max((len(options.excluded(query.query_id)) for query in queries), default=0)
        question = dataclasses.replace(question, more=longest if options.excludes else 0)
        while True:
            answers = self._ask("lists", dict.fromkeys(range(len(self.shards)), question), missing)
            of_queries = [{n: lists[i] for n, lists in answers.items()} for i in range(len(queries))]
            most = max((_n_excluded(lists) for lists in of_queries), default=0)
            if most <= question.more:
                return [_fuse(lists, question, rank_all=rank_all) for lists in of_queries]
            question = dataclasses.replace(question, more=most)  # an excluded document has several passages

    def _ranked_deep(self, query: str, n: int, options: SearchOptions, missing: set[int] | None) -> _Ranked:
        """Return all candidates of a query, of which each branch lists n, or the default depth if that is more."""
        asked = [Query("", query)]
        question = ListsQuestion(tuple(asked), options, n)
        (ranked,) = self._fused(asked, question, missing, rank_all=True)
        method = ranked.method
        if method is not None and len(method.plan.searched) == 1 and n < method.depth:
            question = dataclasses.replace(question, k=method.depth)
            (ranked,) = self._fused(asked, question, missing, rank_all=True)
        return ranked

    # Pages

    def _matches(
        self,
        query: str,
        page: PageOptions,
        options: SearchOptions,
        ranked: _Ranked | None,
        missing: set[int] | None,
    ) -> Mapping[int, ShardMatches]:
        ids: dict[int, tuple[str, ...]] = {}
        if ranked is not None:
            doc_ids = ranked.ranked_ids
            ids = {number: tuple(doc_ids[i] for i in at.tolist()) for number, at in ranked.by_owner().items()}
        questions = {
            number: MatchesQuestion(
                query, options, None if ranked is None else ids.get(number, ()), tuple(page.facets), page.sort, page.end
            )
            for number in range(len(self.shards))
        }
        return self._ask("matches", questions, missing)

    def _listed(
        self,
        query: str,
        page: PageOptions,
        options: SearchOptions,
        ranked: _Ranked | None,
        matches: Mapping[int, ShardMatches],
        missing: set[int] | None,
    ) -> _Ranked:
        """Return the part of the matches that a page shows, in the order of a field or of ids, with their scores."""
        parts = [[(*entry, number) for entry in of_shard.first] for number, of_shard in matches.items()]
        merged = heapq.merge(*parts, key=lambda entry: entry[:3])
        entries = [(doc_id, number) for _, _, doc_id, number in itertools.islice(merged, page.offset, page.end)]
        if ranked is None:
            by_id = sorted(entries)
            doc_ids, owners = [doc_id for doc_id, _ in by_id], [number for _, number in by_id]
            order = np.array([doc_ids.index(doc_id) for doc_id, _ in entries], dtype=np.uint32)
            return _Ranked(None, doc_ids, owners, Candidates(order, np.zeros(len(order)), {}), order[:0])
        method = ranked.method
        assert method is not None  # the query has words
        also = tuple(doc_id for doc_id, _ in entries)
        question = ListsQuestion((Query("", query),), options, method.depth, also=also)
        answers = self._ask("lists", dict.fromkeys(range(len(self.shards)), question), missing)
        every = _fuse({n: lists[0] for n, lists in answers.items()}, question, rank_all=True, excludes=False)
        position_of = {doc_id: position for position, doc_id in enumerate(every.ranked_ids)}
        return every.take(np.array([position_of[i] for i in also if i in position_of], dtype=np.int64))

    def _window(
        self, query: str, ranked: _Ranked, page: PageOptions, options: SearchOptions, missing: set[int] | None
    ) -> _Ranked:
        """Return the part of a ranking that a page shows: of the passages of a document the best one."""
        method = ranked.method
        assert method is not None  # the query has words
        if not self.passages or options.passages:
            return ranked.take(slice(page.offset, page.end))
        n = max(page.end, method.depth)
        while True:
            first = ranked.take(slice(n))
            leaders = first_of_documents(first.ranked_ids)
            if len(leaders) >= page.end or len(first.candidates) < n:
                return first.take(leaders[page.offset : page.end])
            n = min(4 * n, MAX_COUNT)
            ranked = self._ranked_deep(query, n, options, missing)

    # Shards

    def _hits(self, ranked: _Ranked, shown: HitsQuestion, missing: set[int] | None) -> list[Hit]:
        """Return ranked documents as hits; those of a shard that does not answer any more are left out."""
        by_owner, doc_ids = ranked.by_owner(), ranked.ranked_ids
        questions = {
            number: dataclasses.replace(
                shown, doc_ids=tuple(doc_ids[i] for i in at.tolist()), ranked=ranked.candidates.take(at)
            )
            for number, at in by_owner.items()
        }
        hits: dict[int, Hit] = {}
        for number, answer in self._ask("hits", questions, missing).items():
            hits |= zip(by_owner[number].tolist(), cast(list[Hit], answer), strict=True)
        named = {*ranked.named.tolist()}
        doc_ords = ranked.candidates.doc_ords.tolist()
        return [dataclasses.replace(hits[i], named=doc_ords[i] in named) for i in sorted(hits)]

    def _ask(self, method: str, questions: Mapping[int, Any], missing: set[int] | None) -> Mapping[int, Any]:
        answers = self.shards.ask(method, questions)
        if silent := questions.keys() - answers.keys():
            if missing is None:
                raise ShardsMissing(silent)
            missing |= silent
        return answers


def _n_excluded(lists: Mapping[int, ShardLists]) -> int:
    """Return the number of stored documents that a query is not given; an id without one counts as one."""
    counts: Counter[str] = Counter()
    for of_shard in lists.values():
        counts.update(of_shard.n_excluded)
    return sum(max(n, 1) for n in counts.values())


def _fuse(
    lists: Mapping[int, ShardLists], question: ListsQuestion, *, rank_all: bool = False, excludes: bool = True
) -> _Ranked:
    """Fuse the lists of one query.

    Args:
        lists: lists of each shard that answered.
        question: the question.
        rank_all: return all candidates of several branches.
        excludes: leave out excluded documents.
    """
    if not lists:
        nothing = np.zeros(0, np.uint32)
        return _Ranked(None, [], [], Candidates(nothing, np.zeros(0), {}), nothing)
    merged = _Merged(lists)
    method = merged.method
    if method.lists_all:
        doc_ords = np.arange(min(question.k, len(merged.doc_ids)), dtype=np.uint32)
        candidates = Candidates(doc_ords, np.zeros(len(doc_ords)), {})
        return _Ranked(method, merged.doc_ids, merged.owners, candidates, doc_ords[:0])
    named = merged.named()
    also = np.union1d(named, merged.places(question.also)).astype(np.uint32)
    excluded = merged.excluded(_n_excluded(lists)) if excludes else None
    k = MAX_COUNT if rank_all and (question.also or len(method.plan.branches) > 1) else question.k
    depth = max(question.k, method.depth)
    asked = Request(k, depth, 1, True, excluded)
    if len(also):
        asked = asked._replace(k=MAX_COUNT, also=also)
    candidates = merged.search(asked)
    if len(named):
        candidates = named_first(candidates, named, question.options.min_score, _by_number)
    return _Ranked(method, merged.doc_ids, merged.owners, candidates.take(slice(k)), named)


def _by_number(doc_ords: DocOrds, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the positions of documents that are in the total order already, because numbers ascend with ids."""
    return np.arange(len(doc_ords))


class _Merged:
    """The lists of one query of all shards, whose documents are numbered in the order of their ids."""

    def __init__(self, lists: Mapping[int, ShardLists]) -> None:
        self.method = next(iter(lists.values())).method
        self._lists = [*lists.values()]
        pairs = sorted((doc_id, number) for number, of_shard in lists.items() for doc_id in of_shard.doc_ids)
        self.doc_ids = [doc_id for doc_id, _ in pairs]
        self.owners = [number for _, number in pairs]
        self._number_of = {doc_id: i for i, doc_id in enumerate(self.doc_ids)}
        self._numbers = [self.places(of_shard.doc_ids) for of_shard in self._lists]

    def places(self, doc_ids: Iterable[str]) -> DocOrds:
        """Return the numbers of documents; unknown ones are ignored."""
        numbers = [self._number_of[doc_id] for doc_id in doc_ids if doc_id in self._number_of]
        return np.array(numbers, dtype=np.uint32)

    def named(self) -> DocOrds:
        """Return the documents that the query names, ascending: those in the same case, if there are any."""
        doc_ids: set[str] = set()
        for same in zip(*(of_shard.named for of_shard in self._lists), strict=True):
            exact = [one for one in same if one.is_exact]
            doc_ids.update(*(one.doc_ids for one in exact or same))
        return np.sort(self.places(doc_ids))

    def excluded(self, n: int) -> tuple[npt.NDArray[np.int64], DocOrds] | None:
        """Return the n documents that the query is not given, of which some are in no list; see `Request`."""
        if not n:
            return None
        at = np.flatnonzero(self._joined([of_shard.excluded for of_shard in self._lists], np.bool_))
        doc_ords = np.full(n, NO_DOCUMENT, dtype=np.uint32)
        doc_ords[: len(at)] = at
        return np.array([0, n], dtype=np.int64), doc_ords

    def search(self, request: Request) -> Candidates:
        """Fuse the lists; the kernel cuts them at their depth."""
        plan, n_docs = self.method.plan, len(self.doc_ids)
        bound, queries, lists = [], [], []
        for branch in plan.searched:
            rows, asked = self._queries(branch, n_docs)
            weight = float(plan.fusion.weights.get(branch, 0.0))
            bound.append(BoundBranch(branch, rows, weight, False, None, self.method.spans[branch]))
            queries.append(asked)
            lists.append(self._given(branch))
        flags = self._joined([of_shard.pending for of_shard in self._lists], np.bool_)
        kernel = CandidateSearch(
            bound,
            scale=scale_of(plan.fusion),
            rrf_k=plan.fusion.rrf_k,
            pending=PendingDocuments(flags, not plan.ranks_by_tokens) if plan.finds_pending else None,
        )
        return kernel.search(queries, request, lists=[*lists])[0]

    def _given(self, branch: Branch) -> GivenLists:
        """Return the merged list of a branch: score down, then doc_id up."""
        scores: Scores = self._joined([of_shard.scores[branch] for of_shard in self._lists], np.float32)
        listed = [numbers[of_shard.lists[branch]] for numbers, of_shard in zip(self._numbers, self._lists, strict=True)]
        doc_ords = np.concatenate(listed)
        doc_ords = doc_ords[np.lexsort((doc_ords, -scores[doc_ords]))]
        return GivenLists.join([BranchList(doc_ords, scores[doc_ords])], lambda _, asked: scores[asked])

    def _queries(self, branch: Branch, n_docs: int) -> tuple[DenseSegments | SparseSegments, BranchQueries | None]:
        """Return documents without rows, and the query's terms, whose sum of weights the kernel needs."""
        if branch == "dense":
            return DenseSegments([None], [n_docs]), None
        rows = SparseSegments([None], [n_docs])
        terms = self.method.terms[branch]
        n_terms = len(terms.weights)
        indptr, term_ids = np.array([0, n_terms], dtype=np.int64), np.arange(n_terms, dtype=np.uint32)
        unknown = None if terms.unknown is None else np.array([terms.unknown], dtype=np.float64)
        return rows, rows.queries(indptr, term_ids, terms.weights, unknown=unknown)

    def _joined(self, parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
        """Return values of all documents, given those of each shard's."""
        joined = np.zeros(len(self.doc_ids), dtype=dtype)
        for numbers, part in zip(self._numbers, parts, strict=True):
            joined[numbers] = part
        return joined


def _facets(page: PageOptions, matches: Mapping[int, ShardMatches]) -> dict[str, tuple[FacetCount, ...]]:
    """Return the sums of the shards' counts: the values of most documents first; ties go to the smaller value."""
    facets = {}
    for name, n in page.facets.items():
        totals: Counter[Any] = Counter()
        for of_shard in matches.values():
            totals.update(of_shard.facets[name])
        best = heapq.nsmallest(n, totals.items(), key=lambda item: (-item[1], item[0]))
        facets[name] = tuple(FacetCount(value, count) for value, count in best)
    return facets
