"""The documents of all segments of a view in the kernel: dense rows, sparse rows and ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.kernel import Copies, DocOrds, Postings, Rows, Scores, Weights, _native

DenseRows: TypeAlias = tuple[Rows, npt.NDArray[np.float32] | None, Copies | None]
"""Rows, their scales and their int8 copies; scales and copies may be None."""

Allowed: TypeAlias = list[npt.NDArray[np.uint8] | None] | None
"""A bitmap per segment of the documents that may be found (`pack_bitmap`); None for all."""

BranchQueries: TypeAlias = tuple[Any, ...]
"""A branch's documents and a batch of queries for them, see `DenseSegments.queries` and `SparseSegments.queries`."""


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Sparse documents of one segment, by row and by term.

    Attributes:
        indptr: (n_docs + 1,) int64; document i has entries indptr[i] to indptr[i + 1].
        term_ids: (nnz,) uint32.
        weights: (nnz,) impacts or weights; with lengths they are counts of terms.
        postings: inverted file of the weights; with lengths, of the counts' saturations for `mean`.
        lengths: (n_docs,) uint32 lengths of the documents, or None.
        mean: mean length for which the postings hold saturations.
        binary: whether all weights of uint8 postings are 1; a search with rounded sums does not read them then.
    """

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: Weights
    postings: Postings
    lengths: npt.NDArray[np.uint32] | None = None
    mean: float = 1.0
    binary: bool = False

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the arrays in the order of the compiled half."""
        inverted = (*self.postings.arrays().values(), self.postings.vocab_size)
        return (self.indptr, self.term_ids, self.weights, self.lengths, inverted, self.mean, self.binary)


class DenseSegments:
    """Dense rows of all segments of a view; doc_ords count through the segments."""

    def __init__(self, segments: Sequence[DenseRows | None], n_docs: Sequence[int]) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: rows of each segment; None if no document of it has a row, so that all score 0.
            n_docs: number of documents of each segment.
        """
        parts = []
        for each in segments:
            copies = None if each is None or each[2] is None else (each[2].rows, each[2].scales, each[2].errors)
            parts.append(None if each is None else (each[0], each[1], copies))
        self.native = _native.DenseSegments(parts, _first_ords(n_docs))

    def queries(self, vectors: npt.NDArray[np.float32]) -> BranchQueries:
        """Return a batch of (n, dim) float32 queries, not wider than the rows."""
        return (self.native, vectors)


class SparseSegments:
    """Sparse rows of all segments of a view; doc_ords count through the segments."""

    def __init__(
        self, segments: Sequence[SparseRows | None], n_docs: Sequence[int], *, k1: float = 0.0, b: float = 0.0
    ) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: rows of each segment; None if no document of it has a row, so that all score 0.
            n_docs: number of documents of each segment.
            k1: BM25's k1; with lengths a count tf becomes tf / (tf + k1 (1 - b + b length / mean)).
            b: BM25's b.
        """
        parts = [None if each is None else each.as_tuple() for each in segments]
        self.native = _native.SparseSegments(parts, _first_ords(n_docs), k1, b)

    def queries(
        self,
        indptr: npt.NDArray[np.int64],
        term_ids: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.float32],
        *,
        places: npt.NDArray[np.int64] | None = None,
        mean: float = 1.0,
    ) -> BranchQueries:
        """Return a batch of n queries. Documents with a score above 0 are found.

        Postings for another mean length than `mean` bound the true scores, which are computed where they matter.

        Args:
            indptr: (n + 1,) int64; query i has terms indptr[i] to indptr[i + 1], all different.
            term_ids: (total,) uint32.
            weights: (total,) float32.
            places: (n_segments, n_terms) int64: each term's id in each segment, -1 where it does not occur; None where
                a term has the same id everywhere.
            mean: the documents' mean length.
        """
        return (self.native, indptr, term_ids, weights, places, mean)


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


def pair_scores(doc_ords: DocOrds, queries: BranchQueries, query: int = 0) -> Scores:
    """Return the branch's scores of some documents, (n,) float32, to the bit as a search has them.

    Args:
        doc_ords: (n,) uint32, any order, repeats allowed.
        queries: a batch of queries.
        query: the query's number in the batch.
    """
    return _native.pair_scores(doc_ords, queries, query)


def _first_ords(n_docs: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(np.array(n_docs, dtype=np.int64)).tolist()]
