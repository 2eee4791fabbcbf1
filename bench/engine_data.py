"""Documents and queries for bench_engine.py: synthetic ones, or those of a folder that `lightir encode` wrote.

Synthetic: 50,000 terms with a Zipf-Mandelbrot law; a document draws 45 % of its terms from all of them and the rest
from two of 512 topics; lengths are log-normal, 127 different terms on average. Queries take a document's terms, heavier
ones rather. Dense vectors: 2,000 clusters with a falling spectrum. All is made 20,000 documents at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from lightir import kernel
from lightir.analysis import Analyzer
from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import read_queries
from lightir.index.bm25 import idf, mean_length, saturation
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy, TextTokenizer
from lightir.vectors import Ragged, SparseVectors

VOCAB_SIZE = 50_000
N_TOPICS, TOPIC_TERMS = 512, 600
BATCH = 20_000
LARGEST_WEIGHT = 3.3  # ln(1 + gamma(1.2)) is above it once in 10 ** 10

Floats = npt.NDArray[np.float32]
Query = tuple[npt.NDArray[np.uint32], Floats]
"""Term ids, ascending, and how often each occurs."""


@dataclass(frozen=True, slots=True)
class Documents:
    """CSR documents: indptr int64, term_ids uint32, weights uint8 or float32."""

    indptr: npt.NDArray[np.int64]
    term_ids: npt.NDArray[np.uint32]
    weights: kernel.Weights
    vocab_size: int

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def row(self, doc: int) -> tuple[npt.NDArray[np.uint32], kernel.Weights]:
        """One document's terms and weights."""
        span = slice(self.indptr[doc], self.indptr[doc + 1])
        return self.term_ids[span], self.weights[span]

    def invert(self) -> kernel.Postings:
        """Term by term."""
        csr = self.indptr, self.term_ids, self.weights
        return kernel.invert(*csr, vocab_size=self.vocab_size, n_docs=len(self))


@dataclass(frozen=True, slots=True)
class SparseTask:
    """Documents, and lists of queries by name; a query's weight of a term is its count times the term's weight."""

    documents: Documents
    term_weights: Floats
    queries: dict[str, list[Query]]

    def weighted(self, queries: Sequence[Query]) -> list[Query]:
        """The queries with the terms' weights in them."""
        return [(terms, counts * self.term_weights[terms]) for terms, counts in queries]


@dataclass(frozen=True, slots=True)
class DenseTask:
    """float32 rows and queries of length 1."""

    vectors: Floats
    queries: Floats


# Synthetic


def sparse_task(documents: Documents, n_queries: int) -> SparseTask:
    """Impacts; a query counts its terms."""
    queries = {
        "short": draw_queries(documents, n_queries, 6, 12, counts=True),
        "long": draw_queries(documents, n_queries, 40, 40, counts=True),
    }
    return SparseTask(documents, np.ones(documents.vocab_size, np.float32), queries)


def term_counts(documents: Documents) -> Documents:
    """Return the documents with counts from 1 to 4 as their weights."""
    counts = np.empty(len(documents.term_ids), np.uint8)
    np.floor_divide(documents.weights, 64, out=counts)
    counts += 1
    return Documents(documents.indptr, documents.term_ids, counts, documents.vocab_size)


def bm25_task(counts: Documents, queries: dict[str, list[Query]]) -> SparseTask:
    """Saturations; a query's terms weigh their idf."""
    lengths = _lengths(counts)
    mean = mean_length(int(lengths.sum(dtype=np.int64)), len(counts))
    weights = np.empty(len(counts.term_ids), np.float32)
    for first in range(0, len(counts), BATCH):
        indptr = counts.indptr[first : first + BATCH + 1]
        span = slice(indptr[0], indptr[-1])
        n = len(indptr) - 1
        weights[span] = saturation(counts.weights[span], indptr - indptr[0], lengths[first : first + n], mean)
    df = np.bincount(counts.term_ids, minlength=counts.vocab_size)
    idfs = np.array([idf(len(counts), n) for n in df.tolist()], dtype=np.float32)
    documents = Documents(counts.indptr, counts.term_ids, weights, counts.vocab_size)
    return SparseTask(documents, idfs, queries)


def bags(documents: Documents, n: int, size: int = 768) -> list[Query]:
    """Queries of many terms, with weights."""
    rng = np.random.default_rng(8)
    queries = []
    for _ in range(n):
        parts = draw_queries(documents, 18, 48, 48, seed=int(rng.integers(1 << 30)))
        terms = np.unique(np.concatenate([terms for terms, _ in parts]))[:size]
        queries.append((terms, rng.random(len(terms), dtype=np.float32) + np.float32(0.05)))
    return queries


def make_documents(n_docs: int, *, seed: int) -> Documents:
    """Make the documents that the module describes; the same seed gives the same documents."""
    batches = list(document_batches(n_docs, seed=seed))
    lengths = [np.zeros(1, np.int64), *(np.diff(batch.indptr) for batch in batches)]
    term_ids, weights = zip(*((batch.term_ids, batch.weights) for batch in batches), strict=True)
    return Documents(np.cumsum(np.concatenate(lengths)), np.concatenate(term_ids), np.concatenate(weights), VOCAB_SIZE)


