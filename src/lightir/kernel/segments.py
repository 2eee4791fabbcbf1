"""Fusion in the kernel: what branches say of documents over all segments of a view, and one ranking of their lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.kernel import Copies, DocOrds, Postings, Rows, Scores, Weights, _count, _native, _threads

Scale: TypeAlias = Literal["none", "max", "min-max", "z-score", "dbsf", "rrf"]
"""How a branch's scores are made comparable, see `lightir.search.fusion.fuse`."""

DenseRows: TypeAlias = tuple[Rows, npt.NDArray[np.float32] | None, Copies | None]
"""Rows, their scales and their copies, as `dense_top_k` takes them."""

Allowed: TypeAlias = list[npt.NDArray[np.uint8] | None] | None
"""For each segment a bitmap of the documents that may come back (`pack_bitmap`), or None for all."""

Lists: TypeAlias = tuple[npt.NDArray[np.int64], DocOrds, Scores]
"""Queries' hits one after the other: query i has indptr[i] to indptr[i + 1]; score down, then doc_ord up."""

BranchQuery: TypeAlias = tuple[Any, ...]
"""A branch's documents and a query for them; for `pair_scores` and `fuse`."""

Column: TypeAlias = tuple[Scores, npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""Raw scores, normalised ones, and ranks from 1, 0 for a document that the branch does not list."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """One segment's sparse documents, row by row and term by term.

    Attributes:
        indptr: (n_docs + 1,) int64, as `invert` takes it.
        term_ids: (nnz,) uint32.
        weights: (nnz,) impacts or weights; with lengths counts of terms.
        postings: the inverted file of the weights; with lengths of their saturations for `mean`.
        lengths: (n_docs,) uint32, the documents' lengths, or None.
        mean: see postings.
        binary: whether all of uint8 postings' weights are 1; they are not read then where sums may be coarse.
    """

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: Weights
    postings: Postings
    lengths: npt.NDArray[np.uint32] | None = None
    mean: float = 1.0
    binary: bool = False

    def as_tuple(self) -> tuple[Any, ...]:
        """As the compiled half takes it."""
        inverted = (*self.postings.arrays().values(), self.postings.vocab_size)
        return (self.indptr, self.term_ids, self.weights, self.lengths, inverted, self.mean, self.binary)


class DenseSegments:
    """The dense rows of all segments of a view, whose doc_ords count through them."""

    def __init__(self, segments: Sequence[DenseRows | None], n_docs: Sequence[int]) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: None where no document has a row: all score 0.
            n_docs: each segment's number of documents.
        """
        parts = []
        for each in segments:
            copies = None if each is None or each[2] is None else (each[2].rows, each[2].scales, each[2].errors)
            parts.append(None if each is None else (each[0], each[1], copies))
        self.native = _native.DenseSegments(parts, _first_ords(n_docs))

    def query(self, vector: npt.NDArray[np.float32]) -> BranchQuery:
        """A query of (dim,) float32, not wider than the rows."""
        return (self.native, vector)

    def top_k(self, queries: npt.NDArray[np.float32], *, k: int, threads: int = 1, allowed: Allowed = None) -> Lists:
        """For each query the k best documents, and those of each segment's k best that tie; see `dense_top_k`.

        Args:
            queries: (n, dim) float32.
            k: number wanted.
            threads: at most this many work at the same time.
            allowed: a bitmap a segment.
        """
        return self.native.top_k(queries, _count("k", k), _threads(threads), allowed)


class SparseSegments:
    """The sparse rows of all segments of a view, whose doc_ords count through them."""

    def __init__(
        self, segments: Sequence[SparseRows | None], n_docs: Sequence[int], *, k1: float = 0.0, b: float = 0.0
    ) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: None where no document has a row: all score 0.
            n_docs: each segment's number of documents.
            k1: where there are lengths, a count tf is worth tf / (tf + k1 (1 - b + b length / mean)).
            b: see k1.
        """
        parts = [None if each is None else each.as_tuple() for each in segments]
        self.native = _native.SparseSegments(parts, _first_ords(n_docs), k1, b)

    def query(
        self,
        term_ids: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.float32],
        *,
        places: npt.NDArray[np.int64] | None = None,
        mean: float = 1.0,
    ) -> BranchQuery:
        """A query of terms that are all different.

        Args:
            term_ids: (n,) uint32.
            weights: (n,) float32.
            places: (n_segments, n_terms) int64: what each term is in each segment, -1 where it does not occur; None
                where a term has the same id everywhere.
            mean: the documents' mean length.
        """
        return (self.native, term_ids, weights, places, mean)

    def top_k(
        self,
        query_indptr: npt.NDArray[np.int64],
        query_term_ids: npt.NDArray[np.uint32],
        query_weights: npt.NDArray[np.float32],
        *,
        k: int,
        places: npt.NDArray[np.int64] | None = None,
        mean: float = 1.0,
        threads: int = 1,
        allowed: Allowed = None,
    ) -> Lists:
        """For each query the k documents with the best scores above 0, and those of each segment's k best that tie.

        Postings for another mean length than `mean` bound the true scores, which are computed where they matter.

        Args:
            query_indptr: (n + 1,) int64; query i has terms query_indptr[i] to query_indptr[i + 1].
            query_term_ids: as `query` takes them.
            query_weights: as `query` takes them.
            k: number wanted.
            places: see `query`.
            mean: see `query`.
            threads: at most this many work at the same time, each on whole queries.
            allowed: a bitmap a segment.
        """
        how = _count("k", k), _threads(threads), allowed
        return self.native.top_k(query_indptr, query_term_ids, query_weights, places, mean, *how)


class DocumentIds:
    """The ids of all documents of a view, whose doc_ords count through its segments."""

    def __init__(self, segments: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]) -> None:
        """Borrow the segments' ids: their texts one after the other, ascending, and where each begins, with the end."""
        self.native = _native.DocumentIds(list(segments), _first_ords([len(indptr) - 1 for _, indptr in segments]))

    def order(self, doc_ords: DocOrds, scores: Scores | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The places of documents, whose scores fall already, in the total order: score down, then id up by its bytes.

        Args:
            doc_ords: (n,) uint32.
            scores: (n,) float32 or float64.
        """
        return self.native.order(doc_ords, scores)

    def texts(self, doc_ords: DocOrds) -> list[str]:
        """The documents' ids."""
        return self.native.texts(doc_ords)


def pair_scores(doc_ords: DocOrds, query: BranchQuery) -> Scores:
    """The branch's scores of some documents, (n,) float32, to the bit as its top k has them.

    Args:
        doc_ords: (n,) uint32, any order, repeats allowed.
        query: see `DenseSegments.query` and `SparseSegments.query`.
    """
    return _native.pair_scores(doc_ords, query)


def fuse(
    lists: Sequence[tuple[DocOrds, Scores]],
    queries: Sequence[BranchQuery],
    *,
    weights: Sequence[float],
    scale: Scale,
    k: int,
    rrf_k: float = 60.0,
    ties: bool = False,
    complete: Sequence[bool] | None = None,
) -> tuple[DocOrds, npt.NDArray[np.float64], list[Column]]:
    """The k best documents of all lists, by the weighted sum of what the branches say: sum down, then doc_ord up.

    A document outside a branch's list gets its true score, normalised as the listed ones are. Everything is summed in
    float64, a list in its order and the branches in theirs, so results are the same bits wherever they are computed.

    Args:
        lists: a branch's doc_ords and scores, score down, each document once.
        queries: gives a branch's scores of documents that its list lacks.
        weights: a branch's.
        scale: how scores are normalised.
        k: number wanted; fewer come back when the lists hold fewer.
        rrf_k: of "rrf".
        ties: also those that have the k-th one's sum.
        complete: of each list, whether no document outside it scores more than its last. Such lists need fewer scores
            of documents outside them; the result is the same. None where nothing is known.

    Returns:
        doc_ords (n,) uint32, sums (n,) float64, and each branch's column of n.
    """
    k = _count("k", k)
    known = [False] * len(lists) if complete is None else list(complete)
    return _native.fuse(list(lists), list(queries), list(weights), known, scale, rrf_k, k, ties)


def _first_ords(n_docs: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(np.array(n_docs, dtype=np.int64)).tolist()]
