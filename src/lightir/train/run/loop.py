"""The training loop of every stage: optimizer steps, schedule, checkpoints, log, best state, model folder."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import math
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from lightir.addresses import REVISION_MARK, resolve_local
from lightir.errors import AlreadyExists, InvalidInput, WriteFailed
from lightir.files import atomic_folder, exclusive_writer, fsync_path, make_folder, write_bytes, write_json
from lightir.models.devices import usable_device
from lightir.models.model_files import pinned_address
from lightir.progress import Progress
from lightir.train.recipes.recipe_files import recipe_content, recipe_yaml
from lightir.train.recipes.run_recipe import RunRecipe
from lightir.train.recipes.settings import Optimisation
from lightir.train.run.checkpoint import (
    SHARDS,
    checkpoints,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
    save_sharded_checkpoint,
)
from lightir.train.run.curves import FOLDER as TENSORBOARD
from lightir.train.run.curves import Curves
from lightir.train.run.environment import environment
from lightir.train.run.processes import (
    average_gradients,
    barrier,
    from_first,
    is_first,
    join_processes,
    of_all_processes,
    own_device,
    rank,
    world_size,
)
from lightir.train.run.sharded_state import named_tensors, read_tensors
from lightir.train.run.sharding import clip_gradients, fill, fill_shard, shard_of, split, split_layers, split_state
from lightir.train.run.stage import Stage
from lightir.train.run.stopping import noted_interrupts
from lightir.train.run.waiting import first_alone

logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
Recipe = TypeVar("Recipe", bound=RunRecipe)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h

COLLAPSED = 0.9
"""Mean pairwise cosine of documents above which a collapse of the encoder is logged."""


def run_stage(
    recipe: Recipe, out: Path, make: Callable[[Recipe, str], Stage], *, resume: bool = False, device: str = "auto"
) -> Path:
    """Train a stage, write its model folder and return its path.

    Args:
        recipe: the run's recipe, stored with model and checkpoints; a checkpoint resumes under the same recipe only.
        out: model folder to write; during training, `<out>.run` beside it holds recipe, log and checkpoints.
        make: function that builds the stage of a recipe on a device; called after the run's folder is created, with the
            backbone's commit in the recipe if it comes from a hub.
        resume: continue from the last checkpoint.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off, or another process trains there.
        NotFound: there is no checkpoint to resume from.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, when the current step is finished and a checkpoint written.
    """
    if resume and recipe.optimisation.max_minutes:
        logger.warning("optimisation.max_minutes is set: the resumed run follows the clock, so it will differ")
    keep_heap_whole()
    device = join_processes(usable_device(own_device(device)))
    recipe = _pinned(recipe, _run_folder(out) if resume else None)
    with _open_folder(recipe, out, resume=resume) as folder:
        loop = Loop(recipe, make(recipe, device), folder, device)
        if resume:
            loop.restore()
        loop.run()
        return loop.finish(out)


def _pinned(recipe: Recipe, resumed: Path | None) -> Recipe:
    """Return the recipe with the commit of a backbone from a hub: the one of the resumed run, else the newest."""
    address = recipe.model.address
    if resolve_local(address) is not None:
        return recipe
    recorded = resumed / RECIPE_FILE if resumed is not None else None
    if recorded is not None and recorded.is_file():
        before = str(recipe_content(recorded)["model"]["address"])
        pinned = before if before == address or before.startswith(address + REVISION_MARK) else address
    else:
        pinned = pinned_address(address)
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, address=pinned))


def keep_heap_whole() -> None:
    """Make glibc allocate blocks of 4 MB and more in pages of their own, which it returns to the system when freed.

    Batches of different shapes otherwise fragment the heap of a CPU run: SmolLM2 with a teacher grew from 4 to 20 GB in
    110 steps, and stays below 5.5 GB with this setting. Fresh pages cost such a run 29 % of its time in the kernel,
    17 % under GLIBC_TUNABLES=glibc.malloc.hugetlb=1. Other C libraries are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    for parameter, value in ((M_MMAP_THRESHOLD, 4 << 20), (M_TRIM_THRESHOLD, 8 << 20)):
        if not libc.mallopt(parameter, value):
            logger.warning("the C library refused mallopt(%d, %d): memory may grow during the run", parameter, value)


