"""The search of a batch of queries in one call of the kernel: branches' lists, their fusion, and the order of ids.

Each branch gives a list of its best documents. A branch's scores are normalized by its own list, so a further document
changes nothing for the others. A document outside the list gets its true score, normalized as the listed ones are. If
the list is empty, every document counts 0. The normalized scores are summed with the branches' weights. The scales are:

"max": s / max, at least 0: the best document has 1, and a score of 0 counts 0. So a score does not depend on the list's
    length, which still decides what is a candidate (Bruch, Gai & Ingber, TOIS 2023, with 0 as the least score). A list
    with scores below 0 is normalized by "min-max".
"min-max": (s - min) / (max - min), at least 0. In a list of equal scores, or of one document, these count 1 and lower
    scores 0.
"z-score": (s - mean) / deviation (of a sample). In a list of equal scores these count 0 and lower scores -1.
"none": the raw score.
"dbsf": distribution-based score fusion (Mazzeschi 2023), as in Qdrant: 0 at the mean less 3 deviations, 1 at the mean
    plus 3; not cut at 1, which would tie the best documents of a deep list; at least 0. In a list of equal scores these
    count 0.5 and lower scores 0.
"rrf": 1 / (rrf_k + rank in the list), and 0 outside it (Cormack, Clarke & Buettcher, SIGIR 2009).
"absolute": (s - low) / (high - low), at least 0, by two scores that do not depend on the list. For terms both are
    multiplied by the sum of the query's weights, unknown terms included.

Pending documents have no vectors, so that only one branch lists them. They are not fused, see `PendingDocuments`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.kernel import DocOrds, Scores, _native
from lightir.kernel.query import TextEncoder
from lightir.kernel.segments import Allowed, BranchQueries, DenseSegments, DocumentIds, SparseSegments
from lightir.types import Ranking

Scale: TypeAlias = Literal["none", "max", "min-max", "z-score", "dbsf", "rrf", "absolute"]
"""How a branch's scores are normalized, see the module's doc string."""


@dataclass(frozen=True, slots=True)
class BranchList:
    """One branch's best documents for one query: score down, then doc_id up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float32.
    """

    doc_ords: DocOrds
    scores: Scores

    def first(self, n: int) -> BranchList:
        """Return the n best."""
        return self if len(self.doc_ords) <= n else BranchList(self.doc_ords[:n], self.scores[:n])


@dataclass(frozen=True, slots=True)
class BranchColumn:
    """One branch's scores of candidates, in their order.

    Attributes:
        scores: (n,) float32 raw scores, computed also for documents outside the branch's list.
        normalized: (n,) float64 normalized scores; the sum over branches of weight x normalized is the fused score.
        ranks: (n,) int64 1-based ranks in the branch's own list; 0 outside it.
        weight: the branch's weight; 0 if it is not fused.

    A score that does not exist is NaN: those of pending documents, except for their raw score in the branch that lists
    them, and those of the others in this branch if it is not fused.
    """

    scores: Scores
    normalized: npt.NDArray[np.float64]
    ranks: npt.NDArray[np.int64]
    weight: float

    def take(self, positions: npt.NDArray[np.int64] | slice) -> BranchColumn:
        """Return some of the candidates."""
        return BranchColumn(self.scores[positions], self.normalized[positions], self.ranks[positions], self.weight)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of one query, best first: score down, then doc_id up.

    Attributes:
        doc_ords: (n,) uint32.
        scores: (n,) float64 fused scores; of one branch alone its raw scores; of pending documents see
            `PendingDocuments`.
        columns: each branch's column by name, in the order of the branches; empty if none was asked for.
    """

    doc_ords: DocOrds
    scores: npt.NDArray[np.float64]
    columns: Mapping[str, BranchColumn]

    def __len__(self) -> int:
        return len(self.doc_ords)

    def take(self, positions: npt.NDArray[np.int64] | slice) -> Candidates:
        """Return some of the candidates."""
        columns = {name: column.take(positions) for name, column in self.columns.items()}
        return Candidates(self.doc_ords[positions], self.scores[positions], columns)


