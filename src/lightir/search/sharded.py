"""Searches shards of an index as one index: questions to all shards, one fusion of their answers by the kernel.

Ids, scores and ties are those of one index, to the last bit (`lightir.search.shard_fusion`). What differs:

- Graphs over dense rows are approximate, and each shard has its own.
- Language models of counted words (`smoothing`) are refused.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import numpy as np

from lightir.errors import InvalidInput, NotFound
from lightir.index.listing import FacetCount
from lightir.index.metadata_filters import Filter
from lightir.index.passages.naming import document_of, first_of_documents
from lightir.index.reader import IndexInfo
from lightir.index.splitting import ShardedManifest
from lightir.kernel.candidates import Candidates
from lightir.search.explain import Explanation, explained, unmatched
from lightir.search.index_shard import (
    GroupsQuestion,
    HitsQuestion,
    IdsQuestion,
    ListsQuestion,
    MatchesQuestion,
    ShardMatches,
    StoredQuestion,
    require_supported,
)
from lightir.search.pages import Page, PageOptions, first_of_groups
from lightir.search.prepared import above_score, require_count
from lightir.search.search_options import DEFAULT_OPTIONS, MAX_COUNT, SearchOptions
from lightir.search.searcher import BATCH_QUERIES, DEFAULT_PAGE, ids_and_texts
from lightir.search.shard_fusion import Ranked, fuse, n_excluded_documents
from lightir.search.shard_set import LocalShards, Shards, ShardsMissing
from lightir.types import Branch, Document, Hit, Query, Ranking, Run


class ShardedSearcher:
    """Searches all shards of an index, with the results of one index. See the module for what differs.

    Safe to use from several threads. If a shard does not answer, a search raises `ShardsMissing`; see `allowing`.
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
        self._missing: set[int] | None = None

    @classmethod
    def open(cls, folder: Path | str) -> ShardedSearcher:
        """Open all shards of a folder that `lightir split` has made, in this process.

        Args:
            folder: folder of shards.

        Raises:
            NotFound: the folder has no manifest.
            InvalidInput: a shard was changed after it was counted.
            FormatError, StorageError: as `Index.open`.
        """
        manifest = ShardedManifest.read(folder)
        return cls(LocalShards.open(manifest), manifest.branches, passages=manifest.passages)

    def close(self) -> None:
        """Close the shards."""
        self.shards.close()

    def __enter__(self) -> ShardedSearcher:
        """Return the searcher, which is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the shards."""
        self.close()

    def allowing(self, missing: set[int]) -> ShardedSearcher:
        """Return a searcher of the same shards that answers without those that do not answer.

        Results lack the documents of these shards, and what depends on their lists, such as normalized scores.

        Args:
            missing: set to which searches add the numbers of the shards that their results lack.
        """
        searcher = ShardedSearcher(self.shards, self.branches, passages=self.passages)
        searcher._missing = missing
        return searcher

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none: all branches of the index, or its only one."""
        return "hybrid" if len(self.branches) > 1 else self.branches[0]

    def search(
        self,
        queries: Iterable[Query | str],
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
    ) -> Run:
        """Return the k best documents of each query: score down, then doc_id up.

        Args:
            queries: queries, or texts, whose query_id is their position.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, a malformed filter, or a smoothing.
            ShardsMissing: a shard does not answer; see `allowing`.
        """
        asked = [Query(*pair) for pair in zip(*ids_and_texts(queries), strict=True)]
        rankings = []
        for start in range(0, len(asked), BATCH_QUERIES):
            batch = asked[start : start + BATCH_QUERIES]
            for query, ranked in zip(batch, self._rank(batch, k, options), strict=True):
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
    ) -> list[Hit]:
        """Return the k best documents of one query with titles, snippets, metadata and each branch's scores.

        Args:
            query: the query's text.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms.
            full_text: return the whole text of each document as its snippet.

        Raises:
            InvalidInput, ShardsMissing: as `search`.
        """
        (ranked,) = self._rank([Query("", query)], k, options)
        shown = HitsQuestion(query, options, (), ranked.candidates, explain, full_text)
        return self._hits(ranked, shown)

    def page(
        self,
        query: str,
        page: PageOptions = DEFAULT_PAGE,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        explain: bool = False,
        full_text: bool = False,
    ) -> Page:
        """Return a page of the results of one query, with the number of all matches and counts of fields' values.

        Args:
            query: text of the query; white space alone lists the documents that pass the filter.
            page: the part of the results, the fields to count, the order and the groups.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms.
            full_text: return the whole text of each document as its snippet.

        Raises:
            InvalidInput: a field without a type, or an error of `search`.
            ShardsMissing: as `search`.
        """
        if options.min_score is not None:
            raise InvalidInput("a page counts all matches, whatever their scores; search it without min_score")
        ranked = None
        if query.strip():
            ranked = self._ranked_deep(query, page.end, options)
            if ranked.method is None or not ranked.method.text.strip():
                ranked = None  # conditions alone list the documents that meet them
        matches = self._matches(query, page, options, ranked, page.end)
        total = sum(of_shard.total for of_shard in matches.values())
        if ranked is None or page.sort is not None:
            shown = self._listed(query, page, options, ranked, matches)
        else:
            shown = self._window(query, ranked, page, options)
        asked = HitsQuestion(query, options, (), shown.candidates, explain, full_text)
        return Page(self._hits(shown, asked), total, _facets(page, matches))

    def explain(self, query: str, doc_id: str, options: SearchOptions = DEFAULT_OPTIONS) -> Explanation:
        """Explain one document's score for a query, whether a search finds the document or not; see `Searcher.explain`.

        Args:
            query: text of the query.
            doc_id: the document.
            options: mode, fusion, filter and so on; exclusions are ignored.

        Raises:
            NotFound: there is no such document.
            InvalidInput: bad arguments, or a document that does not match the filter or the query's conditions.
            ShardsMissing: the document was not found, or its score depends on a shard, and that does not answer.
        """
        require_supported(options)
        asked = StoredQuestion(query, options, doc_id)
        stored = self._ask("stored", dict.fromkeys(range(len(self.shards)), asked))
        owner = next((number for number, of_shard in stored.items() if of_shard is not None), None)
        if owner is None:
            raise NotFound(f"there is no document {doc_id!r}")
        if not stored[owner]:
            raise unmatched(doc_id)
        question = ListsQuestion((Query("", query),), options, 1, also=tuple(stored[owner]))
        answers = self._ask("lists", dict.fromkeys(range(len(self.shards)), question))
        every = fuse({n: lists[0] for n, lists in answers.items()}, question, rank_all=True, excludes=False)
        at = next(at for at, ranked_id in enumerate(every.ranked_ids) if ranked_id in stored[owner])  # its best passage
        best, doc_ord = every.ranked_ids[at], int(every.candidates.doc_ords[at])
        answer = self._ask("terms", {owner: dataclasses.replace(asked, doc_id=best)})
        if owner not in answer:  # it has stopped answering just now
            raise ShardsMissing([owner])
        pending, terms = answer[owner]
        assert every.method is not None  # the owner has answered
        named = doc_ord in every.named
        fusion = every.method.plan.fusion
        return explained(doc_id, doc_ord, every.candidates, terms, fusion, pending=pending, named=named)

    # Documents

    def get(self, doc_ids: Sequence[str]) -> dict[str, Document]:
        """Return the documents with the given ids, by id, in that order; ids without a document are omitted.

        Raises:
            InvalidInput: an id is not a string.
            ShardsMissing: a document was not found, and a shard does not answer.
        """
        questions = dict.fromkeys(range(len(self.shards)), tuple(doc_ids))
        answers = self.shards.ask("get", questions)
        documents: dict[str, Document] = {}
        for of_shard in answers.values():
            documents |= of_shard
        if not documents.keys() >= {*doc_ids}:
            self._require(questions.keys() - answers.keys())
        return {doc_id: documents[doc_id] for doc_id in doc_ids if doc_id in documents}

    def ids(
        self, filter: Filter | None = None, *, after: str | None = None, limit: int | None = None
    ) -> tuple[int, list[str]]:
        """Return the number of documents that match a filter, and their ids in a part of the list, ascending.

        Args:
            filter: condition on the metadata; None for all documents.
            after: id above which the part begins; None for all.
            limit: maximum number of ids; None for all.

        Raises:
            InvalidInput, ShardsMissing: as `search`.
        """
        answers = self._ask("ids", dict.fromkeys(range(len(self.shards)), IdsQuestion(filter, after, limit)))
        merged = heapq.merge(*(doc_ids for _, doc_ids in answers.values()))
        return sum(total for total, _ in answers.values()), [*itertools.islice(merged, limit)]

    def info(self) -> IndexInfo:
        """Return counts and sizes of all shards; without graphs, of which each shard has its own.

        Raises:
            ShardsMissing: a shard does not answer.
        """
        infos: list[IndexInfo] = [*self._ask("info", dict.fromkeys(range(len(self.shards)))).values()]
        counts = {
            name: sum(getattr(info, name) for info in infos)
            for name in ("documents", "passages", "encoded", "pending", "deleted", "outdated", "segments")
        }
        n_bytes: Counter[str] = Counter()
        for info in infos:
            n_bytes.update(info.bytes)
        widest = max(infos, key=lambda info: info.dense_dim or 0)
        return dataclasses.replace(widest, **counts, bytes=dict(n_bytes), branches=self.branches, dense_graph=None)

    # Rankings

    def _rank(self, queries: Sequence[Query], k: int, options: SearchOptions) -> list[Ranked]:
        """Return each query's k best documents, without excluded ones and those below the minimum score."""
        require_count(k)
        by_document = self.passages and not options.passages
        n = min(2 * k + 8, MAX_COUNT) if by_document else k
        while True:  # as many passages are ranked as k documents take
            ranked = self._fused(queries, ListsQuestion(tuple(queries), options, n))
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

    def _fused(self, queries: Sequence[Query], question: ListsQuestion, *, rank_all: bool = False) -> list[Ranked]:
        """Ask for lists and fuse those of each query."""
        require_supported(question.options)
        options = question.options
        longest = max((len(options.excluded(query.query_id)) for query in queries), default=0)
        question = dataclasses.replace(question, more=longest if options.excludes else 0)
        while True:
            answers = self._ask("lists", dict.fromkeys(range(len(self.shards)), question))
            of_queries = [{n: lists[i] for n, lists in answers.items()} for i in range(len(queries))]
            most = max((n_excluded_documents(lists) for lists in of_queries), default=0)
            if most <= question.more:
                return [fuse(lists, question, rank_all=rank_all) for lists in of_queries]
            question = dataclasses.replace(question, more=most)  # an excluded document has several passages

    def _ranked_deep(self, query: str, n: int, options: SearchOptions) -> Ranked:
        """Return all candidates of a query, of which each branch lists n, or the default depth if that is more."""
        asked = [Query("", query)]
        question = ListsQuestion(tuple(asked), options, n)
        (ranked,) = self._fused(asked, question, rank_all=True)
        method = ranked.method
        if method is not None and len(method.plan.searched) == 1 and n < method.depth:
            question = dataclasses.replace(question, k=method.depth)
            (ranked,) = self._fused(asked, question, rank_all=True)
        return ranked

    # Pages

    def _matches(
        self,
        query: str,
        page: PageOptions,
        options: SearchOptions,
        ranked: Ranked | None,
        n: int,
    ) -> Mapping[int, ShardMatches]:
        """Return each shard's matches, of which it lists n."""
        ids: dict[int, tuple[str, ...]] = {}
        if ranked is not None:
            doc_ids = ranked.ranked_ids
            ids = {number: tuple(doc_ids[i] for i in at.tolist()) for number, at in ranked.by_owner().items()}
        questions = {
            number: MatchesQuestion(
                query, options, None if ranked is None else ids.get(number, ()), tuple(page.facets), page.sort, n
            )
            for number in range(len(self.shards))
        }
        return self._ask("matches", questions)

    def _listed(
        self,
        query: str,
        page: PageOptions,
        options: SearchOptions,
        ranked: Ranked | None,
        matches: Mapping[int, ShardMatches],
    ) -> Ranked:
        """Return the part of the matches that a page shows, in the order of a field or of ids, with their scores."""
        entries = self._first(query, page, options, ranked, matches)
        if ranked is None:
            by_id = sorted(entries)
            doc_ids, owners = [doc_id for doc_id, _ in by_id], [number for _, number in by_id]
            order = np.array([doc_ids.index(doc_id) for doc_id, _ in entries], dtype=np.uint32)
            return Ranked(None, doc_ids, owners, Candidates(order, np.zeros(len(order)), {}), order[:0])
        method = ranked.method
        assert method is not None  # the query has words
        also = tuple(doc_id for doc_id, _ in entries)
        question = ListsQuestion((Query("", query),), options, method.depth, also=also)
        answers = self._ask("lists", dict.fromkeys(range(len(self.shards)), question))
        every = fuse({n: lists[0] for n, lists in answers.items()}, question, rank_all=True, excludes=False)
        position_of = {doc_id: position for position, doc_id in enumerate(every.ranked_ids)}
        return every.take(np.array([position_of[i] for i in also if i in position_of], dtype=np.int64))

    def _first(
        self,
        query: str,
        page: PageOptions,
        options: SearchOptions,
        ranked: Ranked | None,
        matches: Mapping[int, ShardMatches],
    ) -> list[tuple[str, int]]:
        """Return ids and shards of the matches that a page shows, in the order of a field or of ids."""
        n = page.end
        while True:
            parts = [[(*entry, number) for entry in of_shard.first] for number, of_shard in matches.items()]
            merged = itertools.islice(heapq.merge(*parts, key=lambda entry: entry[:3]), n)
            entries = [(doc_id, number) for _, _, doc_id, number in merged]
            if page.group is None:
                return entries[page.offset :]
            leaders = self._leaders([doc_id for doc_id, _ in entries], [number for _, number in entries], page, options)
            if len(leaders) >= page.end or len(entries) < n:
                return [entries[at] for at in leaders[page.offset : page.end]]
            n = min(4 * n, MAX_COUNT)
            matches = self._matches(query, page, options, ranked, n)

    def _leaders(
        self, doc_ids: Sequence[str], owners: Sequence[int], page: PageOptions, options: SearchOptions
    ) -> list[int]:
        """Return the position of the first document of each group; the passages of a document without one are a group.

        Args:
            doc_ids: ids of stored documents, in order.
            owners: number of the shard of each.
            page: the page, with the field to group by.
            options: options of the search.
        """
        groups: list[object] = [None] * len(doc_ids)
        if page.group is not None:
            of_shards: dict[int, list[int]] = {number: [] for number in range(len(self.shards))}
            for at, number in enumerate(owners):
                of_shards[number].append(at)
            questions = {
                number: GroupsQuestion(tuple(doc_ids[at] for at in places), page.group)
                for number, places in of_shards.items()
            }
            for number, values in self._ask("groups", questions).items():
                for at, value in zip(of_shards[number], values, strict=True):
                    groups[at] = value
        if self.passages and not options.passages:
            groups = [
                (None, document_of(doc_id)) if value is None else value
                for value, doc_id in zip(groups, doc_ids, strict=True)
            ]
        return first_of_groups(groups)

    def _window(self, query: str, ranked: Ranked, page: PageOptions, options: SearchOptions) -> Ranked:
        """Return the part of a ranking that a page shows: the best one of a group, and of a document's passages."""
        method = ranked.method
        assert method is not None  # the query has words
        if page.group is None and (not self.passages or options.passages):
            return ranked.take(slice(page.offset, page.end))
        n = max(page.end, method.depth)
        while True:
            first = ranked.take(slice(n))
            owners = [first.owners[doc_ord] for doc_ord in first.candidates.doc_ords.tolist()]
            leaders = self._leaders(first.ranked_ids, owners, page, options)
            if len(leaders) >= page.end or len(first.candidates) < n:
                return first.take(np.array(leaders[page.offset : page.end], dtype=np.int64))
            n = min(4 * n, MAX_COUNT)
            ranked = self._ranked_deep(query, n, options)

    # Shards

    def _hits(self, ranked: Ranked, shown: HitsQuestion) -> list[Hit]:
        """Return ranked documents as hits; those of a shard that does not answer any more are left out."""
        by_owner, doc_ids = ranked.by_owner(), ranked.ranked_ids
        questions = {
            number: dataclasses.replace(
                shown, doc_ids=tuple(doc_ids[i] for i in at.tolist()), ranked=ranked.candidates.take(at)
            )
            for number, at in by_owner.items()
        }
        hits: dict[int, Hit] = {}
        for number, answer in self._ask("hits", questions).items():
            hits |= zip(by_owner[number].tolist(), cast(list[Hit], answer), strict=True)
        named = {*ranked.named.tolist()}
        doc_ords = ranked.candidates.doc_ords.tolist()
        return [dataclasses.replace(hits[i], named=doc_ords[i] in named) for i in sorted(hits)]

    def _ask(self, method: str, questions: Mapping[int, Any]) -> Mapping[int, Any]:
        answers = self.shards.ask(method, questions)
        self._require(questions.keys() - answers.keys())
        return answers

    def _require(self, silent: Set[int]) -> None:
        """Raise ShardsMissing for shards that do not answer, or note them if they may be missing."""
        if silent:
            if self._missing is None:
                raise ShardsMissing(silent)
            self._missing |= silent


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
