"""Millions of synthetic documents on one machine: an index is built, opened, searched, added to and compacted.

Every document has a dense vector, a sparse vector and words (the documents of engine_data.py). Documents are made
while the index is built. Each step runs in a process of its own, whose memory is counted: "held" is the memory that
belongs to the process, "resident" also counts pages of mapped files, which the system can take back. Exact dense search
is measured with the codes of the rows and without them, and both must return the same. faiss and Qdrant Edge get the
same vectors, up to the numbers of documents that the options allow.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

import engine_data as data
from lightir import kernel
from lightir.index import Index, IndexOptions, IndexWriter, build_index
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import DenseSegments
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import SparseVectors
from optional import is_installed
from origin import print_origin
from own_process import ExtraMemory, cpu_seconds, in_own_process

SMALLEST = "--n-docs 3000 --dim 16 --n-queries 3 --rounds 1 --added 50 --words 5 --graph"
KS = (10, 200)
SEED = 7
HNSW_NEIGHBORS, HNSW_BUILD, HNSW_SEARCH = 32, 100, 64
MIB = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Queries:
    """Texts, and the vectors that they have."""

    texts: list[str]
    vectors: data.Floats
    searcher_parts: tuple[Any, Any]


class HeldMemory:
    """The peak of the memory that belongs to this process, sampled ten times a second, above that at the start."""

    def __init__(self) -> None:
        """Start to sample."""
        self.resident = ExtraMemory()
        self._before = self._peak = held_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(0.1):
            self._peak = max(self._peak, held_bytes())

    def text(self) -> str:
        """Stop sampling and return the peaks."""
        self._ended.set()
        self._thread.join()
        held = (self._peak - self._before) / MIB
        return f"at most {held:,.0f} MiB held, {self.resident.peak() / MIB:,.0f} MiB resident"


def held_bytes() -> int:
    """Return the resident memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """One step after the other, each in its own process."""
    args = arguments()
    print_origin()
    columns = f"{args.dim} columns ({args.dense_dtype})"
    print(f"kernel {kernel.dispatch()}, {args.n_docs:,} documents, {columns}, {args.words} words each")
    with tempfile.TemporaryDirectory(dir=args.dir) as scratch:
        folder = args.index or Path(scratch, "index")
        if not folder.exists():
            in_own_process(build, args, folder)
        in_own_process(open_index, args, folder)
        in_own_process(search, args, folder)
        if not args.only_search:
            in_own_process(change, args, folder)
            in_own_process(search, args, folder)
    for name, peer in PEERS.items():
        if args.n_docs <= getattr(args, f"{name}_up_to"):
            in_own_process(peer, args)
        else:
            print(f"{name}: left out of {args.n_docs:,} documents (--{name.replace('_', '-')}-up-to)")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-docs", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--words", type=int, default=30, help="words per document (default %(default)s)")
    parser.add_argument("--n-queries", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--added", type=int, default=10_000, help="documents added in one change (default %(default)s)")
    parser.add_argument("--dense-dtype", choices=("fp16", "int8", "fp16+int8"), default="fp16")
    parser.add_argument("--graph", action="store_true", help="build graphs over the dense rows")
    most = IndexOptions().segment_documents
    parser.add_argument(
        "--segment-documents", type=int, default=most, help="maximum documents per segment (default %(default)s)"
    )
    parser.add_argument("--index", type=Path, help="where to build and keep the index; an existing one is searched")
    parser.add_argument("--only-search", action="store_true", help="change nothing")
    parser.add_argument("--dir", help="for temporary files (default: the system's folder)")
    for name, n_docs in (("faiss", 1_000_000), ("faiss_hnsw", 100_000), ("qdrant", 100_000)):
        option = f"--{name.replace('_', '-')}-up-to"
        parser.add_argument(option, type=int, default=n_docs, metavar="N", help="documents (default %(default)s)")
    return parser.parse_args()


# Documents and queries


def shards(args: argparse.Namespace, n: int, seed: int, prefix: str = "") -> Iterator[Shard]:
    """Yield documents with their vectors."""
    names = [f"t{term}" for term in range(data.VOCAB_SIZE)]
    vectors = data.vector_batches(np.random.default_rng(seed), n, args.dim)
    first = 0
    for batch, dense in zip(data.document_batches(n, seed=seed), vectors, strict=True):
        documents = []
        for i in range(len(batch)):
            terms, _ = batch.row(i)
            text = " ".join([names[term] for term in terms[:: max(1, len(terms) // args.words)].tolist()])
            documents.append(Document(f"{prefix}{first + i:09d}", text))
        vocab_size = data.encoder_vocabulary(batch.vocab_size)
        sparse = SparseVectors(batch.indptr, batch.term_ids, batch.weights, vocab_size)
        yield Shard(documents, dense.astype(np.float16), sparse)
        first += len(batch)


def queries_of(args: argparse.Namespace) -> Queries:
    """Return queries near the first documents, and the contract and encoder with which an index takes them as texts."""
    n = min(args.n_docs, data.BATCH)
    rng = np.random.default_rng(SEED)
    vectors = next(data.vector_batches(rng, args.n_docs, args.dim))
    terms = data.draw_queries(next(data.document_batches(args.n_docs, seed=SEED)), args.n_queries, 6, 12, counts=True)
    wanted = data.near(np.random.default_rng(SEED + 1), vectors[:n], args.n_queries)
    contract, encoder, texts = data.text_queries(data.VOCAB_SIZE, terms, wanted)
    encoded = encoder.encode(texts).dense
    assert encoded is not None
    return Queries(texts, encoded, (contract, encoder))


# The index


def build(args: argparse.Namespace, folder: Path) -> None:
    """Build the index from documents that are made meanwhile, and print what it took."""
    contract, _ = queries_of(args).searcher_parts
    options = IndexOptions(
        dense_dtype=args.dense_dtype,
        analyzer="words",
        dense_graph=args.graph,
        segment_documents=args.segment_documents,
    )
    making = 0.0

    def timed() -> Iterator[Shard]:
        nonlocal making
        source = shards(args, args.n_docs, SEED)
        while True:
            start = time.process_time()
            shard = next(source, None)
            making += time.process_time() - start
            if shard is None:
                return
            yield shard

    memory, start, used = HeldMemory(), time.perf_counter(), cpu_seconds()
    info = build_index(timed(), folder, options=options, contract=contract, progress=False)
    wall, cpu = time.perf_counter() - start, cpu_seconds() - used - making
    print(
        f"built: {args.n_docs / cpu:,.0f} documents/s of CPU ({cpu:,.0f} s; {making:,.0f} s more to make the documents;"
    )
    print(
        f"    {wall:,.0f} s by the clock), {memory.text()}, {info.segments} segments, {sizes(info.bytes)}", flush=True
    )


def sizes(n_bytes: Any) -> str:
    """Return the size of each branch's files."""
    return ", ".join(f"{name} {size / MIB:,.0f}" for name, size in n_bytes.items() if size) + " MiB"


def open_index(args: argparse.Namespace, folder: Path) -> None:
    """Open the index and search it, several times."""
    queries = queries_of(args)
    opened, first = [], []
    for _ in range(5):
        start = time.perf_counter()
        with Index.open(folder) as index:
            searcher = Searcher(index, queries.searcher_parts[1])
            opened.append((time.perf_counter() - start) * 1e3)
            searcher.search(queries.texts[:1], 10)
            first.append((time.perf_counter() - start) * 1e3 - opened[-1])
    print(f"opened in {np.median(opened):.1f} ms (the first time {opened[0]:.1f}), then the first hybrid query")
    print(f"    {np.median(first):.1f} ms (the first time {first[0]:.1f})", flush=True)


def search(args: argparse.Namespace, folder: Path) -> None:
    """Search by the dense branch alone, exactly, with codes and without, and by all branches."""
    queries = queries_of(args)
    with Index.open(folder) as index, Index.open(folder, exact=True) as exact:
        searchers = [(", exact", Searcher(exact, queries.searcher_parts[1]))]
        if args.graph:
            searchers.insert(0, (" by graph", Searcher(index, queries.searcher_parts[1])))
        segments = [live.segment for live in exact.view.segments]
        coded = sum(segment.dense_codes is not None for segment in segments)
        print(f"{len(exact.view.segments)} segments, {coded} with codes; CPU ms per query: median, p99")
        scans(args, exact, queries)
        if args.graph:
            print_recall(searchers[0][1], searchers[1][1], queries)
        for name, searcher in searchers:
            for mode in ("hybrid", "dense"):
                print_search(f"{mode}{name}", searcher, SearchOptions(mode=mode), args, queries)
        print_search(f"hybrid{searchers[0][0]}, lists of 100", searchers[0][1], SearchOptions(depth=100), args, queries)
        print_two_threads(index, args, queries)
        for mode in ("sparse", "tokens", "sparse+tokens"):
            print_search(mode, searchers[0][1], SearchOptions(mode=mode), args, queries)


def print_search(
    label: str, searcher: Searcher, options: SearchOptions, args: argparse.Namespace, queries: Queries
) -> None:
    """Print the time of searches, one query at a time."""
    calls = [lambda t=text: searcher.search([t], 10, options) for text in queries.texts]
    print(f"    {label}, k=10: {in_words(least_ms(calls, args.rounds))}", flush=True)


def print_two_threads(index: Index, args: argparse.Namespace, queries: Queries) -> None:
    """Print the time by the clock of searches on one and two threads, one query at a time."""
    searchers = [Searcher(index, queries.searcher_parts[1], threads=threads) for threads in (1, 2)]
    for mode, depth in (("hybrid", None), ("hybrid", 100), ("sparse", None), ("sparse+tokens", None)):
        options = SearchOptions(mode=mode, depth=depth)
        calls = [
            [lambda t=text, s=searcher, o=options: s.search([t], 10, o) for text in queries.texts]
            for searcher in searchers
        ]
        one, two = (in_words(least_ms(some, args.rounds, time.perf_counter_ns)) for some in calls)
        lists = f", lists of {depth}" if depth else ""
        print(f"    {mode} by the clock{lists}, k=10: one thread {one}; two threads {two}", flush=True)


def print_recall(searcher: Searcher, exact: Searcher, queries: Queries) -> None:
    """Print how much of exact dense rankings is found by graphs."""
    shares = []
    for k in KS:
        options = SearchOptions(mode="dense")
        rankings = [one.search(queries.texts, k, options) for one in (searcher, exact)]
        mine, true = ([set(ranking.doc_ids) for ranking in run.values()] for run in rankings)
        shares.append(np.mean([len(some & every) / len(every) for some, every in zip(mine, true, strict=True)]))
    print(f"    dense by graph: recall {', '.join(f'{share:.4f} of {k}' for k, share in zip(KS, shares, strict=True))}")


def scans(args: argparse.Namespace, index: Index, queries: Queries) -> None:
    """Print the time of exact dense scans that read codes first and of scans that do not."""
    n_docs = [len(live.segment) for live in index.view.segments]
    rows = [live.segment.dense_rows for live in index.view.segments]
    plain = DenseSegments([None if part is None else part._replace(codes=None) for part in rows], n_docs)
    staged = DenseSegments(rows, n_docs)
    for k in KS:
        request = Request(k, k, columns=False)
        times, results = [], []
        for segments in (plain, staged):
            branch = CandidateSearch([BoundBranch("", segments)], scale="none")
            asked = [segments.queries(vector[None]) for vector in queries.vectors]
            results.append([branch.search([query], request)[0] for query in asked])
            calls = [lambda q=query, b=branch, r=request: b.search([q], r) for query in asked]
            times.append(least_ms(calls, args.rounds))
        for one, other in zip(*results, strict=True):
            np.testing.assert_array_equal(one.doc_ords, other.doc_ords)
            np.testing.assert_array_equal(one.scores, other.scores)
        ratios = times[1] / times[0]
        print(f"    dense scan, k={k}: rows {in_words(times[0])}; codes first {in_words(times[1])}; ratio", end=" ")
        print(f"{np.median(ratios):.2f} (p99 {np.quantile(ratios, 0.99):.2f})", flush=True)


def change(args: argparse.Namespace, folder: Path) -> None:
    """Add documents in one change and one alone, then compact."""
    with IndexWriter.open(folder) as writer, Index.open(folder) as index:
        for n, name in ((args.added, "more"), (1, "one")):
            (*some,) = shards(args, n, SEED + 2, f"{name}-")
            start = time.perf_counter()
            for shard in some:
                writer.add(shard.documents, dense=shard.dense, sparse=shard.sparse)
            index.refresh()
            seconds = time.perf_counter() - start
            print(f"added {n:,}, searchable after {seconds * 1e3:,.0f} ms by the clock ({n / seconds:,.0f} per second)")
        memory, start, used = HeldMemory(), time.perf_counter(), cpu_seconds()
        writer.compact(progress=False)
        wall, cpu = time.perf_counter() - start, cpu_seconds() - used
        print(f"compacted in {cpu:,.0f} s of CPU ({wall:,.0f} s by the clock), {memory.text()}", flush=True)


def least_ms(
    calls: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], int] = time.process_time_ns
) -> npt.NDArray[np.float64]:
    """Return the least milliseconds of each call in several rounds, of CPU unless another clock is given."""
    least = np.full(len(calls), np.inf)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = clock()
            call()
            least[i] = min(least[i], (clock() - start) / 1e6)
    return least


def in_words(times: npt.NDArray[np.float64]) -> str:
    """Return median and p99."""
    return f"{np.median(times):.2f}, {np.quantile(times, 0.99):.2f}"


# Peers


def faiss_exact(args: argparse.Namespace) -> None:
    """Scan faiss' float32 and 8-bit rows."""
    if not is_installed("faiss"):
        return
    import faiss

    eight = faiss.IndexScalarQuantizer(args.dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    for name, index in (("faiss SQ8", eight), ("faiss Flat", faiss.IndexFlatIP(args.dim))):
        measure_faiss(args, name, index)


def faiss_hnsw(args: argparse.Namespace) -> None:
    """Search faiss' graph over float32 rows."""
    if not is_installed("faiss"):
        return
    import faiss

    index = faiss.IndexHNSWFlat(args.dim, HNSW_NEIGHBORS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction, index.hnsw.efSearch = HNSW_BUILD, HNSW_SEARCH
    measure_faiss(args, "faiss HNSW", index)


def measure_faiss(args: argparse.Namespace, name: str, index: Any) -> None:
    """Add all vectors, then search."""
    import faiss

    faiss.omp_set_num_threads(1)
    queries, memory, used = queries_of(args), HeldMemory(), 0.0
    for batch in data.vector_batches(np.random.default_rng(SEED), args.n_docs, args.dim):
        start = time.process_time()
        if not index.is_trained:
            index.train(batch)
        index.add(batch)
        used += time.process_time() - start
    calls = [lambda v=vector: index.search(v[None], 10) for vector in queries.vectors]
    times = in_words(least_ms(calls, args.rounds))
    print(f"{name}: {args.n_docs / used:,.0f} vectors/s of CPU, k=10 {times} ms, {memory.text()}", flush=True)


def qdrant_edge(args: argparse.Namespace) -> None:
    """Build a Qdrant Edge shard with both vectors, and search it exactly by both branches."""
    if not is_installed("qdrant_edge"):
        return
    import engine_peers as peers

    memory = HeldMemory()
    vectors = data.vector_batches(np.random.default_rng(SEED), args.n_docs, args.dim)
    batches = zip(data.document_batches(args.n_docs, seed=SEED), vectors, strict=True)
    engine = peers.qdrant_hybrid(batches, args.dim, 200, 60, args.dir)
    print(f"{engine.name}: {args.n_docs / engine.build_s:,.0f} documents/s of CPU, {memory.text()}", flush=True)
    memory, first = HeldMemory(), next(data.document_batches(args.n_docs, seed=SEED))
    terms = data.draw_queries(first, args.n_queries, 6, 12, counts=True)
    asked = list(zip(terms, queries_of(args).vectors, strict=True))
    times = in_words(least_ms([lambda q=query: engine.search(q, 10) for query in asked], args.rounds))
    print(
        f"{engine.name}: hybrid k=10 {times} ms, {memory.text()}, {engine.n_bytes / MIB:,.0f} MiB of files", flush=True
    )


PEERS: dict[str, Callable[[argparse.Namespace], None]] = {
    "faiss": faiss_exact,
    "faiss_hnsw": faiss_hnsw,
    "qdrant": qdrant_edge,
}


if __name__ == "__main__":
    main()