@dataclass(frozen=True, slots=True)
class BoundBranch:
    """One branch of a search.

    Attributes:
        name: its name in the result.
        documents: its documents, over all segments.
        weight: its weight in a document's sum.
        complete: whether no document outside its list scores more than the list's last one. The result is the same,
            with fewer scores computed.
        allowed: the documents that may be found.
        span: the scores that "absolute" normalizes to 0 and to 1; for terms per unit of the query's weight.
    """

    name: str
    documents: DenseSegments | SparseSegments
    weight: float = 1.0
    complete: bool = True
    allowed: Allowed = None
    span: tuple[float, float] = (0.0, 1.0)


class PendingDocuments(NamedTuple):
    """Documents that the last branch alone lists, and that keep the places of its ranking.

    The n-th document of the last branch's list, excluded ones not counted, is the n-th of the result if it is pending.
    The fused documents take the other places in their order; where there are no more, pending documents move up. A
    pending document has the score of the last fused document before it, of the first one if it is before all, and its
    score in the list if no document is fused.

    Attributes:
        flags: (n_docs,) bool by doc_ord, whether a document is pending.
        fuses_last: whether the last branch is fused; otherwise it only ranks pending documents.
    """

    flags: npt.NDArray[np.bool_]
    fuses_last: bool = True


class Request(NamedTuple):
    """Parameters of a search, except its queries.

    Attributes:
        k: number of documents per query.
        depth: length of the branches' lists, which are cut in the order of a ranking; one branch alone gives k.
        threads: maximum number of threads.
        columns: whether to return the branches' columns; without them fewer scores are computed.
        excluded: documents that each query is not given, as (n + 1,) int64 offsets and (total,) uint32 doc_ords; their
            number is added to the query's k and depth. None for none.
        also: (m,) uint32 documents to rank for every query, whether a branch lists them or not.
    """

    k: int
    depth: int
    threads: int = 1
    columns: bool = True
    excluded: tuple[npt.NDArray[np.int64], DocOrds] | None = None
    also: DocOrds | None = None


class GivenLists(NamedTuple):
    """A branch's lists for n queries, made outside the kernel, in place of those that it would make.

    Attributes:
        indptr: (n + 1,) int64; query i has documents indptr[i] to indptr[i + 1].
        doc_ords: (total,) uint32.
        scores: (total,) float32, descending within a query.
        score: function of a query's number and doc_ords (m,) that returns their scores (m,) float32; None if the
            branch's queries score documents outside the lists.
    """

    indptr: npt.NDArray[np.int64]
    doc_ords: DocOrds
    scores: Scores
    score: Callable[[int, DocOrds], Scores] | None = None

    @classmethod
    def join(cls, lists: Sequence[BranchList], score: Callable[[int, DocOrds], Scores] | None = None) -> GivenLists:
        """Put the lists of several queries one after the other."""
        indptr = np.cumsum([0, *(len(ranked.doc_ords) for ranked in lists)], dtype=np.int64)
        doc_ords = np.concatenate([np.zeros(0, np.uint32), *(ranked.doc_ords for ranked in lists)])
        return cls(
            indptr, doc_ords, np.concatenate([np.zeros(0, np.float32), *(ranked.scores for ranked in lists)]), score
        )


