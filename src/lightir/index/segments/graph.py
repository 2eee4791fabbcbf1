"""A graph over a segment's dense rows, for approximate search of large collections: HNSW (Malkov & Yashunin, 2018).

usearch builds and walks it. Of the two kept libraries that have one, it was chosen over faiss because its graphs can be
searched as they lie in a memory-mapped file, so that many readers share them and opening an index stays quick. The
graph only names candidates; their scores are the exact scan's, to the bit, computed from the segment's own rows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import MissingExtra
from lightir.vectors import Floats

NEIGHBOURS = 16
BUILD_CANDIDATES = 128
SEARCH_CANDIDATES = 128
"""usearch's connectivity, expansion_add and expansion_search; a search for more than the last keeps that many."""

CANDIDATE_COST = 200
"""Rows of int8 that are scanned in the time that the graph takes for a candidate, with AVX-512 at 256 columns."""

LEAST_DOCUMENTS = CANDIDATE_COST * SEARCH_CANDIDATES
"""Smaller segments get no graph: scanning them costs no more."""

ROWS_AT_ONCE = 65_536
"""Rows that a graph is given at a time, as float32."""

RECALL_K = 10
RECALL_QUERIES = 100


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a segment's manifest says of its graph.

    Attributes:
        documents: how many rows are in it.
        recall: the share of the exact ten best rows that it finds, for `queries` of the segment's own rows.
        queries: see recall.
        element: "i8" where all rows have length 1, else "f16".
        library: what built it.
    """

    documents: int
    recall: float
    queries: int
    element: str
    library: str


def require_usearch() -> Any:
    """The package's index class.

    Raises:
        MissingExtra: usearch is not installed.
    """
    if importlib.util.find_spec("usearch") is None:
        raise MissingExtra(
            "usearch is needed for the graph over dense rows: pip install 'lightir[ann]'; "
            "an index that has one is searched without it by Index.open(exact=True) or --exact"
        )
    from usearch.index import Index

    return Index


def build_graph(
    rows: npt.NDArray[Any], scales: Floats | None, wanted: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint8], GraphFacts]:
    """A graph over some rows, as bytes, and what is known of it. The same rows give the same bytes.

    Args:
        rows: (n, dim) float16 or int8.
        scales: (n,) float32 for int8 rows.
        wanted: (n,) bool, the rows that go in.

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
    del graph  # it is as large as what was saved
    asked = np.linspace(0, len(keys) - 1, min(RECALL_QUERIES, len(keys))).astype(np.int64)
    queries = _floats(rows, scales, keys[asked])
    library = f"usearch {usearch.__version__}"
    facts = GraphFacts(len(keys), 0.0, len(asked), element, library)
    found = Graph(stored, rows, scales, facts).top_k(queries, RECALL_K, n_allowed=len(keys))
    allowed = kernel.pack_bitmap(wanted)
    best, _ = kernel.dense_top_k(rows, queries, k=RECALL_K, scales=scales, allowed=allowed)
    hit = [len(np.intersect1d(mine[0], true)) / len(true) for mine, true in zip(found, best, strict=True)]
    return stored, GraphFacts(len(keys), round(float(np.mean(hit)), 4), len(asked), element, library)


class Graph:
    """A segment's graph, searched where it lies."""

    def __init__(
        self, stored: npt.NDArray[np.uint8], rows: npt.NDArray[Any], scales: Floats | None, facts: GraphFacts
    ) -> None:
        """Open what `build_graph` gave; the arrays may be memory-mapped.

        Raises:
            MissingExtra: usearch is not installed.
        """
        self.facts = facts
        self._rows, self._scales = rows, scales
        self._stored = stored  # the view below does not keep it
        self._index = _new(rows.shape[1], facts.element)
        self._index.view(memoryview(stored))  # type: ignore[arg-type]

    def serves(self, k: int, n_allowed: int) -> bool:
        """Whether a search for k of n_allowed documents should walk the graph; if not, a scan costs no more."""
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
        """For each query k rows with large inner products, and their exact scores: score down, then row up.

        Where fewer than k allowed rows are among the candidates, all rows are scanned: k come back when there are k.

        Args:
            queries: (n, dim) float32.
            k: number wanted.
            n_allowed: how many rows `allowed` lets through.
            allowed: bitmap of the rows that may come back; None for all of the graph's.
            threads: at most this many work at the same time, each on whole queries.
        """
        wanted = min(self._candidates(k, n_allowed), self.facts.documents)
        found = self._index.search(queries, wanted, threads=threads)
        keys, counts = np.atleast_2d(found.keys), np.atleast_1d(getattr(found, "counts", wanted))
        lists = []
        for i, query in enumerate(queries):
            rows = keys[i][: int(counts[i])].astype(np.uint32)
            lists.append(self._best(query, _let_through(rows, allowed), min(k, n_allowed), allowed))
        return lists

    def _candidates(self, k: int, n_allowed: int) -> int:
        """How many to ask the graph for: the fewer are allowed, the more, since it finds others as often."""
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
    """The graphs' recall, each counting for its documents."""
    counts = [each["documents"] for each in facts]
    return round(float(np.average([each["recall"] for each in facts], weights=counts)), 4)


def _new(dim: int, element: str) -> Any:
    return require_usearch()(
        ndim=dim,
        metric="ip",
        dtype=element,
        connectivity=NEIGHBOURS,
        expansion_add=BUILD_CANDIDATES,
        expansion_search=SEARCH_CANDIDATES,
    )


def _floats(rows: npt.NDArray[Any], scales: Floats | None, keys: npt.NDArray[np.int64]) -> Floats:
    values = rows[keys].astype(np.float32)
    return values if scales is None else values * scales[keys, None]


def _have_length_1(values: Floats) -> bool:
    """usearch scales a row to length 1 when it makes bytes of it, so other rows would change their order."""
    squares = np.einsum("ij,ij->i", values, values)
    return bool(np.all(np.abs(squares - 1) < 0.02))


def _let_through(rows: npt.NDArray[np.uint32], allowed: npt.NDArray[np.uint8] | None) -> npt.NDArray[np.uint32]:
    if allowed is None:
        return rows
    bits = allowed[rows // 8] >> (rows % 8).astype(np.uint8) & 1
    let_through: npt.NDArray[np.uint32] = rows[bits == 1]
    return let_through
