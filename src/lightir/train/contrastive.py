"""LightRetriever's contrastive stage: one loop, from a recipe to a model folder."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import lightir
from lightir.contract import to_json
from lightir.data import Dataset
from lightir.errors import AlreadyExists, InvalidInput
from lightir.files import new_folder, write_bytes, write_json
from lightir.models.encoder import LightRetriever
from lightir.models.losses import rank, world_size
from lightir.text import query_term_ids
from lightir.train.batch import LIGHT_TOKENS_STEP, batch_losses, full_queries, sparse_query_matrix
from lightir.train.checkpoint import load_checkpoint, random_states, restore_random_states, save_checkpoint
from lightir.train.development import Development, fuse, load_development, mean_measures, ndcg
from lightir.train.mining import negatives_files
from lightir.train.preparation import (
    build_model,
    data_record,
    fit_heads,
    make_mixture,
    open_sets,
    prepare_layers,
    refit_bias,
    shipped_documents,
)
from lightir.train.recipe import Recipe, data_folder, load_recipe, recipe_yaml
from lightir.train.teacher import Teacher

logger = logging.getLogger(__name__)

COLLAPSED = 0.9
"""Mean pairwise cosine of documents above which the encoder is said to collapse."""


def train(
    recipe: Recipe | Path | str,
    out: Path | str,
    *,
    resume: bool = False,
    overrides: Sequence[str] = (),
    device: str | None = None,
) -> Path:
    """Train a model and write its folder; the path comes back.

    While it runs, recipe, log and checkpoints are in `<out>.run` beside it; that folder goes when the model is whole.
    Mined negatives stay in the folder `negatives` beside it. Started by torchrun, every process calls this and the
    first one writes.

    Args:
        recipe: a recipe, or its YAML file.
        out: the model folder to be.
        resume: go on from the last checkpoint in `<out>.run`.
        overrides: `key=value`, for a recipe given as a file.
        device: "cpu", "cuda", …; None takes a GPU where there is one.

    Raises:
        AlreadyExists: `out` is there, or an unfinished run is and resume is off.
        NotFound: a data set, the recipe, or a checkpoint to resume from is missing.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides=overrides)
    elif overrides:
        raise InvalidInput("overrides belong to a recipe file; this recipe is loaded already")
    if resume and recipe.optimisation.max_minutes:
        logger.warning("optimisation.max_minutes is set: the resumed run follows the clock, so it will not be the same")
    run = _Run(recipe, Path(out), join_processes(device or ("cuda" if torch.cuda.is_available() else "cpu")))
    run.open_folder(resume)
    run.prepare()
    if resume:
        run.restore()
    run.loop()
    return run.finish()


@dataclass(slots=True)
class Best:
    """The best state so far by the development sets."""

    score: float = -math.inf
    step: int = 0
    parameters: dict[str, Tensor] = field(default_factory=dict)


