"""Exact sparse, tokens, dense and hybrid top k in the kernel against other engines, one thread, synthetic documents.

Documents: 50,000 terms with a Zipf-Mandelbrot law; a document draws 45 % of its terms from all of them and the rest
from two of 512 topics; lengths are log-normal, 127 different terms on average. Queries take a document's terms, heavier
ones rather. Dense vectors: 2,000 clusters with a falling spectrum. Milliseconds are the process's CPU time, each
query's best of several rounds, so that other work counts little; an engine's rounds run together, as in use.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.contract import Fusion
from lightir.search.fusion import BranchList, fuse

VOCAB_SIZE = 50_000
N_TOPICS, TOPIC_TERMS = 512, 600
BATCH = 20_000
K1, B = 0.9, 0.4

Array = npt.NDArray[np.generic]
Query = tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Documents:
    """CSR documents: indptr int64, term_ids uint32, impacts uint8."""

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    impacts: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True)
class Engine:
    """What is measured: search(query, k) gives scores best first; bytes of its postings or vectors, 0 if unknown."""

    name: str
    search: Callable[[object, int], Array]
    n_bytes: int = 0
    build_s: float = 0.0


def main() -> None:
    """Make documents, then measure branch after branch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-docs", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--n-queries", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--branches", nargs="+", default=["sparse", "tokens", "dense", "hybrid"])
    parser.add_argument("--slow-peers-up-to", type=int, default=100_000, help="documents given to tantivy and qdrant")
    args = parser.parse_args()
    print(f"{args.n_docs:,} documents, kernel {kernel.dispatch()}, one core reads {bandwidth():.1f} GB/s")
    documents = make_documents(args.n_docs, seed=1)
    slow = args.n_docs <= args.slow_peers_up_to
    if "sparse" in args.branches:
        bench_sparse(documents, slow, args.n_queries, args.rounds)
    if "tokens" in args.branches:
        bench_tokens(documents, slow, args.n_queries, args.rounds)
    if {"dense", "hybrid"} & set(args.branches):
        vectors, queries = make_vectors(args.n_docs, args.dim, args.n_queries, seed=3)
        rows, scales = quantised(vectors)
        if "dense" in args.branches:
            bench_dense(vectors, rows, scales, queries, args.rounds)
        if "hybrid" in args.branches:
            bench_hybrid(documents, rows, scales, queries, args.rounds)
    print(f"one core reads {bandwidth():.1f} GB/s")


def bench_sparse(documents: Documents, slow: bool, n_queries: int, rounds: int) -> None:
    """Impact-weighted terms; a query counts its terms."""
    engines = [ours("lightir", documents, documents.impacts)]
    engines += peers("bm25s scipy", lambda name: csc_peer(name, documents, documents.impacts.astype(np.float32)))
    if slow:
        engines += peers("qdrant_edge", lambda _: qdrant(documents))
    for name, low, high in (("short", 6, 12), ("long", 40, 40)):
        queries = draw_queries(documents, n_queries, low, high, counts=True)
        report(f"sparse {name}", engines, queries, rounds, ks=(10, 1000))


