"""Query encoding without a model, as in LightRetriever's Table 1: lightir, torch and the static-embedding libraries.

Real questions, SmolLM2's tokenizer, random tables of its vocabulary, one thread, every contender in the same run.
"rows to vector" starts from term ids, "text to vector" from strings, "one query" is a call with one question.
Batches are encoded in chunks, and a chunk's vectors are thrown away. Their time is the processor's, the least of
several interleaved rounds, so that other load on the machine counts less; that of one query is wall time.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")

import numpy as np
import torch
from tokenizers import Tokenizer

from lightir import kernel
from lightir.addresses import resolve_model_folder
from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.query import CachedGate, CachedQueryEncoder, CachedTable
from lightir.query.bigrams import Bigrams, adjacent_terms
from lightir.query.tables import CachedBigrams
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.vectors import Ragged
from optional import is_installed
from origin import print_origin
from questions import read_questions

SMALLEST = "--data {data} --collections tiny --model {model} --n-queries 3 --widths 8 --rounds 1 --n-single 10"
DATA = Path(os.environ.get("LIGHTIR_DATA", "data"))
COLLECTIONS = ("squadshifts", "medquad", "nfcorpus", "scifact", "pubmedqa-l", "limit-small", "cranfield", "nq-utd")
POLICY = QueryPolicy(lower_case=False, leading_blank=False)  # what the peers do with a text: nothing
ROWS, TEXT, ONE = "rows to vector", "text to vector", "one query"
CHUNK = 1024
N_BIGRAMS, GATE_WIDTH = 100_000, 16
"""Rows of pairs of terms: half of the questions' own pairs, which most questions meet, and random ones."""


def main() -> int:
    """Measure and print one Markdown table; with --json also one JSON document."""
    args = parse_arguments()
    print_origin()
    torch.set_num_threads(1)
    questions, n_different = read_questions(args.data, args.collections, args.n_queries)
    tokenizer = TextTokenizer.from_file(resolve_model_folder(args.model) / "tokenizer.json")
    peers = [package for package in ("sentence_transformers", "model2vec") if is_installed(package)]
    print(
        f"{len(questions):,} questions ({n_different:,} different, {np.mean([len(q.split()) for q in questions]):.1f} "
        f"words on average), kernel {kernel.dispatch()}, one thread\n"
    )
    print("| H | stage | contender | µs a query | times lightir float16 | lowest cosine |\n|---|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    for width in args.widths:
        measured = Bench(questions, tokenizer, width, peers).measure(rounds=args.rounds, n_single=args.n_single)
        for row in measured:
            print("| " + " | ".join(cells(row)) + " |", flush=True)
        rows += measured
    if args.json:
        args.json.write_text(json.dumps({"n_queries": len(questions), "kernel": kernel.dispatch(), "rows": rows}))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, help="the folder of the collections ($LIGHTIR_DATA)")
    parser.add_argument("--collections", nargs="+", default=COLLECTIONS, help="BEIR folders, for their queries")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is taken (default %(default)s)")
    parser.add_argument("--n-queries", type=int, default=65_536, help="repeated where there are fewer")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 576, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--n-single", type=int, default=2000, help="calls with one question")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args()


def make_encoder(
    tokenizer: TextTokenizer,
    table: CachedTable,
    *,
    sparse: bool,
    bigrams: CachedBigrams | None = None,
    gate: CachedGate | None = None,
) -> CachedQueryEncoder:
    """A query encoder over a table, with the sparse branch, rows of bigrams and a gate if wanted."""
    pairs_hash, gate_hash = bigrams.bigrams.hash if bigrams else "", gate.hash if gate else ""
    policy = dataclasses.replace(POLICY, bigrams=pairs_hash, gate=gate_hash)
    backbone = BackboneRecord("bench", "causal", "", "", tokenizer.hash, tokenizer.vocab_size, table.dim)
    head = SparseHead() if sparse else None
    contract = Contract("lightretriever", backbone, policy, DocumentPolicy(), DenseHead(), head)
    return CachedQueryEncoder(contract, tokenizer, tables={"": table}, bigrams=bigrams, gate=gate)


