"""Searcher: queries are encoded, each branch gives its best documents, and fusion makes one ranking of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.analysis import Analyzer
from lightir.contract import Contract, require_same_documents
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, View
from lightir.index.segments.columns import Mask
from lightir.pending.demand import DEMAND_TOP, Demand
from lightir.query import CachedQueryEncoder
from lightir.search.branches import BranchSearch, EncodedQueries
from lightir.search.encoding import QueryCoding, checked_text
from lightir.search.explain import Explanation, dense_terms, explained, make_hit, matched_terms, with_words
from lightir.search.fusion import Fused
from lightir.search.language_model import Smoothing
from lightir.search.options import DEFAULT_OPTIONS, MAX_COUNT, SearchOptions, is_count
from lightir.search.plan import WHOLE_DEPTH, Plan, plan
from lightir.search.ranking import candidates, guide, joined, ranked, without
from lightir.search.single import OfTexts, SingleSearch, single_search
from lightir.types import Branch, Hit, Query, Ranking, Run, TermScore, require_list
from lightir.vectors import QueryEncoder

PREPARED_KEPT = 64
"""So many plans are kept bound to a view."""

BATCH_QUERIES = 256
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A plan; and what searches by it for a single query, and for its text, or None where that takes another way."""

    plan: Plan
    smoothing: Smoothing | None
    single: SingleSearch | None
    of_texts: OfTexts | None


