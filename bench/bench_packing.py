"""Documents of uneven lengths through a causal model, forward and backward: padded to the longest, or sharing rows.

Those that share a row are kept apart by a mask, or each piece's attention is computed by itself.

A random Llama of 12 layers and 384 columns on one thread; processor time, all ways in turn, the best of the repeats.
Lengths are drawn from a log-normal distribution, cut at 256 tokens. Run: python bench/bench_packing.py
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy
from lightir.models.adapters import add_lora
from lightir.models.backbones import wrap_model
from lightir.models.encoder import LightRetriever
from lightir.models.framing import TextBatch
from lightir.text import QueryPolicy, TextTokenizer
from lightir.train.batches.packing import PackedAttention, states_without_padding
from origin import print_origin

SMALLEST = "--documents 3 --repeats 1 --median 8 --layers 1"


def random_retriever(*, layers: int) -> LightRetriever:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=6,
        attn_implementation="lightir_bmm",
    )
    tokenizer = TextTokenizer(Tokenizer(models.BPE({"<s>": 0, "</s>": 1}, [])))
    backbone = add_lora(wrap_model(LlamaForCausalLM(config), tokenizer, special_ids={"bos": 0, "eos": 1}), dropout=0.0)
    record = BackboneRecord("random", "causal", "", "", "", 258, 384)
    return LightRetriever(backbone, Contract("dense", record, QueryPolicy(), DocumentPolicy(), DenseHead(), None))


def batch_of(lengths: list[int]) -> TextBatch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 258, mask.shape, generator=torch.Generator().manual_seed(0))
    return TextBatch(ids, mask, mask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("documents", 32), ("repeats", 3), ("median", 64), ("layers", 12)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    print_origin()
    drawn = np.random.default_rng(0).lognormal(np.log(args.median), 0.6, args.documents)
    lengths = np.clip(drawn.astype(int), 8, 256).tolist()
    retriever, batch = random_retriever(layers=args.layers), batch_of(lengths)
    kinds: tuple[PackedAttention, ...] = ("mask", "pieces")
    ways = {f"rows of {row}, {kind}": (row, kind) for row in (256, 512, 1024) for kind in kinds}
    ways = {"padded": (0, "mask"), **ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.repeats):
        for name, (row, kind) in ways.items():
            begun = time.process_time()
            states: Tensor = (
                states_without_padding(retriever.backbone, batch, length=row, attention=kind)
                if row
                else retriever.states(batch)
            )
            states[batch.attention_mask].square().mean().backward()
            seconds[name].append(time.process_time() - begun)
    share = sum(lengths) / batch.input_ids.numel()
    for name, times in seconds.items():
        print(
            f"{args.documents} documents, {share:.0%} of the padded batch is text: {name:20s}"
            f" {min(times):6.2f} s {min(seconds['padded']) / min(times):5.2f}x the speed of padded"
        )


if __name__ == "__main__":
    main()
