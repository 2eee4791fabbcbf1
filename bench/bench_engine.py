"""Sparse, BM25, dense and hybrid top k of the kernel and of an index beside other engines, in the same run.

p50 and p99 are milliseconds of the process's CPU time, one thread, each query's best of several rounds, so that other
work counts little; an engine's rounds run together, as in use. Queries a second are wall-clock, the best of several
passes over all queries. Exact engines are asserted to have our scores before they are timed; recall is the share of the
true k documents that an engine finds, any that scores as much as the last of them counted. Memory is bounded: a run
that needs more fails.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import numpy as np
import numpy.typing as npt

import engine_data as data
import engine_peers as peers
from engine_peers import Engine, Maker
from lightir import kernel
from lightir.index import Index, IndexOptions, IndexWriter, build_index
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import BranchQueries, SparseRows, SparseSegments, pair_scores
from lightir.search import Searcher, SearchOptions
from lightir.search.plan import DEPTH, WHOLE_DEPTH
from lightir.shards import Shard, VectorsReader
from lightir.types import Document
from lightir.vectors import SparseVectors
from origin import print_origin

SMALLEST = "--n-docs 1000 --dim 16 --n-queries 4 --rounds 1 --seconds 0"
BRANCHES = ("sparse", "tokens", "dense", "hybrid")
KS = (10, 1000)
RRF_K = 60
COMPARED = 50  # queries whose results are compared
THREADS = (1, 2)
ADDED, ADDED_ALONE = 1000, 20
GB = 10**9
COLUMNS = ("engine", "k", "p50 ms", "p99 ms", "1 thread, /s", "2 threads, /s", "recall", "MiB", "built, docs/s")
BESIDE_COLUMNS = ("fusion", "lists of", "query", "dense scan", "sparse scan", "beside the dense", "beside both")
ADD_COLUMNS = ("engine", "1,000 more, docs/s", "one more, found, ms")


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """The true ranking of a query.

    Attributes:
        least: the score of its k-th document, or of the last one that matches.
        n: documents in it.
        scores: function from documents to their scores.
    """

    least: float
    n: int
    scores: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.float32]]


Truths = Callable[[Sequence[Any], int], Sequence[Truth]]


def main() -> None:
    """Make or read documents, then measure branch after branch."""
    args = arguments()
    print_origin()
    bound = int(args.memory_gb * GB)
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    print(f"kernel {kernel.dispatch()}, at most {bound / GB:.1f} GB, one core reads {bandwidth():.1f} GB/s")
    Bench(args).run()
    print(f"\nat most {peak_bytes() / GB:.1f} GB were held, one core reads {bandwidth():.1f} GB/s")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-docs", type=int, default=100_000, help="synthetic documents (default %(default)s)")
    parser.add_argument("--dim", type=int, default=256, help="width of the synthetic vectors (default %(default)s)")
    parser.add_argument("--vectors", type=Path, metavar="FOLDER", help="real documents: a folder of `lightir encode`")
    parser.add_argument("--queries", type=Path, help="with --vectors: a BEIR folder, or a file of queries")
    parser.add_argument("--n-queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="least of a count of queries a second (default 0.3)")
    parser.add_argument("--branches", nargs="+", default=list(BRANCHES), choices=BRANCHES)
    parser.add_argument("--memory-gb", type=float, default=6.0, help="more is refused by the system (default 6)")
    parser.add_argument(
        "--slow-peers-up-to", type=int, default=100_000, help="documents that slow builders get (default %(default)s)"
    )
    parser.add_argument("--graph", action="store_true", help="build dense graphs whatever the number of documents")
    parser.add_argument(
        "--depth", type=int, default=DEPTH, help="documents a branch gives to fusion (default %(default)s)"
    )
    parser.add_argument("--dir", help="for indexes (default: the system's folder for temporary files)")
    args = parser.parse_args()
    if (args.vectors is None) != (args.queries is None):
        parser.error("--vectors and --queries go together")
    return args


class Bench:
    """One run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.real = None if args.vectors is None else data.real_tasks(args.vectors, args.queries, args.n_queries)
        tempfile.tempdir = args.dir

    def run(self) -> None:
        """All branches wanted."""
        for branch in self.args.branches:
            getattr(self, branch)()

    def sparse(self) -> None:
        """Learned impacts."""
        if self.real is not None:
            task = self.real.sparse
            if task is None:
                print("\nthe model has no sparse branch")
                return
        else:
            task = data.sparse_task(self._documents(), self.args.n_queries)
        makers: list[tuple[str, Maker]] = [
            ("", lambda: peers.lightir_sparse(task)),
            ("bm25s numba", lambda: peers.bm25s_numba(task)),
            ("scipy", lambda: peers.scipy_columns(task)),
        ]
        if self._slow("Qdrant Edge and seismic", len(task.documents)):
            makers += [
                ("qdrant_edge", lambda: peers.qdrant_sparse(task)),
                ("seismic", lambda: peers.seismic(task)),
            ]
        self._compare("sparse", makers, task.queries, sparse_truths(task), task)

    def tokens(self) -> None:
        """BM25, and many weighted terms over binary postings."""
        if self.real is not None:
            counts, task = self.real.counts, self.real.tokens
        else:
            documents = self._documents()
            counts = data.term_counts(documents)
            queries = {"short": data.draw_queries(documents, self.args.n_queries, 6, 12)}
            heavy = data.bags(documents, max(self.args.n_queries // 10, 1))
            del documents
            task = data.bm25_task(counts, queries)
        makers: list[tuple[str, Maker]] = [
            ("", lambda: peers.lightir_sparse(task)),
            ("bm25s numba", lambda: peers.bm25s_numba(task)),
            ("scipy", lambda: peers.scipy_columns(task)),
        ]
        if self._slow("tantivy", len(task.documents)):
            makers.append(("tantivy", lambda: peers.tantivy(counts)))
        self._compare("BM25", makers, task.queries, sparse_truths(task), task)
        if self.real is None:
            ones = np.ones(len(counts.weights), np.uint8)
            binary = dataclasses.replace(counts, weights=ones)
            weights = np.ones(counts.vocab_size, np.float32)
            heavy_task = data.SparseTask(binary, weights, {"768 weighted terms": heavy})
            makers = [("", lambda: peers.lightir_bags(heavy_task)), ("scipy", lambda: peers.scipy_columns(heavy_task))]
            self._compare("bag of tokens", makers, heavy_task.queries, sparse_truths(heavy_task), heavy_task, KS[:1])

    def dense(self) -> None:
        """Inner products; the truth is that of float32."""
        task = self._dense()
        if task is None:
            print("\nthe model has no dense branch")
            return
        makers: list[tuple[str, Maker]] = [
            ("", lambda: peers.lightir_int8(task)),
            ("", lambda: peers.lightir_float16(task)),
            ("", lambda: peers.lightir_copies(task)),
            ("", lambda: peers.numpy_float32(task)),
            ("faiss", lambda: peers.faiss_sq8(task)),
            ("faiss", lambda: peers.faiss_flat(task)),
        ]
        if self._slow("faiss HNSW and Qdrant Edge", len(task.vectors)):
            makers += [("faiss", lambda: peers.faiss_hnsw(task)), ("qdrant_edge", lambda: peers.qdrant_dense(task))]
        self._compare(
            f"dense, {task.vectors.shape[1]} wide", makers, {"": list(task.queries)}, dense_truths(task), None
        )

    def hybrid(self) -> None:
        """An index on the disk: both branches' best, joined with the true scores of both."""
        with tempfile.TemporaryDirectory() as folder:
            if self.args.vectors is not None:
                self._real_hybrid(Path(folder, "index"))
            else:
                self._synthetic_hybrid(Path(folder, "index"))

    def _real_hybrid(self, folder: Path) -> None:
        assert self.real is not None
        reader = VectorsReader(self.args.vectors)
        encoder = self.args.vectors / "query-encoder"

        def build() -> object:
            options = IndexOptions(dense_dtype="int8")
            return build_index(
                reader, folder, options=options, contract=reader.contract, query_encoder=encoder, progress=False
            )

        _, build_s = peers.cpu_s(build)
        with Index.open(folder) as index:
            modes = [*index.branches, "hybrid, rrf", "hybrid"]
            engines = index_engines(Searcher(index), folder, build_s, modes, depth=self.args.depth)
            self._compare(
                "index, text in", [("", engine) for engine in engines], {"": self.real.texts}, None, None, KS[:1]
            )

    def _synthetic_hybrid(self, folder: Path) -> None:
        documents, task = self._documents(), self._dense()
        assert task is not None
        n = len(task.queries)
        terms = data.draw_queries(documents, n, 6, 12, counts=True)
        contract, encoder, texts = data.text_queries(documents.vocab_size, terms, task.queries)
        vectors = encoder.encode(texts).dense
        assert vectors is not None
        task, at = dataclasses.replace(task, queries=vectors), {text: i for i, text in enumerate(texts)}
        searchers: list[tuple[str, Searcher]] = []

        def opened(path: Path, modes: Sequence[str], more: str = "") -> list[tuple[str, Maker]]:
            shards = (shard_of(documents, task.vectors, first) for first in range(0, len(documents), data.BATCH))
            options = IndexOptions(dense_dtype="int8", dense_graph=bool(more), analyzer=None)
            _, build_s = peers.cpu_s(
                lambda: build_index(shards, path, options=options, contract=contract, progress=False)
            )
            index, writer = closing.enter_context(Index.open(path)), closing.enter_context(IndexWriter.open(path))

            def add(first: int, last: int) -> None:
                some = shard_of(documents, task.vectors, first, last, prefix=f"{len(writer)}-")
                writer.add(some.documents, dense=some.dense, sparse=some.sparse)
                index.refresh()

            searchers.append((more, Searcher(index, encoder)))
            engines = index_engines(searchers[-1][1], path, build_s, modes, more, self.args.depth, add)
            return [("", make_engine) for make_engine in engines]

        with contextlib.ExitStack() as closing:
            makers = opened(folder, ["dense", "sparse", "hybrid, rrf", "hybrid"])
            if self.args.graph or self._slow("dense graphs", len(documents)):
                makers += opened(folder.with_name("graphs"), ["dense", "hybrid, rrf", "hybrid"], ", graph")
            if self._slow("Qdrant Edge", len(documents)):
                pairs = dict(zip(texts, zip(terms, task.queries, strict=True), strict=True))
                dim = task.vectors.shape[1]
                edge = lambda: peers.qdrant_hybrid([(documents, task.vectors)], dim, self.args.depth, RRF_K)  # noqa: E731
                makers.append(("qdrant_edge", lambda: keyed(edge(), pairs)))

            def truths(queries: Sequence[str], k: int) -> Sequence[Truth]:
                return dense_truths(task)([task.queries[at[query]] for query in queries], k)

            print(f"\nhybrid beside its scans, ms, {bandwidth():.1f} GB/s\n")
            print_row(BESIDE_COLUMNS)
            print_row(["---"] + ["---:"] * (len(BESIDE_COLUMNS) - 1))
            for fusion in ("rrf", "linear"):
                for depth in sorted({self.args.depth, DEPTH, WHOLE_DEPTH}):
                    print_row(beside_scans(searchers[0][1], texts, fusion, depth, self.args.rounds))
            self._compare("index", makers, {"": texts}, truths, None, KS[:1])

    def _documents(self) -> data.Documents:
        return data.make_documents(self.args.n_docs, seed=1)

    def _dense(self) -> data.DenseTask | None:
        if self.real is not None:
            return self.real.dense
        return data.dense_task(self.args.n_docs, self.args.dim, self.args.n_queries, seed=3)

    def _slow(self, names: str, n_docs: int) -> bool:
        if n_docs <= self.args.slow_peers_up_to:
            return True
        print(f"\n{names}: left out of what follows, for they build slowly (--slow-peers-up-to {n_docs} lets them in)")
        return False

    def _compare(
        self,
        title: str,
        makers: Sequence[tuple[str, Maker]],
        queries: dict[str, Sequence[Any]] | dict[str, list[data.Query]],
        truths: Truths | None,
        task: data.SparseTask | None,
        ks: Sequence[int] = KS,
    ) -> None:
        """A table of all engines, k and kinds of queries; then one of what they add."""
        n_docs = self.args.n_docs if self.real is None else len(self.real.counts)
        print(f"\n{title}, {n_docs:,} documents, {bandwidth():.1f} GB/s\n")
        print_row(COLUMNS)
        print_row(["---"] + ["---:"] * (len(COLUMNS) - 1))
        expected: dict[tuple[str, int], list[npt.NDArray[np.float32]]] = {}
        true: dict[tuple[str, int], Sequence[Truth]] = {}
        if truths is not None:
            true = {(name, k): truths(asked, k) for name, asked in queries.items() for k in ks}
        added = []
        for engine in peers.installed(makers):
            for name, counted in queries.items():
                folded = engine.name in ("bm25s (numba)", "tantivy")
                asked = counted if task is None or folded else task.weighted(counted)
                for k in ks:
                    check_scores(engine, asked, k, expected.setdefault((name, k), []))
                    recall = measured_recall(engine, asked, k, true.get((name, k), ()))
                    label = engine.name if not name else f"{engine.name}, {name}"
                    self._row(label, engine, asked, k, recall, n_docs)
            if engine.add is not None:
                first = next(iter(queries.values()))
                added.append([engine.name, *add_speed(engine, first)])
        if added:
            print()
            print_row(ADD_COLUMNS)
            print_row(["---", "---:", "---:"])
            for row in added:
                print_row(row)

    def _row(self, label: str, engine: Engine, queries: Sequence[Any], k: int, recall: str, n_docs: int) -> None:
        p50, p99 = np.quantile(cpu_ms(engine, queries, k, self.args.rounds), (0.5, 0.99))
        rates = [f"{rate(engine, queries, k, threads, seconds=self.args.seconds):,.0f}" for threads in THREADS]
        mib = f"{engine.n_bytes / 2**20:,.0f}" if engine.n_bytes else ""
        built = f"{n_docs / engine.build_s:,.0f}" if engine.build_s else ""
        print_row([label, str(k), f"{p50:.3f}", f"{p99:.3f}", *rates, recall, mib, built])


# One engine


def check_scores(engine: Engine, queries: Sequence[Any], k: int, expected: list[npt.NDArray[np.float32]]) -> None:
    """Nothing, or AssertionError where an exact engine's scores are not the first engine's."""
    if not engine.exact or engine.own_scores:
        return
    results = [engine.search(query, k)[1] for query in queries[:COMPARED]]
    if not expected:
        expected += results
    for ours, theirs in zip(expected, results, strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4)


def measured_recall(engine: Engine, queries: Sequence[Any], k: int, truths: Sequence[Truth]) -> str:
    """The mean share of the true ranking that was found, ties counted as found; "" where nothing is comparable."""
    if not truths or engine.own_scores:
        return ""
    shares = []
    for query, truth in zip(queries, truths, strict=False):
        documents = engine.search(query, k)[0]
        n_true = np.count_nonzero(truth.scores(documents) >= truth.least * (1 - 1e-6)) if len(documents) else 0
        shares.append(n_true / truth.n if truth.n else 1.0)
    return f"{np.mean(shares):.3f}"


def sparse_truths(task: data.SparseTask) -> Truths:
    """Return true rankings by the kernel's inner products with the documents' rows."""

    def truths(queries: Sequence[data.Query], k: int) -> list[Truth]:
        documents, postings, listed = task.documents, task.documents.invert(), []
        rows = SparseRows(documents.indptr, documents.term_ids, documents.weights, postings)
        segments = SparseSegments([rows], [len(documents.indptr) - 1])
        for query in task.weighted(queries[:COMPARED]):
            best = kernel.sparse_top_k(postings, *query, k=k)[1]

            asked = segments.queries(np.array([0, len(query[0])]), *query)

            def scores(docs: npt.NDArray[np.int64], asked: BranchQueries = asked) -> npt.NDArray[np.float32]:
                return pair_scores(docs.astype(np.uint32), asked)

            listed.append(Truth(float(best[-1]) if len(best) else 1.0, len(best), scores))
        return listed

    return truths


def dense_truths(task: data.DenseTask) -> Truths:
    """Return true rankings by numpy in float32."""

    def truths(queries: Sequence[data.Floats], k: int) -> list[Truth]:
        listed = []
        for query in queries[:COMPARED]:
            n = min(k, len(task.vectors))
            least = float(np.partition(task.vectors @ query, -n)[-n])
            listed.append(Truth(least, n, lambda docs, query=query: task.vectors[docs] @ query))
        return listed

    return truths


def cpu_ms(engine: Engine, queries: Sequence[Any], k: int, rounds: int) -> npt.NDArray[np.float64]:
    """Each query's least CPU milliseconds."""
    least = np.full(len(queries), np.inf)
    for _ in range(rounds):
        for i, query in enumerate(queries):
            start = time.process_time_ns()
            engine.search(query, k)
            least[i] = min(least[i], (time.process_time_ns() - start) / 1e6)
    return least


def rate(engine: Engine, queries: Sequence[Any], k: int, threads: int, *, seconds: float, passes: int = 3) -> float:
    """Queries a second: the best pass of at least `passes`, and of as many as take `seconds`."""
    least, begin = np.inf, time.perf_counter()
    while passes > 0 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        engine.search_all(queries, k, threads)
        least = min(least, time.perf_counter() - start)
        passes -= 1
    return len(queries) / least


def add_speed(engine: Engine, queries: Sequence[Any]) -> list[str]:
    """Documents a second of 1,000 added at once, and the median milliseconds until one more can be found."""
    add = engine.add
    assert add is not None
    start = time.perf_counter()
    add(0, ADDED)
    engine.search(queries[0], 10)
    per_second = ADDED / (time.perf_counter() - start)
    times = []
    for i in range(ADDED_ALONE):
        start = time.perf_counter()
        add(i, i + 1)
        engine.search(queries[0], 10)
        times.append(time.perf_counter() - start)
    return [f"{per_second:,.0f}", f"{np.median(times) * 1e3:.1f}"]


# The index


def index_engines(
    searcher: Searcher,
    folder: Path,
    build_s: float,
    modes: Sequence[str],
    more: str = "",
    depth: int = DEPTH,
    add: Callable[[int, int], None] | None = None,
) -> Iterator[Maker]:
    """The searcher in several modes, "MODE" or "MODE, FUSION"; documents are added when all were measured."""
    n_bytes = peers.folder_bytes(folder)
    for name in modes:
        mode, _, fusion = name.partition(", ")
        options = SearchOptions(mode=mode, fusion=fusion or None, depth=depth)

        def search(query: str, k: int, options: SearchOptions = options) -> peers.Found:
            ranking = searcher.search([query], k, options)["0"]
            ids = [int(doc_id) if doc_id.isdigit() else 0 for doc_id in ranking.doc_ids]
            return np.array(ids, np.int64), ranking.scores.astype(np.float32)

        def batch(queries: Sequence[str], k: int, threads: int, options: SearchOptions = options) -> object:
            searcher.threads = threads
            try:
                return searcher.search(list(queries), k, options)
            finally:
                searcher.threads = 1

        engine = Engine(f"lightir {name}{more}", search, batch, exact=False, own_scores=mode != "dense")
        if name == modes[0]:
            engine.n_bytes, engine.build_s = n_bytes, build_s
        if name == modes[-1]:
            engine.add = add
        yield lambda engine=engine: engine  # type: ignore[misc]


def keyed(engine: Engine, pairs: Mapping[str, tuple[data.Query, data.Floats]]) -> Engine:
    """The engine, asked by the queries' texts."""
    search = engine.search
    engine.search = lambda query, k: search(pairs[query], k)
    return engine


def beside_scans(searcher: Searcher, texts: Sequence[str], fusion: str, depth: int, rounds: int) -> list[str]:
    """Measure the cost of a hybrid query on top of its dense scan, and on top of both scans.

    A query is searched behind the dense scan of another, for in use caches hold no more. Each query's least CPU
    milliseconds of several rounds, the scans and the query in turn; medians.
    """
    view, depth = searcher.index.view, max(depth, 10)
    assert searcher.encoder is not None
    vectors = searcher.encoder.encode(texts)
    assert vectors.dense is not None
    assert vectors.sparse is not None
    options = SearchOptions(mode="hybrid", fusion=fusion, depth=depth)
    dense, sparse = (
        CandidateSearch([BoundBranch("", rows)], scale="none") for rows in (view.dense_rows, view.sparse_rows)
    )
    request = Request(depth, depth, columns=False)
    least = np.full((len(texts), 3), np.inf)
    for _ in range(rounds):
        for i, text in enumerate(texts):
            terms, counts = vectors.sparse.row(i)
            rows = view.dense_rows.queries(vectors.dense[i : i + 1])
            row = view.sparse_rows.queries(np.array([0, len(terms)]), terms, counts)
            calls: list[Callable[[], object]] = [
                lambda rows=rows: dense.search([rows], request),  # type: ignore[misc]
                lambda row=row: sparse.search([row], request),  # type: ignore[misc]
                lambda t=text: searcher.search([t], options=options),  # type: ignore[misc]
            ]
            for j, call in enumerate(calls):
                if j == 2:
                    dense.search([view.dense_rows.queries(vectors.dense[i - 1 : i or None])], request)
                start = time.process_time_ns()
                call()
                least[i, j] = min(least[i, j], (time.process_time_ns() - start) / 1e6)
    dense_ms, sparse_ms, whole = least.T
    columns = whole, dense_ms, sparse_ms, whole - dense_ms, whole - dense_ms - sparse_ms
    return [fusion, str(depth), *(f"{np.median(times):.3f}" for times in columns)]


def shard_of(
    documents: data.Documents, vectors: data.Floats, first: int, last: int | None = None, *, prefix: str = ""
) -> Shard:
    """Documents without text, with both vectors."""
    last = min(first + data.BATCH, len(documents)) if last is None else last
    span = slice(documents.indptr[first], documents.indptr[last])
    indptr = documents.indptr[first : last + 1] - documents.indptr[first]
    vocab_size = data.encoder_vocabulary(documents.vocab_size)
    sparse = SparseVectors(indptr, documents.term_ids[span], documents.weights[span], vocab_size)
    names = [Document(f"{prefix}{i:09d}", "") for i in range(first, last)]
    return Shard(names, vectors[first:last].astype(np.float16), sparse)


# The machine


def bandwidth() -> float:
    """GB/s that one core reads from an array larger than a cache of its own, in CPU time."""
    words = np.ones(1 << 25, dtype=np.int64)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        words.max()
        seconds.append(time.process_time() - start)
    return float(words.nbytes / min(seconds) / 1e9)


def peak_bytes() -> int:
    """The most memory that the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def print_row(cells: Sequence[str]) -> None:
    """A row of a table in markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
