"""Slow, readable twins of the kernel's search by graphs, against which the fast one is tested."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightir.kernel.segments import WalkCosts

HEAD_BYTES, HEADER_BYTES, NODE_HEAD = 64, 40, 10
MEASURED = 64
WIDTH_AT_1, WIDTH_ABOVE = 32, 64
VISITED_AT_ONCE = 3

Near = tuple[float, int]
"""A score with its sign turned, and a node or a document, so that the best one is the least."""


@dataclass(frozen=True, slots=True)
class ReadGraph:
    """A stored graph as lists.

    Attributes:
        vectors: (n, width) int8 or float16.
        rows: row of each node.
        neighbors: each node's neighbors, by level.
        entry: node from which a walk starts.
    """

    vectors: npt.NDArray[Any]
    rows: list[int]
    neighbors: list[list[list[int]]]
    entry: int


def read_graph(stored: npt.NDArray[np.uint8], element: Literal["int8", "float16"]) -> ReadGraph:
    """Read a graph in the layout of usearch: a matrix, a head, a header, the levels, and the nodes."""
    data = stored.tobytes()
    n, n_bytes = np.frombuffer(data, np.uint32, 2).tolist()
    vectors = np.frombuffer(data, element, n * n_bytes // np.dtype(element).itemsize, 8).reshape(n, -1)
    at = 8 + n * n_bytes + HEAD_BYTES
    _, above, base, _, entry = np.frombuffer(data, np.uint64, 5, at).tolist()
    levels = np.frombuffer(data, np.int16, n, at + HEADER_BYTES).tolist()
    at += HEADER_BYTES + 2 * n
    rows: list[int] = []
    neighbors: list[list[list[int]]] = []
    for level in levels:
        rows.append(int(np.frombuffer(data, np.uint64, 1, at)[0]))
        at += NODE_HEAD
        neighbors.append([])
        for slots in (base, *[above] * level):
            count = int(np.frombuffer(data, np.uint32, 1, at)[0])
            neighbors[-1].append(np.frombuffer(data, np.uint32, count, at + 4).tolist())
            at += 4 * (1 + slots)
    return ReadGraph(vectors, rows, neighbors, entry)


def nearest(graph: ReadGraph, query: npt.NDArray[np.float32], width: int) -> list[Near]:
    """Return the rows that a walk finds, best first, with their approximate scores."""
    scores, factor = _scores(graph, query)
    starts = [graph.entry]
    for level in range(len(graph.neighbors[graph.entry]) - 1, 0, -1):
        width_at_level = WIDTH_ABOVE if level > 1 else WIDTH_AT_1
        starts = [node for _, node in walk(scores, graph.neighbors, starts, level, width_at_level)]
    kept = walk(scores, graph.neighbors, starts, 0, width)
    return [(-float(np.float32(-score * factor)), graph.rows[node]) for score, node in kept]


def descend(scores: Sequence[float], neighbors: Sequence[Sequence[Sequence[int]]], entry: int, level: int) -> int:
    """Return the node at which greedy steps from the entry point end, at each level above the given one."""
    at = entry
    for above in range(len(neighbors[at]) - 1, level, -1):
        while True:
            best = min((-scores[node], node) for node in [at, *neighbors[at][above]])[1]
            if best == at:
                break
            at = best
    return at


def walk(
    scores: Sequence[float],
    neighbors: Sequence[Sequence[Sequence[int]]],
    starts: Sequence[int],
    level: int,
    width: int,
) -> list[Near]:
    """Return the nodes that a walk at a level keeps, best first.

    It visits a few nodes at once, and chooses the next ones before it has met the neighbors of these.
    """
    met, visited = set(starts), set[int]()
    kept: list[Near] = heapq.nsmallest(width, [(-scores[node], node) for node in starts])
    chosen = _unvisited(kept, visited)
    while chosen:
        fresh: list[Near] = []
        for node in itertools.chain.from_iterable(neighbors[node][level] for node in chosen):
            if node not in met:
                met.add(node)
                fresh.append((-scores[node], node))
        following = _unvisited(kept, visited)
        kept = heapq.nsmallest(width, [*kept, *fresh])
        chosen = following or _unvisited(kept, visited)
    return kept


def _unvisited(kept: Sequence[Near], visited: set[int]) -> list[int]:
    """Return the best nodes that are not visited, and count them as visited."""
    best = [node for _, node in kept if node not in visited][:VISITED_AT_ONCE]
    visited.update(best)
    return best


def _scores(graph: ReadGraph, query: npt.NDArray[np.float32]) -> tuple[list[float], float]:
    """Return a score of each node, and what it is multiplied by to compare it with those of other graphs."""
    vectors = graph.vectors[:, : len(query)]
    if graph.vectors.dtype == np.float16:
        return [float(score) for score in lane_products(vectors.astype(np.float32), query)], 1.0
    values, squares = query.astype(np.float64), 0.0
    for value in values.tolist():
        squares += value * value
    as_bytes = np.trunc(values * 127.0 / math.sqrt(squares)).astype(np.int64)
    unit = math.sqrt(squares) / max(1.0, math.sqrt(int(as_bytes @ as_bytes)))
    lengths = [math.sqrt(sum(int(value) ** 2 for value in vector)) for vector in graph.vectors[:MEASURED]]
    mean = 0.0
    for length in lengths:
        mean += length / len(lengths)
    products = vectors.astype(np.int64) @ as_bytes
    return products.astype(np.float32).astype(np.float64).tolist(), unit / max(mean, 1.0)


def lane_products(rows: npt.NDArray[np.float32], query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return inner products, summed in 32 lanes and then in a tree, as the kernel does."""
    lanes = np.zeros((len(rows), 32), np.float32)
    for strip in np.split(np.pad(rows * query, ((0, 0), (0, -len(query) % 32))), -(-len(query) // 32), axis=1):
        lanes += strip
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


@dataclass(frozen=True, slots=True)
class SearchedSegment:
    """A segment that is searched by a graph.

    Attributes:
        first: the first doc_ord.
        graph: graph over the rows, or None.
        scores: (n,) float32 exact scores of all documents.
        allowed: (n,) bool, documents that may be found.
    """

    first: int
    graph: ReadGraph | None
    scores: npt.NDArray[np.float32]
    allowed: npt.NDArray[np.bool_]


def graphs_top_k(
    segments: Sequence[SearchedSegment], query: npt.NDArray[np.float32], k: int, costs: WalkCosts
) -> list[Near]:
    """Return a query's k best documents over segments with and without graphs, as the kernel does."""
    k = min(k, sum(len(segment.scores) for segment in segments))
    n_allowed = [int(segment.allowed.sum()) for segment in segments]
    shares = [k * n / max(sum(n_allowed), 1) for n in n_allowed]
    asked = [min(k, int(share + 4 * math.sqrt(share)) + 16) for share in shares]
    near: list[list[Near]] = [[] for _ in segments]
    exact: list[Near] = []
    lacking = list(range(len(segments)))
    while lacking:
        for i in lacking:
            near[i] = _walked(segments[i], query, asked[i], costs)
            if not near[i]:
                exact += _scanned(segments[i])
        scores = sorted(score for score, _ in [*exact, *(document for documents in near for document in documents)])
        kth = scores[k - 1] if 0 < k <= len(scores) else math.inf
        lacking = [
            i
            for i, documents in enumerate(near)
            if i in lacking and asked[i] < k and len(documents) >= asked[i] and documents[asked[i] - 1][0] <= kth
        ]
        for i in lacking:
            asked[i] = min(k, 4 * asked[i])
    candidates = sorted(document for documents in near for document in documents)[: 4 * max(costs.candidates, k)]
    for _, doc in candidates:
        segment = max((one for one in segments if one.first <= doc and len(one.scores)), key=lambda one: one.first)
        exact.append((-float(segment.scores[doc - segment.first]), doc))
    return sorted(exact)[:k]


def _walked(segment: SearchedSegment, query: npt.NDArray[np.float32], asked: int, costs: WalkCosts) -> list[Near]:
    """Return the allowed documents that a walk finds; none if a scan costs no more, or if too few are found."""
    graph, n_allowed = segment.graph, int(segment.allowed.sum())
    if graph is None or n_allowed == 0:
        return []
    width = max(1, max(costs.candidates, asked + asked // 4) * len(graph.rows) // n_allowed)
    if width >= len(graph.rows) // max(costs.rows_a_candidate, 1):
        return []
    documents = [(score, segment.first + row) for score, row in nearest(graph, query, width) if segment.allowed[row]]
    return documents if len(documents) >= min(asked, n_allowed) else []


def _scanned(segment: SearchedSegment) -> list[Near]:
    """Return all allowed documents with their exact scores."""
    return [(-float(segment.scores[row]), segment.first + int(row)) for row in np.flatnonzero(segment.allowed)]