class _Run:
    """One training run: its parts, and the loop over them."""

    def __init__(self, recipe: Recipe, out: Path, device: str) -> None:
        self.recipe = recipe
        self.out = out
        self.folder = out.with_name(out.name + ".run")
        self.device = device
        self.step = 0
        self.best = Best()
        self.seconds = 0.0  # of training before the last resume

    # ---- before the first step

    def open_folder(self, resume: bool) -> None:
        if self.out.exists():
            raise AlreadyExists(f"{self.out} exists already; choose another name or remove it")
        if not resume and (self.folder / "checkpoints").exists():
            raise AlreadyExists(f"{self.folder} holds an unfinished run; go on with resume, or remove it")
        if _is_first():
            (self.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            write_bytes(self.folder / "recipe.yaml", recipe_yaml(self.recipe).encode())
        _barrier()

    def prepare(self) -> None:
        recipe = self.recipe
        cache = self.out.parent / "negatives"
        if _is_first():
            negatives_files(recipe, cache)  # one process mines, the others find the files
        _barrier()
        self.sets, self.report = open_sets(recipe, negatives=negatives_files(recipe, cache))
        if self.report is not None:
            logger.info("decontamination:\n%s", self.report.to_markdown())
        self.mixture = make_mixture(recipe, self.sets)
        self.development = [
            load_development(Dataset.open(data_folder(d.name)), d.split, queries=d.queries, documents=d.documents)
            for d in recipe.evaluation.sets
        ]
        self.retriever = build_model(recipe, device=self.device)
        fit_heads(self.retriever, recipe, self.sets)
        prepare_layers(self.retriever, recipe)
        self.retriever.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        taught = recipe.teacher.address
        max_tokens = self.retriever.contract.document.max_tokens
        self.teacher = Teacher.load(taught, max_tokens=max_tokens, device=self.device) if taught else None
        self.parameters = {n: p for n, p in self.retriever.trunk.named_parameters() if p.requires_grad}
        settings = recipe.optimisation
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        torch.manual_seed(settings.seed + 1 + rank())  # dropout differs between processes

    def restore(self) -> None:
        state = load_checkpoint(self.folder / "checkpoints", recipe_hash=_recipe_hash(self.recipe))
        self.step, self.seconds = state["step"], state["seconds"]
        self._set_parameters(state["parameters"])
        heads = {name: tensor.to(self.device) for name, tensor in state["heads"].items()}
        self.retriever.heads = dataclasses.replace(self.retriever.heads, **heads)
        self.optimizer.load_state_dict(state["optimizer"])
        self.best = Best(state["best_score"], state["best_step"], state["best_parameters"])
        if _is_first():
            _cut_log(self.folder / "log.jsonl", self.step)
        # Per-process dropout states are not kept: the first one's serve all, moved apart by rank.
        restore_random_states(state["random"])
        if rank():
            torch.manual_seed(torch.initial_seed() + rank() + self.step)

    def _set_parameters(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(values[name])

    # ---- the loop

    def loop(self) -> None:
        """Optimizer steps until the recipe's steps or minutes are up."""
        settings, evaluation = self.recipe.optimisation, self.recipe.evaluation
        started = time.monotonic() - self.seconds
        bar = tqdm(total=settings.steps, initial=self.step, disable=None if _is_first() else True, unit="step")
        while (progress := self._progress(time.monotonic() - started)) < 1:
            begun = time.monotonic()
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate * learning_rate_share(self.step, progress, self.recipe)
            record = self._optimizer_step()
            self.step += 1
            self.seconds = time.monotonic() - started
            record["docs_per_s"] = self._documents_per_step / (time.monotonic() - begun)
            self._write_log({"step": self.step, "seconds": round(self.seconds, 1), **record})
            bar.update()
            bar.set_postfix({name: f"{record[name]:.3g}" for name in ("loss", "nonzeros", "cosine") if name in record})
            if evaluation.every and self.step % evaluation.every == 0 and self._progress(self.seconds) < 1:
                self.evaluate()
            if self.recipe.checkpoint_every and self.step % self.recipe.checkpoint_every == 0:
                self._save_checkpoint()
        bar.close()
        self.evaluate()

    def _progress(self, seconds: float) -> float:
        settings = self.recipe.optimisation
        by_steps = self.step / settings.steps
        by_time = seconds / 60 / settings.max_minutes if settings.max_minutes else 0.0
        if settings.max_minutes and world_size() > 1:  # every process must stop at the same step
            shared = torch.tensor([by_time])
            dist.broadcast(shared, 0)
            by_time = float(shared)
        return max(by_steps, by_time)

    @property
    def _documents_per_step(self) -> int:
        settings = self.recipe.optimisation
        return settings.batch_size * (1 + settings.negatives) * settings.accumulation

    def _optimizer_step(self) -> dict[str, Any]:
        settings = self.recipe.optimisation
        self.optimizer.zero_grad(set_to_none=True)
        records = []
        for part in range(settings.accumulation):
            batch = self.mixture.batch(self.step * settings.accumulation + part)
            with autocast(self.device, self.retriever.backbone.model.dtype):
                parts, monitored = batch_losses(
                    self.retriever, batch, self.recipe, step=self.step, teacher=self.teacher
                )
            loss = torch.stack(list(parts.values())).sum()
            torch.autograd.backward(loss / settings.accumulation)
            values = {name: float(value.detach()) for name, value in parts.items()}
            records.append({"loss": float(loss.detach()), **values, **monitored})
            if not math.isfinite(records[-1]["loss"]):
                raise InvalidInput(f"the loss is {records[-1]['loss']} at step {self.step}: {values}; lower the rate")
        average_gradients(list(self.parameters.values()))
        norm = torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), settings.max_gradient_norm)
        self.optimizer.step()
        record: dict[str, Any] = {name: float(np.mean([r[name] for r in records])) for name in records[0]}
        record["gradient_norm"] = float(norm)
        record["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        record["dataset"] = batch.dataset
        if record.get("cosine", 0.0) > COLLAPSED:
            logger.warning("step %d: documents' mean pairwise cosine is %.3f: collapse", self.step, record["cosine"])
        return record

    def evaluate(self) -> None:
        """Measure on the development sets, log it, and keep the state if it is the best."""
        if not self.development:
            return
        training = self.retriever.trunk.training
        self.retriever.trunk.eval()
        heads = self.retriever.heads
        refit_bias(self.retriever, self.recipe, self.sets)  # what is shipped is refitted, so that is measured
        with torch.no_grad(), autocast(self.device, self.retriever.backbone.model.dtype):
            per_set = {each.name: measure(self.retriever, each, self.recipe) for each in self.development}
        self.retriever.heads = heads
        self.retriever.trunk.train(training)
        means = mean_measures(list(per_set.values()))
        self._write_log({"step": self.step, "development": {"mean": means, **per_set}})
        logger.info("step %d: %s", self.step, {name: round(value, 4) for name, value in means.items()})
        wanted = self.recipe.evaluation.by
        if wanted not in means:
            raise InvalidInput(f"evaluation.by is {wanted!r}, but this model has {sorted(means)}")
        if means[wanted] > self.best.score:
            kept = {name: p.detach().clone().cpu() for name, p in self.parameters.items()}
            self.best = Best(means[wanted], self.step, kept)

    def _save_checkpoint(self) -> None:
        if not _is_first():
            return
        heads = {f.name: getattr(self.retriever.heads, f.name) for f in dataclasses.fields(self.retriever.heads)}
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "parameters": {name: p.detach() for name, p in self.parameters.items()},
            "heads": {name: tensor for name, tensor in heads.items() if tensor is not None},
            "optimizer": self.optimizer.state_dict(),
            "random": random_states(),
            "best_score": self.best.score,
            "best_step": self.best.step,
            "best_parameters": self.best.parameters,
        }
        save_checkpoint(self.folder / "checkpoints", self.step, state, recipe_hash=_recipe_hash(self.recipe))

    def _write_log(self, record: Mapping[str, Any]) -> None:
        if _is_first():
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    # ---- after the last step

    def finish(self) -> Path:
        """Write the model folder with the best state, and remove the run's own folder."""
        if self.best.parameters:
            self._set_parameters(self.best.parameters)
        if _is_first():
            self.retriever.trunk.eval()
            refit_bias(self.retriever, self.recipe, self.sets)
            self.retriever.contract = dataclasses.replace(
                self.retriever.contract, document=shipped_documents(self.recipe), query=self.recipe.query
            )
            with new_folder(self.out) as folder:
                self.retriever.save(folder)
                self._write_records(folder / "training")
            shutil.rmtree(self.folder)
        _barrier()
        return self.out

    def _write_records(self, folder: Path) -> None:
        folder.mkdir()
        for name in ("recipe.yaml", "log.jsonl"):
            shutil.copyfile(self.folder / name, folder / name)
        write_json(folder / "data.json", data_record(self.sets, self.mixture))
        if self.report is not None:
            write_json(folder / "decontamination.json", self.report.to_json())
        kept = {"step": self.best.step, "score": self.best.score} if self.best.parameters else {"step": self.step}
        write_json(
            folder / "environment.json",
            environment(self.device)
            | {"steps": self.step, "kept": kept, "seconds": round(self.seconds, 1), "processes": world_size()},
        )


