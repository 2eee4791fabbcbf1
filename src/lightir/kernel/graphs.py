"""Building of graphs over dense vectors (HNSW; Malkov & Yashunin, 2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lightir.kernel import _native

MATRIX_HEAD = 8
"""Bytes before the vectors of a graph."""

LINE_BYTES = 64


class GraphSettings(NamedTuple):
    """Settings of a graph.

    Attributes:
        element: dtype of the vectors.
        width: number of their columns.
        neighbors: maximum number of neighbors of a node above level 0; at level 0 it is twice as large.
        candidates: number of nodes among which a new node's neighbors are selected.
    """

    element: Literal["int8", "float16"]
    width: int
    neighbors: int
    candidates: int


def build(
    rows: npt.NDArray[np.uint32],
    vectors: Iterable[npt.NDArray[Any]],
    settings: GraphSettings,
    *,
    threads: int,
    on_nodes: Callable[[int], object] = lambda _: None,
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a graph, in the layout of usearch's version 2. They do not depend on the number of threads.

    Memory holds the bytes, and at most 14 bytes per node besides.

    Args:
        rows: (n,) ascending rows of the nodes, n at least 1.
        vectors: (n, width) vectors in the order of the rows, in pieces. An inner product says how near two are.
        settings: settings of the graph.
        threads: number of threads.
        on_nodes: called with numbers of nodes as they are added.
    """
    element, width, neighbors, candidates = settings
    row_bytes = width * np.dtype(element).itemsize
    stored = _aligned(_native.most_graph_bytes(len(rows), element, (width, neighbors)))
    matrix = stored[MATRIX_HEAD : MATRIX_HEAD + len(rows) * row_bytes].view(element).reshape(len(rows), width)
    first = 0
    for piece in vectors:
        matrix[first : first + len(piece)] = piece
        first += len(piece)
    builder = _native.GraphBuilder(stored, rows, element, (width, neighbors), candidates)
    while added := builder.add(threads):
        on_nodes(added)
    return stored[: builder.n_bytes()]


def _aligned(n_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory in which the vectors of a graph begin at a cache line: that saves a tenth of the time."""
    memory = np.empty(n_bytes + LINE_BYTES, np.uint8)
    skipped = -(memory.ctypes.data + MATRIX_HEAD) % LINE_BYTES
    return memory[skipped : skipped + n_bytes]
