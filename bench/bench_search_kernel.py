"""Exact sparse and dense top k in the kernel against scipy and numpy, one thread, one synthetic collection."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import scipy.sparse

from lightir import kernel

VOCAB_SIZE = 50_000
TERMS_PER_DOCUMENT = 127


def main() -> None:
    """Build, check one query against the peer, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-docs", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--n-queries", type=int, default=50)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{args.n_docs:,} documents, one thread, kernel {kernel.dispatch()}, median of {args.n_queries} queries")
    bench_sparse(rng, n_docs=args.n_docs, n_queries=args.n_queries)
    bench_dense(rng, n_docs=args.n_docs, dim=args.dim, n_queries=args.n_queries)


def bench_sparse(rng: np.random.Generator, *, n_docs: int, n_queries: int) -> None:
    """Zipf-distributed terms; short queries of 9 and long ones of 40 terms, drawn from documents."""
    indptr, term_ids, impacts = zipf_documents(rng, n_docs)
    start = time.perf_counter()
    postings = kernel.invert(indptr, term_ids, impacts, vocab_size=VOCAB_SIZE, n_docs=n_docs)
    print(f"invert {n_docs / (time.perf_counter() - start):,.0f} documents/s, {len(term_ids) / n_docs:.0f} terms each")
    columns = scipy.sparse.csr_matrix(
        (impacts.astype(np.float32), term_ids.astype(np.int32), indptr), shape=(n_docs, VOCAB_SIZE)
    ).tocsc()
    for n_terms in (9, 40):
        queries = [draw_query(rng, indptr, term_ids, n_terms) for _ in range(n_queries)]
        weights = np.ones(n_terms, dtype=np.float32)
        for k in (10, 1000):
            ours = per_query(queries, lambda terms, k=k, w=weights: kernel.sparse_top_k(postings, terms, w, k=k))
            print(f"sparse {n_terms:>2} terms k={k:<5} lightir {ours:8.3f} ms")
        scipy_ms = per_query(queries, lambda terms: best_sums(columns, terms, 10))
        print(f"sparse {n_terms:>2} terms k=10    scipy   {scipy_ms:8.3f} ms")
        _, scores = kernel.sparse_top_k(postings, queries[0], weights, k=10)
        assert np.array_equal(scores, np.sort(best_sums(columns, queries[0], 10))[::-1])


def bench_dense(rng: np.random.Generator, *, n_docs: int, dim: int, n_queries: int) -> None:
    """Random directions; int8 rows have one scale a row."""
    rows = rng.standard_normal((n_docs, dim), dtype=np.float32)
    half, int8 = rows.astype(np.float16), np.rint(rows * 30).clip(-127, 127).astype(np.int8)
    scales = np.full(n_docs, 1 / 30, dtype=np.float32)
    queries = list(rng.standard_normal((n_queries, 1, dim), dtype=np.float32))
    contenders: dict[str, tuple[Callable[[np.ndarray], object], int]] = {
        "lightir float32": (lambda q: kernel.dense_top_k(rows, q, k=10), rows.nbytes),
        "lightir float16": (lambda q: kernel.dense_top_k(half, q, k=10), half.nbytes),
        "lightir int8": (lambda q: kernel.dense_top_k(int8, q, k=10, scales=scales), int8.nbytes),
        "numpy float32": (lambda q: np.argpartition(rows @ q[0], -10)[-10:], rows.nbytes),
    }
    for name, (search, n_bytes) in contenders.items():
        milliseconds = per_query(queries, search)
        print(f"dense {dim} k=10 {name:<16} {milliseconds:8.3f} ms  {n_bytes / milliseconds / 1e6:6.1f} GB/s")


def zipf_documents(rng: np.random.Generator, n_docs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CSR documents whose terms follow a flattened Zipf law; repeats within a document are dropped."""
    popularity = 1 / (np.arange(VOCAB_SIZE) + 50) ** 0.95
    cumulative = np.cumsum(popularity / popularity.sum())
    draws = np.searchsorted(cumulative, rng.random((n_docs, TERMS_PER_DOCUMENT + 30))).clip(max=VOCAB_SIZE - 1)
    draws = np.sort(draws, axis=1)
    fresh = np.diff(draws, axis=1, prepend=-1) > 0
    indptr = np.concatenate([[0], np.cumsum(fresh.sum(axis=1))]).astype(np.int64)
    term_ids = draws[fresh].astype(np.uint32)
    return indptr, term_ids, rng.integers(1, 256, len(term_ids), dtype=np.uint8)


def draw_query(rng: np.random.Generator, indptr: np.ndarray, term_ids: np.ndarray, n_terms: int) -> np.ndarray:
    document = rng.integers(len(indptr) - 1)
    return rng.choice(term_ids[indptr[document] : indptr[document + 1]], n_terms, replace=False)


def best_sums(columns: scipy.sparse.csc_matrix, terms: np.ndarray, k: int) -> np.ndarray:
    scores = np.asarray(columns[:, terms.astype(np.int64)].sum(axis=1)).ravel()
    return scores[np.argpartition(scores, -k)[-k:]]


def per_query(queries: list[np.ndarray], search: Callable[[np.ndarray], object]) -> float:
    """Median milliseconds of a query."""
    search(queries[0])
    seconds = []
    for query in queries:
        start = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1e3


if __name__ == "__main__":
    main()
