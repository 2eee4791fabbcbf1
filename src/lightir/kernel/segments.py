"""Documents of all segments of a view for the kernel: dense rows, sparse rows and ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.kernel import Copies, DocOrds, Postings, RowCodes, Rows, Scores, Weights, _native

Allowed: TypeAlias = list[npt.NDArray[np.uint8] | None] | None
"""One bitmap per segment of the documents that may be returned (`pack_bitmap`); None for all."""

BranchQueries: TypeAlias = tuple[Any, ...]
"""A branch's documents with a batch of queries, made by `DenseSegments.queries` or `SparseSegments.queries`."""


class WalkCosts(NamedTuple):
    """Settings of a search by graphs.

    Attributes:
        candidates: minimum number of nodes that a walk of a graph keeps.
        rows_a_candidate: number of rows that a scan reads in the time that a walk takes for each node that it keeps.
    """

    candidates: int
    rows_a_candidate: int


class StoredGraph:
    """A graph over dense rows (HNSW), searched in its bytes; safe to use from several threads."""

    def __init__(
        self,
        stored: npt.NDArray[np.uint8],
        *,
        element: Literal["int8", "float16"],
        shape: tuple[int, int],
        neighbors: int,
    ) -> None:
        """Borrow a graph and check every number that a search follows, whoever wrote them.

        Args:
            stored: (n_bytes,) uint8, a graph for inner products as usearch saves it.
            element: dtype of the graph's vectors.
            shape: number of rows of the segment, an exclusive upper bound of the graph's rows, and their width.
            neighbors: maximum number of neighbors of a node above level 0; at level 0 it is twice as large.

        Raises:
            FormatError: a size, level, row, entry point or neighbor is out of bounds, or the graph is of another kind.
        """
        n_rows, width = shape
        self.native = _native.StoredGraph(stored, element, width, n_rows, neighbors)


class ScannedRows(NamedTuple):
    """Dense rows of one segment.

    Attributes:
        rows: (n, width) float16, float32 or int8.
        scales: (n,) float32 for int8 rows, else None.
        copies: int8 copies of the rows, which a scan reads first, or None.
        codes: 2-bit codes of the rows, which a scan reads before copies and rows, or None.
        graph: graph over rows, by which they are searched approximately, or None.
    """

    rows: Rows
    scales: npt.NDArray[np.float32] | None = None
    copies: Copies | None = None
    codes: RowCodes | None = None
    graph: StoredGraph | None = None


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Sparse documents of one segment, by row and by term.

    Attributes:
        indptr: (n_docs + 1,) int64; document i has the entries indptr[i] to indptr[i + 1].
        term_ids: (nnz,) uint32.
        weights: (nnz,) impacts or weights; term counts if `lengths` is given.
        postings: inverted file of the weights; if `lengths` is given, of the BM25 saturations for `mean`.
        lengths: (n_docs,) uint32 lengths of the documents, or None.
        mean: mean length for which the postings hold saturations.
        binary: whether all weights of uint8 postings are 1, so that a search with rounded sums need not read them.
    """

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: Weights
    postings: Postings
    lengths: npt.NDArray[np.uint32] | None = None
    mean: float = 1.0
    binary: bool = False

    def as_tuple(self) -> tuple[Any, ...]:
        """Return the arrays in the order that the compiled module expects."""
        inverted = (*self.postings.arrays().values(), self.postings.vocab_size)
        return (self.indptr, self.term_ids, self.weights, self.lengths, inverted, self.mean, self.binary)


class DenseSegments:
    """Dense rows of all segments of a view; doc_ords are numbered across the segments."""

    def __init__(
        self, segments: Sequence[ScannedRows | None], n_docs: Sequence[int], *, costs: WalkCosts | None = None
    ) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: rows of each segment; None if no document of it has a row, so that all score 0.
            n_docs: number of documents of each segment.
            costs: settings of a search by graphs; required if a segment has one.
        """
        parts: list[tuple[Any, ...] | None] = []
        for segment in segments:
            if segment is None:
                parts.append(None)
                continue
            rows, scales, copies, codes, graph = segment
            copied = None if copies is None else (copies.rows, copies.scales, copies.errors)
            coded = None if codes is None else codes.arrays()
            parts.append((rows, scales, copied, coded, None if graph is None else graph.native))
        if costs is None and any(segment is not None and segment.graph is not None for segment in segments):
            raise InvalidInput("rows with graphs need costs, the settings of a search by graphs")
        self.native = _native.DenseSegments(parts, _first_ords(n_docs), costs or WalkCosts(1, 1))

    def queries(self, vectors: npt.NDArray[np.float32]) -> BranchQueries:
        """Return a batch of queries, (n, dim) float32, which must not be wider than the rows."""
        return (self.native, vectors)


