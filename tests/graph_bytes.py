"""Random graphs in the layout in which usearch stores them, so that tests need no usearch."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

VERSION, METRIC, KEYS, NODES = (2, 26, 6), ord("i"), 14, 15
KINDS = {"int8": 23, "float16": 12}


def graph_bytes(
    rng: np.random.Generator, vectors: npt.NDArray[Any], rows: npt.NDArray[np.int64], *, most_neighbors: int = 3
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a graph with random levels and links.

    Args:
        rng: random numbers.
        vectors: (n, width) int8 or float16, n at least 1.
        rows: (n,) ascending rows of the nodes.
        most_neighbors: maximum number of neighbors above level 0; at level 0 it is twice as large.
    """
    n, width = vectors.shape
    levels = np.minimum(rng.geometric(0.6, n) - 1, 4)
    entry = int(rng.choice(np.flatnonzero(levels == levels.max())))
    parts = [struct.pack("<II", n, width * vectors.itemsize), vectors.tobytes()]
    kinds = (METRIC, KINDS[str(vectors.dtype)], KEYS, NODES)
    parts += [b"usearch", struct.pack("<HHH4BQQQ?", *VERSION, *kinds, n, 0, width, False), bytes(22)]
    parts.append(struct.pack("<5Q", n, most_neighbors, 2 * most_neighbors, int(levels.max()), entry))
    parts.append(levels.astype(np.int16).tobytes())
    for node in range(n):
        parts.append(struct.pack("<Qh", int(rows[node]), int(levels[node])))
        for level in range(int(levels[node]) + 1):
            slots = most_neighbors if level else 2 * most_neighbors
            there = np.flatnonzero(levels >= level)
            chosen = rng.choice(there, int(rng.integers(slots + 1)))
            parts.append(struct.pack(f"<I{slots}I", len(chosen), *np.resize(np.append(chosen, 0), slots).tolist()))
    return np.frombuffer(b"".join(parts), np.uint8)
