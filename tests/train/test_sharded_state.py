"""Checkpoints of sharded layers: every process writes its own shards, and any number of processes reads them."""

from __future__ import annotations

import itertools
import resource
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightir.errors import FormatError, LightirError
from lightir.train.recipes.settings import Optimisation
from lightir.train.run.checkpoint import checkpoints, load_checkpoint, save_sharded_checkpoint
from lightir.train.run.sharded_state import named_tensors, read_tensors, write_tensors
from lightir.train.run.sharding import fill_shard, shard_of, split_layers
from processes import first_of

RECIPE = Optimisation()
WIDTHS = (40, 50, 70, 30)
"""Numbers of rows that neither two nor three processes share evenly."""


class Trunk(nn.Module):
    """An embedding, which stays whole, and three layers, which are sharded."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(10, WIDTHS[0])
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)])
        self.unused = nn.Parameter(torch.ones(3))  # no loss reads it, so the optimizer has no state for it

    def forward(self, ids: Tensor) -> Tensor:
        states: Tensor = self.embedding(ids)
        for layer in self.layers:
            states = layer(states).tanh()
        return states


class Training:
    """The trunk with its optimizer, sharded if there are several processes."""

    def __init__(self) -> None:
        self.trunk = Trunk()
        if dist.is_initialized():
            self.join = split_layers(self.trunk, "cpu")
        self.parameters = dict(self.trunk.named_parameters())
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=0.01)

    def step(self, number: int) -> None:
        """Take a step that all processes take alike."""
        self.optimizer.zero_grad()
        self.trunk((torch.arange(4) + number) % 10).square().sum().backward()
        self.optimizer.step()

    def shards(self) -> dict[str, Tensor]:
        """Return this process's shards of the parameters."""
        return {name: shard_of(parameter) for name, parameter in self.parameters.items()}

    def tensors(self, best: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        return named_tensors(self.parameters, self.optimizer, best)


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return whole copies of tensors: the oracle."""
    gathered = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in gathered.items()}


def written(folder: Path) -> dict[str, Tensor]:
    """Write a state after two steps, whose best is after one; return the whole values."""
    training = Training()
    training.step(0)
    best = training.shards()
    training.step(1)
    with mock.patch.object(DTensor, "full_tensor", side_effect=AssertionError("a process gathers a whole tensor")):
        tensors = training.tensors(best)
        write_tensors(folder, tensors)
    world = dist.get_world_size()
    split = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, DTensor)}
    assert len(split) == 6 * 4  # weights and biases of three layers: parameter, best, and two moments
    held = sum(tensor.to_local().numel() for tensor in split.values())
    assert held <= sum(-(-tensor.shape[0] // world) * tensor[0].numel() for tensor in split.values())
    sizes = [path.stat().st_size for path in folder.glob("*.distcp")]
    assert len(sizes) == world
    assert max(sizes) < 0.7 * sum(sizes)  # the processes share the writing
    return whole(tensors)


def read(folder: Path) -> dict[str, Tensor]:
    """Return the whole values of a stored state, read into a training of its own after another step."""
    training = Training()
    training.step(5)
    best = read_tensors(folder, training.parameters, training.optimizer)
    restored = whole(training.tensors({}))
    for name, shard in best.items():
        fill_shard(training.parameters[name], shard)
    return restored | {f"best/{name}": value for name, value in whole(training.parameters).items()}


def continued(folder: Path) -> dict[str, Tensor]:
    """Return the whole parameters after another step of a stored state."""
    training = Training()
    read_tensors(folder, training.parameters, training.optimizer)
    training.step(2)
    return whole(training.parameters)


def uninterrupted() -> dict[str, Tensor]:
    """Return the whole parameters after three steps."""
    training = Training()
    for number in range(3):
        training.step(number)
    return whole(training.parameters)


def test_any_number_of_processes_reads_what_two_wrote(tmp_path: Path) -> None:
    expected = first_of(2, partial(written, tmp_path / "state"), tmp_path)
    assert expected["parameter/layers.1.weight"].shape == (70, 50)
    alone = read(tmp_path / "state")
    for world in (2, 3):
        (tmp_path / str(world)).mkdir()
    results = [alone, *(first_of(world, partial(read, tmp_path / "state"), tmp_path / str(world)) for world in (2, 3))]
    for result in results:
        assert result.keys() == expected.keys()
        assert all(torch.equal(result[name], expected[name]) for name in expected)
    assert not torch.equal(expected["best/layers.0.weight"], expected["parameter/layers.0.weight"])


def test_a_restored_state_takes_the_next_step_of_an_uninterrupted_run(tmp_path: Path) -> None:
    first_of(2, partial(written, tmp_path / "state"), tmp_path)
    (tmp_path / "again").mkdir()
    result = first_of(2, partial(continued, tmp_path / "state"), tmp_path / "again")
    (tmp_path / "whole").mkdir()
    expected = first_of(2, uninterrupted, tmp_path / "whole")
    assert all(torch.equal(result[name], expected[name]) for name in expected)


def joined() -> dict[str, Tensor]:
    """Return what each process holds of the layers after they were joined for saving; process 0's are whole."""
    training = Training()
    frozen = training.parameters["layers.2.weight"]
    frozen.requires_grad_(False)
    training.join()
    layers = {f"layers.{name}": parameter for name, parameter in training.trunk.layers.named_parameters()}
    plain = {name for name, parameter in layers.items() if not isinstance(parameter, DTensor)}
    assert plain == (layers.keys() - {"layers.2.weight"} if dist.get_rank() == 0 else set())
    return {name: layers[name].detach() for name in plain}


def test_process_0_alone_holds_the_joined_weights(tmp_path: Path) -> None:
    result = first_of(2, joined, tmp_path)
    expected = dict(Trunk().named_parameters())
    assert len(result) == 5
    assert all(torch.equal(tensor, expected[name]) for name, tensor in result.items())


def saved(folder: Path, hinder: Callable[[], object]) -> dict[str, Tensor]:
    """Write the checkpoint of step 1, then fail to write that of step 2."""
    training = Training()
    training.step(0)
    save_sharded_checkpoint(folder, 1, {"step": 1}, training.tensors({}), recipe=RECIPE)
    if dist.get_rank() == 1:
        hinder()
    with pytest.raises(LightirError, match=r"step 2 cannot be written.*earlier checkpoints are complete"):
        save_sharded_checkpoint(folder, 2, {"step": 2}, training.tensors({}), recipe=RECIPE)
    return {}


def _fill_disk() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def _see_no_folders() -> None:
    mock.patch.object(Path, "is_dir", return_value=False).start()


@pytest.mark.parametrize("hinder", [_fill_disk, _see_no_folders])
def test_a_process_that_cannot_write_leaves_the_last_checkpoint_whole(
    hinder: Callable[[], object], tmp_path: Path
) -> None:
    """One process has a full disk, or a file system of its own."""
    (tmp_path / "checkpoints").mkdir()
    first_of(2, partial(saved, tmp_path / "checkpoints", hinder), tmp_path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000001"]
    state = load_checkpoint(tmp_path / "checkpoints", recipe=RECIPE)
    assert state["step"] == 1
    training = Training()
    read_tensors(state["shards"], training.parameters, training.optimizer)


def written_to(folder: Path) -> dict[str, Tensor]:
    training = Training()
    for step in (1, 2, 3):
        save_sharded_checkpoint(folder, step, {"step": step}, training.tensors({}), recipe=RECIPE)
    return {}


def test_the_last_two_are_kept_and_damage_is_told(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    first_of(2, partial(written_to, tmp_path / "checkpoints"), tmp_path)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-0000002", "step-0000003"]
    shards = load_checkpoint(tmp_path / "checkpoints", recipe=RECIPE)["shards"]
    training = Training()
    other = {"another": nn.Parameter(torch.zeros(3))}
    with pytest.raises(FormatError, match="belongs to no trained tensor"):
        read_tensors(shards, other, torch.optim.AdamW(other.values()))
    file = next(shards.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(FormatError, match="damaged or incomplete"):
        read_tensors(shards, training.parameters, training.optimizer)