class CandidateSearch:
    """The branches of a view, bound once for any number of searches; safe to use from several threads.

    The twin is `lightir.kernel.reference.search`.
    """

    def __init__(
        self,
        branches: Sequence[BoundBranch],
        *,
        scale: Scale,
        rrf_k: float = 60.0,
        ids: DocumentIds | None = None,
        texts: tuple[TextEncoder, int | None] | None = None,
        names: DocumentIds | None = None,
        pending: PendingDocuments | None = None,
    ) -> None:
        """Borrow the branches' arrays.

        Args:
            branches: one or more; sums run in their order.
            scale: how scores are normalized; one branch alone keeps its scores.
            rrf_k: constant of "rrf".
            ids: puts ties in the order of their ids; None where ids ascend with the doc_ords.
            texts: encoder for `search_texts`, which makes the vectors of all branches, and its tokenizer's unknown
                term; a text that holds only unknown terms counts as the empty one.
            names: ids of the documents in rankings; None if only candidates are asked for.
            pending: the pending documents; None if no branch may find them.
        """
        parts = [(b.documents.native, b.weight, b.complete, b.allowed, b.span) for b in branches]
        known_ids = None if ids is None else ids.native
        source = None if texts is None else (texts[0].native, texts[0].by_library, texts[1])
        self._columns = [(branch.name, branch.weight) for branch in branches]
        named = None if names is None else (names.native, Ranking)
        flags = None if pending is None else (pending.flags.view(np.uint8), pending.fuses_last)
        self._native = _native.CandidateSearch(parts, scale, rrf_k, known_ids, source, named, flags)

    def search(
        self,
        queries: Sequence[BranchQueries | None],
        request: Request,
        *,
        lists: list[GivenLists | None] | None = None,
        allowed: list[Allowed] | None = None,
    ) -> list[Candidates]:
        """Return each query's k best candidates.

        Args:
            queries: per branch a batch of n queries, see `DenseSegments.queries` and `SparseSegments.queries`; None for
                a branch whose lists come with a function. A query of zeros finds nothing.
            request: k, depth and so on.
            lists: per branch lists in place of those that it would make, or None.
            allowed: per branch the documents that may be found, in place of those that were bound.

        Raises:
            InvalidInput: queries for other documents, batches of different sizes, or a negative number.
        """
        return self._candidates(self._native.search(list(queries), lists, allowed, request, None))

    def rankings(
        self,
        queries: Sequence[BranchQueries | None],
        query_ids: Sequence[str],
        request: Request,
        *,
        lists: list[GivenLists | None] | None = None,
        allowed: list[Allowed] | None = None,
    ) -> list[Ranking]:
        """Return each query's k best documents by their ids; see `search` for the arguments."""
        return self._native.search(list(queries), lists, allowed, request, list(query_ids))

    def search_texts(
        self, texts: Sequence[str], request: Request, *, allowed: list[Allowed] | None = None
    ) -> list[Candidates]:
        """Return each text's k best candidates: what `search` returns for the texts' vectors, to the bit."""
        return self._candidates(self._native.search_texts(tuple(texts), allowed, request, None))

    def rankings_of_texts(
        self,
        texts: Sequence[str],
        query_ids: Sequence[str],
        request: Request,
        *,
        allowed: list[Allowed] | None = None,
    ) -> list[Ranking]:
        """Return each text's k best documents by their ids.

        The call goes from the texts to the finished rankings: a scan of dense rows empties the caches, so each Python
        object that is used after it costs a wait for memory.
        """
        return self._native.search_texts(tuple(texts), allowed, request, list(query_ids))

    def _candidates(self, rankings: _native.Rankings) -> list[Candidates]:
        indptr, doc_ords, scores, arrays = rankings
        columns = {
            name: BranchColumn(*column, weight)
            for (name, weight), column in zip(self._columns, arrays, strict=False)  # there may be no columns
        }
        every = Candidates(doc_ords, scores, columns)
        if len(indptr) == 2:
            return [every]
        return [every.take(slice(*span)) for span in itertools.pairwise(indptr.tolist())]


def normalize(
    scores: Scores, listed: Scores, ranks: npt.NDArray[np.int64], *, scale: Scale, rrf_k: float = 60.0
) -> npt.NDArray[np.float64]:
    """Return a branch's normalized scores of documents, (n,) float64.

    Args:
        scores: (n,) float32 raw scores.
        listed: (m,) float32 scores in the branch's list.
        ranks: (n,) int64 ranks in the list; 0 outside it.
        scale: how scores are normalized.
        rrf_k: constant of "rrf".
    """
    return _native.normalize(scores, listed, ranks, scale, rrf_k)
