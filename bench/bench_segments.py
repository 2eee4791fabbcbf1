"""The cost of fusion and of many small segments: CPU milliseconds of one query on one thread, by mode.

"fusion" is what joining the branches' lists takes with everything that it asks for, in one call of the kernel; "numpy"
is its twin, which gives the same bits. The documents are the synthetic ones of bench_engine, with their terms as text.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

import engine_data as data
from lightir.index import Index, IndexOptions, build_index
from lightir.search import Searcher, SearchOptions, fuse
from lightir.search.branches import BranchSearch
from lightir.search.fusion import fuse_best
from lightir.search.plan import DEPTH
from lightir.shards import Shard
from lightir.types import Branch, Document, Query
from lightir.vectors import SparseVectors
from origin import print_origin

SMALLEST = "--n-docs 200 --dim 8 --segments 1 3 --queries 3 --rounds 1"
WORDS = 60
MODES = ("dense", "sparse", "tokens", "hybrid", "hybrid+tokens")


def main() -> None:
    """Build indexes of few and of many segments, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-docs", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print_origin()
    documents, task = (
        data.make_documents(args.n_docs, seed=1),
        data.dense_task(args.n_docs, args.dim, args.queries, seed=3),
    )
    terms = data.draw_queries(documents, args.queries, 6, 12, counts=True)
    contract, encoder, texts = data.text_queries(documents.vocab_size, terms, task.queries)
    for n_segments in args.segments:
        with tempfile.TemporaryDirectory() as folder:
            size = -(-args.n_docs // n_segments)
            shards = [shard(documents, task.vectors)]
            build_index(
                shards,
                Path(folder, "i"),
                contract=contract,
                options=IndexOptions(analyzer="words", dense_dtype="int8", segment_documents=size),
                progress=False,
            )
            with Index.open(Path(folder, "i")) as index:
                searcher = Searcher(index, encoder)
                print(f"{args.n_docs:,} documents, {len(index.view.segments)} segments", flush=True)
                for name, search in timed(searcher, texts):
                    show(name, search, args)


def words(term_ids: npt.NDArray[np.uint32]) -> str:
    """A word a term."""
    return " ".join(f"t{term}" for term in term_ids)


def shard(documents: data.Documents, vectors: data.Floats) -> Shard:
    """All documents with text and both vectors."""
    texts = [words(documents.row(i)[0][:WORDS]) for i in range(len(documents))]
    vocab_size = data.encoder_vocabulary(documents.vocab_size)
    sparse = SparseVectors(documents.indptr, documents.term_ids, documents.weights, vocab_size)
    named = [Document(f"{i:09d}", text) for i, text in enumerate(texts)]
    return Shard(named, vectors.astype(np.float16), sparse)


def timed(searcher: Searcher, texts: list[str]) -> Iterator[tuple[str, Callable[[int], object]]]:
    """Named functions of a query's number."""
    for mode in MODES:
        yield mode, lambda i, mode=mode: searcher.search([Query("", texts[i])], 10, SearchOptions(mode=mode))  # type: ignore[misc]
    view = searcher.index.view
    for mode in ("hybrid", "hybrid+tokens"):
        how = searcher._prepared(view, SearchOptions(mode=mode))
        chosen = how.plan
        asked = []
        for i in range(len(texts)):
            searched = BranchSearch(view, searcher._encode(view, [Query("", texts[i])], how))
            asked.append((searched, {branch: searched.top(branch, DEPTH)[0] for branch in chosen.branches}))

        def by_kernel(i: int, asked: list = asked, fusion: object = chosen.fusion) -> object:  # type: ignore[type-arg]
            searched, lists = asked[i]
            queries = {branch: searched.query(branch, 0) for branch in lists}
            complete = searched.complete(list(lists))
            return fuse_best(lists, queries, fusion=fusion, k=10, ties=True, complete=complete)  # type: ignore[arg-type]

        def by_numpy(i: int, asked: list = asked, fusion: object = chosen.fusion) -> object:  # type: ignore[type-arg]
            searched, lists = asked[i]

            return fuse(lists, functools.partial(score, searched), fusion=fusion)  # type: ignore[arg-type]

        yield f"{mode}: fusion", by_kernel
        yield f"{mode}: numpy", by_numpy


def score(searched: BranchSearch, branch: Branch, doc_ords: npt.NDArray[np.uint32]) -> data.Floats:
    """A branch's scores of documents for the first query."""
    return searched.pair_scores(branch, doc_ords, 0)


def show(name: str, search: Callable[[int], object], args: argparse.Namespace) -> None:
    """One line: median and 99th percentile of the queries' least times."""
    least = np.full(args.queries, np.inf)
    for _ in range(args.rounds):
        for i in range(args.queries):
            start = time.process_time_ns()
            search(i)
            least[i] = min(least[i], (time.process_time_ns() - start) / 1e6)
    p50, p99 = np.quantile(least, (0.5, 0.99))
    print(f"  {name:24s} p50 {p50:8.3f}  p99 {p99:8.3f} ms", flush=True)


if __name__ == "__main__":
    main()
