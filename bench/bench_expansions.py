"""Sparse queries without a model, from text: the kernel's means of cached expansions, numpy's and scipy's.

Real questions, SmolLM2's tokenizer, random expansions of its vocabulary, one thread, all contenders in the same run and
with the same tokeniser. Times are the processor's, the least of several interleaved rounds; of one query wall time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse

from lightir.addresses import resolve_model_folder
from lightir.query import CachedExpansions
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.vectors import Ragged, SparseVectors
from origin import print_origin
from questions import read_questions

SMALLEST = "--data {data} --collections tiny --model {model} --n-queries 3 --widths 4 --rounds 1"
DATA = Path(os.environ.get("LIGHTIR_DATA", "data"))
COLLECTIONS = ("nq-utd", "scifact", "nfcorpus", "cranfield", "squadshifts", "medquad")
POLICY = QueryPolicy(leading_blank=False)
CHUNK = 1024

Means = Callable[[Ragged], SparseVectors]


def main() -> None:
    """Measure and print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the collections ($LIGHTIR_DATA)")
    parser.add_argument("--collections", nargs="+", default=COLLECTIONS, help="BEIR folders, for their queries")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is taken (default %(default)s)")
    parser.add_argument("--n-queries", type=int, default=16_384, help="repeated where there are fewer")
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 48], help="terms of an expansion")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    print_origin()
    questions, _ = read_questions(args.data, args.collections, args.n_queries)
    tokenizer = TextTokenizer.from_file(resolve_model_folder(args.model) / "tokenizer.json")
    print("| terms of an expansion | contender | text to vector, µs | times | one query, µs | times |")
    print("|---|---|---|---|---|---|")
    for width in args.widths:
        contenders = make(tokenizer.vocab_size, width)
        check(contenders, query_term_ids(tokenizer, POLICY, questions[:200]))
        batch = dict.fromkeys(contenders, np.inf)
        one = dict.fromkeys(contenders, np.inf)
        for _ in range(args.rounds):
            for name, means in contenders.items():
                batch[name] = min(batch[name], in_chunks(tokenizer, questions, means))
                one[name] = min(one[name], one_by_one(tokenizer, questions[:500], means))
        first = next(iter(contenders))
        for name in contenders:
            cells = (
                f"{batch[name]:.1f} | {batch[name] / batch[first]:.1f} | {one[name]:.0f} | {one[name] / one[first]:.1f}"
            )
            print(f"| {width} | {name} | {cells} |", flush=True)


def make(vocab_size: int, width: int) -> dict[str, Means]:
    """The contenders over the same random rows."""
    rng = np.random.default_rng(width)
    ids = rng.integers(0, vocab_size, (vocab_size, width)).astype(np.uint32)
    weights = rng.random((vocab_size, width)).astype(np.float16)
    expansions = CachedExpansions(ids, weights)
    indptr = np.arange(vocab_size + 1, dtype=np.int64) * width
    table = scipy.sparse.csr_array(
        (weights.astype(np.float32).ravel(), ids.astype(np.int64).ravel(), indptr), shape=(vocab_size, vocab_size)
    )

    def by_product(queries: Ragged) -> SparseVectors:
        shares = np.repeat(1 / np.maximum(queries.lengths, 1), queries.lengths).astype(np.float32)
        shape = (len(queries), vocab_size)
        counts = scipy.sparse.csr_array((shares, queries.term_ids.astype(np.int64), queries.indptr), shape=shape)
        product = (counts @ table).tocsr()
        product.sort_indices()
        arrays = product.indptr.astype(np.int64), product.indices.astype(np.uint32), product.data
        return SparseVectors(*arrays, vocab_size)

    return {
        "lightir": lambda queries: expansions.means(queries, vocab_size=vocab_size),
        "numpy": lambda queries: with_numpy(expansions, queries, vocab_size=vocab_size),
        "scipy": by_product,
    }


def with_numpy(expansions: CachedExpansions, queries: Ragged, *, vocab_size: int) -> SparseVectors:
    """Keys of query and term, made unique; sums by bincount."""
    query_of = np.repeat(np.arange(len(queries), dtype=np.int64), queries.lengths)
    keys = query_of[:, None] * vocab_size + expansions.term_ids[queries.term_ids]
    distinct, positions = np.unique(keys.ravel(), return_inverse=True)
    weights = expansions.weights[queries.term_ids].astype(np.float64).ravel()
    means = np.bincount(positions, weights, minlength=len(distinct)) / queries.lengths[distinct // vocab_size]
    indptr = np.searchsorted(distinct, np.arange(len(queries) + 1, dtype=np.int64) * vocab_size).astype(np.int64)
    term_ids = (distinct % vocab_size).astype(np.uint32)
    return SparseVectors(indptr, term_ids, means.astype(np.float32), vocab_size).without_zeros()


def check(contenders: dict[str, Means], queries: Ragged) -> None:
    """All give the same vectors, to fp32 rounding."""
    results = [means(queries) for means in contenders.values()]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].indptr, other.indptr)
        np.testing.assert_array_equal(results[0].term_ids, other.term_ids)
        np.testing.assert_allclose(results[0].weights, other.weights, rtol=1e-5)


def in_chunks(tokenizer: TextTokenizer, questions: list[str], means: Means) -> float:
    """Microseconds of the processor's time a query."""
    start = time.process_time()
    for first in range(0, len(questions), CHUNK):
        means(query_term_ids(tokenizer, POLICY, questions[first : first + CHUNK]))
    return 1e6 * (time.process_time() - start) / len(questions)


def one_by_one(tokenizer: TextTokenizer, questions: list[str], means: Means) -> float:
    """Microseconds a call with one question."""
    start = time.perf_counter()
    for question in questions:
        means(query_term_ids(tokenizer, POLICY, [question]))
    return 1e6 * (time.perf_counter() - start) / len(questions)


if __name__ == "__main__":
    main()
