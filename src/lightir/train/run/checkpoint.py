"""Checkpoints of a run: all that the next step depends on, whole on the disk or not there."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightir.contract import differences, from_json, to_json
from lightir.errors import FormatError, NotFound, WriteFailed
from lightir.files import atomic_folder, read_json, write_json

FORMAT_VERSION = 3
KEPT = 2
_STATE = "state.pt"
_HEADER = "checkpoint.json"


def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's and torch's generators, the GPUs' included."""
    algorithm, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002  # peft and others draw from it
    return {
        "python": random.getstate(),
        "numpy": (algorithm, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set the generators to what random_states gave."""
    random.setstate(states["python"])
    algorithm, keys, *rest = states["numpy"]
    np.random.set_state((algorithm, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def save_checkpoint(
    folder: Path, step: int, state: Mapping[str, Any], *, recipe: Any, given: Mapping[str, Any] | None = None
) -> Path:
    """Write the state after a step as folder/step-NNNNNNN, whole or not at all, and drop all but the last two.

    Args:
        folder: the run's checkpoint folder.
        step: optimizer steps done.
        state: tensors, numbers, strings and containers of them: what torch.load reads with weights_only.
        recipe: the run's; another recipe cannot resume from here.
        given: what else the run was given, as JSON, such as fingerprints of its data and of the backbone's weights; it
            cannot be resumed with others.

    Raises:
        WriteFailed: the system refused, a full disk for one; the checkpoints before are whole.
    """
    target = folder / f"step-{step:07d}"
    try:
        with atomic_folder(target, overwrite=True) as aside:
            torch.save(dict(state), aside / _STATE)
            header = {"format_version": FORMAT_VERSION, "step": step, "recipe": to_json(recipe), "given": given}
            write_json(aside / _HEADER, header)
    except (OSError, RuntimeError) as error:  # torch.save tells of a full disk as a RuntimeError about streams
        free = shutil.disk_usage(folder).free
        raise WriteFailed(
            f"the checkpoint of step {step} cannot be written to {folder}, where {free / 1e6:,.1f} MB are free: "
            f"{error}; the checkpoints before it are whole: make room and resume"
        ) from error
    for old in checkpoints(folder)[:-KEPT]:
        shutil.rmtree(old)
    return target


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in a folder, oldest first; what a kill left half-written is no checkpoint."""
    return sorted(path for path in folder.glob("step-*") if (path / _HEADER).is_file())


def load_checkpoint(folder: Path, *, recipe: Any, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The state of the folder's last checkpoint.

    The recipes are compared field by field. A field that the checkpoint's lacks, because it is newer than the run,
    counts as its default there; a default that changed since is a difference. So is what else was given, unless the
    checkpoint is older than its record.

    Raises:
        NotFound: there is none.
        FormatError: another version, or of a run with another recipe, data or backbone; what differs is named.
    """
    found = checkpoints(folder)
    if not found:
        raise NotFound(f"{folder} holds no checkpoint to resume from; start without resume")
    header = read_json(found[-1] / _HEADER)
    if header.get("format_version") != FORMAT_VERSION:
        raise FormatError(
            f"{found[-1]} has checkpoint format {header.get('format_version')!r}; this release reads {FORMAT_VERSION}"
        )
    before = from_json(type(recipe), header["recipe"], str(found[-1] / _HEADER))
    changed = [
        f"{field} was {was!r} and is {now!r}"
        for field, was, now in differences("recipe", to_json(before), to_json(recipe))
    ]
    if changed:
        raise FormatError(
            f"{found[-1]} was written under another recipe: {'; '.join(changed)}; resume with the run's own"
        )
    if header.get("given") is not None and given is not None:
        other = [
            f"{field} was {was!r} and is {now!r}"
            for name in given
            for field, was, now in differences(name, header["given"].get(name), given[name])
        ]
        if other:
            raise FormatError(
                f"{found[-1]} belongs to other data or another backbone: {'; '.join(other)}; resume with the run's "
                "own, or begin anew"
            )
    state: dict[str, Any] = torch.load(found[-1] / _STATE, map_location="cpu", weights_only=True)
    return state
