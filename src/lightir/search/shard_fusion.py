"""Fusion of the lists of an index's shards, by the kernel, as of one index.

The documents of a query's lists are numbered in the order of their ids. Then `CandidateSearch` gets the merged lists
and the raw scores, so fusion, ties and places of pending documents are those of one index, to the last bit.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

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
from lightir.search.index_shard import ListsQuestion, Method, ShardLists
from lightir.search.prepared import NO_DOCUMENT, named_first, scale_of
from lightir.search.search_options import MAX_COUNT
from lightir.types import Branch


@dataclass(frozen=True)
class Ranked:
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

    def take(self, positions: npt.NDArray[np.int64] | slice) -> Ranked:
        """Return some of the ranking."""
        return dataclasses.replace(self, candidates=self.candidates.take(positions))

    def by_owner(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return the positions of the ranked documents of each shard that has some."""
        owners = np.array([self.owners[doc_ord] for doc_ord in self.candidates.doc_ords.tolist()], dtype=np.int64)
        return {int(number): np.flatnonzero(owners == number) for number in np.unique(owners)}


def n_excluded_documents(lists: Mapping[int, ShardLists]) -> int:
    """Return the number of stored documents that a query is not given; an id without one counts as one."""
    counts: Counter[str] = Counter()
    for of_shard in lists.values():
        counts.update(of_shard.n_excluded)
    return sum(max(n, 1) for n in counts.values())


def fuse(
    lists: Mapping[int, ShardLists], question: ListsQuestion, *, rank_all: bool = False, excludes: bool = True
) -> Ranked:
    """Fuse the lists of one query.

    Args:
        lists: lists of each shard that answered.
        question: the question.
        rank_all: return all candidates of several branches.
        excludes: leave out excluded documents.
    """
    if not lists:
        nothing = np.zeros(0, np.uint32)
        return Ranked(None, [], [], Candidates(nothing, np.zeros(0), {}), nothing)
    merged = _Merged(lists)
    method = merged.method
    if method.lists_all and not question.also:
        doc_ords = np.arange(min(question.k, len(merged.doc_ids)), dtype=np.uint32)
        candidates = Candidates(doc_ords, np.zeros(len(doc_ords)), {})
        return Ranked(method, merged.doc_ids, merged.owners, candidates, doc_ords[:0])
    named = merged.named()
    also = np.union1d(named, merged.places(question.also)).astype(np.uint32)
    excluded = merged.excluded(n_excluded_documents(lists)) if excludes else None
    k = MAX_COUNT if rank_all and (question.also or len(method.plan.branches) > 1) else question.k
    depth = max(question.k, method.depth)
    asked = Request(k, depth, 1, True, excluded)
    if len(also):
        asked = asked._replace(k=MAX_COUNT, also=also)
    candidates = merged.search(asked)
    if len(named):
        candidates = named_first(candidates, named, question.options.min_score, _by_number)
    return Ranked(method, merged.doc_ids, merged.owners, candidates.take(slice(k)), named)


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
