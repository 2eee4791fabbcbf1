"""Memory and time of a contrastive step with and without GradCache, beside gradient checkpointing.

Each variant runs in a process of its own, on one thread: LightRetriever's dense losses on a random Llama of 12 layers
and 384 columns, LoRA on all layers. Extra memory is the resident peak of the second step, less what was before.
Run: python bench/bench_gradient_cache.py
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from lightir.data import TrainingBatch
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DataRecipe, DocumentRecipe, ModelRecipe, Optimisation
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.stage_model import build_model, prepare_layers
from lightir.types import Document
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--batch 2 --length 8 --layers 1"
VARIANTS = ("at once", "checkpointed layers", "GradCache 8", "GradCache 2")


def random_model(folder: Path, *, layers: int) -> None:
    """A Llama of 384 columns and a byte tokenizer, as Hugging Face saves them."""
    config = LlamaConfig(
        vocab_size=258, hidden_size=384, intermediate_size=1024, num_hidden_layers=layers, num_attention_heads=6
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, "</s>": 1} | {letter: i + 2 for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def recipe(variant: str, address: str, *, length: int) -> ContrastiveRecipe:
    cached = int(variant.split()[1]) if variant.startswith("GradCache") else 0
    return ContrastiveRecipe(
        model=ModelRecipe(
            address, dtype="float32", lora_dropout=0.0, gradient_checkpointing=variant == "checkpointed layers"
        ),
        data=(DataRecipe("none"),),
        optimisation=Optimisation(gradient_cache=cached),
        losses=LossWeights(sparse=0.0, flops=0.0),
        heads=HeadRecipe(sparse=False),
        documents=DocumentRecipe(max_tokens=length),
    )


def data(n: int, length: int) -> TrainingBatch:
    texts = ["".join(chr(97 + (i * 7 + j) % 26) for j in range(length)) for i in range(2 * n)]
    documents = tuple(Document(str(i), text) for i, text in enumerate(texts))
    queries = tuple(text[:12] for text in texts[:n])
    names = tuple(map(str, range(n)))
    return TrainingBatch("none", ("find it",) * n, names, queries, documents, np.zeros((n, 2 * n), dtype=np.bool_))


def measure(variant: str, *, batch: int, length: int, layers: int) -> dict[str, float]:
    """Processor seconds and peak extra bytes of the second step, and its loss."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        random_model(Path(folder), layers=layers)
        settings = recipe(variant, folder, length=length)
        retriever = build_model(settings, device="cpu")
    prepare_layers(retriever, settings.model)
    retriever.trunk.train()
    for n in (2, batch):  # the first one loads code, which is resident memory too
        step = data(n, length)
        memory = ExtraMemory()
        begun = time.process_time()
        parts, _ = batch_losses(retriever, step, settings, step=0)
        loss = torch.stack(list(parts.values())).sum()
        torch.autograd.backward(loss)
        seconds = time.process_time() - begun
    return {"seconds": seconds, "extra_bytes": memory.peak(), "loss": float(loss.detach())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="queries, each with two documents")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    arguments = vars(parser.parse_args())
    print_origin()
    results = {}
    for name in VARIANTS:
        results[name] = in_own_process(measure, name, **arguments)
        base, variant = results["at once"], results[name]
        print(
            f"{arguments['batch']} queries, {2 * arguments['batch']} documents of {arguments['length']}: {name:20s}"
            f" {variant['extra_bytes'] / 2**20:8.0f} MiB extra"
            f" {base['extra_bytes'] / variant['extra_bytes']:6.1f}x less"
            f" {variant['seconds']:7.1f} s {variant['seconds'] / base['seconds']:5.2f}x the time"
            f"  loss {variant['loss']:.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
