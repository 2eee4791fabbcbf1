"""Searches of a collection in an engine by model-free queries, fused here as in an index.

The engine lists each branch's best rows. A row that one branch lists and another doesn't gets its true score from its
vectors, which are fetched. Scores are normalized and summed as in an index, so that both rank alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract, Fusion
from lightir.engines.engine import Engine, EngineList, EngineRows
from lightir.engines.filters import matches
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.index.metadata_filters import Node, parse
from lightir.index.passages.naming import document_of, first_of_documents
from lightir.index.phrases import WORDS_ALONE
from lightir.index.schema import Field, Schema
from lightir.kernel.candidates import Scale, normalize
from lightir.search.encoding import checked_text
from lightir.search.explain import as_passage_hit, make_hit
from lightir.search.plan import Plan, default_depth, plan, span
from lightir.search.prepared import require_count, scale_of
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.snippets import snippets
from lightir.types import Branch, BranchScore, Hit, Query, Ranking, Run
from lightir.vectors import Floats, QueryEncoder, QueryVectors, SparseVectors

TESTED_ROWS = 1000
"""Maximum number of rows whose metadata one request fetches."""

MARGIN = 32
"""Number of rows that a branch lists beyond the depth, so that ties at its end are cut in the order of their ids."""

Scored = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class _Column:
    """One branch's scores of one query's candidates.

    Attributes:
        scores: raw scores by doc_id.
        normalized: normalized scores by doc_id.
        ranks: ranks by doc_id from 1, of listed ones alone.
        weight: weight of the branch.
    """

    scores: Scored
    normalized: Scored
    ranks: Mapping[str, int]
    weight: float


class EngineSearcher:
    """Searches one collection of an engine."""

    def __init__(
        self,
        engine: Engine,
        encoder: QueryEncoder,
        *,
        task: str | None = None,
        exact: bool = False,
        native: bool = False,
    ) -> None:
        """Put a collection and a query encoder together.

        Args:
            engine: engine with the collection.
            encoder: query encoder of the model that made the vectors; the default fusion is that of its `contract`.
            task: name of the encoder's table; None for its default.
            exact: scan all dense vectors instead of using the engine's graph.
            native: let the engine fuse the branches, by its reciprocal rank fusion without weights.

        Raises:
            NotFound: there is no such collection.
            ContractMismatch: the collection has vectors of another model, or of another width.
        """
        collection = engine.collection()
        if collection is None:
            raise NotFound(f"{engine.address} does not exist; push an index to it: lightir push INDEX {engine.address}")
        self.engine, self.encoder, self.collection = engine, encoder, collection
        self.task, self.exact, self.native = task, exact, native
        contract = getattr(encoder, "contract", None)
        self._contract = contract if isinstance(contract, Contract) else None
        self._tested: Node | None = None
        self._schema = Schema({name: Field("date") for name in collection.dates})
        if collection.fingerprint and collection.fingerprint != encoder.document_fingerprint:
            raise ContractMismatch(
                f"{engine.address} has vectors of {collection.model} ({collection.fingerprint}), but the query encoder "
                f"is for {encoder.document_fingerprint}; use the query encoder of the index that was pushed"
            )

    def search(self, queries: Iterable[Query | str], k: int = 10, options: SearchOptions = DEFAULT_OPTIONS) -> Run:
        """Return the k best documents of each query: score down, then doc_id up.

        Args:
            queries: queries, or texts, whose query_id is their position. An empty query finds nothing.
            k: number of documents.
            options: mode, fusion, weights, depth, exclusions and filter; others are refused.

        Raises:
            InvalidInput: bad arguments, or a branch that the collection or the encoder lacks.
            EngineFailed: the engine failed.
        """
        asked = [Query(str(at), query) if isinstance(query, str) else query for at, query in enumerate(queries)]
        chosen = self._plan(options)
        run: Run = {}
        for query, (ranked, _) in zip(asked, self._ranked(asked, k, chosen, options), strict=True):
            scores = np.array([score for _, score in ranked], dtype=np.float64)
            doc_ids = [self._result_id(doc_id, options) for doc_id, _ in ranked]
            run[query.query_id] = Ranking(query.query_id, doc_ids, scores)
        return run

    def hits(self, query: str, k: int = 10, options: SearchOptions = DEFAULT_OPTIONS) -> list[Hit]:
        """Return the k best documents of one query with titles, snippets, metadata and each branch's scores.

        Raises:
            InvalidInput, EngineFailed: as `search`.
        """
        ((ranked, columns),) = self._ranked([Query("", query)], k, self._plan(options), options)
        stored = self.engine.fetch([doc_id for doc_id, _ in ranked], ()).documents if ranked else []
        by_id = {document.doc_id: document for document in stored}
        present = [(by_id[doc_id], score) for doc_id, score in ranked if doc_id in by_id]  # one may be deleted by now
        passages = snippets([document.text for document, _ in present], query, WORDS_ALONE)
        by_document = self.collection.passages and not options.passages
        hits = []
        for (document, score), passage in zip(present, passages, strict=True):
            hit = make_hit(document, score, _parts(columns, document.doc_id), passage, (), pending=False)
            hits.append(as_passage_hit(hit, document, by_document) if self.collection.passages else hit)
        return hits

    def _result_id(self, doc_id: str, options: SearchOptions) -> str:
        return document_of(doc_id) if self.collection.passages and not options.passages else doc_id

    def _plan(self, options: SearchOptions) -> Plan:
        default = SearchOptions()
        used = ("mode", "fusion", "weights", "depth", "exclude", "exclude_same_id", "min_score", "passages", "filter")
        for name in SearchOptions.__dataclass_fields__:
            if name not in used and getattr(options, name) != getattr(default, name):
                raise InvalidInput(f"the search option {name} is not supported in an engine; search an index with it")
        if options.filter is not None and self.native:
            raise InvalidInput("the engine's own fusion knows no filter; fuse the branches here")
        return plan(self.collection.branches, self._contract, options)

    def _ranked(
        self, queries: Sequence[Query], k: int, chosen: Plan, options: SearchOptions
    ) -> list[tuple[list[tuple[str, float]], Mapping[Branch, _Column]]]:
        """Return each query's ranking, and the branches' scores of its candidates."""
        require_count(k)
        vectors = self._encoded(queries)
        tree = None if options.filter is None else parse(options.filter, self._schema)
        self._tested = tree if self.engine.restrict(tree) else None
        return [self._best(vectors, at, query.query_id, k, (chosen, options)) for at, query in enumerate(queries)]

    def _best(
        self, vectors: QueryVectors, at: int, query_id: str, k: int, how: tuple[Plan, SearchOptions]
    ) -> tuple[list[tuple[str, float]], Mapping[Branch, _Column]]:
        """Return the ranking of one query; of the passages of a document the best one, unless all are asked for."""
        chosen, options = how
        excluded = options.excluded(query_id)
        by_document = self.collection.passages and not options.passages
        n = 2 * k + 8 if by_document else k
        while True:
            depth = max(n, options.depth or default_depth(chosen.fusion)) if len(chosen.branches) > 1 else n
            columns: Mapping[Branch, _Column] = {}
            if self.native and len(chosen.branches) > 1:
                pairs = self._fused_natively(vectors, at, depth + len(excluded))
            else:
                columns = self._columns(vectors, at, chosen, depth + len(excluded))
                pairs = _summed(columns)
            pairs = [pair for pair in pairs if pair[0] not in excluded][:n]
            n_ranked = len(pairs)
            if by_document:
                pairs = [pairs[first] for first in first_of_documents([doc_id for doc_id, _ in pairs]).tolist()]
            if not by_document or len(pairs) >= k or n_ranked < n or n >= self.engine.max_listed:
                break
            n = 4 * n
        least = -np.inf if options.min_score is None else options.min_score
        return [pair for pair in pairs[:k] if pair[1] >= least], columns

    def _encoded(self, queries: Sequence[Query]) -> QueryVectors:
        texts = [checked_text(query.query_id, query.text) for query in queries]
        vectors = self.encoder.encode(texts, task=self.task)
        width, dim = None if vectors.dense is None else vectors.dense.shape[1], self.collection.dense_dim
        if width is not None and dim is not None and width != dim:
            raise ContractMismatch(f"the query encoder's vectors are {width} wide, but the collection's {dim}")
        return vectors

    def _fused_natively(self, vectors: QueryVectors, at: int, depth: int) -> list[tuple[str, float]]:
        dense, sparse = _one_dense(vectors, at), _one_sparse(vectors, at)
        if not dense.any() or not len(sparse.term_ids):
            return []
        (listed,) = self.engine.fused(dense, sparse, depth, depth)
        return list(zip(listed.doc_ids, listed.scores.tolist(), strict=True))

    def _columns(self, vectors: QueryVectors, at: int, chosen: Plan, depth: int) -> dict[Branch, _Column]:
        lists = {branch: self._list(vectors, at, branch, depth) for branch in chosen.branches}
        if len(chosen.branches) == 1:
            return {branch: _alone(listed) for branch, listed in lists.items()}
        scores = {branch: dict(zip(*_pairs(listed), strict=True)) for branch, listed in lists.items()}
        candidates = list(dict.fromkeys(doc_id for listed in lists.values() for doc_id in listed.doc_ids))
        for branch, listed in lists.items():
            if missing := [doc_id for doc_id in candidates if doc_id not in scores[branch]]:
                scores[branch] |= self._scores_of(vectors, at, branch, missing)
            lists[branch] = listed
        return {
            branch: self._column(chosen.fusion, branch, lists[branch], scores[branch], vectors, at)
            for branch in chosen.branches
        }

    def _list(self, vectors: QueryVectors, at: int, branch: Branch, depth: int) -> EngineList:
        """Return a branch's best rows: score down, then doc_id up; ties at the end are read to their last row.

        Raises:
            InvalidInput: the engine lists too few rows to find those that match the filter.
        """
        n = min(depth + MARGIN, self.engine.max_listed)
        matching: dict[str, bool] = {}
        while True:
            listed = self._ask(vectors, at, branch, n)
            self._test_rows(listed.doc_ids, matching)
            rows = [i for i, doc_id in enumerate(listed.doc_ids) if matching.get(doc_id, self._tested is None)]
            order = sorted(rows, key=lambda i: (-listed.scores[i], listed.doc_ids[i]))[:depth]
            best = EngineList([listed.doc_ids[i] for i in order], listed.scores[order])
            is_full = len(order) == depth
            if len(listed.doc_ids) < n or (is_full and listed.scores.min() < best.scores[-1]):
                return best
            if n == self.engine.max_listed:
                if is_full or self._tested is None:
                    return best
                raise InvalidInput(
                    f"the filter matches only {len(order)} of the {n:,} rows that {self.engine.address.kind} lists at "
                    f"most, and {depth} are needed; search the index with it, or test for equal values too"
                )
            n = min(4 * n, self.engine.max_listed)

    def _test_rows(self, doc_ids: Sequence[str], matching: dict[str, bool]) -> None:
        """Add to `matching` whether listed rows match the filter, if the engine does not test all of it."""
        if self._tested is None:
            return
        unknown = [doc_id for doc_id in doc_ids if doc_id not in matching]
        for first in range(0, len(unknown), TESTED_ROWS):
            rows = self.engine.fetch(unknown[first : first + TESTED_ROWS], ())
            matching |= {document.doc_id: matches(self._tested, document.metadata) for document in rows.documents}

    def _ask(self, vectors: QueryVectors, at: int, branch: Branch, n: int) -> EngineList:
        nothing = EngineList([], np.zeros(0, np.float32))
        if branch == "dense":
            dense = _one_dense(vectors, at)
            return self.engine.dense(dense, n, exact=self.exact)[0] if dense.any() else nothing
        sparse = _one_sparse(vectors, at)
        return self.engine.sparse(sparse, n)[0] if len(sparse.term_ids) else nothing

    def _scores_of(self, vectors: QueryVectors, at: int, branch: Branch, doc_ids: Sequence[str]) -> dict[str, float]:
        """Return a branch's scores of given rows, by their vectors; those that are deleted by now count 0."""
        rows = self.engine.fetch(doc_ids, (branch,))
        stored = [document.doc_id for document in rows.documents]
        scored = dict(zip(stored, _inner_products(vectors, at, branch, rows).tolist(), strict=True))
        return {doc_id: scored.get(doc_id, 0.0) for doc_id in doc_ids}

    def _column(
        self, fusion: Fusion, branch: Branch, listed: EngineList, scores: Scored, vectors: QueryVectors, at: int
    ) -> _Column:
        ranks = {doc_id: rank for rank, doc_id in enumerate(listed.doc_ids, 1)}
        doc_ids = list(scores)
        raw = np.array([scores[doc_id] for doc_id in doc_ids], dtype=np.float32)
        if not len(listed.doc_ids):
            normalized: npt.NDArray[np.float64] = np.zeros(len(doc_ids))
        elif fusion.method == "absolute":
            total = 1.0 if branch == "dense" else float(_one_sparse(vectors, at).weights.sum())
            low, high = (limit * total for limit in span(fusion, self._contract, branch))
            normalized = np.maximum((raw.astype(np.float64) - low) / (high - low), 0.0)
        else:
            positions = np.array([ranks.get(doc_id, 0) for doc_id in doc_ids], dtype=np.int64)
            scale: Scale = scale_of(fusion)
            normalized = normalize(raw, listed.scores, positions, scale=scale, rrf_k=fusion.rrf_k)
        return _Column(scores, dict(zip(doc_ids, normalized.tolist(), strict=True)), ranks, fusion.weights[branch])