def document_batches(n_docs: int, *, seed: int) -> Iterator[Documents]:
    """Yield the same documents, BATCH at a time."""
    rng = np.random.default_rng(seed)
    popularity = 1 / (np.arange(VOCAB_SIZE) + 50.0) ** 0.95
    term_of_rank = rng.permutation(VOCAB_SIZE).astype(np.int64)
    anywhere = _quantiles(popularity)
    topics = _quantiles(popularity**0.6)[rng.integers(0, 1 << 20, (N_TOPICS, TOPIC_TERMS))]
    for first in range(0, n_docs, BATCH):
        n = min(BATCH, n_docs - first)
        drawn = np.exp(rng.normal(np.log(136) - 0.125, 0.5, n)).clip(16, 700).astype(np.int64)
        doc = np.repeat(np.arange(n), drawn)
        ranks = anywhere[rng.integers(0, 1 << 20, len(doc))]
        source = rng.random(len(doc), dtype=np.float32)
        rank = (TOPIC_TERMS * rng.random(len(doc), dtype=np.float32) ** 2).astype(np.int64)
        for low, high in ((0.0, 0.35), (0.35, 0.55)):
            topic = rng.integers(0, N_TOPICS, n)
            chosen = (source >= low) & (source < high)
            ranks[chosen] = topics[topic[doc[chosen]], rank[chosen]]
        keys = np.sort(doc << 16 | term_of_rank[ranks])
        keys = keys[np.diff(keys, prepend=-1) != 0]
        lengths = np.bincount(keys >> 16, minlength=n)
        weights = np.log1p(rng.standard_gamma(1.2, len(keys), dtype=np.float32))
        impacts = np.rint(weights * (255 / LARGEST_WEIGHT)).clip(1, 255).astype(np.uint8)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        yield Documents(indptr, (keys & 0xFFFF).astype(np.uint32), impacts, VOCAB_SIZE)


def draw_queries(
    documents: Documents, n: int, low: int, high: int, *, counts: bool = False, seed: int = 5
) -> list[Query]:
    """low to high terms of one document each; counts 1, or 2 for one term in twelve."""
    rng = np.random.default_rng(seed)
    queries: list[Query] = []
    while len(queries) < n:
        n_terms = int(rng.integers(low, high + 1))
        terms, weights = documents.row(int(rng.integers(len(documents))))
        if len(terms) < n_terms:
            continue
        lots = np.log(weights) - np.log(-np.log(rng.random(len(terms))))  # Gumbel: sampling by weight
        chosen = np.sort(terms[np.argsort(-lots)[:n_terms]])
        twice = (rng.random(n_terms) < 1 / 12) & counts
        queries.append((chosen, (1 + twice).astype(np.float32)))
    return queries


def dense_task(n: int, dim: int, n_queries: int, *, seed: int) -> DenseTask:
    """Vectors around 2,000 centers, and queries near some of them."""
    rng = np.random.default_rng(seed)
    vectors = np.empty((n, dim), np.float32)
    for i, batch in enumerate(vector_batches(rng, n, dim)):
        vectors[i * BATCH : i * BATCH + len(batch)] = batch
    return DenseTask(vectors, near(rng, vectors, n_queries))


def vector_batches(rng: np.random.Generator, n: int, dim: int) -> Iterator[Floats]:
    """Yield n vectors around 2,000 centers, BATCH at a time."""
    spectrum = _spectrum(dim)
    centers = rng.standard_normal((2000, dim), dtype=np.float32) * spectrum
    for first in range(0, n, BATCH):
        rows = centers[rng.integers(0, 2000, min(BATCH, n - first))]
        rows += 0.8 * rng.standard_normal(rows.shape, dtype=np.float32) * spectrum
        yield rows / np.linalg.norm(rows, axis=1, keepdims=True)


def near(rng: np.random.Generator, vectors: Floats, n_queries: int) -> Floats:
    """Draw vectors and return queries near them."""
    n, dim = vectors.shape
    spectrum = _spectrum(dim)
    noise = 0.6 * rng.standard_normal((n_queries, dim), dtype=np.float32) * spectrum / np.linalg.norm(spectrum)
    queries = vectors[rng.integers(0, n, n_queries)] + noise
    return (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)


def _spectrum(dim: int) -> Floats:
    return (1 / np.arange(1, dim + 1) ** 0.4).astype(np.float32)