def bench_tokens(documents: Documents, slow: bool, n_queries: int, rounds: int) -> None:
    """BM25: postings hold tf / (tf + penalty), queries the idf; and 768 weighted terms over the same postings."""
    tf = 1 + documents.impacts // 64
    lengths = np.add.reduceat(tf.astype(np.int64), documents.indptr[:-1])
    penalty = np.repeat(K1 * (1 - B + B * lengths / lengths.mean()), np.diff(documents.indptr))
    saturation = (tf / (tf + penalty)).astype(np.float32)
    df = np.bincount(documents.term_ids, minlength=VOCAB_SIZE)
    idf = np.log1p((len(documents) - df + 0.5) / (df + 0.5)).astype(np.float32)
    engines = [ours("lightir", documents, saturation)]
    short = [(terms, idf[terms]) for terms, _ in draw_queries(documents, n_queries, 6, 12)]
    weighted = peers("bm25s scipy", lambda name: csc_peer(name, documents, saturation * idf[documents.term_ids]))
    if slow:
        weighted += peers("tantivy", lambda _: tantivy(documents, tf))
    report("tokens short", engines + weighted, short, rounds, ks=(10, 1000), weights_in={"bm25s", "scipy", "tantivy"})
    rng = np.random.default_rng(8)
    bags = []
    for _ in range(max(n_queries // 10, 1)):
        parts = draw_queries(documents, 18, 48, 48, seed=int(rng.integers(1 << 30)))
        terms = np.unique(np.concatenate([terms for terms, _ in parts]))[:768]
        bags.append((terms, rng.random(len(terms), dtype=np.float32) + np.float32(0.05)))
    binary = [ours("lightir", documents, np.ones(len(tf), np.uint8))]
    binary += peers("scipy", lambda name: csc_peer(name, documents, np.ones(len(tf), np.float32)))
    report("bag of 768 terms", binary, bags, rounds, ks=(10,))


def bench_dense(vectors: Array, rows: Array, scales: Array, queries: Array, rounds: int) -> None:
    """Inner product; recall is against the float32 vectors."""
    half = vectors.astype(np.float16)
    engines = [
        Engine("lightir int8", lambda q, k: kernel.dense_top_k(rows, q, k=k, scales=scales)[0][0], rows.nbytes),
        Engine("lightir float16", lambda q, k: kernel.dense_top_k(half, q, k=k)[0][0], half.nbytes),
        Engine("numpy float32", lambda q, k: best(vectors @ q[0], k), vectors.nbytes),
        *peers("faiss", lambda _: faiss_engines(vectors)),
    ]
    report(f"dense {vectors.shape[1]}", engines, [query[None] for query in queries], rounds, ks=(10, 1000), recall=True)


def bench_hybrid(documents: Documents, rows: Array, scales: Array, queries: Array, rounds: int) -> None:
    """Sparse and dense top 100, joined with the true scores of both, to the ten best."""
    terms = draw_queries(documents, len(queries), 6, 12, counts=True)
    postings = invert(documents, documents.impacts)

    def search(query: object, k: int) -> Array:
        (term_ids, weights), vector = query  # type: ignore[misc]
        lists = {
            "sparse": BranchList(*kernel.sparse_top_k(postings, term_ids, weights, k=100)),
            "dense": BranchList(*(part[0] for part in kernel.dense_top_k(rows, vector[None], k=100, scales=scales))),
        }

        def pair_scores(branch: str, doc_ords: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
            if branch == "dense":
                return kernel.dense_pair_scores(rows, doc_ords, vector, scales=scales)
            csr = documents.indptr, documents.term_ids, documents.impacts
            return kernel.sparse_pair_scores(*csr, doc_ords, term_ids, weights)

        fused = fuse(lists, pair_scores, fusion=Fusion())
        return fused.doc_ords[:k]

    dense = Engine("its dense part", lambda q, k: kernel.dense_top_k(rows, q[1][None], k=100, scales=scales)[0][0])
    part = Engine("its sparse part", lambda q, k: kernel.sparse_top_k(postings, *q[0], k=100)[0])
    pairs = list(zip(terms, queries, strict=True))
    report("hybrid", [Engine("lightir", search), dense, part], pairs, rounds, ks=(10,), compare=False)


def report(
    title: str,
    engines: Sequence[Engine],
    queries: Sequence[object],
    rounds: int,
    *,
    ks: Sequence[int],
    weights_in: set[str] | frozenset[str] = frozenset(),
    recall: bool = False,
    compare: bool = True,
) -> None:
    """Print a row an engine; scores of exact engines must equal ours (weights_in: their weights hold the idf)."""
    for k in ks:
        expected = [engines[-1 if recall else 0].search(query, k) for query in queries[:10]]
        for engine in engines:
            given = without_weights(queries) if engine.name in weights_in else queries
            found = [engine.search(query, k) for query in given[:10]]
            notes = f"{engine.n_bytes / 2**20:7.0f} MiB" if engine.n_bytes else ""
            if recall:
                overlap = np.mean([len(np.intersect1d(a, b)) / k for a, b in zip(found, expected, strict=True)])
                notes += f"  recall {overlap:.3f}"
            elif compare and engine.name != "tantivy":
                for mine, theirs in zip(expected, found, strict=True):
                    np.testing.assert_allclose(theirs[: len(mine)], mine, rtol=1e-4)
            if engine.build_s:
                notes += f"  built in {engine.build_s:.1f} s"
            times = cpu_ms(engine, given, k, rounds)
            p50, p99 = np.quantile(times, (0.5, 0.99))
            rate = f"{1e3 / np.mean(times):8.0f}/s"
            print(f"{title:<16} k={k:<5} {engine.name:<16} p50 {p50:8.3f} p99 {p99:8.3f} ms {rate} {notes}", flush=True)


def without_weights(queries: Sequence[object]) -> list[Query]:
    """The same terms, once each."""
    return [(terms, np.ones_like(weights)) for terms, weights in queries]  # type: ignore[misc]


def cpu_ms(engine: Engine, queries: Sequence[object], k: int, rounds: int) -> npt.NDArray[np.float64]:
    """Each query's least CPU milliseconds."""
    least = np.full(len(queries), np.inf)
    for _ in range(rounds):
        for i, query in enumerate(queries):
            start = time.process_time_ns()
            engine.search(query, k)
            least[i] = min(least[i], (time.process_time_ns() - start) / 1e6)
    return least


def bandwidth() -> float:
    """GB/s that one core reads from an array larger than a cache of its own, in CPU time."""
    words = np.ones(1 << 25, dtype=np.int64)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        words.max()
        seconds.append(time.process_time() - start)
    return float(words.nbytes / min(seconds) / 1e9)


def invert(documents: Documents, weights: kernel.Weights) -> kernel.Postings:
    csr = documents.indptr, documents.term_ids, weights
    return kernel.invert(*csr, vocab_size=VOCAB_SIZE, n_docs=len(documents))


def ours(name: str, documents: Documents, weights: kernel.Weights) -> Engine:
    start = time.process_time()
    postings = invert(documents, weights)
    seconds = time.process_time() - start
    n_bytes = sum(array.nbytes for array in postings.arrays().values())
    return Engine(name, lambda query, k: kernel.sparse_top_k(postings, *query, k=k)[1], n_bytes, seconds)


def peers(names: str, make: Callable[[str], Engine | list[Engine]]) -> list[Engine]:
    """The engines whose packages are installed; says which are not."""
    engines: list[Engine] = []
    for name in names.split():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: left out (requirements/bench.txt)")
            continue
        made = make(name)
        engines += made if isinstance(made, list) else [made]
    return engines


def csc_peer(name: str, documents: Documents, weights: npt.NDArray[np.float32]) -> Engine:
    """bm25s (its numba search) or scipy over the same weights, column by column."""
    import scipy.sparse

    shape = (len(documents), VOCAB_SIZE)
    rows = scipy.sparse.csr_matrix((weights, documents.term_ids.astype(np.int32), documents.indptr), shape=shape)
    columns = rows.tocsc()
    n_bytes = columns.data.nbytes + columns.indices.nbytes + columns.indptr.nbytes

    def scipy_search(query: object, k: int) -> Array:
        terms, counts = query  # type: ignore[misc]
        scores = columns[:, terms.astype(np.int64)] @ counts
        top = best(scores, k)
        return scores[top[scores[top] > 0]]

    if name == "scipy":
        return Engine(name, scipy_search, n_bytes)
    import bm25s

    engine = bm25s.BM25(backend="numba")
    engine.scores = {"data": columns.data, "indices": columns.indices, "indptr": columns.indptr, "num_docs": shape[0]}
    engine.nonoccurrence_array = None
    engine.vocab_dict = {str(i): i for i in range(VOCAB_SIZE)}
    engine.unique_token_ids_set = set(range(VOCAB_SIZE))

    def bm25s_search(query: object, k: int) -> Array:
        terms, counts = query  # type: ignore[misc]
        tokens = np.repeat(terms, counts.astype(np.int64)).tolist()  # it has no query weights, but takes repeats
        found = engine.retrieve([tokens], k=k, n_threads=1, show_progress=False, backend_selection="numba")
        return found.scores[0][found.scores[0] > 0]

    return Engine(name, bm25s_search, n_bytes)


def tantivy(documents: Documents, tf: npt.NDArray[np.uint8]) -> Engine:
    """Its BM25 over words, with its own parameters and field norms: speed only."""
    import tantivy as package

    builder = package.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name="whitespace", index_option="freq")
    index = package.Index(builder.build())
    writer = index.writer(heap_size=200_000_000, num_threads=1)
    start = time.process_time()
    for i in range(len(documents)):
        span = slice(documents.indptr[i], documents.indptr[i + 1])
        words = np.repeat(documents.term_ids[span], tf[span])
        writer.add_document(package.Document(body=" ".join(f"t{word}" for word in words.tolist())))
    writer.commit()
    writer.wait_merging_threads()
    seconds = time.process_time() - start
    index.reload()
    searcher = index.searcher()

    def search(query: object, k: int) -> Array:
        terms, _ = query  # type: ignore[misc]
        parsed = index.parse_query(" ".join(f"t{term}" for term in terms.tolist()), ["body"])
        return np.array([score for score, _ in searcher.search(parsed, k, count=False).hits], dtype=np.float32)

    return Engine("tantivy", search, build_s=seconds)


def qdrant(documents: Documents) -> Engine:
    """An Edge shard in a temporary folder, exact sparse search."""
    import qdrant_edge as package

    folder = tempfile.TemporaryDirectory()
    config = package.EdgeConfig(sparse_vectors={"terms": package.EdgeSparseVectorParams(full_scan_threshold=1)})
    shard = package.EdgeShard.create(folder.name, config)
    start = time.process_time()
    for first in range(0, len(documents), 2000):
        points = []
        for i in range(first, min(first + 2000, len(documents))):
            span = slice(documents.indptr[i], documents.indptr[i + 1])
            values = documents.impacts[span].astype(float).tolist()
            vector = package.SparseVector(indices=documents.term_ids[span].tolist(), values=values)
            points.append(package.Point(id=i, vector={"terms": vector}))
        shard.update(package.UpdateOperation.upsert_points(points))
    shard.optimize()
    seconds = time.process_time() - start

    def search(query: object, k: int, keep: object = folder) -> Array:
        terms, weights = query  # type: ignore[misc]
        vector = package.SparseVector(indices=terms.tolist(), values=weights.tolist())
        nearest = package.Query.Nearest(vector, using="terms")
        return np.array([p.score for p in shard.query(package.QueryRequest(limit=k, query=nearest))], dtype=np.float32)

    return Engine("qdrant_edge", search, build_s=seconds)


def faiss_engines(vectors: Array) -> list[Engine]:
    """faiss with 8-bit rows, and flat: the last is the truth for recall."""
    import faiss

    faiss.omp_set_num_threads(1)
    dim = vectors.shape[1]
    quantised = faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    quantised.train(vectors[:20_000])
    quantised.add(vectors)
    flat = faiss.IndexFlatIP(dim)
    flat.add(vectors)
    return [
        Engine("faiss SQ8", lambda q, k: quantised.search(q, k)[1][0], vectors.size),
        Engine("faiss Flat", lambda q, k: flat.search(q, k)[1][0], vectors.nbytes),
    ]


def best(scores: Array, k: int) -> npt.NDArray[np.int64]:
    """Positions of the k largest, best first."""
    k = min(k, len(scores))
    top = np.argpartition(scores, -k)[-k:]
    return top[np.argsort(-scores[top], kind="stable")]


def make_documents(n_docs: int, *, seed: int) -> Documents:
    """See the module; the same seed gives the same documents."""
    rng = np.random.default_rng(seed)
    popularity = 1 / (np.arange(VOCAB_SIZE) + 50.0) ** 0.95
    term_of_rank = rng.permutation(VOCAB_SIZE).astype(np.int64)
    anywhere = quantiles(popularity)
    topics = quantiles(popularity**0.6)[rng.integers(0, 1 << 20, (N_TOPICS, TOPIC_TERMS))]
    lengths, term_ids = [np.zeros(1, np.int64)], []
    for first in range(0, n_docs, BATCH):
        n = min(BATCH, n_docs - first)
        drawn = np.exp(rng.normal(np.log(136) - 0.125, 0.5, n)).clip(16, 700).astype(np.int64)
        doc = np.repeat(np.arange(n), drawn)
        ranks = anywhere[rng.integers(0, 1 << 20, len(doc))]
        source = rng.random(len(doc), dtype=np.float32)
        place = (TOPIC_TERMS * rng.random(len(doc), dtype=np.float32) ** 2).astype(np.int64)
        for low, high in ((0.0, 0.35), (0.35, 0.55)):
            topic = rng.integers(0, N_TOPICS, n)
            chosen = (source >= low) & (source < high)
            ranks[chosen] = topics[topic[doc[chosen]], place[chosen]]
        keys = np.sort(doc << 16 | term_of_rank[ranks])
        keys = keys[np.diff(keys, prepend=-1) != 0]
        lengths.append(np.bincount(keys >> 16, minlength=n))
        term_ids.append((keys & 0xFFFF).astype(np.uint32))
    flat = np.concatenate(term_ids)
    weights = np.log1p(rng.standard_gamma(1.2, len(flat), dtype=np.float32))
    impacts = np.rint(weights * (255 / weights.max())).clip(1, 255).astype(np.uint8)
    return Documents(np.cumsum(np.concatenate(lengths)), flat, impacts)


def quantiles(popularity: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """2 ** 20 ranks, each as often as it is popular: a uniform index into them is a draw."""
    cumulative = np.cumsum(popularity / popularity.sum())
    drawn = np.searchsorted(cumulative, (np.arange(1 << 20) + 0.5) / (1 << 20))
    return drawn.clip(max=len(popularity) - 1).astype(np.int64)


def draw_queries(
    documents: Documents, n: int, low: int, high: int, *, counts: bool = False, seed: int = 5
) -> list[Query]:
    """low to high terms of one document each; weights 1, or 2 for one term in twelve."""
    rng = np.random.default_rng(seed)
    queries: list[Query] = []
    while len(queries) < n:
        doc, n_terms = rng.integers(len(documents)), int(rng.integers(low, high + 1))
        span = slice(documents.indptr[doc], documents.indptr[doc + 1])
        terms, impacts = documents.term_ids[span], documents.impacts[span]
        if len(terms) < n_terms:
            continue
        lots = np.log(impacts) - np.log(-np.log(rng.random(len(terms))))  # Gumbel: sampling by weight
        chosen = np.sort(terms[np.argsort(-lots)[:n_terms]])
        twice = (rng.random(n_terms) < 1 / 12) & counts
        queries.append((chosen, (1 + twice).astype(np.float32)))
    return queries


def make_vectors(n: int, dim: int, n_queries: int, *, seed: int) -> tuple[Array, Array]:
    """Vectors of length 1 around 2,000 centres, and queries near some of them."""
    rng = np.random.default_rng(seed)
    spectrum = (1 / np.arange(1, dim + 1) ** 0.4).astype(np.float32)
    centres = rng.standard_normal((2000, dim), dtype=np.float32) * spectrum
    vectors = np.empty((n, dim), np.float32)
    for first in range(0, n, BATCH):
        rows = centres[rng.integers(0, 2000, min(BATCH, n - first))]
        rows += 0.8 * rng.standard_normal(rows.shape, dtype=np.float32) * spectrum
        vectors[first : first + BATCH] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    noise = 0.6 * rng.standard_normal((n_queries, dim), dtype=np.float32) * spectrum / np.linalg.norm(spectrum)
    queries = vectors[rng.integers(0, n, n_queries)] + noise
    return vectors, (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)


def quantised(vectors: Array) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """int8 rows, one scale a row."""
    scales = (np.abs(vectors).max(axis=1) / 127).astype(np.float32)
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


if __name__ == "__main__":
    main()
