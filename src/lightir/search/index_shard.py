"""One shard of an index that is searched as one: its part of the answers, before anything is fused.

A shard answers the list of each branch with the raw scores of all listed documents in all branches. Every document that
is in a list of the whole index is in that of its shard. So the coordinator (`lightir.search.sharded`) has all that
a search of one index has, and calls the same kernel. Questions and answers can be pickled.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.index.listing import Listing, Sort
from lightir.index.metadata_filters import Filter
from lightir.index.reader import IndexInfo
from lightir.index.segments.columns import Mask
from lightir.index.view import View
from lightir.kernel import DocOrds, Scores
from lightir.kernel.candidates import Candidates
from lightir.search.branches import BranchSearch
from lightir.search.conditions import lookups
from lightir.search.pages import matches_of
from lightir.search.plan import Plan, span
from lightir.search.prepared import PreparedSearch
from lightir.search.query_syntax import parse_query
from lightir.search.search_options import MAX_COUNT, SearchOptions
from lightir.search.searcher import Searcher
from lightir.types import Branch, Document, Hit, Query, TermScore


@dataclass(frozen=True, slots=True)
class ListsQuestion:
    """Queries whose lists are asked for.

    Attributes:
        queries: the queries.
        options: options of the search.
        k: number of documents that the ranking will have; lists are at least as long.
        more: number of documents that lists are longer, because as many may be excluded.
        also: ids of stored documents whose scores are wanted, whether a branch lists them or not.
    """

    queries: tuple[Query, ...]
    options: SearchOptions
    k: int
    more: int = 0
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Named:
    """The documents of a shard that one text of a query names.

    Attributes:
        is_exact: whether the name has the same case.
        doc_ids: ids of the named documents that the search may find.
    """

    is_exact: bool
    doc_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Terms:
    """The weights of a query's terms in a branch, by whose sum "absolute" normalizes.

    Attributes:
        weights: (n,) float32.
        unknown: weight of terms that no document has; None where they have none.
    """

    weights: npt.NDArray[np.float32]
    unknown: float | None


@dataclass(frozen=True, slots=True)
class Method:
    """The ranking of a query, which is the same in all shards.

    Attributes:
        plan: the branches, and how they are joined.
        spans: scores that "absolute" counts as 0 and as 1, by branch.
        depth: default number of documents that each branch gives to the fusion.
        lists_all: whether all matching documents are the result, because the query has conditions alone.
        text: text to rank by.
        terms: terms of the sparse branches, by branch.
    """

    plan: Plan
    spans: Mapping[Branch, tuple[float, float]]
    depth: int
    lists_all: bool
    text: str
    terms: Mapping[Branch, Terms]


@dataclass(frozen=True, slots=True)
class ShardLists:
    """A shard's lists for one query.

    Attributes:
        method: the ranking of the query.
        doc_ids: ids of n documents: listed, named and asked for; of a query that lists all documents the first k.
        pending: (n,) bool, whether each of them is pending.
        excluded: (n,) bool, whether each of them is excluded by the options.
        scores: (n,) float32 raw scores, by branch.
        lists: positions of the listed documents, by branch: score down, then doc_id up.
        named: documents that each text of the query names, in order.
        n_excluded: number of stored documents of each excluded id.
    """

    method: Method
    doc_ids: list[str]
    pending: npt.NDArray[np.bool_]
    excluded: npt.NDArray[np.bool_]
    scores: Mapping[Branch, Scores]
    lists: Mapping[Branch, npt.NDArray[np.int64]]
    named: tuple[Named, ...]
    n_excluded: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HitsQuestion:
    """Ranked documents of a shard that are to be shown.

    Attributes:
        query: text of the query.
        options: options of the search.
        doc_ids: n ids of stored documents.
        ranked: their scores, (n,), whose doc_ords mean nothing.
        explain: fill in the hits' terms.
        full_text: return the whole text of each document as its snippet.
    """

    query: str
    options: SearchOptions
    doc_ids: tuple[str, ...]
    ranked: Candidates
    explain: bool
    full_text: bool


@dataclass(frozen=True, slots=True)
class MatchesQuestion:
    """A query whose matches are to be counted and listed.

    Attributes:
        query: text of the query.
        options: options of the search.
        ranked: ids of the shard's candidates; None without a query.
        facets: fields whose values are counted.
        sort: order of the listed documents; None for that of their ids.
        n: number of documents to list.
    """

    query: str
    options: SearchOptions
    ranked: tuple[str, ...] | None
    facets: tuple[str, ...]
    sort: str | None
    n: int


@dataclass(frozen=True, slots=True)
class ShardMatches:
    """The matches of one query in a shard.

    Attributes:
        total: number of documents that match.
        facets: numbers of documents by value, by field.
        first: the first documents in order: whether each lacks a value, its sort key, and its id.
    """

    total: int
    facets: Mapping[str, Mapping[Any, int]]
    first: list[tuple[bool, Any, str]]


@dataclass(frozen=True, slots=True)
class IdsQuestion:
    """A part of the list of ids.

    Attributes:
        filter: condition on the metadata; None for all documents.
        after: id above which the part begins; None for all.
        limit: maximum number of ids; None for all.
    """

    filter: Filter | None
    after: str | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class GroupsQuestion:
    """Documents of a shard whose groups are asked for.

    Attributes:
        doc_ids: ids of stored documents.
        field: field whose values are groups.
    """

    doc_ids: tuple[str, ...]
    field: str


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """A document that is to be explained.

    Attributes:
        query: text of the query.
        options: options of the search.
        doc_id: id of the document, or of a stored passage.
    """

    query: str
    options: SearchOptions
    doc_id: str


class IndexShard:
    """Answers for one shard. Safe to use from several threads."""

    def __init__(self, searcher: Searcher) -> None:
        """Take a searcher of an index that was opened with the counts of all shards.

        Raises:
            InvalidInput: the index was opened alone.
        """
        if searcher.index.view.collection is None:
            raise InvalidInput(f"{searcher.index.folder} was opened without the counts of all shards; see Index.open")
        self.searcher = searcher

    def lists(self, question: ListsQuestion) -> list[ShardLists]:
        """Return the lists of each query.

        Raises:
            InvalidInput: bad options, or those that shards do not support.
        """
        require_supported(question.options)
        prepared = self.searcher.prepare(question.options)
        if not question.options.syntax:
            return self._lists(prepared, question.queries, question)
        answers = []
        for query in question.queries:
            own, text = prepared.read(query.text, query.query_id)
            asked = Query(query.query_id, text)
            names = self._named(own, query)
            answers += self._lists(own, [asked], question, names)
        return answers

    def hits(self, question: HitsQuestion) -> list[Hit]:
        """Return ranked documents with titles, snippets and metadata."""
        prepared, text = self.searcher.prepare(question.options).read(question.query)
        encoded = None
        if text.strip() and (question.explain or not prepared.takes_texts):
            encoded = prepared.encode([Query("", text)])
        ranked = question.ranked
        candidates = Candidates(self._doc_ords(prepared.view, question.doc_ids), ranked.scores, ranked.columns)
        return self.searcher.hits_of(
            text, candidates, prepared, encoded, explain=question.explain, full_text=question.full_text
        )

    def matches(self, question: MatchesQuestion) -> ShardMatches:
        """Count and list the documents that match a query.

        Raises:
            InvalidInput: a field has no type.
        """
        prepared, text = self.searcher.prepare(question.options).read(question.query)
        ranked = None if question.ranked is None else self._doc_ords(prepared.view, question.ranked)
        encoded = None if ranked is None else prepared.encode([Query("", text)])
        matches = matches_of(prepared, encoded, ranked)
        facets = {
            name: {count.value: count.count for count in matches.facet(name, MAX_COUNT)} for name in question.facets
        }
        if question.sort is not None:
            entries = matches.sorted_entries(Sort.parse(question.sort), question.n)
            first = [(lacks, key, doc_id) for lacks, key, doc_id, _ in entries]
        else:
            first = [(False, 0, doc_id) for doc_id in prepared.view.doc_ids(matches.first(question.n))]
        return ShardMatches(len(matches), facets, first)

    def groups(self, question: GroupsQuestion) -> list[Any]:
        """Return the group of each document: its value of a field, of a list the least; None without a value.

        Raises:
            InvalidInput: the field has no type.
        """
        view = self.searcher.index.view
        listing = Listing(view, [live.live for live in view.segments])
        return [*listing.groups_of(self._doc_ords(view, question.doc_ids).tolist(), question.field)]

    def stored(self, question: StoredQuestion) -> tuple[str, ...] | None:
        """Return ids of the document or its passages, of which the search may find each; None if it is not here."""
        prepared, _ = self.searcher.prepare(question.options).read(question.query)
        doc_ords = prepared.view.doc_ords(question.doc_id)
        return tuple(prepared.view.doc_ids(prepared.that_match(doc_ords))) if doc_ords else None

    def terms(self, question: StoredQuestion) -> tuple[bool, dict[Branch, list[TermScore]]]:
        """Return whether a stored document is pending, and each branch's terms with their scores of it."""
        prepared, text = self.searcher.prepare(question.options).read(question.query)
        (doc_ord,) = self._doc_ords(prepared.view, [question.doc_id]).tolist()
        encoded = prepared.encode([Query("", text)])
        terms = self.searcher.branch_terms_of(text, doc_ord, prepared.branches(encoded), prepared.plan)
        return bool(prepared.view.waits[doc_ord]), terms

    def get(self, doc_ids: Sequence[str]) -> dict[str, Document]:
        """Return documents by id; ids of other shards are ignored."""
        return self.searcher.index.get([*doc_ids])

    def ids(self, question: IdsQuestion) -> tuple[int, list[str]]:
        """Return the number of documents that match a filter, and the ids of a part of them.

        Raises:
            InvalidInput: the filter is malformed.
        """
        index = self.searcher.index
        return index.count(question.filter), index.ids(question.filter, after=question.after, limit=question.limit)

    def info(self, _: None) -> IndexInfo:
        """Return counts and sizes of the shard."""
        return self.searcher.index.info()

    def _lists(
        self,
        prepared: PreparedSearch,
        queries: Sequence[Query],
        question: ListsQuestion,
        named: tuple[Named, ...] = (),
    ) -> list[ShardLists]:
        if prepared.lists_all and not question.also:
            return [self._first(prepared, query, question) for query in queries]
        encoded = prepared.encode(queries)
        searched = prepared.branches(encoded)
        alone = len(prepared.plan.searched) == 1 and not question.options.syntax and not question.also
        n = (question.k if alone else max(question.k, prepared.depth)) + question.more
        tops = {branch: searched.top(branch, min(n, MAX_COUNT)) for branch in prepared.plan.searched}
        further = self._doc_ords(prepared.view, [*question.also, *(doc_id for one in named for doc_id in one.doc_ids)])
        answers = []
        for i, query in enumerate(queries):
            listed = {branch: ranked[i].doc_ords for branch, ranked in tops.items()}
            doc_ords = np.unique(np.concatenate([further, *listed.values()]))
            excluded = _excluded(prepared, query.query_id)
            answers.append(
                ShardLists(
                    _method(prepared, query.text, searched, i),
                    prepared.view.doc_ids(doc_ords),
                    prepared.view.waits[doc_ords],
                    np.isin(doc_ords, [*itertools.chain(*excluded.values())]),
                    {branch: searched.pair_scores(branch, doc_ords, i) for branch in listed},
                    {branch: np.searchsorted(doc_ords, at).astype(np.int64) for branch, at in listed.items()},
                    named,
                    {doc_id: len(stored) for doc_id, stored in excluded.items()},
                )
            )
        return answers

    def _first(self, prepared: PreparedSearch, query: Query, question: ListsQuestion) -> ShardLists:
        """Return the first documents of a query that has conditions alone."""
        (candidates,) = prepared.rank([query], question.k)
        n = len(candidates)
        nothing = np.zeros(n, dtype=np.bool_)
        doc_ids = prepared.view.doc_ids(candidates.doc_ords)
        method = _method(prepared, query.text, None, 0)
        return ShardLists(method, doc_ids, nothing, nothing, {}, {}, (), {})

    def _named(self, prepared: PreparedSearch, query: Query) -> tuple[Named, ...]:
        """Return what the texts of a query name."""
        view = prepared.view
        if prepared.lists_all:
            return ()
        masks: list[Mask] | None = None
        named = []
        parsed = parse_query(query.text, {} if view.schema is None else view.schema.fields)
        for lookup in lookups(query.text, parsed):
            doc_ords = np.array(lookup.find(view), dtype=np.uint32)
            is_exact = bool(len(doc_ords)) and lookup.is_exact(view)
            if len(doc_ords):
                masks = prepared.selectable(query.query_id) if masks is None else masks
                at, rows = view.locate(doc_ords)
                may_find = [bool(masks[i][row]) for i, row in zip(at.tolist(), rows.tolist(), strict=True)]
                doc_ords = doc_ords[np.array(may_find, dtype=np.bool_)]
            named.append(Named(is_exact, tuple(view.doc_ids(doc_ords))))
        return tuple(named)

    def _doc_ords(self, view: View, doc_ids: Sequence[str]) -> DocOrds:
        """Return the doc_ords of the stored documents with the given ids; ids of other shards are ignored."""
        doc_ords = [view.doc_ord(doc_id) for doc_id in doc_ids]
        return np.array([doc_ord for doc_ord in doc_ords if doc_ord is not None], dtype=np.uint32)


