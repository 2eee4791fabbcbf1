"""The kernel's search by graphs finds what its slow twin finds, and follows no number that is out of bounds."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_bytes import graph_bytes
from lightir import kernel
from lightir.errors import FormatError, InvalidInput
from lightir.kernel import graph_reference
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.graph_reference import ReadGraph, SearchedSegment
from lightir.kernel.segments import DenseSegments, ScannedRows, StoredGraph, WalkCosts

Element = Literal["int8", "float16"]
MOST = 3


def stored(rng: np.random.Generator, n: int, element: Element, n_rows: int) -> npt.NDArray[np.uint8]:
    """Return a graph over n of some rows, 5 wide."""
    vectors = rng.integers(-3, 4, (n, 5)).astype(element)
    return graph_bytes(rng, vectors, np.sort(rng.permutation(n_rows)[:n]), most_neighbors=MOST)


class Collection:
    """Segments of which some have graphs, with many equal scores."""

    def __init__(self, seed: int, sizes: list[int]) -> None:
        rng = np.random.default_rng(seed)
        self.parts: list[ScannedRows | None] = []
        self.allowed: list[npt.NDArray[np.uint8] | None] = []
        self.twins: list[tuple[ReadGraph | None, npt.NDArray[np.float16], npt.NDArray[np.bool_]]] = []
        self.sizes = sizes
        for size in sizes:
            rows = rng.integers(-2, 3, (size, 5)).astype(np.float16)
            allowed = rng.random(size) < rng.choice([0.0, 0.3, 1.0])
            graph, twin = None, None
            n = int(rng.integers(size + 1))
            if n and rng.random() < 0.8:
                element: Element = "int8" if rng.random() < 0.7 else "float16"
                data = stored(rng, n, element, size)
                graph = StoredGraph(data, element=element, shape=(size, 5), neighbors=MOST)
                twin = graph_reference.read_graph(data, element)
            self.parts.append(ScannedRows(rows, graph=graph))
            self.twins.append((twin, rows, allowed))
            self.allowed.append(None if allowed.all() else kernel.pack_bitmap(allowed))
        self.queries = rng.standard_normal((3, int(rng.choice([3, 5])))).astype(np.float32)

    def searched(self, query: npt.NDArray[np.float32]) -> list[SearchedSegment]:
        first, out = 0, []
        for graph, rows, allowed in self.twins:
            docs = np.arange(len(rows), dtype=np.uint32)
            out.append(SearchedSegment(first, graph, kernel.dense_pair_scores(rows, docs, query), allowed))
            first += len(rows)
        return out


def top(segments: DenseSegments, queries: npt.NDArray[np.float32], k: int, **how: Any) -> list[Any]:
    branch = BoundBranch("", segments, allowed=how.get("allowed"))
    return CandidateSearch([branch], scale="none").search(
        [segments.queries(queries)], Request(k, k, how.get("threads", 1))
    )


@pytest.mark.parametrize("level", kernel.available())
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(1, 40),
    st.builds(WalkCosts, st.integers(1, 12), st.integers(0, 3)),
)
def test_graphs_find_what_the_twin_finds(level: str, seed: int, sizes: list[int], k: int, costs: WalkCosts) -> None:
    before = kernel.dispatch()
    kernel._native.use_level(level)
    try:
        data = Collection(seed, sizes)
        segments = DenseSegments(data.parts, data.sizes, costs=costs)
        for threads in (1, 2):
            rankings = top(segments, data.queries, k, allowed=data.allowed, threads=threads)
            for query, ranked in zip(data.queries, rankings, strict=True):
                wanted = graph_reference.graphs_top_k(data.searched(query), query, k, costs)
                assert ranked.doc_ords.tolist() == [doc for _, doc in wanted]
                assert ranked.scores.tolist() == [-score + 0.0 for score, _ in wanted]
    finally:
        kernel._native.use_level(before)


@pytest.mark.parametrize("seed", range(3))
def test_walks_above_level_0_keep_as_many_nodes_as_those_of_the_twin(seed: int) -> None:
    """Some 600, 240 and 100 nodes are at levels 1, 2 and 3, more than a walk keeps there."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(-20, 21, (1500, 5)).astype(np.float16)
    data = graph_bytes(rng, rows.astype(np.int8), np.arange(1500), most_neighbors=8)
    graph = StoredGraph(data, element="int8", shape=rows.shape, neighbors=8)
    costs = WalkCosts(4, 1)
    segments = DenseSegments([ScannedRows(rows, graph=graph)], [len(rows)], costs=costs)
    queries = rng.standard_normal((40, 5)).astype(np.float32)
    twin, every = graph_reference.read_graph(data, "int8"), np.arange(len(rows), dtype=np.uint32)
    for query, ranked in zip(queries, top(segments, queries, 4), strict=True):
        searched = SearchedSegment(0, twin, kernel.dense_pair_scores(rows, every, query), np.ones(len(rows), np.bool_))
        wanted = graph_reference.graphs_top_k([searched], query, 4, costs)
        assert ranked.doc_ords.tolist() == [doc for _, doc in wanted]


