"""A graph over the dense rows of a segment, for approximate search: HNSW (Malkov & Yashunin, 2018).

The kernel builds the graph, and searches it in a memory-mapped file, so readers share it and an index opens quickly.
The graph only proposes candidates. Their scores are computed from the segment's rows and equal those of the exact scan
to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError
from lightir.kernel import graphs
from lightir.kernel.candidates import BoundBranch, BranchList, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments, ScannedRows, StoredGraph, WalkCosts
from lightir.provenance import usable_cores
from lightir.vectors import Floats
from lightir.version import __version__

NEIGHBORS = 16
"""Maximum number of neighbors of a node above level 0; at level 0 it is twice as large."""

BUILD_CANDIDATES = 128
"""Number of nodes among which a new node's neighbors are selected."""

SEARCH_CANDIDATES = 128
"""Number of nodes that a search of a graph keeps; a search for more results keeps a quarter more than these."""

ELEMENTS: Mapping[str, Literal["int8", "float16"]] = MappingProxyType({"i8": "int8", "f16": "float16"})
"""dtypes by the names that a manifest has for the numbers of a graph's vectors."""

CANDIDATE_COST = 200
"""Number of int8 rows scanned in the time that the graph takes per candidate, with AVX-512 at 256 columns."""

LEAST_DOCUMENTS = CANDIDATE_COST * SEARCH_CANDIDATES
"""Minimum number of documents for a graph; scanning a smaller segment costs no more."""

ROWS_AT_ONCE = 8_192
"""Number of rows converted to a graph's vectors at a time."""

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
        library: name and version of the program that built the graph.
    """

    documents: int
    recall: float
    queries: int
    element: str
    library: str


def build_graph(
    rows: npt.NDArray[Any],
    scales: Floats | None,
    wanted: npt.NDArray[np.bool_],
    *,
    threads: int | None = None,
    on_nodes: Callable[[int], object] = lambda _: None,
) -> tuple[npt.NDArray[np.uint8], GraphFacts]:
    """Build a graph over some rows; return its bytes and properties. The same rows give the same bytes.

    Args:
        rows: (n, dim) float16 or int8.
        scales: (n,) float32 scales of int8 rows.
        wanted: (n,) bool, rows to include, at least one.
        threads: number of threads; all cores if None. The bytes do not depend on it.
        on_nodes: called with numbers of rows as they are added.
    """
    keys = np.flatnonzero(wanted)

    def batches() -> Iterator[Floats]:
        for first in range(0, len(keys), ROWS_AT_ONCE):
            yield _floats(rows, scales, keys[first : first + ROWS_AT_ONCE])

    element = "i8" if all(map(_have_length_1, batches())) else "f16"
    settings = graphs.GraphSettings(ELEMENTS[element], rows.shape[1], NEIGHBORS, BUILD_CANDIDATES)
    converted: Callable[[Floats], npt.NDArray[Any]] = _bytes_of if element == "i8" else _halves_of
    stored = graphs.build(
        keys.astype(np.uint32),
        map(converted, batches()),
        settings,
        threads=threads or usable_cores(),
        on_nodes=on_nodes,
    )
    asked = np.linspace(0, len(keys) - 1, min(RECALL_QUERIES, len(keys))).astype(np.int64)
    queries = _floats(rows, scales, keys[asked])
    library = f"lightir {__version__}"
    facts = GraphFacts(len(keys), 0.0, len(asked), element, library)
    walked = ScannedRows(rows, scales, graph=open_graph(stored, (len(rows), rows.shape[1]), facts))
    allowed, always = kernel.pack_bitmap(wanted), WalkCosts(SEARCH_CANDIDATES, 1)
    approximate = graph_top_k(walked, queries, RECALL_K, allowed=allowed, costs=always)
    best, _ = kernel.dense_top_k(rows, queries, k=RECALL_K, scales=scales, allowed=allowed)
    hit = [len(np.intersect1d(mine.doc_ords, true)) / len(true) for mine, true in zip(approximate, best, strict=True)]
    return stored, GraphFacts(len(keys), round(float(np.mean(hit)), 4), len(asked), element, library)


def open_graph(stored: npt.NDArray[np.uint8], shape: tuple[int, int], facts: GraphFacts) -> StoredGraph:
    """Open the bytes of `build_graph`, which may be memory-mapped, and check all of their numbers.

    Args:
        stored: the graph.
        shape: number of rows of the segment, and their width.
        facts: properties of the graph.

    Raises:
        FormatError: a link, row, level or size of the graph is out of bounds, or the graph is of another kind.
    """
    if facts.element not in ELEMENTS:
        raise FormatError(f"the manifest gives the vectors of a graph the numbers {facts.element!r}, which are unknown")
    return StoredGraph(stored, element=ELEMENTS[facts.element], shape=shape, neighbors=NEIGHBORS)


def walk_costs() -> WalkCosts:
    """Return the settings of a search by graphs."""
    return WalkCosts(SEARCH_CANDIDATES, CANDIDATE_COST)


def graph_top_k(
    rows: ScannedRows, queries: Floats, k: int, *, allowed: npt.NDArray[np.uint8] | None = None, costs: WalkCosts
) -> list[BranchList]:
    """Return k rows with large inner products per query, and their exact scores: score descending, then row.

    Args:
        rows: rows with a graph.
        queries: (n, dim) float32.
        k: maximum number of rows per query.
        allowed: bitmap of the rows that may be returned; None for all.
        costs: settings of the search.
    """
    segments = DenseSegments([rows], [len(rows.rows)], costs=costs)
    search = CandidateSearch([BoundBranch("", segments, allowed=[allowed])], scale="none")
    rankings = search.search([segments.queries(queries)], Request(k, k))
    return [BranchList(ranked.doc_ords, ranked.columns[""].scores) for ranked in rankings]


def mean_recall(facts: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean recall of graphs, weighted by their numbers of documents."""
    counts = [graph["documents"] for graph in facts]
    return round(float(np.average([graph["recall"] for graph in facts], weights=counts)), 4)


def _floats(rows: npt.NDArray[Any], scales: Floats | None, keys: npt.NDArray[np.int64]) -> Floats:
    values = rows[keys].astype(np.float32)
    return values if scales is None else values * scales[keys, None]


def _have_length_1(values: Floats) -> bool:
    """Return whether all rows have length 1. int8 vectors are normalized, which would reorder other rows."""
    squares = np.einsum("ij,ij->i", values, values)
    return bool(np.all(np.abs(squares - 1) < 0.02))


def _bytes_of(values: Floats) -> npt.NDArray[np.int8]:
    """Return rows of length 127, without what is behind the point, as usearch makes them."""
    wide = values.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return np.asarray(wide * 127 / lengths[:, None], np.int8)


def _halves_of(values: Floats) -> npt.NDArray[np.float16]:
    return values.astype(np.float16)
