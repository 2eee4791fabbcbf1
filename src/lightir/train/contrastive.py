"""LightRetriever's contrastive stage: one loop, from a recipe to a model folder."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import math
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
from lightir.data import Batch as DataBatch
from lightir.data import Dataset, DecontaminationReport, Mixture, TrainingSet
from lightir.errors import AlreadyExists, InvalidInput
from lightir.files import new_folder, write_bytes, write_json
from lightir.models.encoder import LightRetriever
from lightir.models.losses import (
    alignment_kl,
    flops,
    flops_ramp,
    gather,
    info_nce,
    matryoshka,
    mean_pairwise_cosine,
)
from lightir.text import query_term_ids, sparse_queries
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
    shipped_documents,
)
from lightir.train.recipe import Recipe, data_folder, load_recipe, recipe_yaml

logger = logging.getLogger(__name__)

COLLAPSED = 0.9
"""Mean pairwise cosine of documents above which the encoder is said to collapse."""

SHAPE_STEP = 16
"""Compiled layers meet query lengths that are multiples of this: each new shape costs seconds of compilation."""

LIGHT_TOKENS_STEP = 256
"""The same for the distinct tokens of a batch's light queries."""


def train(
    recipe: Recipe | Path | str, out: Path | str, *, resume: bool = False, overrides: Sequence[str] = (),
    device: str | None = None,
) -> Path:
    """Train a model and write its folder; the path comes back.

    While it runs, recipe, log and checkpoints are in `<out>.run` beside it; that folder goes when the model is whole.
    Under torch.distributed every process calls this; the first one writes.

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
        raise InvalidInput("a run with optimisation.max_minutes cannot be resumed: its schedules follow the clock")
    run = _Run(recipe, Path(out), device or ("cuda" if torch.cuda.is_available() else "cpu"))
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
        negatives = negatives_files(recipe, self.folder) if _is_first() else None
        _barrier()
        self.sets, self.report = open_sets(recipe, negatives=negatives or negatives_files(recipe, self.folder))
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
        self.parameters = {n: p for n, p in self.retriever.trunk.named_parameters() if p.requires_grad}
        settings = recipe.optimisation
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        torch.manual_seed(settings.seed + 1 + _rank())  # dropout differs between processes

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
        if _rank():
            torch.manual_seed(torch.initial_seed() + _rank() + self.step)

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
        if settings.max_minutes and _world() > 1:  # every process must stop at the same step
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
            with autocast(self.device, self.retriever.backbone.dtype):
                parts, monitored = batch_losses(self.retriever, batch, self.recipe, step=self.step)
            loss = torch.stack(list(parts.values())).sum()
            (loss / settings.accumulation).backward()
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
        with torch.no_grad(), autocast(self.device, self.retriever.backbone.dtype):
            per_set = {each.name: measure(self.retriever, each, self.recipe) for each in self.development}
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
            contract = dataclasses.replace(self.retriever.contract, document=shipped_documents(self.recipe))
            self.retriever.contract = contract
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
        write_json(folder / "environment.json", environment(self.device) | {"steps": self.step, "kept": kept,
                   "seconds": round(self.seconds, 1), "processes": _world()})