class SparseSegments:
    """Sparse rows of all segments of a view; doc_ords are numbered across the segments."""

    def __init__(
        self, segments: Sequence[SparseRows | None], n_docs: Sequence[int], *, k1: float = 0.0, b: float = 0.0
    ) -> None:
        """Borrow the segments' arrays.

        Args:
            segments: rows of each segment; None if no document of it has a row, so that all score 0.
            n_docs: number of documents of each segment.
            k1: BM25's k1; if lengths are given, a count tf becomes tf / (tf + k1 (1 - b + b length / mean)).
            b: BM25's b.
        """
        parts = [None if segment is None else segment.as_tuple() for segment in segments]
        self.native = _native.SparseSegments(parts, _first_ords(n_docs), k1, b)

    def queries(
        self,
        indptr: npt.NDArray[np.int64],
        term_ids: npt.NDArray[np.uint32],
        weights: npt.NDArray[np.float32],
        *,
        places: npt.NDArray[np.int64] | None = None,
        mean: float = 1.0,
        unknown: npt.NDArray[np.float64] | None = None,
    ) -> BranchQueries:
        """Return a batch of n queries. A document matches if its score is above 0.

        If the postings hold saturations for another mean length than `mean`, their scores serve as bounds, and the
        true scores are computed for the documents that can be among the best.

        Args:
            indptr: (n + 1,) int64; query i has the terms indptr[i] to indptr[i + 1], without duplicates.
            term_ids: (total,) uint32.
            weights: (total,) float32.
            places: (n_segments, n_terms) int64 id of each term in each segment, -1 if the segment lacks the term; None
                if a term has the same id in all segments.
            mean: mean length of the documents.
            unknown: (n,) each query's weight of terms that no document has, which count for the scale "absolute"; None
                for none.
        """
        return (self.native, indptr, term_ids, weights, places, mean, unknown)


class DocumentIds:
    """The ids of all documents of a view; doc_ords are numbered across the segments."""

    def __init__(self, segments: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]]) -> None:
        """Borrow the segments' ids: per segment the joined UTF-8 of the ascending ids and n + 1 offsets."""
        self.native = _native.DocumentIds(list(segments), _first_ords([len(indptr) - 1 for _, indptr in segments]))

    def order(self, doc_ords: DocOrds, scores: Scores | npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """Return the positions of documents in the total order: descending score, then ascending id by its bytes.

        Args:
            doc_ords: (n,) uint32.
            scores: (n,) float32 or float64, descending.
        """
        return self.native.order(doc_ords, scores)

    def texts(self, doc_ords: DocOrds) -> list[str]:
        """Return the ids of documents."""
        return self.native.texts(doc_ords)


def pair_scores(doc_ords: DocOrds, queries: BranchQueries, query: int = 0) -> Scores:
    """Return a branch's scores of given documents, (n,) float32, bit-identical to those of a search.

    Args:
        doc_ords: (n,) uint32, in any order; duplicates are allowed.
        queries: a batch of queries.
        query: position of the query in the batch.
    """
    return _native.pair_scores(doc_ords, queries, query)


def _first_ords(n_docs: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(np.array(n_docs, dtype=np.int64)).tolist()]
