"""Searcher: queries in, rankings, hits and explanations out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract, require_same_documents
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index import Index, TokenQueries, View
from lightir.index.passages.naming import document_of, first_of_documents
from lightir.kernel import DocOrds
from lightir.kernel.candidates import Candidates, Request
from lightir.kernel.hits import make_hits
from lightir.pending.demand import DEMAND_TOP, Demand
from lightir.query import CachedQueryEncoder
from lightir.search.branches import BranchSearch, EncodedQueries
from lightir.search.encoding import QueryCoding
from lightir.search.explain import (
    Explanation,
    as_passage_hit,
    dense_terms,
    explained,
    matched_terms,
    unmatched,
    with_words,
)
from lightir.search.external_vectors import GivenQueryVectors
from lightir.search.pages import Page, PageOptions, PageSearch
from lightir.search.plan import Plan, plan
from lightir.search.prepared import BoundPlan, PreparedSearch, bind
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions, is_count
from lightir.search.snippets import best_passages, full_texts
from lightir.search.through_model import branch_mode
from lightir.search.word_matching import EXACT_WORDS, WordMatching
from lightir.types import Branch, Document, Hit, Query, Ranking, Run, TermScore, require_list
from lightir.vectors import QueryEncoder
from lightir.words.synonyms import Synonyms, SynonymTable

MAX_BOUND_PLANS = 64
"""Maximum number of plans cached per view."""

BATCH_QUERIES = 256
DEFAULT_PAGE = PageOptions()
_NUMBERS = itertools.count()


class Searcher:
    """Searches one index. Results depend on index, encoder and options alone, not on batches or threads."""

    def __init__(
        self,
        index: Index,
        query_encoder: QueryEncoder | None = None,
        *,
        task: str | None = None,
        threads: int = 1,
        demand: Demand | None = None,
        synonyms: Synonyms | None = None,
    ) -> None:
        """Put an index and a query encoder together.

        Args:
            index: opened index.
            query_encoder: query encoder; None for the one stored in the index.
            task: name of the encoder's table; None for its default.
            threads: maximum number of threads per search. Queries share them. One query alone divides scans of dense
                rows and the sparse vectors of many documents among them, and searches branches over many documents
                at the same time; graphs and words take one thread each.
            demand: counts pending documents that rank high, so that a worker encodes those first; None to count none.
            synonyms: synonyms of query words, see `Synonyms.read`; None for none. Set `synonyms` to change them.

        Raises:
            ContractMismatch: the encoder is of another model than the index.
            InvalidInput: a task without an encoder, or an index that is not open.
        """
        given: object = index
        if isinstance(given, str | Path):
            raise InvalidInput(f"the index is {str(index)!r}; open it first: Searcher(Index.open({str(index)!r}))")
        if not is_count(threads):
            raise InvalidInput(f"threads is {threads!r}; expected a whole number of at least 1")
        self._number = next(_NUMBERS)
        self.index = index
        self.encoder = query_encoder if query_encoder is not None else index.query_encoder(threads=threads)
        self.task = task
        self.threads = threads
        self.demand = demand
        self._synonyms = synonyms
        if self.encoder is not None:
            _require_fit(index.contract, self.encoder)
        elif task is not None:
            raise InvalidInput(
                f"task {task!r} names a query table, but there is no query encoder: the index has BM25 only"
            )

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none: all branches of the index, or its only one."""
        branches = self.index.branches
        return "hybrid" if len(branches) > 1 else branches[0]

    @property
    def synonyms(self) -> Synonyms | None:
        """Synonyms of query words; setting them changes later searches."""
        return self._synonyms

    @synonyms.setter
    def synonyms(self, synonyms: Synonyms | None) -> None:
        self._synonyms = synonyms
        self._number = next(_NUMBERS)  # plans that views keep have the former ones

    def prepare(self, options: SearchOptions = DEFAULT_OPTIONS) -> PreparedSearch:
        """Bind options to the index's present view, for any number of searches of it.

        The view keeps what was bound, so preparing the same options again costs little.

        Raises:
            InvalidInput: a branch that the index or the encoder lacks, weights of other branches, a malformed filter,
                or a smoothing over an index that counts no words.
        """
        view, number = self.index.view, self._number
        latest: tuple[SearchOptions, BoundPlan] | None = view.prepared.get(number)
        if latest is not None and latest[0] is options:  # the same object, as in a loop: no key is needed
            return PreparedSearch(view, latest[1], options, threads=self.threads)
        weights = None if options.weights is None else tuple(options.weights.items())
        words = options.typos, options.compounds, options.question_words, options.as_you_type
        key = number, options.mode, options.fusion, weights, options.smoothing, options.overlap, words
        bound: BoundPlan | None = view.prepared.get(key)
        if bound is None:
            matching = self._word_matching(view, options)
            coding = QueryCoding(self.encoder, self.task, options.smoothing, options.overlap, matching)
            bound = bind(view, self._plan(view, options), coding)
            if len(view.prepared) >= MAX_BOUND_PLANS:
                view.prepared.clear()
            view.prepared[key] = bound
        view.prepared[number] = options, bound
        return PreparedSearch(view, bound, options, threads=self.threads)

    def search(
        self,
        queries: Iterable[Query | str],
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        vectors: npt.ArrayLike | None = None,
    ) -> Run:
        """Return the k best documents of each query: score down, then doc_id up.

        Args:
            queries: queries, or texts, whose query_id is their position. An empty query, or one of unknown terms alone,
                finds nothing.
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            vectors: (n, dim) dense vectors of the queries, made by the model that made those of the documents, for an
                index of dense vectors and words; None for those of the query encoder.

        Raises:
            InvalidInput: bad arguments, a repeated query_id, a branch that the index lacks, a malformed filter, or
                vectors of another shape.
        """
        query_ids, texts = ids_and_texts(queries)
        if vectors is not None:
            given = [Query(query_id, text) for query_id, text in zip(query_ids, texts, strict=True)]
            return self._by_vectors(query_ids, vectors).search(given, k, options)
        prepared = self.prepare(options)
        if options.syntax:
            rankings = _rankings_by_syntax(prepared, query_ids, texts, k)
        elif len(texts) <= BATCH_QUERIES:
            rankings = prepared.rankings(query_ids, texts, k)
        else:
            batches = [slice(first, first + BATCH_QUERIES) for first in range(0, len(texts), BATCH_QUERIES)]
            rankings = [ranked for at in batches for ranked in prepared.rankings(query_ids[at], texts[at], k)]
        if self.demand is not None and prepared.view.n_pending:
            for ranking in rankings:
                doc_ords = [*itertools.chain(*map(prepared.view.doc_ords, ranking.doc_ids[:DEMAND_TOP]))]
                self.demand.note(prepared.view, np.array(doc_ords, dtype=np.uint32))
        return dict(zip(query_ids, rankings, strict=True))

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

        A hit's score is the sum over branches of weight x normalized. A pending document keeps its place in the tokens
        branch, see docs/progressive.md.

        Args:
            query: the query's text; its query_id, which a mapping of exclusions is asked for, is "".
            k: number of documents; fewer are returned if fewer match.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms: the matched terms of the sparse branch, then of the tokens branch (with a
                smoothing all of the query's), strongest first. Their scores add up to these branches' raw scores.
            full_text: return the whole text of each document as its snippet.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, a malformed filter.
        """
        prepared, query = self.prepare(options).read(query)
        asked = [Query("", query)]
        encoded = prepared.encode(asked) if explain or not prepared.takes_texts else None
        (candidates,) = prepared.rank(asked, k, encoded=encoded)
        return self.hits_of(query, candidates, prepared, encoded, explain=explain, full_text=full_text)

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

        A query of white space alone lists the documents that pass the filter (browsing). See lightir.search.pages for
        the documents that match a query. The hits are those of `hits` in the same order, unless `page` names another
        order. Pages of a fused search are parts of one ranking up to the depth of the options; a page beyond it is that
        of a search of its depth.

        Args:
            query: text of the query.
            page: the part of the results, the fields to count, the order and the groups.
            options: mode, fusion, filter and so on.
            explain: fill in the hits' terms, as `hits` does.
            full_text: return the whole text of each document as its snippet.

        Raises:
            InvalidInput: bad arguments, a branch that the index lacks, a malformed filter, or a field without a type.
        """
        prepared, query = self.prepare(options).read(query)
        encoded = None if not query.strip() else prepared.encode([Query("", query)])
        search = PageSearch(prepared, encoded, page)
        shown = search.shown()
        hits = self.hits_of(query, shown, prepared, encoded, explain=explain, full_text=full_text)
        return Page(hits, len(search.matches), search.facets())

    def hits_of(
        self,
        query: str,
        candidates: Candidates,
        prepared: PreparedSearch,
        encoded: EncodedQueries | None,
        *,
        explain: bool,
        full_text: bool,
    ) -> list[Hit]:
        """Return candidates as hits, on demand with their matched terms, which require the encoded query.

        Args:
            query: text that was ranked by.
            candidates: documents of the search's view, best first.
            prepared: the search.
            encoded: the query; None if the kernel encoded it.
            explain: fill in the hits' terms.
            full_text: return the whole text of each document as its snippet.
        """
        view = prepared.view
        if self.demand is not None:
            self.demand.note(view, candidates.doc_ords[:DEMAND_TOP])
        doc_ords = candidates.doc_ords
        fields = view.fields_at(doc_ords)
        texts = [text for _, text, _, _ in fields]
        tokens = None if encoded is None else encoded.tokens
        if full_text:
            whole = full_texts(texts, query, view.word_analyzer, also=() if tokens is None else tokens.words)
            passages = [(shown.text, shown.highlights) for shown in whole]
        else:
            passages = best_passages(texts, _wanted_terms(view, query, tokens), view.word_analyzer)
        hits = make_hits(
            [(doc_id, title, metadata) for doc_id, _, title, metadata in fields],
            passages,
            candidates,
            pending=view.waits[doc_ords].tolist() if view.n_pending else None,
            named=np.isin(doc_ords, prepared.named).tolist() if len(prepared.named) else None,
        )
        if view.has_passages:
            documents = [Document(doc_id, text, title, metadata) for doc_id, text, title, metadata in fields]
            pairs = zip(hits, documents, strict=True)
            hits = [as_passage_hit(hit, document, prepared.by_document) for hit, document in pairs]
        if encoded is not None and explain:
            hits = self._with_terms(hits, doc_ords, query, prepared, encoded)
        return hits

    def _with_terms(
        self, hits: list[Hit], doc_ords: DocOrds, query: str, prepared: PreparedSearch, encoded: EncodedQueries
    ) -> list[Hit]:
        """Return hits with their matched terms."""
        searched = prepared.branches(encoded)
        words = {} if encoded.tokens is None else encoded.tokens.words
        explained_hits = []
        for hit, doc_ord in zip(hits, doc_ords.tolist(), strict=True):
            terms = self._matched_terms(doc_ord, searched, prepared.plan)
            worded = with_words(terms, query, prepared.view.word_analyzer, words) if terms else []
            explained_hits.append(dataclasses.replace(hit, terms=tuple(worded)))
        return explained_hits

    def explain(self, query: str, doc_id: str, options: SearchOptions = DEFAULT_OPTIONS) -> Explanation:
        """Explain one document's score for a query, whether a search finds the document or not.

        The score is that of `search` with the same options, to the last bit. With a filter the candidates, by whose
        scores the branches are normalized, are those of the filtered search.

        Args:
            query: the query's text.
            doc_id: the document.
            options: mode, fusion, filter and so on; exclusions are ignored.

        Raises:
            NotFound: there is no such document.
            InvalidInput: bad arguments, or a document that does not match the filter or the query's conditions.
        """
        prepared, query = self.prepare(options).read(query)
        view = prepared.view
        if not (stored := view.doc_ords(doc_id)):
            raise NotFound(f"there is no document {doc_id!r} in {self.index.folder}")
        doc_ords = prepared.that_match(stored)
        if not len(doc_ords):
            raise unmatched(doc_id)
        encoded = prepared.encode([Query("", query)])
        candidates = prepared.rank_with(encoded, doc_ords)
        best = np.flatnonzero(np.isin(candidates.doc_ords, doc_ords))[0]  # of its passages
        doc_ord = int(candidates.doc_ords[best])
        terms = self.branch_terms_of(query, doc_ord, prepared.branches(encoded), prepared.plan)
        pending = bool(view.waits[doc_ord])
        named = doc_ord in prepared.named
        return explained(doc_id, doc_ord, candidates, terms, prepared.plan.fusion, pending=pending, named=named)

    def candidates(
        self, queries: Sequence[Query], options: SearchOptions = DEFAULT_OPTIONS
    ) -> Iterator[tuple[list[str], Candidates]]:
        """Yield each query's candidates, best first: their doc_ids and every branch's scores of them, to fit fusion on.

        Pending documents are left out. Of each document's passages the best one is given, under the document's id.
        """
        if options.syntax:
            raise InvalidInput("candidates are those of plain text; ask for them without syntax")
        prepared = self.prepare(options).encoded_only()
        n_candidates = prepared.depth * len(prepared.plan.branches)
        for start in range(0, len(queries), BATCH_QUERIES):
            batch = queries[start : start + BATCH_QUERIES]
            request = Request(n_candidates, prepared.depth, self.threads)
            for candidates in prepared.rank_encoded(prepared.encode(batch), request):
                doc_ids = prepared.view.doc_ids(candidates.doc_ords)
                if prepared.by_document:
                    first = first_of_documents(doc_ids)
                    doc_ids, candidates = [document_of(doc_ids[at]) for at in first.tolist()], candidates.take(first)
                yield doc_ids, candidates

    def _by_vectors(self, query_ids: Sequence[str], vectors: npt.ArrayLike) -> Searcher:
        """Return a searcher of the same index by given vectors of queries."""
        contract = self.index.contract
        if contract is None:
            raise InvalidInput(f"{self.index.folder} has no model's contract, so it cannot be searched by vectors")
        given = GivenQueryVectors(contract, query_ids, vectors)
        return Searcher(self.index, given, threads=self.threads, demand=self.demand, synonyms=self._synonyms)

    def _word_matching(self, view: View, options: SearchOptions) -> WordMatching:
        counted = view.analyzer is not None and not view.counts_model_terms and options.smoothing is None
        if not counted and (options.as_you_type or self._synonyms is not None):
            asked = "search as you type" if options.as_you_type else "a search with synonyms"
            raise InvalidInput(f"{asked} needs BM25 over words; {self.index.folder} is searched without")
        if not counted:
            return EXACT_WORDS
        assert view.analyzer is not None
        table = None if self._synonyms is None else SynonymTable(self._synonyms, view.analyzer.terms)
        return WordMatching(options.typos, options.as_you_type, table, options.compounds, options.question_words)

    def _plan(self, view: View, options: SearchOptions) -> Plan:
        smoothing = options.smoothing
        if options.overlap and not self.index.holds_bags:
            raise InvalidInput(
                f"token overlap needs bags of tokens, and {self.index.folder} has none; build the index with "
                "--analyzer bag"
            )
        if smoothing is not None and (view.analyzer is None or self.index.holds_bags):
            raise InvalidInput(
                f"{smoothing.method} needs counted words, and {self.index.folder} has none; build it with an --analyzer"
            )
        options = dataclasses.replace(options, mode=branch_mode(options.mode, view, self.encoder))
        chosen = plan(view.branches, view.contract, options)
        if not view.any_pending:
            chosen = dataclasses.replace(chosen, finds_pending=False)
        if self.encoder is not None:
            _require_fit(view.contract, self.encoder)  # the index may have been replaced by one of another model
        needs_encoder = [b for b in chosen.searched if b != "tokens" or view.counts_model_terms]
        if needs_encoder and self.encoder is None:
            raise InvalidInput(
                f"searching {needs_encoder[0]} needs a query encoder, and {self.index.folder} has none; "
                f"{_without_encoder(view.contract)}"
            )
        return chosen

    def branch_terms_of(
        self, query: str, doc_ord: int, searched: BranchSearch, chosen: Plan
    ) -> dict[Branch, list[TermScore]]:
        """Return each branch's terms with their scores; a branch without a score of the document has none."""
        view = searched.view
        terms: dict[Branch, list[TermScore]] = {}
        scoring = _scoring_branches(view, chosen, doc_ord)
        for branch in scoring:
            if branch != "dense":
                scored = self._branch_terms(branch, doc_ord, searched)
                tokens = searched.encoded.tokens
                words = {} if tokens is None else tokens.words
                terms[branch] = with_words(scored, query, view.word_analyzer, words)
        if "dense" in scoring and isinstance(self.encoder, CachedQueryEncoder):
            terms["dense"] = dense_terms(self.encoder, view, query, doc_ord, task=self.task)
        return terms

    def _matched_terms(self, doc_ord: int, searched: BranchSearch, chosen: Plan) -> list[TermScore]:
        scoring = _scoring_branches(searched.view, chosen, doc_ord)
        lexical = [branch for branch in scoring if branch != "dense"]
        return [term for branch in lexical for term in self._branch_terms(branch, doc_ord, searched)]

    def _branch_terms(self, branch: Branch, doc_ord: int, searched: BranchSearch) -> list[TermScore]:
        at, _ = searched.view.locate(np.array([doc_ord], dtype=np.uint32))
        with searched.view.segments[int(at[0])].segment.naming_damage():
            query, document, term = searched.term_rows(branch, doc_ord, 0)
            return matched_terms(query, document, lambda term_id: self._term_text(term(term_id)))

    def _term_text(self, term: str | int) -> str:
        if isinstance(term, str):
            return term
        own = self.encoder if isinstance(self.encoder, CachedQueryEncoder) else self.index.query_encoder()
        return f"[{term}]" if own is None else own.tokenizer.term(term)


def ids_and_texts(queries: Iterable[Query | str]) -> tuple[list[str], list[str]]:
    """Return the queries' ids and texts; the query_id of a bare text is its position.

    Raises:
        InvalidInput: one str, a dict, an item of another type, or a repeated query_id.
    """
    if not isinstance(queries, list):
        require_list(queries, "queries")
        if isinstance(queries, dict):
            raise InvalidInput("queries is a dict; expected a list of texts or of Query(query_id, text)")
    query_ids: list[str] = []
    texts: list[str] = []
    for query in queries:
        if isinstance(query, str):
            query_ids.append(str(len(texts)))
            texts.append(query)
        elif isinstance(query, Query):
            query_ids.append(query.query_id)
            texts.append(query.text)
        else:
            raise InvalidInput(f"a query is {type(query).__name__}; expected str or Query")
    if len(query_ids) > 1 and len(set(query_ids)) < len(query_ids):
        raise InvalidInput("a query_id is repeated; each query needs its own")
    return query_ids, texts


def _rankings_by_syntax(
    prepared: PreparedSearch, query_ids: Sequence[str], texts: Sequence[str], k: int
) -> list[Ranking]:
    """Return the ranking of each query, whose text has the query syntax."""
    rankings = []
    for query_id, text in zip(query_ids, texts, strict=True):
        own, words = prepared.read(text, query_id)
        rankings += own.rankings([query_id], [words], k)
    return rankings


def _wanted_terms(view: View, query: str, tokens: TokenQueries | None) -> list[str]:
    """Return the distinct terms that snippets of one query show."""
    also = {} if tokens is None else tokens.words
    own: Sequence[str]
    if tokens is None or not tokens.analyzed:
        (own,) = view.word_analyzer.terms([query])
    else:
        (own,) = tokens.analyzed
    return list(dict.fromkeys([*own, *also]))


def _scoring_branches(view: View, chosen: Plan, doc_ord: int) -> Sequence[Branch]:
    """Return the branches that give a document a score: for a pending one the tokens branch, if it is searched."""
    if view.waits[doc_ord]:
        return [branch for branch in chosen.searched if branch == "tokens"]
    return chosen.branches


def _without_encoder(contract: Contract | None) -> str:
    """Return what to do about an index without a query encoder."""
    if contract is None or not contract.is_external:
        return "pass one to Searcher"
    return (
        "give the vectors of the queries (--query-vectors FILE; in Python search(..., vectors=...)), search the words "
        "alone (--mode tokens), or fit a query table (lightir distill --vectors)"
    )


def _require_fit(contract: Contract | None, encoder: QueryEncoder) -> None:
    if contract is None or encoder.document_fingerprint == contract.document_fingerprint:
        return
    if isinstance(encoder, CachedQueryEncoder):
        require_same_documents(contract, encoder.contract, names=("the index", "the query encoder"))
        return
    raise ContractMismatch(
        f"the index holds documents of {contract.document_fingerprint}, "
        f"but the query encoder is for {encoder.document_fingerprint}"
    )
