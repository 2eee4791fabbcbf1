"""A graph over the dense rows of a segment, for approximate search: HNSW (Malkov & Yashunin, 2018).

usearch builds and searches the graph. Its graphs can be searched in a memory-mapped file, unlike those of faiss, so
readers share them and an index opens quickly. The graph only proposes candidates. Their scores are computed from the
segment's rows and equal those of the exact scan to the bit.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError, MissingExtra
from lightir.vectors import Floats

NEIGHBORS = 16
BUILD_CANDIDATES = 128
SEARCH_CANDIDATES = 128
"""Values of usearch's connectivity, expansion_add and expansion_search; a search for more results keeps as many."""

CANDIDATE_COST = 200
"""Number of int8 rows scanned in the time that the graph takes per candidate, with AVX-512 at 256 columns."""

LEAST_DOCUMENTS = CANDIDATE_COST * SEARCH_CANDIDATES
"""Minimum number of documents for a graph; scanning a smaller segment costs no more."""

ROWS_AT_ONCE = 65_536
"""Number of rows added to a graph at a time, as float32."""

RECALL_K = 10
RECALL_QUERIES = 100


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Properties of a graph in the manifest of its segment.

    Attributes:
        documents: number of rows in the graph.
        recall: recall of the exact top ten, for queries that are rows of the segment.
        queries: number of these queries.
        element: "i8" if all rows have length 1, else "f16".
        library: name and version of the library that built the graph.
    """

    documents: int
    recall: float
    queries: int
    element: str
    library: str


def require_usearch() -> Any:
    """Return usearch's index class.

    Raises:
        MissingExtra: usearch is not installed.
    """
    if importlib.util.find_spec("usearch") is None:
        raise MissingExtra(
            "usearch is needed for the graph over dense rows: pip install 'lightir[ann]'; "
            "to search without the graph, use Index.open(exact=True) or --exact"
        )
    from usearch.index import Index

    return Index


def build_graph(
    rows: npt.NDArray[Any], scales: Floats | None, wanted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint8], GraphFacts]:
    """Build a graph over some rows; return its bytes and properties. The same rows give the same bytes.

    Args:
        rows: (n, dim) float16 or int8.
        scales: (n,) float32 scales of int8 rows.
        wanted: (n,) bool, rows to include.

    Raises:
        MissingExtra: usearch is not installed.
    """
    import usearch

    keys = np.flatnonzero(wanted)
    batches = [keys[first : first + ROWS_AT_ONCE] for first in range(0, len(keys), ROWS_AT_ONCE)]
    element = "i8" if all(_have_length_1(_floats(rows, scales, batch)) for batch in batches) else "f16"
    graph = _new(rows.shape[1], element)
    for batch in batches:
        graph.add(batch.astype(np.uint64), _floats(rows, scales, batch), threads=1)
    stored = np.frombuffer(graph.save(), dtype=np.uint8)
    del graph  # it is as large as the saved bytes
    asked = np.linspace(0, len(keys) - 1, min(RECALL_QUERIES, len(keys))).astype(np.int64)
    queries = _floats(rows, scales, keys[asked])
    library = f"usearch {usearch.__version__}"
    facts = GraphFacts(len(keys), 0.0, len(asked), element, library)
    approximate = Graph(stored, rows, scales, facts).top_k(queries, RECALL_K, n_allowed=len(keys))
    allowed = kernel.pack_bitmap(wanted)
    best, _ = kernel.dense_top_k(rows, queries, k=RECALL_K, scales=scales, allowed=allowed)
    hit = [len(np.intersect1d(mine[0], true)) / len(true) for mine, true in zip(approximate, best, strict=True)]
    return stored, GraphFacts(len(keys), round(float(np.mean(hit)), 4), len(asked), element, library)


class Graph:
    """The graph of a segment, searched in its memory-mapped file."""

    def __init__(
        self, stored: npt.NDArray[np.uint8], rows: npt.NDArray[Any], scales: Floats | None, facts: GraphFacts
    ) -> None:
        """Open the bytes of `build_graph`; the arrays may be memory-mapped.

        usearch follows the links of a graph without checking them, so all of them are checked first.

        Raises:
            FormatError: a link, key, level or size of the graph is out of bounds, or its version is unknown.
            MissingExtra: usearch is not installed.
        """
        self.facts = facts
        self._rows, self._scales = rows, scales
        self._stored = stored  # the view below does not keep a reference
        self._index = _new(rows.shape[1], facts.element)
        kernel.check_graph(stored, np.frombuffer(self._index.save(), np.uint8), n_rows=len(rows))
        try:
            self._index.view(memoryview(stored))  # type: ignore[arg-type]
        except RuntimeError as error:
            raise FormatError(f"usearch cannot read the graph, which {facts.library} wrote: {error}") from None

    def serves(self, k: int, n_allowed: int) -> bool:
        """Return whether a search for k of n_allowed documents should use the graph; if not, a scan costs no more."""
        return n_allowed > 0 and CANDIDATE_COST * self._candidates(k, n_allowed) < self.facts.documents

    def top_k(
        self,
        queries: Floats,
        k: int,
        *,
        n_allowed: int,
        allowed: npt.NDArray[np.uint8] | None = None,
        threads: int = 1,
    ) -> list[tuple[npt.NDArray[np.uint32], Floats]]:
        """Return k rows with large inner products per query, and their exact scores: score descending, then row.

        If the candidates contain fewer than k allowed rows, all rows are scanned.

        Args:
            queries: (n, dim) float32.
            k: maximum number of rows per query.
            n_allowed: number of allowed rows.
            allowed: bitmap of allowed rows; None for all rows of the graph.
            threads: maximum number of threads; each searches whole queries.
        """
        wanted = min(self._candidates(k, n_allowed), self.facts.documents)
        result = self._index.search(queries, wanted, threads=threads)
        keys, counts = np.atleast_2d(result.keys), np.atleast_1d(getattr(result, "counts", wanted))
        lists = []
        for i, query in enumerate(queries):
            rows = keys[i][: int(counts[i])].astype(np.uint32)
            lists.append(self._best(query, _only_allowed(rows, allowed), min(k, n_allowed), allowed))
        return lists

    def _candidates(self, k: int, n_allowed: int) -> int:
        """Return the number of candidates to request; it grows as fewer rows are allowed."""
        return max(SEARCH_CANDIDATES, k + k // 4) * self.facts.documents // max(n_allowed, 1)

    def _best(
        self, query: Floats, rows: npt.NDArray[np.uint32], k: int, allowed: npt.NDArray[np.uint8] | None
    ) -> tuple[npt.NDArray[np.uint32], Floats]:
        if len(rows) < k:
            best, scores = kernel.dense_top_k(self._rows, query[None], k=k, scales=self._scales, allowed=allowed)
            return best[0], scores[0]
        scores = kernel.dense_pair_scores(self._rows, rows, query, scales=self._scales)
        order = np.lexsort((rows, -scores))[:k]
        return rows[order], scores[order]


def mean_recall(facts: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean recall of graphs, weighted by their numbers of documents."""
    counts = [graph["documents"] for graph in facts]
    return round(float(np.average([graph["recall"] for graph in facts], weights=counts)), 4)


def _new(dim: int, element: str) -> Any:
    return require_usearch()(
        ndim=dim,
        metric="ip",
        dtype=element,
        connectivity=NEIGHBORS,
        expansion_add=BUILD_CANDIDATES,
        expansion_search=SEARCH_CANDIDATES,
    )


def _floats(rows: npt.NDArray[Any], scales: Floats | None, keys: npt.NDArray[np.int64]) -> Floats:
    values = rows[keys].astype(np.float32)
    return values if scales is None else values * scales[keys, None]


def _have_length_1(values: Floats) -> bool:
    """Return whether all rows have length 1. usearch normalizes rows for "i8", which would reorder other rows."""
    squares = np.einsum("ij,ij->i", values, values)
    return bool(np.all(np.abs(squares - 1) < 0.02))


def _only_allowed(rows: npt.NDArray[np.uint32], allowed: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint32]:
    if allowed is None:
        return rows
    bits = allowed[rows // 8] >> (rows % 8).astype(np.uint8) & 1
    kept: npt.NDArray[np.uint32] = rows[bits == 1]
    return kept
