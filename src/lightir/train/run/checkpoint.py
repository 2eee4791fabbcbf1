"""Checkpoints of a run: the state that the next step depends on, written atomically."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightir.contract import differences, from_json, to_json
from lightir.errors import FormatError, NotFound, WriteFailed
from lightir.files import atomic_folder, read_json, write_json
from lightir.train.recipes.run_recipe import REASONS
from lightir.train.run.processes import is_first, of_all_processes
from lightir.train.run.sharded_state import write_tensors
from lightir.train.run.waiting import first_alone

FORMAT_VERSION = 4
READABLE = (3, 4)
"""Format versions that can be resumed: 3 has no shards."""

KEPT = 2
SHARDS = "shards"
"""Name of a checkpoint's folder of sharded tensors; a run without sharding has none."""

_STATE = "state.pt"
_HEADER = "checkpoint.json"


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and torch's generators, those of GPUs included."""
    algorithm, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # peft and others draw from it
    return {
        "python": random.getstate(),
        "numpy": (algorithm, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set the generators to states from `random_states`."""
    random.setstate(states["python"])
    algorithm, keys, *rest = states["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], *, recipe: Any, given: Mapping[str, Any] | None = None
) -> Path:
    """Write the state after a step to folder/step-NNNNNNN atomically, and remove all but the last two checkpoints.

    Args:
        folder: the run's checkpoint folder.
        step: number of optimizer steps done.
        state: tensors, numbers, strings and containers of them, as torch.load reads with weights_only.
        recipe: the run's recipe; another recipe cannot resume this checkpoint.
        given: the run's other inputs as JSON, such as fingerprints of its data and of the backbone's weights; a run
            with other inputs cannot resume this checkpoint.

    Raises:
        WriteFailed: the system refused to write (for example, a full disk); earlier checkpoints are complete.
    """
    with _naming(folder, step), atomic_folder(target := _path(folder, step), overwrite=True) as aside:
        _write_state(aside, step, state, recipe, given)
    _remove_old(folder)
    return target


def save_sharded_checkpoint(
    folder: Path,
    step: int,
    state: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    recipe: Any,
    given: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint of which each process writes its own shards; all processes must call this function.

    Process 0 writes the header last and renames the folder, so that the checkpoint is complete or missing.

    Args:
        folder: the run's checkpoint folder, on a file system that all processes share.
        step: number of optimizer steps done.
        state: process 0's values, as in `save_checkpoint`.
        tensors: sharded and whole tensors by name.
        recipe: the run's recipe.
        given: the run's other inputs as JSON.

    Raises:
        WriteFailed: a process could not write; raised on all of them. Earlier checkpoints are complete.
    """
    with _naming(folder, step), ExitStack() as opened:
        aside, failure = None, ""
        if is_first():
            try:
                aside = opened.enter_context(atomic_folder(_path(folder, step), overwrite=True))
            except OSError as error:
                failure = str(error)
        aside, failure = of_all_processes((aside, failure))[0]
        if aside is None:
            raise WriteFailed(failure)
        if not all(of_all_processes(aside.is_dir())):
            raise WriteFailed(
                f"{folder} is on a file system that not all processes share, which sharded layers require"
            )
        write_tensors(aside / SHARDS, tensors)

        def complete() -> None:
            _write_state(aside, step, state, recipe, given)
            opened.close()
            _remove_old(folder)

        first_alone(complete, name="writing a checkpoint")


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:07d}"


def _write_state(
    aside: Path, step: int, state: Mapping[str, Any], recipe: Any, given: Mapping[str, Any] | None
) -> None:
    torch.save(dict(state), aside / _STATE)
    header = {"format_version": FORMAT_VERSION, "step": step, "recipe": to_json(recipe), "given": given}
    write_json(aside / _HEADER, header)


def _remove_old(folder: Path) -> None:
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)


@contextmanager
def _naming(folder: Path, step: int) -> Iterator[None]:
    """Turn the system's refusal to write into an error that says which checkpoint failed and what to do."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError about streams
        free = shutil.disk_usage(folder).free
        raise WriteFailed(
            f"the checkpoint of step {step} cannot be written to {folder}, where {free / 1e6:,.1f} MB are free: "
            f"{error}; earlier checkpoints are complete: make room and resume"
        ) from error


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / _HEADER).is_file())


def load_checkpoint(folder: Path, *, recipe: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load the folder's last checkpoint; under SHARDS, the folder of its sharded tensors if it has one.

    The recipes are compared field by field. A field that the checkpoint lacks, because it is newer than the run, counts
    as its default; a default that changed since is a difference. REASONS may differ. Other inputs are compared, too,
    unless the checkpoint has no record of them.

    Raises:
        NotFound: there is no checkpoint.
        FormatError: another format version, or a run with another recipe, data or backbone; the message names what
            differs.
    """
    complete = checkpoints(folder)
    if not complete:
        raise NotFound(f"{folder} holds no checkpoint to resume from; start without resume")
    last = complete[-1]
    header = read_json(last / _HEADER)
    if header.get("format_version") not in READABLE:
        versions = " and ".join(map(str, READABLE))
        raise FormatError(
            f"{last} has checkpoint format {header.get('format_version')!r}; this release reads {versions}"
        )
    before = from_json(type(recipe), header["recipe"], str(last / _HEADER))
    was_set, is_set = (
        {key: value for key, value in to_json(settings).items() if key not in REASONS} for settings in (before, recipe)
    )
    changed = [f"{field} was {was!r} and is {now!r}" for field, was, now in differences("recipe", was_set, is_set)]
    if changed:
        raise FormatError(
            f"{last} was written under another recipe: {'; '.join(changed)}; resume with the run's own recipe"
        )
    if header.get("given") is not None and given is not None:
        other = [
            f"{field} was {was!r} and is {now!r}"
            for name in given
            for field, was, now in differences(name, header["given"].get(name), given[name])
        ]
        if other:
            raise FormatError(
                f"{last} belongs to other data or another backbone: {'; '.join(other)}; resume with the run's "
                "own, or start a new run"
            )
    state: dict[str, Any] = torch.load(last / _STATE, map_location="cpu", weights_only=True)
    return state | ({SHARDS: last / SHARDS} if (last / SHARDS).is_dir() else {})