def _run_folder(out: Path) -> Path:
    return out.with_name(out.name + ".run")


@contextmanager
def _open_folder(recipe: RunRecipe, out: Path, *, resume: bool) -> Iterator[Path]:
    """Open the run's folder, locked against other runs."""
    folder = _run_folder(out)
    if out.exists():
        raise AlreadyExists(f"{out} already exists; choose another name or remove it")
    if not resume and checkpoints(folder / "checkpoints"):
        raise AlreadyExists(f"{folder} holds an unfinished run; continue it with resume, or remove it")
    barrier()  # before process 0 removes files that the others read
    with ExitStack() as held:
        if is_first():
            make_folder(folder)
            held.enter_context(exclusive_writer(folder))
            if not resume and (left := list(folder.iterdir())):
                logger.warning("%s holds a run that ended before its first checkpoint; removing it", folder)
                for path in left:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            make_folder(folder / "checkpoints")
            write_bytes(folder / RECIPE_FILE, recipe_yaml(recipe).encode())
        barrier()
        yield folder


@dataclass(slots=True)
class BestState:
    """The best state so far on the development sets; of sharded parameters, this process's shards in main memory."""

    score: float = -math.inf
    step: int = 0
    parameters: dict[str, Tensor] = field(default_factory=dict)


class Loop:
    """One run of one stage."""

    def __init__(self, recipe: RunRecipe, stage: Stage, folder: Path, device: str) -> None:
        """Start at step 0; log and checkpoints are written to `folder`."""
        self.recipe, self.stage, self.folder, self.device = recipe, stage, folder, device
        self.step = 0
        self.seconds = 0.0  # training time before the last resume
        self.best = BestState()
        self.saved = -1  # the last checkpoint's step
        self.curves: Curves | None = None
        settings = recipe.optimisation
        self.parameters = dict(stage.parameters)
        self.join_layers: Callable[[], None] | None = None
        if settings.sharding == "layers" and world_size() > 1:
            self.join_layers = split_layers(stage.trunk, device)
            now = dict(stage.trunk.named_parameters())
            self.parameters = {name: now.get(name, parameter) for name, parameter in self.parameters.items()}
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        torch.manual_seed(settings.seed + 1 + rank())  # dropout differs between processes

    @cached_property
    def given(self) -> dict[str, Any]:
        """The run's inputs beside its recipe, as JSON: fingerprints of texts and the hash of the backbone."""
        data = json.loads(json.dumps(self.stage.records().get("data", {})))
        return {"data": data, "backbone": self.stage.retriever.contract.backbone.weights_hash}

    def restore(self) -> None:
        """Restore the folder's last checkpoint."""
        state = load_checkpoint(self.folder / "checkpoints", recipe=self.recipe, given=self.given)
        self.step, self.seconds, self.saved = state["step"], state["seconds"], state["step"]
        self.stage.restore({name: tensor.to(self.device) for name, tensor in state["fixed"].items()})
        best = read_tensors(state[SHARDS], self.parameters, self.optimizer) if SHARDS in state else self._fill(state)
        self.best = BestState(state["best_score"], state["best_step"], best)
        if is_first():
            _cut_log(self.folder / "log.jsonl", self.step)
        self._restore_random(state["random"])

    def _restore_random(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Restore each process's generators if as many processes wrote the checkpoint; else seed new ones."""
        if len(states) == world_size():
            restore_random_states(states[rank()])
            return
        if is_first():
            logger.warning(
                "%d processes wrote the checkpoint and %d resume it: their random draws (dropout) will differ from an "
                "uninterrupted run's, the batches will not",
                len(states),
                world_size(),
            )
        restore_random_states(states[0])
        fresh = np.random.default_rng([self.recipe.optimisation.seed, self.step, rank()])
        torch.manual_seed(int(fresh.integers(1 << 62)))

    def _fill(self, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Restore a state of whole tensors; return this process's shards of the best state."""
        for name, parameter in self.parameters.items():
            fill(parameter, state["parameters"][name])
        self.optimizer.load_state_dict(split_state(state["optimizer"], list(self.parameters.values())))
        best: Mapping[str, Tensor] = state["best_parameters"]
        return {name: shard_of(split(values, self.parameters[name])) for name, values in best.items()}

    def run(self) -> None:
        """Run optimizer steps until the recipe's steps or minutes are reached.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when the current step is finished and a checkpoint written; after SIGTERM
                its subclass Terminated.
        """
        started = time.monotonic() - self.seconds
        self.curves = Curves(self.folder / TENSORBOARD, step=self.step) if is_first() else None
        bar = Progress("train", unit="step", total=self.recipe.optimisation.steps, done=self.step, shown=is_first())
        try:
            with noted_interrupts() as interrupted, bar:
                while (progress := self._progress(time.monotonic() - started)) < 1:
                    self._logged_step(progress, started, bar)
                    if interrupted():
                        self._stop()
                        raise interrupted.error()
            self.evaluate()
        finally:
            if self.curves is not None:
                self.curves.close()

    def _logged_step(self, progress: float, started: float, bar: Progress) -> None:
        """Run and log one step, and the evaluation and checkpoint that are due after it."""
        settings, every = self.recipe.optimisation, self.recipe.evaluate_every
        begun = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * learning_rate_share(self.step, progress, settings)
        record = self._optimizer_step()
        self.step += 1
        self.seconds = time.monotonic() - started
        record["docs_per_s"] = self.stage.texts_per_step / (time.monotonic() - begun)
        self._write_log({"step": self.step, "seconds": round(self.seconds, 1), **record})
        bar.note(**{name: f"{record[name]:.3g}" for name in ("loss", "nonzeros", "cosine") if name in record})
        bar.update()
        if every and self.step % every == 0 and self._progress(self.seconds) < 1:
            self.evaluate()
        if self.recipe.checkpoint_every and self.step % self.recipe.checkpoint_every == 0:
            self._save_checkpoint()

    def _stop(self) -> None:
        if self.saved != self.step:
            self._save_checkpoint()
        logger.warning("stopped after step %d; its checkpoint is in %s", self.step, self.folder / "checkpoints")

    def _progress(self, seconds: float) -> float:
        settings = self.recipe.optimisation
        by_steps = self.step / settings.steps
        if not settings.max_minutes:
            return by_steps
        return max(by_steps, from_first(seconds / 60 / settings.max_minutes))  # all must stop at the same step

    def _optimizer_step(self) -> dict[str, Any]:
        settings, parameters = self.recipe.optimisation, list(self.parameters.values())
        self.optimizer.zero_grad(set_to_none=True)
        records = []
        for part in range(settings.accumulation):
            parts, monitored = self.stage.losses(self.step * settings.accumulation + part, step=self.step)
            loss = torch.stack(list(parts.values())).sum()
            torch.autograd.backward(loss / settings.accumulation)
            values = {name: float(value.detach()) for name, value in parts.items()}
            records.append({"loss": float(loss.detach()), **values, **monitored})
            if not math.isfinite(records[-1]["loss"]):
                raise InvalidInput(f"the loss is {records[-1]['loss']} at step {self.step}: {values}; lower the rate")
        average_gradients(parameters)
        norm = clip_gradients(parameters, settings.max_gradient_norm)
        self.optimizer.step()
        record = _joined(records)
        record["gradient_norm"] = float(norm)
        record["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        if record.get("cosine", 0.0) > COLLAPSED:
            logger.warning("step %d: documents' mean pairwise cosine is %.3f: collapse", self.step, record["cosine"])
        return record

    def evaluate(self) -> None:
        """Measure the development sets, log the result, and keep the state if it is the best."""
        training = self.stage.trunk.training
        self.stage.trunk.eval()
        with torch.no_grad():
            measured = self.stage.evaluate()
        self.stage.trunk.train(training)
        if measured is None:
            return
        self._write_log({"step": self.step, "development": measured.report})
        score = from_first(measured.score)  # all keep the same state, whatever a GPU's last bits
        if score > self.best.score:
            self.best = BestState(score, self.step, {name: shard_of(p) for name, p in self.parameters.items()})

    def _save_checkpoint(self) -> None:
        self.saved = self.step
        folder = self.folder / "checkpoints"
        self._flush_log()
        inputs: dict[str, Any] = {"recipe": self.recipe, "given": self.given}
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "fixed": dict(self.stage.fixed),
            "random": of_all_processes(random_states()),
            "best_score": self.best.score,
            "best_step": self.best.step,
        }
        if self.join_layers is not None:
            tensors = named_tensors(self.parameters, self.optimizer, self.best.parameters)
            save_sharded_checkpoint(folder, self.step, state, tensors, **inputs)
            return
        state |= {
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimizer": self.optimizer.state_dict(),
            "best_parameters": self.best.parameters,
        }
        first_alone(lambda: save_checkpoint(folder, self.step, state, **inputs), name="writing a checkpoint")

    def _flush_log(self) -> None:
        """Flush the log to disk, so that a run that resumes from the next checkpoint has the records before it."""
        if is_first() and (log := self.folder / "log.jsonl").is_file():
            fsync_path(log)
            fsync_path(self.folder)

    def _write_log(self, record: Mapping[str, Any]) -> None:
        if is_first():
            with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        if self.curves is not None:
            self.curves.write(record)

    def finish(self, out: Path) -> Path:
        """Write the model folder with the best state, and remove the run's folder.

        Raises:
            WriteFailed: the system refused to write (for example, a full disk); the run's folder is kept.
        """
        for name, shard in self.best.parameters.items():
            fill_shard(self.parameters[name], shard)
        self.stage.trunk.eval()
        self.stage.complete()
        if self.join_layers is not None:
            self.join_layers()
        first_alone(lambda: self._write(out), name="writing the model")
        return out

    def _write(self, out: Path) -> None:
        try:
            self._write_model(out)
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(out.parent).free
            complete = checkpoints(self.folder / "checkpoints")
            stays = f"{complete[-1]} is complete: make room and resume" if complete else "there is no checkpoint"
            raise WriteFailed(f"{out} cannot be written, {free / 1e6:,.1f} MB are free: {error}; {stays}") from error
        shutil.rmtree(self.folder)

    def _write_model(self, out: Path) -> None:
        with atomic_folder(out) as folder:
            self.stage.save(folder)
            self._write_records(folder / "training")

    def _write_records(self, folder: Path) -> None:
        folder.mkdir()
        for name in (RECIPE_FILE, "log.jsonl"):
            shutil.copyfile(self.folder / name, folder / name)
        if (self.folder / TENSORBOARD).is_dir():
            shutil.copytree(self.folder / TENSORBOARD, folder / TENSORBOARD)
        for name, content in self.stage.records().items():
            write_json(folder / f"{name}.json", content)
        kept = {"step": self.best.step, "score": self.best.score} if self.best.parameters else {"step": self.step}
        write_json(
            folder / "environment.json",
            environment(self.device)
            | {"steps": self.step, "kept": kept, "seconds": round(self.seconds, 1), "processes": world_size()},
        )


def _joined(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the records of a step's forward passes: the mean of numbers, the last of other values."""
    return {
        name: float(np.mean([record[name] for record in records])) if isinstance(value, int | float) else value
        for name, value in records[-1].items()
    }


def learning_rate_share(step: int, progress: float, settings: Optimisation) -> float:
    """Return the share of the peak learning rate: linear warm-up, then down to final_share over the remaining run.

    Args:
        step: number of optimizer steps done.
        progress: share of the run that is done, in [0, 1).
        settings: settings with the schedule.
    """
    warmup = min(settings.warmup_steps / settings.steps, 1.0)
    after = (progress - warmup) / (1 - warmup) if progress > warmup else 0.0
    falling = 1 - after if settings.schedule == "linear" else (1 + math.cos(math.pi * after)) / 2
    share = settings.final_share + (1 - settings.final_share) * falling
    return min(1.0, (step + 1) / (settings.warmup_steps + 1)) * share


def _cut_log(path: Path, step: int) -> None:
    """Remove the log records after a checkpoint, and an incomplete last line."""
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
