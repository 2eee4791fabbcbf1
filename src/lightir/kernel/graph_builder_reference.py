"""A slow, readable twin of the kernel's building of graphs, against which the fast one is tested."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.kernel.graph_reference import Near, descend, lane_products, walk

SHARE_OF_BATCH, MOST_AT_ONCE = 64, 8192
BITS_PER_LEVEL = 4

Links = list[list[list[int]]]
"""Each node's neighbors, by level."""


def built(vectors: npt.NDArray[Any], *, neighbors: int, candidates: int) -> tuple[Links, int]:
    """Return the neighbors of each node by level, and the entry point of a graph.

    Args:
        vectors: (n, width) int8 or float16, n at least 1.
        neighbors: maximum number of neighbors of a node above level 0; at level 0 it is twice as large.
        candidates: number of nodes among which a new node's neighbors are selected.
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for node, vector in enumerate(vectors):
        groups[vector.tobytes()].append(node)
    firsts = sorted(group[0] for group in groups.values())
    levels = {node: _random_level(node) for node in firsts}
    graph = _Graph(vectors, neighbors, candidates, {group[0] for group in groups.values() if len(group) > 1})
    graph.links = [[[] for _ in range(1 + levels.get(node, 0))] for node in range(len(vectors))]
    order = _shuffled(firsts)
    entry = min(firsts, key=lambda node: (-levels[node], node))
    at = order.index(entry)
    order[0], order[at] = order[at], order[0]
    n_added = 1
    while batch := order[n_added : n_added + min(MOST_AT_ONCE, max(1, n_added // SHARE_OF_BATCH))]:
        graph.add(batch, entry)
        n_added += len(batch)
    for group in groups.values():
        for node, following in itertools.pairwise(group):
            graph.links[node][0].append(following)
    return graph.links, entry


class _Graph:
    """A graph to which nodes are added."""

    def __init__(self, vectors: npt.NDArray[Any], neighbors: int, candidates: int, leads: set[int]) -> None:
        self.links: Links = []
        self._scores = _all_scores(vectors)
        self._neighbors, self._candidates, self._leads = neighbors, candidates, leads

    def add(self, batch: Sequence[int], entry: int) -> None:
        """Link nodes to their neighbors in the graph as it is, and then these to the nodes."""
        added = {node: self._found(node, entry) for node in batch}
        back: dict[tuple[int, int], list[int]] = defaultdict(list)
        for node, by_level in added.items():
            self.links[node] = by_level
            for level, chosen in enumerate(by_level):
                for target in chosen:
                    back[target, level].append(node)
        for (target, level), sources in back.items():
            most = self._most(target, level)
            linked = [*self.links[target][level], *sorted(sources)]
            if len(linked) > most:
                linked = self._chosen(sorted((-self._scores[target][node], node) for node in linked), most)
            self.links[target][level] = linked

    def _most(self, node: int, level: int) -> int:
        """Return the maximum number of neighbors of a node; the first of equal vectors has one place for the next."""
        return self._neighbors if level else 2 * self._neighbors - (node in self._leads)

    def _found(self, node: int, entry: int) -> list[list[int]]:
        scores, top = self._scores[node], len(self.links[node]) - 1
        starts = [descend(scores, self.links, entry, top)]
        by_level: list[list[int]] = []
        for level in range(top, -1, -1):
            near = walk(scores, self.links, starts, level, self._candidates)
            starts = [other for _, other in near]
            by_level.insert(0, self._chosen(near, self._most(node, level)))
        return by_level

    def _chosen(self, near: Sequence[Near], most: int) -> list[int]:
        """Return candidates, each nearer to the node than to every one that was chosen before."""
        chosen: list[int] = []
        for distance, node in near:
            if len(chosen) < most and all(-self._scores[other][node] > distance for other in chosen):
                chosen.append(node)
        return chosen


def _all_scores(vectors: npt.NDArray[Any]) -> list[list[float]]:
    if vectors.dtype == np.float16:
        wide = vectors.astype(np.float32)
        return [lane_products(wide, vector).astype(np.float64).tolist() for vector in wide]
    whole = vectors.astype(np.int64)
    return (whole @ whole.T).astype(np.float32).astype(np.float64).tolist()  # type: ignore[no-any-return]


def _random_number(i: int) -> int:
    """Return the i-th number of splitmix64 (Steele, Lea & Flood, 2014)."""
    mask = 2**64 - 1
    z = (i + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def _random_level(node: int) -> int:
    """Return a level: one node in 16 is at level 1, one in 256 at level 2, and so on."""
    return (64 - (_random_number(node) | 1).bit_length()) // BITS_PER_LEVEL


def _shuffled(nodes: Sequence[int]) -> list[int]:
    order = list(nodes)
    for i in range(len(order) - 1, 0, -1):
        j = _random_number(i) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return order
