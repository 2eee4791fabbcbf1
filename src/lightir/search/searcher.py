"""Searcher: queries are encoded, each branch gives its best documents, and fusion makes one ranking of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.contract import require_same_documents
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, SparseBranch, normalized
from lightir.query import CachedQueryEncoder
from lightir.search.explain import make_hit, matched_terms
from lightir.search.fusion import BranchList, Fused, alone, fuse
from lightir.search.modes import Mode, Plan, plan
from lightir.text import check_text
from lightir.types import Branch, Hit, Query, Ranking, Run, TermScore
from lightir.vectors import Floats, QueryEncoder, QueryVectors, SparseVectors

DEPTH = 1000
"""Documents that each branch gives to the fusion."""

BATCH_QUERIES = 256


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A batch of queries as the branches want them."""

    dense: Floats | None
    sparse: SparseVectors | None
    tokens: SparseVectors | None

    def terms(self, branch: Branch) -> SparseVectors:
        vectors = self.sparse if branch == "sparse" else self.tokens
        assert vectors is not None  # the plan's branches were encoded
        return vectors


class Searcher:
    """Searches one index. Results depend on nothing but index, encoder and arguments: any batch, any thread count."""

    def __init__(
        self,
        index: Index,
        query_encoder: QueryEncoder | None = None,
        *,
        task: str | None = None,
        threads: int = 1,
    ) -> None:
        """Put an index and a query encoder together.

        Args:
            index: see `Index.open`.
            query_encoder: None for the one that the index carries.
            task: the encoder's table to use; None for its default.
            threads: for batches of queries.

        Raises:
            ContractMismatch: the encoder's vectors are not comparable with the index's.
        """
        self.index = index
        self.encoder = query_encoder if query_encoder is not None else index.query_encoder(threads=threads)
        self.task = task
        self.threads = threads
        if self.encoder is not None:
            _require_fit(index, self.encoder)

    def search(
        self,
        queries: Sequence[Query | str],
        k: int = 10,
        *,
        mode: Mode = None,
        fusion: str | None = None,
        weights: Mapping[str, float] | None = None,
        depth: int = DEPTH,
        exclude_same_id: bool = False,
        exclude: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> Run:
        """The k best documents of each query: score down, then doc_id.

        Args:
            queries: a str's query_id is its position. An empty query, or one of unknown terms alone, finds nothing.
            k: number wanted; fewer come back when fewer are found.
            mode: "dense", "sparse", "tokens" (BM25), "hybrid", several joined by "+", or a tuple of branches;
                None for hybrid where the index has two branches.
            fusion: "linear", "linear:z-score", "linear:none", "rrf", "rrf:K" or "dbsf" (see `fuse`); None for the
                contract's.
            weights: branch -> weight; None for the contract's.
            depth: documents that each branch gives to the fusion.
            exclude_same_id: leave a document out that has the query's id (ArguAna, Quora).
            exclude: query_id -> doc_ids to leave out.

        Raises:
            InvalidInput: bad arguments, a query_id that comes twice, a branch that the index lacks.
        """
        named = [Query(str(i), query) if isinstance(query, str) else query for i, query in enumerate(queries)]
        ids = {query.query_id for query in named}
        if len(ids) < len(named):
            raise InvalidInput("a query_id comes twice; each query needs its own")
        chosen = self._plan(mode, fusion, weights)
        _check_counts(k, depth)
        banned = [{*exclude.get(query.query_id, ()), *([query.query_id] * exclude_same_id)} for query in named]
        run: Run = {}
        for start in range(0, len(named), BATCH_QUERIES):
            batch = slice(start, start + BATCH_QUERIES)
            found = self._ranked(self._encode(named[batch], chosen), chosen, k, depth, banned[batch])
            for query, fused in zip(named[batch], found, strict=True):
                run[query.query_id] = Ranking(query.query_id, self.index.doc_ids(fused.doc_ords), fused.scores)
        return run

    def hits(
        self,
        query: str,
        k: int = 10,
        *,
        mode: Mode = None,
        fusion: str | None = None,
        weights: Mapping[str, float] | None = None,
        depth: int = DEPTH,
        exclude: Collection[str] = (),
        explain: bool = False,
    ) -> list[Hit]:
        """The k best documents of one query with titles, snippets, metadata and what each branch says.

        A hit's score is the sum over branches of weight x normalized. With explain its terms are the matched ones of
        the sparse branch, then of the tokens branch, strongest first; their scores add up to these branches' raw
        scores. Arguments are those of `search`.
        """
        chosen = self._plan(mode, fusion, weights)
        _check_counts(k, depth)
        encoded = self._encode([Query("", query)], chosen)
        fused = next(self._ranked(encoded, chosen, k, depth, [set(exclude)]))
        documents = self.index.documents(self.index.doc_ids(fused.doc_ords))
        analyzer = self._snippet_analyzer()
        hits = []
        for i, (document, doc_ord) in enumerate(zip(documents, fused.doc_ords.tolist(), strict=True)):
            terms = self._terms(doc_ord, encoded, chosen) if explain else []
            hits.append(make_hit(query, document, fused.take(slice(i, i + 1)), analyzer, terms))
        return hits

    def _plan(self, mode: Mode, fusion: str | None, weights: Mapping[str, float] | None) -> Plan:
        chosen = plan(self.index.branches, self.index.contract, mode=mode, fusion=fusion, weights=weights)
        needs_encoder = [b for b in chosen.branches if b != "tokens" or self.index.counts_model_terms]
        if needs_encoder and self.encoder is None:
            raise InvalidInput(
                f"searching {needs_encoder[0]} needs a query encoder, and {self.index.folder} carries none; hand one in"
            )
        return chosen

    def _encode(self, queries: Sequence[Query], chosen: Plan) -> _Encoded:
        texts = [check_text(query.text, f"query {query.query_id!r}") for query in queries]
        by_words = "tokens" in chosen.branches and not self.index.counts_model_terms
        tokens = self.index.token_queries(texts) if by_words else None
        if self.encoder is None or (chosen.branches == ("tokens",) and by_words):
            return _Encoded(None, None, tokens)
        vectors = self.encoder.encode(texts, task=self.task)
        if "tokens" in chosen.branches and tokens is None:
            vocab_size = self.index.tokens.postings.vocab_size
            tokens = SparseVectors.count(vectors.term_ids, vocab_size=vocab_size)
        dense = self._fitting_dense(vectors) if "dense" in chosen.branches else None
        if "sparse" in chosen.branches and vectors.sparse is None:
            raise InvalidInput("the query encoder has no sparse branch, but the mode searches it")
        return _Encoded(dense, vectors.sparse, tokens)

    def _fitting_dense(self, vectors: QueryVectors) -> Floats:
        if vectors.dense is None:
            raise InvalidInput("the query encoder has no dense branch, but the mode searches it")
        dim, width = self.index.dense[0].shape[1], vectors.dense.shape[1]
        if width < dim:
            raise InvalidInput(f"the query encoder's vectors are {width} wide, but the index's {dim}")
        if width == dim:
            return vectors.dense
        return normalized(vectors.dense[:, :dim])

    def _ranked(
        self, encoded: _Encoded, chosen: Plan, k: int, depth: int, banned: Sequence[set[str]]
    ) -> Iterator[Fused]:
        """Each query's best k, in the order of the queries."""
        most_banned = max(map(len, banned), default=0)
        deep = (k if len(chosen.branches) == 1 else max(k, depth)) + most_banned
        lists = {branch: self._top(branch, encoded, min(deep, len(self.index))) for branch in chosen.branches}
        for i, doc_ids in enumerate(banned):
            fused = self._fused({branch: found[i] for branch, found in lists.items()}, encoded, i, chosen)
            yield self._without(fused, doc_ids).take(slice(0, k))

    def _fused(self, lists: Mapping[Branch, BranchList], encoded: _Encoded, i: int, chosen: Plan) -> Fused:
        if len(lists) == 1:
            return alone(chosen.branches[0], lists[chosen.branches[0]])

        def pair_scores(branch: Branch, doc_ords: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
            return self._pair_scores(branch, doc_ords, encoded, i)

        return fuse(lists, pair_scores, fusion=chosen.fusion)

    def _without(self, fused: Fused, doc_ids: set[str]) -> Fused:
        ords = [doc_ord for doc_id in doc_ids if (doc_ord := self.index.doc_ord(doc_id)) is not None]
        if not ords:
            return fused
        return fused.take(np.flatnonzero(~np.isin(fused.doc_ords, np.array(ords, dtype=np.uint32))))

    def _top(self, branch: Branch, encoded: _Encoded, k: int) -> list[BranchList]:
        if branch == "dense":
            return self._dense_top(encoded, k)
        queries = encoded.terms(branch)
        indptr, doc_ords, scores = kernel.sparse_top_k_batch(
            self._sparse_branch(branch).postings,
            queries.indptr,
            queries.term_ids,
            queries.weights.astype(np.float32, copy=False),
            k=k,
            threads=self.threads,
        )
        spans = [slice(indptr[i], indptr[i + 1]) for i in range(len(queries))]
        return [BranchList(doc_ords[span], scores[span]) for span in spans]

    def _dense_top(self, encoded: _Encoded, k: int) -> list[BranchList]:
        assert encoded.dense is not None  # the plan's branches were encoded
        rows, scales = self.index.dense
        doc_ords, scores = kernel.dense_top_k(rows, encoded.dense, k=k, scales=scales, threads=self.threads)
        # A query without terms has no direction: it finds nothing, not everything with score 0.
        counts = np.where(encoded.dense.any(axis=1), doc_ords.shape[1], 0)
        return [BranchList(doc_ords[i, :n], scores[i, :n]) for i, n in enumerate(counts)]

    def _pair_scores(
        self, branch: Branch, doc_ords: npt.NDArray[np.uint32], encoded: _Encoded, i: int
    ) -> npt.NDArray[np.float32]:
        if branch == "dense":
            assert encoded.dense is not None  # the plan's branches were encoded
            rows, scales = self.index.dense
            return kernel.dense_pair_scores(rows, doc_ords, encoded.dense[i], scales=scales)
        documents = self._sparse_branch(branch)
        term_ids, weights = encoded.terms(branch).row(i)
        return kernel.sparse_pair_scores(
            documents.indptr,
            documents.term_ids,
            documents.weights,
            doc_ords,
            term_ids,
            weights.astype(np.float32, copy=False),
        )

    def _sparse_branch(self, branch: Branch) -> SparseBranch:
        return self.index.sparse if branch == "sparse" else self.index.tokens

    def _terms(self, doc_ord: int, encoded: _Encoded, chosen: Plan) -> list[TermScore]:
        lexical = [branch for branch in chosen.branches if branch != "dense"]
        return [term for branch in lexical for term in self._branch_terms(branch, doc_ord, encoded)]

    def _branch_terms(self, branch: Branch, doc_ord: int, encoded: _Encoded) -> list[TermScore]:
        document = self._sparse_branch(branch).row(doc_ord)
        return matched_terms(encoded.terms(branch).row(0), document, partial(self._term_text, branch))

    def _term_text(self, branch: Branch, term_id: int) -> str:
        if branch == "tokens" and not self.index.counts_model_terms:
            return self.index.token(term_id)
        own = self.encoder if isinstance(self.encoder, CachedQueryEncoder) else self.index.query_encoder()
        return f"[{term_id}]" if own is None else own.tokenizer.term(term_id)

    def _snippet_analyzer(self) -> Analyzer:
        # Without words of its own the index gets the analyzer that knows no language but cuts Chinese as well.
        analyzer = self.index.analyzer
        return Analyzer("chinese") if analyzer is None or self.index.counts_model_terms else analyzer


def _require_fit(index: Index, encoder: QueryEncoder) -> None:
    if index.contract is None or encoder.document_fingerprint == index.contract.document_fingerprint:
        return
    if isinstance(encoder, CachedQueryEncoder):
        require_same_documents(index.contract, encoder.contract, names=("the index", "the query encoder"))
    raise ContractMismatch(
        f"the index holds documents of {index.contract.document_fingerprint}, "
        f"but the query encoder is for {encoder.document_fingerprint}"
    )


def _check_counts(k: int, depth: int) -> None:
    if k < 1 or depth < 1:
        raise InvalidInput(f"k is {k} and depth is {depth}; both must be at least 1")