def _summed(columns: Mapping[Branch, _Column]) -> list[tuple[str, float]]:
    """Return the candidates with their sums of weight x normalized: score down, then doc_id up."""
    sums: dict[str, float] = {}
    for column in columns.values():
        for doc_id, normalized in column.normalized.items():
            sums[doc_id] = sums.get(doc_id, 0.0) + column.weight * normalized
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def _alone(listed: EngineList) -> _Column:
    scores = dict(zip(*_pairs(listed), strict=True))
    return _Column(scores, scores, {doc_id: rank for rank, doc_id in enumerate(listed.doc_ids, 1)}, 1.0)


def _pairs(listed: EngineList) -> tuple[Sequence[str], list[float]]:
    return listed.doc_ids, listed.scores.tolist()


def _parts(columns: Mapping[Branch, _Column], doc_id: str) -> dict[Branch, BranchScore]:
    return {
        branch: BranchScore(
            column.scores.get(doc_id), column.normalized.get(doc_id), column.ranks.get(doc_id), column.weight
        )
        for branch, column in columns.items()
    }


def _one_dense(vectors: QueryVectors, at: int) -> Floats:
    if vectors.dense is None:
        raise InvalidInput("the query encoder has no dense branch, but the mode searches it")
    return vectors.dense[at : at + 1]


def _one_sparse(vectors: QueryVectors, at: int) -> SparseVectors:
    if vectors.sparse is None:
        raise InvalidInput("the query encoder has no sparse branch, but the mode searches it")
    return vectors.sparse.take(np.array([at], dtype=np.int64)).without_zeros()


def _inner_products(vectors: QueryVectors, at: int, branch: Branch, rows: EngineRows) -> Floats:
    """Return the inner products of a query and rows, (n,) float32."""
    if branch == "dense":
        assert rows.dense is not None
        return np.asarray(rows.dense @ _one_dense(vectors, at)[0], dtype=np.float32)
    assert rows.sparse is not None
    query = _one_sparse(vectors, at)
    weight_of = dict(zip(*(part.tolist() for part in query.row(0)), strict=True))
    weights = np.array([weight_of.get(term, 0.0) for term in rows.sparse.term_ids.tolist()], dtype=np.float64)
    products = np.concatenate([[0.0], np.cumsum(weights * rows.sparse.weights)])
    return cast(Floats, np.diff(products[rows.sparse.indptr]).astype(np.float32))