class Searcher:
    """Searches one index. Results depend on index, encoder and arguments alone, not on batches or threads."""

    def __init__(
        self,
        index: Index,
        query_encoder: QueryEncoder | None = None,
        *,
        task: str | None = None,
        threads: int = 1,
        demand: Demand | None = None,
    ) -> None:
        """Put an index and a query encoder together.

        Args:
            index: see `Index.open`.
            query_encoder: None for the one that the index carries.
            task: the encoder's table to use; None for its default.
            threads: for batches of queries.
            demand: is told which pending documents queries list high, so that a worker encodes those first.

        Raises:
            ContractMismatch: the encoder's vectors are not comparable with the index's.
            InvalidInput: a task, but no encoder.
        """
        if isinstance(index, str | Path):
            raise InvalidInput(f"the index is {str(index)!r}; open it first: Searcher(Index.open({str(index)!r}))")
        if not is_count(threads):
            raise InvalidInput(f"threads is {threads!r}; expected a whole number of at least 1")
        self._number = next(_NUMBERS)
        self.index = index
        self.encoder = query_encoder if query_encoder is not None else index.query_encoder(threads=threads)
        self.task = task
        self.threads = threads
        self.demand = demand
        if self.encoder is not None:
            _require_fit(index.contract, self.encoder)
        elif task is not None:
            raise InvalidInput(
                f"task {task!r} names a query table, but there is no query encoder: the index has BM25 only"
            )

    def search(
        self,
        queries: Iterable[Query | str],
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
    ) -> Run:
        """The k best documents of each query: score down, then doc_id.

        Args:
            queries: a str's query_id is its position. An empty query, or one of unknown terms alone, finds nothing.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.

        Raises:
            InvalidInput: bad arguments, a query_id that comes twice, a branch that the index lacks, a bad filter.
        """
        require_list(queries, "queries")
        if isinstance(queries, dict):
            raise InvalidInput("queries is a dict; expected a list of texts or of Query(query_id, text)")
        queries = queries if isinstance(queries, list) else list(queries)  # a generator too
        view = self.index.view
        how = self._prepared(view, options)
        depth = self._depth(how.plan, k, options)
        plain = options.filter is None and self.demand is None and not options.excludes
        if how.of_texts is not None and plain and len(queries) == 1:
            return self._ranking_of(queries[0], how.of_texts, k, depth)
        named = [Query(str(i), query) if isinstance(query, str) else query for i, query in enumerate(queries)]
        for query in named:
            _id_and_text(query)
        ids = {query.query_id for query in named}
        if len(ids) < len(named):
            raise InvalidInput("a query_id comes twice; each query needs its own")
        matching = view.matching(options.filter)
        banned = [options.excluded(query.query_id) for query in named]
        run: Run = {}
        for start in range(0, len(named), BATCH_QUERIES):
            batch = slice(start, start + BATCH_QUERIES)
            best = self._best(view, how, named[batch], k, depth, matching, banned[batch], columns=False)
            for query, fused in zip(named[batch], best, strict=True):
                self._ask(view, fused)
                run[query.query_id] = Ranking(query.query_id, view.doc_ids(fused.doc_ords), fused.scores)
        return run

    def hits(
        self,
        query: str,
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        explain: bool = False,
    ) -> list[Hit]:
        """The k best documents of one query with titles, snippets, metadata and what each branch says.

        A hit's score is the sum over branches of weight x normalized. With explain its terms are the matched ones of
        the sparse branch, then of the tokens branch (with a smoothing all of the query's), strongest first; their
        scores add up to these branches' raw scores. Arguments are those of `search`.
        """
        view = self.index.view
        how = self._prepared(view, options)
        chosen = how.plan
        depth = self._depth(chosen, k, options)
        asked, matching = [Query("", query)], view.matching(options.filter)
        (fused,) = self._best(view, how, asked, k, depth, matching, [options.excluded("")], columns=True)
        self._ask(view, fused)
        searched = BranchSearch(view, self._encode(view, asked, how)) if explain else None
        documents = view.documents(view.doc_ids(fused.doc_ords))
        analyzer = self._snippet_analyzer(view)
        hits = []
        for i, (document, doc_ord) in enumerate(zip(documents, fused.doc_ords.tolist(), strict=True)):
            waits = _is_estimated(view, chosen, doc_ord)
            terms = [] if searched is None else with_words(self._terms(doc_ord, searched, chosen), query, analyzer)
            hits.append(make_hit(query, document, fused.take(slice(i, i + 1)), analyzer, terms, estimated=waits))
        return hits

    def explain(
        self,
        query: str,
        doc_id: str,
        options: SearchOptions = DEFAULT_OPTIONS,
    ) -> Explanation:
        """What makes one document's score for a query, whether a search finds the document or not.

        Arguments are those of `search`, whose score for the document this is, to the last bit. With a filter the
        candidates, whose scores the normalisation is measured by, are those of the filtered search.

        Raises:
            NotFound: there is no such document.
            InvalidInput: as `search`; or the document does not match the filter.
        """
        view = self.index.view
        how = self._prepared(view, options)
        chosen = how.plan
        depth = self._depth(chosen, 1, options)
        doc_ord = view.doc_ord(doc_id)
        if doc_ord is None:
            raise NotFound(f"there is no document {doc_id!r} in {self.index.folder}")
        matching = view.matching(options.filter)
        if matching is not None and not _matches(view, matching, doc_ord):
            raise InvalidInput(f"document {doc_id!r} does not match the filter: no search with it ranks the document")
        encoded = self._encode(view, [Query("", query)], how)
        searched = BranchSearch(view, encoded, matching=matching, threads=self.threads)
        lists = {branch: searched.top(branch, depth) for branch in chosen.branches}
        tokens = guide(lists, searched, chosen, depth)
        fused = candidates(
            {branch: each[0] for branch, each in lists.items()},
            None if tokens is None else tokens[0],
            searched,
            0,
            chosen,
            depth,
            also=np.array([doc_ord], dtype=np.uint32),
        )
        terms = self._terms_of(query, doc_ord, searched, chosen)
        waits = _is_estimated(view, chosen, doc_ord)
        return explained(doc_id, doc_ord, fused, terms, chosen.fusion, estimated=waits)

    def _terms_of(
        self, query: str, doc_ord: int, searched: BranchSearch, chosen: Plan
    ) -> dict[Branch, list[TermScore]]:
        """What each term adds to the branches' scores; estimated scores have no terms."""
        view = searched.view
        terms: dict[Branch, list[TermScore]] = {}
        waits = _is_estimated(view, chosen, doc_ord)
        for branch in chosen.branches:
            if branch == "tokens" or (branch == "sparse" and not waits):
                found = self._branch_terms(branch, doc_ord, searched)
                terms[branch] = with_words(found, query, self._snippet_analyzer(view))
        if "dense" in chosen.branches and isinstance(self.encoder, CachedQueryEncoder) and not waits:
            terms["dense"] = dense_terms(self.encoder, view, query, doc_ord, task=self.task)
        return terms

    def candidates(
        self, queries: Sequence[Query], options: SearchOptions = DEFAULT_OPTIONS
    ) -> Iterator[tuple[list[str], Fused]]:
        """Each query's candidates, best first: their doc_ids, and what every branch says of them; to fit fusion on.

        Documents that wait for their vectors are left out.
        """
        view = self.index.view
        how = self._prepared(view, options)
        how = dataclasses.replace(how, plan=dataclasses.replace(how.plan, estimates=False))
        chosen = how.plan
        depth = self._depth(chosen, 1, options)
        encoded = [~each.segment.pending for each in view.segments] if view.n_pending else None
        for start in range(0, len(queries), BATCH_QUERIES):
            batch = queries[start : start + BATCH_QUERIES]
            searched = BranchSearch(view, self._encode(view, batch, how), matching=encoded, threads=self.threads)
            for fused in joined(searched, chosen, depth, depth * len(chosen.branches)):
                yield view.doc_ids(fused.doc_ords), fused

    def _ask(self, view: View, fused: Fused) -> None:
        if self.demand is not None:
            self.demand.note(view, fused.doc_ords[:DEMAND_TOP])

    def _plan(self, view: View, options: SearchOptions) -> Plan:
        smoothing = options.smoothing
        if smoothing is not None and (view.analyzer is None or self.index.holds_bags):
            raise InvalidInput(
                f"{smoothing.method} needs counted words, and {self.index.folder} has none; build it with an --analyzer"
            )
        chosen = plan(view.branches, view.contract, options)
        if not view.n_pending:
            chosen = dataclasses.replace(chosen, estimates=False)
        if chosen.estimates and smoothing is not None:
            raise InvalidInput(
                f"{view.n_pending} documents wait for their vectors, and such are ranked by BM25's scores, not by "
                f"{smoothing.method}'s; run `lightir worker` first, or search with the mode tokens"
            )
        if self.encoder is not None:
            _require_fit(view.contract, self.encoder)  # the index may have been replaced by one of another model
        needs_encoder = [b for b in chosen.branches if b != "tokens" or view.counts_model_terms]
        if needs_encoder and self.encoder is None:
            raise InvalidInput(
                f"searching {needs_encoder[0]} needs a query encoder, and {self.index.folder} carries none; hand one in"
            )
        return chosen

    def _depth(self, chosen: Plan, k: int, options: SearchOptions) -> int:
        """Return the number of documents that each branch gives to the fusion."""
        if not is_count(k):
            raise InvalidInput(f"k is {k!r}; expected a whole number from 1 to {MAX_COUNT}")
        if options.depth is not None:
            return options.depth
        negative = options.smoothing is not None and "tokens" in chosen.branches  # so their list's end measures them
        return WHOLE_DEPTH if negative else chosen.depth

    def _prepared(self, view: View, options: SearchOptions) -> _Prepared:
        """Return the plan, bound to the view once for all queries that ask for the same."""
        weights = None if options.weights is None else tuple(options.weights.items())
        key = self._number, options.mode, options.fusion, weights, options.smoothing
        found: _Prepared | None = view.prepared.get(key)
        return self._prepare(view, key, options) if found is None else found

    def _prepare(self, view: View, key: object, options: SearchOptions) -> _Prepared:
        chosen = self._plan(view, options)
        single = single_search(view, chosen, options.smoothing)
        of_texts = None if single is None else single.of_texts(view, self.encoder, self.task)
        if len(view.prepared) >= PREPARED_KEPT:
            view.prepared.clear()
        view.prepared[key] = found = _Prepared(chosen, options.smoothing, single, of_texts)
        return found

    def _ranking_of(self, query: Query | str, of_texts: OfTexts, k: int, depth: int) -> Run:
        query_id, text = ("0", query) if isinstance(query, str) else _id_and_text(query)
        try:
            return {query_id: of_texts(query_id, text, k, max(k, depth), self.threads)}
        except InvalidInput:
            checked_text(query_id, text)  # says it by the query's id
            raise

    def _best(
        self,
        view: View,
        how: _Prepared,
        queries: Sequence[Query],
        k: int,
        depth: int,
        matching: Sequence[Mask] | None,
        banned: Sequence[set[str]],
        *,
        columns: bool,
    ) -> Iterable[Fused]:
        """Each query's k best documents, in the order of the queries; a batch always says what the branches say."""
        if len(queries) == 1 and how.single is not None:
            return [self._best_of_one(view, how, how.single, queries[0], k, depth, matching, banned[0], columns)]
        encoded = self._encode(view, queries, how)
        searched = BranchSearch(view, encoded, matching=matching, threads=self.threads)
        return ranked(searched, how.plan, k, depth, banned)

    def _best_of_one(
        self,
        view: View,
        how: _Prepared,
        single: SingleSearch,
        query: Query,
        k: int,
        depth: int,
        matching: Sequence[Mask] | None,
        banned: set[str],
        columns: bool,
    ) -> Fused:
        searched = BranchSearch(view, self._encode(view, [query], how), matching=matching, threads=self.threads)
        fused = single.ranked(
            searched,
            allowed=single.allowed(view, matching),
            k=k + len(banned),
            depth=max(k, depth) + len(banned),
            columns=columns,
        )
        return without(fused, view, banned).take(slice(0, k)) if banned else fused

    def _encode(self, view: View, queries: Sequence[Query], how: _Prepared) -> EncodedQueries:
        return QueryCoding(self.encoder, self.task, how.smoothing).encode(view, queries, how.plan)

    def _terms(self, doc_ord: int, searched: BranchSearch, chosen: Plan) -> list[TermScore]:
        lexical = [branch for branch in chosen.branches if branch != "dense"]
        return [term for branch in lexical for term in self._branch_terms(branch, doc_ord, searched)]

    def _branch_terms(self, branch: Branch, doc_ord: int, searched: BranchSearch) -> list[TermScore]:
        at, _ = searched.view.locate(np.array([doc_ord], dtype=np.uint32))
        with searched.view.segments[int(at[0])].segment.naming_damage():
            query, document, term = searched.pair(branch, doc_ord, 0)
            return matched_terms(query, document, lambda term_id: self._term_text(term(term_id)))

    def _term_text(self, term: str | int) -> str:
        if isinstance(term, str):
            return term
        own = self.encoder if isinstance(self.encoder, CachedQueryEncoder) else self.index.query_encoder()
        return f"[{term}]" if own is None else own.tokenizer.term(term)

    def _snippet_analyzer(self, view: View) -> Analyzer:
        # Without words of its own the index gets the analyzer that knows no language but cuts Chinese as well.
        return Analyzer("chinese") if view.analyzer is None or self.index.counts_model_terms else view.analyzer


def _is_estimated(view: View, chosen: Plan, doc_ord: int) -> bool:
    return chosen.estimates and bool(view.waits[doc_ord])


def _matches(view: View, matching: Sequence[Mask], doc_ord: int) -> bool:
    at, places = view.locate(np.array([doc_ord], dtype=np.uint32))
    return bool(matching[int(at[0])][int(places[0])])


def _require_fit(contract: Contract | None, encoder: QueryEncoder) -> None:
    if contract is None or encoder.document_fingerprint == contract.document_fingerprint:
        return
    if isinstance(encoder, CachedQueryEncoder):
        require_same_documents(contract, encoder.contract, names=("the index", "the query encoder"))
    raise ContractMismatch(
        f"the index holds documents of {contract.document_fingerprint}, "
        f"but the query encoder is for {encoder.document_fingerprint}"
    )


def _id_and_text(query: object) -> tuple[str, str]:
    if not isinstance(query, Query):
        raise InvalidInput(f"a query is {type(query).__name__}; expected str or Query")
    return query.query_id, query.text
