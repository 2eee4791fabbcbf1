"""Tensors of a sharded run in a checkpoint: each process writes and reads its own shards, and nothing is gathered.

The folder has the format of torch.distributed.checkpoint. Its `.metadata` is a pickle, so read only your own runs'.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from lightir.errors import FormatError, WriteFailed
from lightir.train.run.processes import world_size
from lightir.train.run.sharding import shard_of, with_shard

PARAMETER, BEST, OPTIMIZER = "parameter", "best", "optimizer"
"""Kinds of stored tensors: PARAMETER/NAME, BEST/NAME and OPTIMIZER/STATE/NAME, by the parameter's name."""


def named_tensors(
    parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, best: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of a run's state by their names in a checkpoint, sharded as the parameters are.

    Args:
        parameters: trained tensors by name, in the optimizer's order.
        optimizer: optimizer of the parameters.
        best: this process's shards of the best state (`sharding.shard_of`) by name; empty without one.
    """
    names = list(parameters)
    tensors = {f"{PARAMETER}/{name}": parameter.detach() for name, parameter in parameters.items()}
    for number, values in optimizer.state_dict()["state"].items():
        tensors |= {f"{OPTIMIZER}/{state}/{names[number]}": value for state, value in values.items()}
    return tensors | {f"{BEST}/{name}": with_shard(shard, like=parameters[name]) for name, shard in best.items()}


def write_tensors(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors, each process its shards and a part of the whole ones; all processes must call this function.

    Raises:
        WriteFailed: a process could not write; raised on all of them.
    """
    try:
        save(dict(tensors), storage_writer=FileSystemWriter(folder, sync_files=True), no_dist=world_size() == 1)
    except (CheckpointException, OSError, RuntimeError) as error:
        raise WriteFailed(f"{folder} cannot be written: {_cause(error)}") from error


def read_tensors(folder: Path, parameters: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Restore parameters and optimizer in place, for any number of processes; return the shards of the best state.

    Each process reads what its own shards need. All processes must call this function.

    Args:
        folder: folder that `write_tensors` wrote, with any number of processes.
        parameters: trained tensors by name, in the optimizer's order.
        optimizer: optimizer of the parameters.

    Raises:
        FormatError: the folder is damaged, or has other parameters.
    """
    try:
        wanted = _templates(FileSystemReader(folder), parameters)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads alone
            load(wanted, storage_reader=FileSystemReader(folder), no_dist=world_size() == 1)
    except (CheckpointException, OSError, RuntimeError, ValueError, EOFError) as error:
        raise FormatError(f"{folder} is damaged or incomplete: {_cause(error)}; resume from an earlier one") from error
    states: dict[int, dict[str, Tensor]] = {}
    numbers = {name: number for number, name in enumerate(parameters)}
    best = {}
    for key, tensor in wanted.items():
        kind, rest = key.split("/", 1)
        if kind == OPTIMIZER:
            state, name = rest.split("/", 1)
            states.setdefault(numbers[name], {})[state] = tensor
        elif kind == BEST:
            best[rest] = shard_of(tensor)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return best


def _templates(reader: FileSystemReader, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors to read into: the parameters themselves, and empty ones sharded like them."""
    templates: dict[str, Tensor] = {f"{PARAMETER}/{name}": parameter.detach() for name, parameter in parameters.items()}
    for key, entry in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)  # write_tensors writes nothing else
        like = parameters.get(key.split("/", 2 if key.startswith(OPTIMIZER) else 1)[-1])
        if like is None:
            raise ValueError(f"{key} belongs to no trained tensor of this run")
        if key not in templates:
            scalar = torch.empty(entry.size, dtype=entry.properties.dtype)
            same_shape = tuple(entry.size) == tuple(like.shape)
            templates[key] = torch.empty_like(like.detach(), dtype=entry.properties.dtype) if same_shape else scalar
    return templates


def _cause(error: BaseException) -> str:
    """Return the processes' own errors, without the traceback that torch adds to them."""
    if not isinstance(error, CheckpointException):
        return str(error)
    return "; ".join(f"process {number}: {failure[0]}" for number, failure in sorted(error.failures.items()))