def require_supported(options: SearchOptions) -> None:
    """Raise InvalidInput for an option that shards do not support."""
    if options.smoothing is not None:
        raise InvalidInput(
            f"{options.smoothing.method} counts the words of a whole collection, which shards do not have; search the "
            "index that was split"
        )


def _method(prepared: PreparedSearch, text: str, searched: BranchSearch | None, query: int) -> Method:
    plan, view = prepared.plan, prepared.view
    spans = {
        branch: span(plan.fusion, view.contract, branch, of_counts=not view.holds_bags) for branch in plan.searched
    }
    terms: dict[Branch, Terms] = {}
    if searched is not None:
        terms |= {branch: _terms(searched, branch, query) for branch in plan.searched if branch != "dense"}
    return Method(plan, spans, prepared.depth, prepared.lists_all, text, terms)


def _terms(searched: BranchSearch, branch: Branch, query: int) -> Terms:
    tokens, sparse = searched.encoded.tokens, searched.encoded.sparse
    vectors = sparse if branch == "sparse" or tokens is None else tokens.vectors
    assert vectors is not None  # the plan's branches were encoded
    unknown = None if branch == "sparse" or tokens is None or tokens.unknown is None else float(tokens.unknown[query])
    return Terms(vectors.row(query)[1].astype(np.float32), unknown)


def _excluded(prepared: PreparedSearch, query_id: str) -> dict[str, list[int]]:
    """Return the doc_ords of each excluded id."""
    options = prepared.options
    excluded = sorted(options.excluded(query_id)) if options.excludes else ()
    return {doc_id: prepared.view.doc_ords(doc_id) for doc_id in excluded}