def test_graphs_that_cost_as_much_as_a_scan_are_not_asked() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((60, 5)).astype(np.float16)
    lonely = graph_bytes(rng, np.ones((60, 5), np.int8), np.arange(60), most_neighbors=1)
    graph = StoredGraph(lonely, element="int8", shape=(60, 5), neighbors=1)
    for costs, scanned in ((WalkCosts(5, 12), True), (WalkCosts(5, 11), False), (WalkCosts(60, 1), True)):
        segments = DenseSegments([ScannedRows(rows, graph=graph)], [60], costs=costs)
        query = rng.standard_normal((1, 5)).astype(np.float32)
        (ranked,) = top(segments, query, 4)
        best, _ = kernel.dense_top_k(rows, query, k=4)
        twin = SearchedSegment(
            0,
            graph_reference.read_graph(lonely, "int8"),
            kernel.dense_pair_scores(rows, np.arange(60, dtype=np.uint32), query[0]),
            np.ones(60, np.bool_),
        )
        wanted = graph_reference.graphs_top_k([twin], query[0], 4, costs)
        assert ranked.doc_ords.tolist() == [doc for _, doc in wanted]
        assert (ranked.doc_ords.tolist() == best[0].tolist()) or not scanned


def test_a_query_of_zeros_finds_nothing_and_one_that_is_not_finite_is_refused() -> None:
    rng = np.random.default_rng(2)
    graph = StoredGraph(stored(rng, 50, "int8", 50), element="int8", shape=(50, 5), neighbors=MOST)
    rows = rng.standard_normal((50, 5)).astype(np.float16)
    segments = DenseSegments([ScannedRows(rows, graph=graph)], [50], costs=WalkCosts(4, 1))
    queries = np.array([[0, 0, 0, 0, 0], [1e-44, 0, 0, 0, 0], [1e37, 1e37, 0, 0, 0]], np.float32)
    assert [len(ranked) for ranked in top(segments, queries, 3)] == [0, 3, 3]
    with pytest.raises(InvalidInput, match="finite"):
        top(segments, np.array([[np.nan] * 5], np.float32), 3)


@pytest.mark.parametrize("element", ["int8", "float16"])
def test_a_graph_with_other_settings_or_numbers_is_refused(element: Element) -> None:
    rng = np.random.default_rng(3)
    data = stored(rng, 20, element, 20)
    good: dict[str, Any] = {"element": element, "shape": (20, 5), "neighbors": MOST}
    StoredGraph(data, **good)
    other: Element = "float16" if element == "int8" else "int8"
    for change in ({"element": other}, {"shape": (20, 6)}, {"shape": (19, 5)}, {"neighbors": 4}):
        with pytest.raises(FormatError, match="the graph is damaged"):
            StoredGraph(data, **{**good, **change})
    for n in range(len(data)):
        with pytest.raises(FormatError, match="the graph is damaged"):
            StoredGraph(data[:n], **good)


def test_the_rows_of_a_graph_must_ascend() -> None:
    """Equal rows would be found twice."""
    vectors = np.ones((3, 5), np.int8)
    for rows in ([0, 1, 1], [0, 2, 1]):
        data = graph_bytes(np.random.default_rng(4), vectors, np.array(rows))
        with pytest.raises(FormatError, match="do not ascend"):
            StoredGraph(data, element="int8", shape=(3, 5), neighbors=MOST)


def test_changed_bytes_are_refused_or_searched() -> None:
    rng = np.random.default_rng(5)
    data = stored(rng, 12, "int8", 12)
    rows, queries = rng.standard_normal((12, 5)).astype(np.float16), rng.standard_normal((2, 5)).astype(np.float32)
    refused = searched = 0
    for at in range(len(data)):
        for value in (0, 1, 11, 12, 127, 128, 255):
            changed = data.copy()
            changed[at] = value
            try:
                graph = StoredGraph(changed, element="int8", shape=(12, 5), neighbors=MOST)
            except FormatError:
                refused += 1
                continue
            segments = DenseSegments([ScannedRows(rows, graph=graph)], [12], costs=WalkCosts(3, 1))
            assert [len(ranked) for ranked in top(segments, queries, 2)] == [2, 2]
            searched += 1
    assert refused > 1000
    assert searched > 100


def test_a_graph_of_other_rows_or_without_costs_is_refused() -> None:
    graph = StoredGraph(stored(np.random.default_rng(6), 5, "int8", 5), element="int8", shape=(5, 5), neighbors=MOST)
    with pytest.raises(InvalidInput, match="costs"):
        DenseSegments([ScannedRows(np.zeros((5, 5), np.float16), graph=graph)], [5])
    for shape in ((6, 5), (5, 6)):
        with pytest.raises(InvalidInput, match="graph"):
            DenseSegments([ScannedRows(np.zeros(shape, np.float16), graph=graph)], [shape[0]], costs=WalkCosts(3, 1))
