"""The cost of fusion and of many small segments: CPU milliseconds of one query on one thread, by mode.

"fusion" joins the branches' lists, with the scores of documents outside them, in one call of the kernel. The documents
are the synthetic ones of bench_engine, with their terms as text.

With --pending, the last lines compare three indexes, query by query in turn: the one before, one with a further
document that matches the first query, and one in which that document is pending.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import engine_data as data
from lightir.index import Index, IndexOptions, IndexWriter, build_index
from lightir.kernel.candidates import CandidateSearch, GivenLists, Request
from lightir.search import Searcher, SearchOptions
from lightir.search.encoding import QueryCoding
from lightir.search.plan import DEPTH
from lightir.search.prepared import bind
from lightir.shards import Shard
from lightir.types import Document, Query
from lightir.vectors import SparseVectors
from origin import print_origin

SMALLEST = "--n-docs 200 --dim 8 --segments 1 3 --queries 3 --rounds 1 --pending"
WORDS = 60
MODES = ("dense", "sparse", "tokens", "dense+tokens", "hybrid", "hybrid+tokens")


def main() -> None:
    """Build indexes of few and of many segments, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-docs", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--segments", type=int, nargs="+", default=[1, 20, 200])
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pending", action="store_true", help="also measure with one pending document")
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
                if args.pending:
                    time_pending(documents, searcher, texts, args)


def time_pending(documents: data.Documents, searcher: Searcher, texts: list[str], args: argparse.Namespace) -> None:
    """Time the hybrid searches of three indexes, query by query in turn: as it is, one document more, one pending."""
    folder = searcher.index.folder
    vocab_size = data.encoder_vocabulary(documents.vocab_size)
    sparse = SparseVectors(np.array([0, 1]), np.array([0], np.uint32), np.array([1], np.uint8), vocab_size)
    vectors = {"dense": np.zeros((1, args.dim), np.float16), "sparse": sparse}
    more = [Document("added", texts[0])]
    for name, given in (("added", vectors), ("pending", {})):
        shutil.copytree(folder, folder.with_name(name))
        with IndexWriter.open(folder.with_name(name)) as writer:
            writer.add(more, **given)
    with Index.open(folder.with_name("added")) as added, Index.open(folder.with_name("pending")) as pending:
        searchers = {"as it is": searcher} | {
            name: Searcher(index, searcher.encoder) for name, index in (("one added", added), ("one pending", pending))
        }
        for mode in MODES[3:]:
            options = SearchOptions(mode=mode)
            least = {name: np.full(args.queries, np.inf) for name in searchers}
            for _, i, name in itertools.product(range(args.rounds), range(args.queries), searchers):
                start = time.process_time_ns()
                searchers[name].search([Query("", texts[i])], 10, options)
                least[name][i] = min(least[name][i], (time.process_time_ns() - start) / 1e6)
            for name, times in least.items():
                print_times(f"{mode}, {name}", times)


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
    for mode in ("hybrid", "hybrid+tokens"):
        prepared = searcher.prepare(SearchOptions(mode=mode))
        joined = bind(prepared.view, prepared.plan, QueryCoding(searcher.encoder, None, None)).kernel
        asked = []
        for text in texts:
            searched = prepared.branches(prepared.encode([Query("", text)]))
            queries = [searched.queries(branch) for branch in prepared.plan.branches]
            asked.append((queries, [GivenLists.join(searched.top(branch, DEPTH)) for branch in prepared.plan.branches]))

        def fusion(i: int, joined: CandidateSearch = joined, asked: list[Any] = asked) -> object:
            queries, lists = asked[i]
            return joined.search(queries, Request(10, DEPTH), lists=lists)

        yield f"{mode}: fusion", fusion


def show(name: str, search: Callable[[int], object], args: argparse.Namespace) -> None:
    """One line: median and 99th percentile of the queries' least times."""
    least = np.full(args.queries, np.inf)
    for _ in range(args.rounds):
        for i in range(args.queries):
            start = time.process_time_ns()
            search(i)
            least[i] = min(least[i], (time.process_time_ns() - start) / 1e6)
    print_times(name, least)


def print_times(name: str, times: npt.NDArray[np.float64]) -> None:
    """Print median and 99th percentile."""
    p50, p99 = np.quantile(times, (0.5, 0.99))
    print(f"  {name:26s} p50 {p50:8.3f}  p99 {p99:8.3f} ms", flush=True)


if __name__ == "__main__":
    main()