# ---- measuring


def measure(retriever: LightRetriever, development: Development, recipe: Recipe) -> dict[str, float]:
    """nDCG@10 of every branch that the model has, on a development set in memory, by name."""
    settings = recipe.optimisation
    terms = sparse_query_matrix(retriever, [q.text for q in development.queries])
    used = terms.any(0).nonzero()[:, 0]
    dense_rows, sparse_rows = [], []
    for chunk in _chunks(development.documents, settings.batch_size * (1 + settings.negatives), recipe.model.compile):
        length = retriever.contract.document.max_tokens if recipe.model.compile else None
        batch = retriever.batch(retriever.frame_documents(chunk), length=length)
        states = retriever.states(batch)
        dense_rows.append(F.normalize(retriever.dense_from(states, batch), dim=-1))
        if retriever.contract.sparse is not None:
            sparse_rows.append(retriever.sparse_from(states, batch)[:, used])
    documents = torch.cat(dense_rows)[: len(development.documents)]
    texts = [query.text for query in development.queries]
    full = torch.cat(
        [full_queries(retriever, c, None, recipe) for c in _chunks(texts, settings.batch_size, recipe.model.compile)]
    )[: len(texts)]
    scores = {"symmetric": F.normalize(full, dim=-1) @ documents.T}
    if retriever.contract.attention != "bidirectional":
        term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, texts)
        light = retriever.light_queries(term_ids, pad_to=LIGHT_TOKENS_STEP if recipe.model.compile else 1)
        scores["dense"] = F.normalize(light, dim=-1) @ documents.T
    if sparse_rows:
        scores["sparse"] = terms[:, used] @ torch.cat(sparse_rows)[: len(documents)].T
    arrays = {name: value.float().cpu().numpy() for name, value in scores.items()}
    if "dense" in arrays and "sparse" in arrays:
        arrays["hybrid"] = fuse({name: arrays[name] for name in ("dense", "sparse")}, recipe.fusion.weights)
        arrays["symmetric_hybrid"] = fuse(
            {"dense": arrays["symmetric"], "sparse": arrays["sparse"]}, recipe.fusion.weights
        )
    return {name: ndcg(value, development.grades) for name, value in arrays.items()}


