"""Building of graphs over dense vectors: lightir beside usearch and faiss.

Each builder gets the same synthetic vectors (those of engine_data.py), 16 links per node (32 at level 0) and the same
number of candidates. lightir and usearch build over the same int8 vectors, and lightir's kernel searches both graphs.
faiss builds over float32 vectors and searches its graph itself. Recall is of the exact ten by the vectors of each
graph's search: int8 for the first two, float32 for faiss. Each builder runs in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

import engine_data as data
from lightir import kernel
from lightir.index.segments.graph import BUILD_CANDIDATES, NEIGHBORS
from lightir.kernel import graphs
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments, ScannedRows, StoredGraph, WalkCosts
from optional import is_installed
from origin import print_origin
from own_process import cpu_seconds, in_own_process

SMALLEST = "--n-docs 3000 --dim 16 --n-queries 20"
SEED, K = 7, 10

Vectors = npt.NDArray[np.int8]


def main() -> None:
    """One builder after the other, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-docs", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--n-queries", type=int, default=500)
    parser.add_argument("--candidates", type=int, default=BUILD_CANDIDATES, help="default %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="number of threads for building (default %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128], help="nodes that a search keeps")
    args = parser.parse_args()
    print_origin()
    print(f"kernel {kernel.dispatch()}, {args.n_docs:,} vectors of {args.dim} columns, {args.candidates} candidates")
    builders = {"lightir": lightir_graph, "usearch": usearch_graph}
    for name, builder in builders.items():
        if name == "lightir" or is_installed(name):
            in_own_process(measure, args, name, builder)
    if is_installed("faiss"):
        in_own_process(measure_faiss, args)


def vectors_of(args: argparse.Namespace) -> tuple[Vectors, data.Floats]:
    """Return vectors of length 127 and queries near the first ones."""
    vectors, queries = np.empty((args.n_docs, args.dim), np.int8), None
    first = 0
    for batch in data.vector_batches(np.random.default_rng(SEED), args.n_docs, args.dim):
        if queries is None:
            queries = data.near(np.random.default_rng(SEED + 1), batch, args.n_queries)
        vectors[first : first + len(batch)] = batch * 127
        first += len(batch)
    assert queries is not None
    return vectors, queries


def timed(args: argparse.Namespace, name: str, build: Callable[[], Any]) -> Any:
    """Return what a builder makes, and print what it took."""
    used, start = cpu_seconds(), time.perf_counter()
    made = build()
    cpu, wall = cpu_seconds() - used, time.perf_counter() - start
    print(f"{name}: {args.n_docs / cpu:,.0f} rows/s of CPU ({cpu:.1f} s, {wall:.1f} s by the clock)", flush=True)
    return made


def lightir_graph(args: argparse.Namespace, vectors: Vectors) -> npt.NDArray[np.uint8]:
    """Build lightir's graph."""
    settings = graphs.GraphSettings("int8", args.dim, NEIGHBORS, args.candidates)
    return graphs.build(np.arange(len(vectors), dtype=np.uint32), [vectors], settings, threads=args.threads)


def usearch_graph(args: argparse.Namespace, vectors: Vectors) -> npt.NDArray[np.uint8]:
    """Build usearch's graph."""
    from usearch.index import Index

    index = Index(ndim=args.dim, metric="ip", dtype="i8", connectivity=NEIGHBORS, expansion_add=args.candidates)
    for first in range(0, len(vectors), data.BATCH):
        batch = vectors[first : first + data.BATCH]
        keys = np.arange(first, first + len(batch), dtype=np.uint64)
        index.add(keys, batch.astype(np.float32), threads=args.threads)
    stored = index.save()
    assert stored is not None
    return np.frombuffer(stored, np.uint8)


def measure(args: argparse.Namespace, name: str, build: Callable[..., npt.NDArray[np.uint8]]) -> None:
    """Build a graph, and search it with the kernel."""
    vectors, queries = vectors_of(args)
    stored = timed(args, name, lambda: build(args, vectors))
    scales = np.full(len(vectors), 1 / 127, np.float32)
    graph = StoredGraph(stored, element="int8", shape=vectors.shape, neighbors=NEIGHBORS)
    exact, _ = kernel.dense_top_k(vectors, queries, k=K, scales=scales)
    for width in args.widths:
        segments = DenseSegments([ScannedRows(vectors, scales, graph=graph)], [len(vectors)], costs=WalkCosts(width, 1))
        branch = CandidateSearch([BoundBranch("", segments)], scale="none")
        start = time.process_time()
        rankings = branch.search([segments.queries(queries)], Request(K, K))
        cpu = time.process_time() - start
        print_search(width, cpu, [ranking.doc_ords for ranking in rankings], exact)


def measure_faiss(args: argparse.Namespace) -> None:
    """Build faiss' graph, and search it."""
    import faiss

    faiss.omp_set_num_threads(args.threads)
    vectors, queries = vectors_of(args)
    floats = vectors.astype(np.float32) / np.float32(127)
    index = faiss.IndexHNSWFlat(args.dim, NEIGHBORS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = args.candidates
    timed(args, "faiss", lambda: index.add(floats))
    exact, _ = kernel.dense_top_k(floats, queries, k=K)
    faiss.omp_set_num_threads(1)
    for width in args.widths:
        index.hnsw.efSearch = width
        start = time.process_time()
        _, rows = index.search(queries, K)
        print_search(width, time.process_time() - start, rows, exact)


def print_search(width: int, cpu: float, rows: Iterable[npt.NDArray[Any]], exact: npt.NDArray[np.uint32]) -> None:
    """Print the recall of a search and its time."""
    shares = [len({*mine.tolist()} & {*true.tolist()}) / len(true) for mine, true in zip(rows, exact, strict=True)]
    print(f"    {width} nodes: recall {np.mean(shares):.4f} of {K}, {cpu / len(shares) * 1e3:.3f} ms", flush=True)


if __name__ == "__main__":
    main()
