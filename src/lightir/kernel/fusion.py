"""Fusion in the kernel: what branches say of documents over all segments of a view, and one ranking of their lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.kernel import DocOrds, Rows, Scores, Weights, _native

Scale: TypeAlias = Literal["none", "min-max", "z-score", "dbsf", "rrf"]
"""How a branch's scores are made comparable, see `lightir.search.fusion.fuse`."""

DenseRows: TypeAlias = tuple[Rows, npt.NDArray[np.float32] | None]
"""Rows and their scales, as `dense_top_k` takes them."""

SparseRows: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], Weights, npt.NDArray[np.uint32] | None]
"""indptr, term_ids and weights, as `invert` takes them; with the documents' lengths the weights are counts."""

BranchQuery: TypeAlias = tuple[Any, ...]
"""A branch's documents and a query for them; for `pair_scores` and `fuse`."""

Column: TypeAlias = tuple[Scores, npt.NDArray[np.float64], npt.NDArray[np.int64]]
"""Raw scores, normalised ones, and ranks from 1, 0 for a document that the branch does not list."""


class DenseSegments:
    """The dense rows of all segments of a view, whose doc_ords count through them."""

    def __init__(self, segments: Sequence[DenseRows | None], n_docs: Sequence[int]) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: None where no document has a row: all score 0.
            n_docs: each segment's number of documents.
        """
        self._native = _native.DenseSegments(list(segments), _first_ords(n_docs))

    def query(self, vector: npt.NDArray[np.float32]) -> BranchQuery:
        """A query of (dim,) float32, not wider than the rows."""
        return (self._native, vector)


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
        self._native = _native.SparseSegments(list(segments), _first_ords(n_docs), k1, b)

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
        return (self._native, term_ids, weights, places, mean)


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

    Returns:
        doc_ords (n,) uint32, sums (n,) float64, and each branch's column of n.
    """
    if k < 0:
        raise InvalidInput(f"k must not be negative, but is {k}")
    return _native.fuse(list(lists), list(queries), list(weights), scale, rrf_k, k, ties)


def _first_ords(n_docs: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(np.array(n_docs, dtype=np.int64)).tolist()]