def _chunks(values: Sequence[Any], size: int, full: bool) -> Iterator[list[Any]]:
    """Consecutive pieces; with `full` the last is filled up with repeats, so that every piece has one shape."""
    for start in range(0, len(values), size):
        piece = list(values[start : start + size])
        yield piece + [piece[0]] * (size - len(piece)) if full else piece


# ---- small parts


def learning_rate_share(step: int, progress: float, recipe: Recipe) -> float:
    """Share of the learning rate at a step: linear warm-up, then a cosine over the run down to final_share.

    Args:
        step: optimizer steps done.
        progress: of the whole run, in [0, 1).
        recipe: optimisation is read.
    """
    settings = recipe.optimisation
    cosine = settings.final_share + (1 - settings.final_share) * (1 + math.cos(math.pi * progress)) / 2
    return min(1.0, (step + 1) / (settings.warmup_steps + 1)) * cosine


@contextmanager
def autocast(device: str, dtype: torch.dtype) -> Iterator[None]:
    """bfloat16 autocast over float32 weights on a GPU; weights in bfloat16 need none."""
    kind = torch.device(device).type
    wanted = kind != "cpu" and dtype == torch.float32
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=wanted):
        yield


def average_gradients(parameters: Sequence[Tensor]) -> None:
    """Replace each gradient by its mean over all processes; the gathered loss makes that the whole batch's gradient."""
    if world_size() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size()


def join_processes(device: str) -> str:
    """The device of this process; where torchrun started it, it has joined the others."""
    if "WORLD_SIZE" not in os.environ or not dist.is_available():
        return device
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    return device


def environment(device: str) -> dict[str, Any]:
    """Versions, machine and device of a run."""
    packages = ("torch", "transformers", "peft", "tokenizers", "numpy")
    return {
        "lightir": lightir.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
        "threads": torch.get_num_threads(),
    }


def _recipe_hash(recipe: Recipe) -> str:
    return hashlib.sha256(json.dumps(to_json(recipe), sort_keys=True).encode()).hexdigest()[:16]


def _cut_log(path: Path, step: int) -> None:
    """Drop what was logged after a checkpoint, half a line at the end included."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            break
        if record["step"] > step:
            break
        kept.append(line + "\n")
    write_bytes(path, "".join(kept).encode())


def _is_first() -> bool:
    return rank() == 0


def _barrier() -> None:
    if world_size() > 1:
        dist.barrier()
