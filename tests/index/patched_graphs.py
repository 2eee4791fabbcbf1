"""Open and search a graph again and again, each time with other numbers in its structure, and print what happened.

    python tests/index/patched_graphs.py

`test_graph.py` runs it as a process of its own, since a graph that is walked out of bounds ends the process.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError
from lightir.index.segments.graph import build_graph, graph_top_k, open_graph
from lightir.kernel.segments import ScannedRows, WalkCosts

N, DIM = 600, 8
VALUES = [0, 1, 2, 31, 33, N - 1, N, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
HEAD_BYTES, HEADER_BYTES = 64, 40


def numbers(data: npt.NDArray[np.uint8]) -> dict[str, list[tuple[int, int]]]:
    """Return where a graph keeps its structural numbers, by kind: offsets in bytes and sizes.

    Read after usearch's format.md: a matrix with its numbers of rows and bytes, a head, five header numbers, all
    levels, and nodes of a key, a level and, per level, a count and slots: twice as many at the lowest.
    """
    n, width = data[:8].view(np.uint32).tolist()
    head = 8 + n * width
    header = head + HEAD_BYTES
    levels_at = header + HEADER_BYTES
    levels = data[levels_at : levels_at + 2 * n].copy().view(np.int16)
    most = int(data[header + 8 : header + 16].copy().view(np.uint64)[0])
    places: dict[str, list[tuple[int, int]]] = {
        "matrix": [(0, 4), (4, 4)],
        "head": [(head + at, 1) for at in range(17)] + [(head + at, 8) for at in (17, 25, 33)] + [(head + 41, 1)],
        "header": [(header + 8 * at, 8) for at in range(5)],
        "levels": [(levels_at + 2 * at, 2) for at in range(n)],
    }
    at = levels_at + 2 * n
    for level in levels.tolist():
        places.setdefault("key", []).append((at, 8))
        places.setdefault("level", []).append((at + 8, 2))
        at += 10
        for here in range(level + 1):
            slots = most if here else 2 * most
            count = int(data[at : at + 4].copy().view(np.uint32)[0])
            places.setdefault(f"count {min(here, 1)}", []).append((at, 4))
            places.setdefault(f"slot {min(here, 1)}", []).extend((at + 4 * i, 4) for i in range(1, count + 1))
            at += 4 * (1 + slots)
    assert at == len(data)
    return places


def main() -> None:
    """Print, per kind of number, how often a changed graph was refused and how often it was searched."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((N, DIM))
    rows = (values / np.linalg.norm(values, axis=1, keepdims=True)).astype(np.float16)
    data, facts = build_graph(rows, None, np.ones(N, np.bool_))
    queries = rows[:3].astype(np.float32)
    for kind, places in numbers(data).items():
        chosen = places if len(places) < 40 else [places[i] for i in np.linspace(0, len(places) - 1, 40).astype(int)]
        refused = searched = 0
        for (at, size), value in itertools.product(chosen, VALUES):
            patched = data.copy()
            patched[at : at + size] = np.frombuffer(value.to_bytes(8, "little")[:size], np.uint8)
            try:
                graph = open_graph(patched, (N, DIM), facts)
            except FormatError:
                refused += 1
                continue
            graph_top_k(ScannedRows(rows, graph=graph), queries, 10, costs=WalkCosts(128, 1))
            searched += 1
        print(f"{kind}: {refused} refused, {searched} searched", flush=True)


if __name__ == "__main__":
    main()