def text_queries(
    vocab_size: int, terms: Sequence[Query], vectors: Floats
) -> tuple[Contract, CachedQueryEncoder, list[str]]:
    """A contract for synthetic documents, a query encoder, and texts for which it gives these terms and vectors.

    Term 7 is the word "t7". Of the tables that give the queries the vectors, it has the one with the shortest rows, in
    float16.
    """
    words = {**{f"t{term}": term for term in range(vocab_size)}, "[UNK]": vocab_size}
    backend = Tokenizer(models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=20))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer = TextTokenizer(backend)
    means = np.zeros((len(terms), encoder_vocabulary(vocab_size)), np.float32)
    for row, (term_ids, counts) in zip(means, terms, strict=True):
        row[term_ids] = counts / counts.sum()
    table = (np.linalg.pinv(means) @ vectors).astype(np.float16)
    backbone = BackboneRecord("synthetic", "causal", "", "", tokenizer.hash, *table.shape)
    policy = QueryPolicy("", leading_blank=False, drop=(vocab_size,))
    contract = Contract("lightretriever", backbone, policy, DocumentPolicy(), DenseHead(), SparseHead())
    texts = [" ".join(f"t{term}" for term in np.repeat(term_ids, counts.astype(int))) for term_ids, counts in terms]
    return contract, CachedQueryEncoder(contract, tokenizer, tables={"": CachedTable(table)}), texts


def encoder_vocabulary(vocab_size: int) -> int:
    """The documents' terms and the unknown one."""
    return vocab_size + 1


# Real


@dataclass(frozen=True, slots=True)
class RealTasks:
    """The tasks of a vectors folder; None for a branch that its model lacks."""

    texts: list[str]
    sparse: SparseTask | None
    tokens: SparseTask
    counts: Documents
    dense: DenseTask | None


def real_tasks(folder: Path, queries: Path, n_queries: int) -> RealTasks:
    """A collection as its model and the analyzer "english" see it."""
    texts = [query.text for query in read_queries(str(queries))][:n_queries]
    shards = list(VectorsReader(folder))
    encoder = CachedQueryEncoder.load(folder / "query-encoder")
    vectors = encoder.encode(texts)
    dense = None
    if vectors.dense is not None:
        rows = np.concatenate([shard.dense for shard in shards if shard.dense is not None])
        dense = DenseTask(rows.astype(np.float32), vectors.dense)
    sparse = None
    if vectors.sparse is not None:
        rows_of = [shard.sparse.without_zeros() for shard in shards if shard.sparse is not None]
        term_weights = encoder.term_weights
        ones = np.ones(encoder.contract.backbone.vocab_size, np.float32)
        sparse = SparseTask(_joined(rows_of), ones if term_weights is None else term_weights, {})
        sparse.queries["questions"] = _counted(vectors.sparse, sparse.term_weights)
    counts, token_queries = _words([d.full_text() for shard in shards for d in shard.documents], texts)
    return RealTasks(texts, sparse, bm25_task(counts, {"questions": token_queries}), counts, dense)


def _joined(rows: Sequence[SparseVectors]) -> Documents:
    lengths = np.concatenate([np.zeros(1, np.int64), *(np.diff(shard_rows.indptr) for shard_rows in rows)])
    weights = np.concatenate([shard_rows.weights for shard_rows in rows])
    term_ids = np.concatenate([shard_rows.term_ids for shard_rows in rows])
    return Documents(np.cumsum(lengths), term_ids, weights, rows[0].vocab_size)


def _counted(queries: SparseVectors, term_weights: Floats) -> list[Query]:
    """Counts out of weights; a query without terms that weigh anything is left out."""
    rows = [queries.row(i) for i in range(len(queries))]
    counted = [(terms, np.rint(weights / np.maximum(term_weights[terms], 1e-9))) for terms, weights in rows]
    return [(terms[counts > 0], counts[counts > 0].astype(np.float32)) for terms, counts in counted if counts.any()]


def _words(texts: Sequence[str], queries: Sequence[str]) -> tuple[Documents, list[Query]]:
    analyzer = Analyzer("english")
    ids: dict[str, int] = {}
    rows = Ragged.from_lists([[ids.setdefault(word, len(ids)) for word in row] for row in analyzer.terms(texts)])
    counts = SparseVectors.count(rows, vocab_size=len(ids))
    narrow = counts.weights.clip(max=255).astype(np.uint8)
    asked = SparseVectors.count(
        Ragged.from_lists([[ids[word] for word in row if word in ids] for row in analyzer.terms(queries)]),
        vocab_size=len(ids),
    )
    rows_of = [asked.row(i) for i in range(len(asked))]
    return Documents(counts.indptr, counts.term_ids, narrow, len(ids)), [(t, w) for t, w in rows_of if len(t)]


def _lengths(counts: Documents) -> npt.NDArray[np.uint32]:
    filled = np.diff(counts.indptr) > 0
    lengths = np.zeros(len(counts), np.uint32)
    lengths[filled] = np.add.reduceat(counts.weights, counts.indptr[:-1][filled], dtype=np.int64)
    return lengths


def _quantiles(popularity: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """2 ** 20 ranks, each as often as it is popular: a uniform index into them is a draw."""
    cumulative = np.cumsum(popularity / popularity.sum())
    drawn = np.searchsorted(cumulative, (np.arange(1 << 20) + 0.5) / (1 << 20))
    return drawn.clip(max=len(popularity) - 1).astype(np.int64)