def random_pairs(ids: Ragged, vocab_size: int) -> Bigrams:
    """Half of the pairs that occur in texts, and other pairs, N_BIGRAMS together."""
    rng = np.random.default_rng(1)
    first, second, _ = adjacent_terms(ids)
    occurring = np.unique(first.astype(np.uint64) << np.uint64(32) | second)
    other = rng.integers(0, vocab_size, (2 * N_BIGRAMS, 2), dtype=np.uint64)
    chosen = rng.permutation(occurring)[: min(len(occurring), N_BIGRAMS) // 2]
    keys = np.unique(np.concatenate([chosen, other[:, 0] << np.uint64(32) | other[:, 1]]))
    kept = np.union1d(chosen, rng.permutation(np.setdiff1d(keys, chosen))[: N_BIGRAMS - len(chosen)])
    return Bigrams(np.stack([kept >> np.uint64(32), kept & np.uint64(2**32 - 1)], axis=1).astype(np.uint32))


def chunks(n: int) -> Iterable[slice]:
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


class Bench:
    """All contenders at one width, over the same random rows; `peers` are the packages to stand beside lightir."""

    def __init__(self, questions: list[str], tokenizer: TextTokenizer, width: int, peers: Sequence[str]) -> None:
        self.questions, self.tokenizer, self.width = questions, tokenizer, width
        self.ids = query_term_ids(self.tokenizer, POLICY, questions)
        self.table = np.random.default_rng(0).standard_normal((self.tokenizer.vocab_size, width), dtype=np.float32)
        self.half = CachedTable(self.table.astype(np.float16))
        scales = np.abs(self.table).max(axis=1) / 127
        self.int8 = CachedTable(np.rint(self.table / scales[:, None]).astype(np.int8), scales)
        pairs = random_pairs(self.ids, self.tokenizer.vocab_size)
        rows = np.random.default_rng(2).integers(-127, 128, (len(pairs), width), dtype=np.int8)
        self.bigrams = CachedBigrams(pairs, CachedTable(rows, np.full(len(pairs), 0.01, np.float32)))
        shape = (len(self.table) + len(pairs), GATE_WIDTH)
        gate = [np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float16) for seed in (3, 4)]
        self.gate = CachedGate(gate[0], gate[1])
        self.bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(self.half.embeddings), mode="mean")
        self.peers = {package: STATIC_MODELS[package](tokenizer.backend, self.table) for package in peers}
        self.out = np.empty((CHUNK, width), dtype=np.float32)

    def measure(self, *, rounds: int, n_single: int) -> list[dict[str, Any]]:
        """One row a contender: stage, contender, us_per_query, times_lightir, and the lowest cosine or the p99."""
        batches = self.rows_to_vector() | self.text_to_vector()
        seconds = {
            key: min(times) for key, times in timed(batches, n_questions=len(self.questions), rounds=rounds).items()
        }
        rows = []
        for (stage, name), least in seconds.items():
            row = {"width": self.width, "stage": stage, "contender": name}
            row["us_per_query"] = least / len(self.questions) * 1e6
            row["times_lightir"] = least / seconds[stage, "lightir float16"]
            row["lowest_cosine"] = self.lowest_cosine(batches[stage, name]) if self.is_the_mean(name) else None
            rows.append(row)
        return rows + self.single_queries(n_single)

    @staticmethod
    def is_the_mean(name: str) -> bool:
        """Whether a contender gives the mean of the terms' rows: neither the roof nor the one with more rows does."""
        return "roof" not in name and "bigrams" not in name

    def rows_to_vector(self) -> dict[tuple[str, str], Callable[[slice], np.ndarray]]:
        """Return the contenders from term ids to vectors: lightir, torch, and a bare copy of the rows."""
        ragged, half = self.ids, self.half.embeddings
        rows_a_block = max(1, (1 << 20) // (2 * self.width))
        block = np.empty((rows_a_block, self.width), dtype=np.float16)
        ids64 = ragged.term_ids.astype(np.int64)

        def ours(table: CachedTable) -> Callable[[slice], np.ndarray]:
            def run(chunk: slice) -> np.ndarray:
                part = part_of(ragged, chunk)
                out = self.out[: len(part)]
                kernel._native.mean_rows(table.embeddings, table.scales, part.term_ids, part.indptr, True, 1, out)
                return out

            return run

        def embedding_bag(chunk: slice) -> np.ndarray:
            part = part_of(ragged, chunk)
            ids = torch.from_numpy(ids64[ragged.indptr[chunk.start] : ragged.indptr[chunk.stop]])
            with torch.inference_mode():
                means = self.bag(ids, torch.from_numpy(part.indptr[:-1]))
                return torch.nn.functional.normalize(means, dim=1).numpy()

        def copied_rows(chunk: slice) -> np.ndarray:
            ids = ids64[ragged.indptr[chunk.start] : ragged.indptr[chunk.stop]]
            for start in range(0, len(ids), rows_a_block):
                some = ids[start : start + rows_a_block]
                np.take(half, some, axis=0, out=block[: len(some)], mode="clip")
            return block

        return {
            (ROWS, "lightir float16"): ours(self.half),
            (ROWS, "lightir int8"): ours(self.int8),
            (ROWS, "torch EmbeddingBag float16"): embedding_bag,
            (ROWS, "roof: copying the float16 rows"): copied_rows,
        }

    def text_to_vector(self) -> dict[tuple[str, str], Callable[[slice], np.ndarray]]:
        """Return the contenders from strings to vectors: lightir, tokenizers with torch, and two other libraries."""
        backend = self.tokenizer.backend

        def ours(
            table: CachedTable, *, sparse: bool = False, reuse: bool = True, **parts: Any
        ) -> Callable[[slice], np.ndarray]:
            encoder = make_encoder(self.tokenizer, table, sparse=sparse, **parts)

            def run(chunk: slice) -> np.ndarray:
                texts = self.questions[chunk]
                dense = encoder.encode(texts, out=self.out[: len(texts)] if reuse else None).dense
                assert dense is not None
                return dense

            return run

        def tokenizers_and_bag(chunk: slice) -> np.ndarray:
            encodings = backend.encode_batch_fast(self.questions[chunk], add_special_tokens=False)
            lists = [encoding.ids for encoding in encodings]
            offsets = np.cumsum([0, *map(len, lists)])[:-1]
            ids = torch.tensor([term_id for ids in lists for term_id in ids], dtype=torch.int64)
            with torch.inference_mode():
                return torch.nn.functional.normalize(self.bag(ids, torch.from_numpy(offsets)), dim=1).numpy()

        return {
            (TEXT, "lightir float16"): ours(self.half),
            (TEXT, "lightir int8"): ours(self.int8),
            (TEXT, "lightir float16, dense and sparse"): ours(self.half, sparse=True),
            (TEXT, "lightir float16, a fresh array a chunk"): ours(self.half, reuse=False),
            (TEXT, f"lightir int8, {N_BIGRAMS:,} bigrams"): ours(self.int8, bigrams=self.bigrams),
            (TEXT, f"lightir int8, {N_BIGRAMS:,} bigrams and gate"): ours(
                self.int8, bigrams=self.bigrams, gate=self.gate
            ),
            (TEXT, "tokenizers and EmbeddingBag float16"): tokenizers_and_bag,
        } | {
            (TEXT, f"{name.replace('_', '-')} float32"): lambda chunk, encode=encode: encode(self.questions[chunk])
            for name, encode in self.peers.items()
        }

    def lowest_cosine(self, run: Callable[[slice], np.ndarray]) -> float:
        """Against the float32 means, over one chunk."""
        chunk = next(iter(chunks(len(self.questions))))
        part = part_of(self.ids, chunk)
        expected = kernel.mean_rows(self.table, part.term_ids, part.indptr, normalize=True)
        return float((run(chunk) * expected).sum(axis=1).min())

    def single_queries(self, n: int) -> list[dict[str, Any]]:
        """Microseconds of calls with one question: median and 99th percentile; different questions, each once."""
        encoder = make_encoder(self.tokenizer, self.half, sparse=True)
        inner = encoder._encoders[""]

        def native(texts: list[str]) -> object:
            return inner.native.encode(texts, 1, inner.by_library, None)

        plain = [question for question in self.questions if question.isascii()]
        calls: dict[str, tuple[Callable[[str], object], int]] = {
            "lightir's kernel: the call": (lambda text: native([text]), n),
            "lightir's kernel: the call without a question": (lambda text: native([]), n),
            "lightir, dense and sparse": (lambda text: encoder.encode([text]), n),
        }
        for name, bigrams, gate in (
            ("", None, None),
            (f", {N_BIGRAMS:,} bigrams", self.bigrams, None),
            (f", {N_BIGRAMS:,} bigrams and gate", self.bigrams, self.gate),
        ):
            dense = make_encoder(self.tokenizer, self.int8, sparse=False, bigrams=bigrams, gate=gate)
            calls[f"lightir int8{name}"] = (lambda text, dense=dense: dense.encode([text]), n)
        for name, encode in self.peers.items():
            calls[f"{name.replace('_', '-')}, dense"] = (lambda text, encode=encode: encode([text]), n // 10)
        percentiles = {name: latencies(call, plain[:count]) for name, (call, count) in calls.items()}
        ours = percentiles["lightir, dense and sparse"][0]
        return [
            {
                "width": self.width,
                "stage": ONE,
                "contender": name,
                "us_per_query": p50,
                "p99_us": p99,
                "times_lightir": p50 / ours,
            }
            for name, (p50, p99) in percentiles.items()
        ]


def with_sentence_transformers(tokenizer: Tokenizer, table: np.ndarray) -> Callable[[list[str]], np.ndarray]:
    """Its encoding of texts by a table of static embeddings."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    static = StaticEmbedding(tokenizer, embedding_weights=table)
    model = SentenceTransformer(modules=[static], device="cpu")
    return functools.partial(model.encode, batch_size=CHUNK, normalize_embeddings=True, show_progress_bar=False)


def with_model2vec(tokenizer: Tokenizer, table: np.ndarray) -> Callable[[list[str]], np.ndarray]:
    """Its encoding of texts by the same table."""
    from model2vec import StaticModel

    model = StaticModel(table, tokenizer, normalize=True)
    return functools.partial(model.encode, max_length=None, use_multiprocessing=False, show_progress_bar=False)


STATIC_MODELS = {"sentence_transformers": with_sentence_transformers, "model2vec": with_model2vec}


def part_of(ragged: Ragged, chunk: slice) -> Ragged:
    """Some of the rows."""
    first, last = ragged.indptr[chunk.start], ragged.indptr[chunk.stop]
    return Ragged(ragged.term_ids[first:last], ragged.indptr[chunk.start : chunk.stop + 1] - first)


def timed(
    runs: dict[tuple[str, str], Callable[[slice], Any]], *, n_questions: int, rounds: int
) -> dict[tuple[str, str], list[float]]:
    """Processor seconds of every round; in each round every contender runs once over all chunks."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    for _ in range(rounds):
        for key, run in runs.items():
            start = time.process_time()
            for chunk in chunks(n_questions):
                run(chunk)
            seconds[key].append(time.process_time() - start)
    return seconds


def latencies(call: Callable[[str], object], texts: list[str]) -> tuple[float, float]:
    times = []
    for text in texts:
        start = time.perf_counter_ns()
        call(text)
        times.append((time.perf_counter_ns() - start) / 1000)
    return float(np.percentile(times, 50)), float(np.percentile(times, 99))


def cells(row: dict[str, Any]) -> list[str]:
    """One line of the table."""
    p99 = row.get("p99_us")
    time_cell = f"{row['us_per_query']:.2f}" + (f" (p99 {p99:.1f})" if p99 is not None else "")
    cosine = row.get("lowest_cosine")
    return [
        str(row["width"]),
        row["stage"],
        row["contender"],
        time_cell,
        f"{row['times_lightir']:.2f}",
        f"{cosine:.5f}" if cosine is not None else "",
    ]


if __name__ == "__main__":
    sys.exit(main())
