"""Graphs that the kernel builds have the links of the slow twin with any number of threads, and find nearly all."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from lightir import kernel
from lightir.errors import InvalidInput
from lightir.kernel import _native, graph_builder_reference, graphs
from lightir.kernel.graph_reference import nearest, read_graph
from lightir.kernel.segments import StoredGraph

Kind = Literal["int8", "float16"]

NEIGHBORS, CANDIDATES = 16, 128


@pytest.fixture
def each_level() -> Any:
    """Return the dispatch levels of this processor, and restore the one in use."""
    before = kernel.dispatch()
    yield kernel.available()
    _native.use_level(before)


def build(
    vectors: npt.NDArray[Any],
    *,
    neighbors: int = NEIGHBORS,
    candidates: int = CANDIDATES,
    threads: int = 1,
    spacing: int = 1,
) -> npt.NDArray[np.uint8]:
    """Return the bytes of a graph over rows whose numbers have equal differences."""
    kind: Kind = "int8" if vectors.dtype == np.int8 else "float16"
    settings = graphs.GraphSettings(kind, vectors.shape[1], neighbors, candidates)
    rows = np.arange(len(vectors), dtype=np.uint32) * spacing
    pieces = np.array_split(vectors, 3)
    return graphs.build(rows, pieces, settings, threads=threads)


def few_values(rng: np.random.Generator, n: int, width: int, kind: Kind) -> npt.NDArray[Any]:
    """Return vectors with many ties, some of them equal or zero."""
    values = rng.integers(-2, 3, (n, width)) * (20 if kind == "int8" else 0.25)
    values[rng.integers(0, n, n // 5)] = values[rng.integers(0, n)]
    values[rng.integers(0, n, n // 20)] = 0
    return values.astype(kind)


@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize(("n", "width"), [(1, 5), (2, 5), (40, 3), (300, 8), (500, 70)])
def test_links_are_those_of_the_twin_at_each_level_with_any_number_of_threads(
    each_level: list[str], kind: Kind, n: int, width: int
) -> None:
    rng = np.random.default_rng(n)
    for neighbors, candidates in ((3, 6), (4, 20)):
        for vectors in (few_values(rng, n, width, kind), (rng.standard_normal((n, width)) * 40).astype(kind)):
            links, entry = graph_builder_reference.built(vectors, neighbors=neighbors, candidates=candidates)
            made = []
            for threads, level in enumerate([*each_level, *each_level], 1):
                _native.use_level(level)
                made.append(build(vectors, neighbors=neighbors, candidates=candidates, threads=threads, spacing=2))
                np.testing.assert_array_equal(made[-1], made[0])
            read = read_graph(made[0], kind)
            assert (read.neighbors, read.entry) == (links, entry)
            assert read.rows == list(range(0, 2 * n, 2))
            np.testing.assert_array_equal(read.vectors, vectors)
            StoredGraph(made[0], element=kind, shape=(2 * n, width), neighbors=neighbors)  # which checks all numbers


def test_batches_are_as_large_as_they_may_be_and_count_the_nodes() -> None:
    counts: list[int] = []
    vectors = np.random.default_rng(1).integers(-99, 99, (1000, 8)).astype(np.int8)
    settings = graphs.GraphSettings("int8", 8, 2, 4)
    graphs.build(np.arange(1000, dtype=np.uint32), [vectors], settings, threads=2, on_nodes=counts.append)
    assert counts[:127] == [1] * 127
    assert counts[127] == 2
    assert sum(counts) == 999


def spread(n: int, dim: int) -> npt.NDArray[np.int8]:
    """Return vectors around 60 centers."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((60, dim))[rng.integers(0, 60, n)] + 0.7 * rng.standard_normal((n, dim))
    return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True) * 127, np.int8)


def found(stored: npt.NDArray[np.uint8], queries: npt.NDArray[np.float32], width: int) -> list[list[int]]:
    """Return the rows that a walk finds per query, by the twin: the kernel scans if a walk finds too few."""
    graph = read_graph(stored, "int8")
    return [[row for _, row in nearest(graph, query, width)] for query in queries]


def random_queries(n: int, dim: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((n, dim)).astype(np.float32)


def recall(vectors: npt.NDArray[np.int8], queries: npt.NDArray[np.float32], results: list[list[int]]) -> float:
    """Return the mean share of the exact ten best rows among those that were found."""
    exact, _ = kernel.dense_top_k(vectors, queries, k=10, scales=np.full(len(vectors), 1 / 127, np.float32))
    return float(np.mean([len({*mine} & {*true.tolist()}) / 10 for mine, true in zip(results, exact, strict=True)]))


def test_a_walk_finds_nearly_all_of_the_exact_ten() -> None:
    """Recall is 0.98, without reverse links 0, and 0.33 if the nearest candidates are linked."""
    vectors, queries = spread(4000, 32), random_queries(100, 32)
    assert recall(vectors, queries, found(build(vectors), queries, 64)) >= 0.97


def test_equal_vectors_are_found_in_their_order_and_hide_no_others() -> None:
    """The builder searches for one of 2,000 equal vectors, so their number costs no time."""
    vectors = spread(4000, 32)
    copies = np.sort(np.random.default_rng(5).permutation(4000)[:2000])
    vectors[copies] = vectors[7]
    counts: list[int] = []
    settings = graphs.GraphSettings("int8", 32, NEIGHBORS, CANDIDATES)
    rows = np.arange(4000, dtype=np.uint32)
    stored = graphs.build(rows, [vectors], settings, threads=2, on_nodes=counts.append)
    assert 1 + sum(counts) == len(np.unique(vectors, axis=0))
    equal = np.flatnonzero((vectors == vectors[7]).all(axis=1))
    assert found(stored, vectors[7:8].astype(np.float32), 64) == [equal[:64].tolist()]
    others = np.setdiff1d(rows, equal)
    queries = vectors[others[::40]].astype(np.float32)
    results = found(stored, queries, 64)
    assert recall(vectors, queries, results) >= 0.97


def test_no_rows_and_bytes_of_another_size_are_refused() -> None:
    settings = graphs.GraphSettings("int8", 4, 2, 4)
    with pytest.raises(InvalidInput, match="a graph needs a row"):
        graphs.build(np.zeros(0, np.uint32), [], settings, threads=1)
    with pytest.raises(InvalidInput, match="int8 or float16"):
        _native.most_graph_bytes(3, "float32", (4, 2))
    with pytest.raises(InvalidInput, match="bytes and those of the graph differ in length"):
        _native.GraphBuilder(np.zeros(100, np.uint8), np.zeros(3, np.uint32), "int8", (4, 2), 4)
