"""Runs that end early by Ctrl-C, a full disk or a dead process; and the curves written with the log."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file

from interrupted import cut
from lightir.errors import AlreadyExists, WriteFailed
from lightir.files import exclusive_writer
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.run import stopping
from lightir.train.run.checkpoint import checkpoints, load_checkpoint
from lightir.train.run.curves import Curves, numbers
from lightir.train.run.loop import Loop
from lightir.train.run.stopping import noted_interrupts
from lightir.train.stages.contrastive import train
from processes import join


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """Restore the default handling of Ctrl-C: a background job ignores it from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plain(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
    """Return a recipe of six steps without evaluation, with a checkpoint every two steps."""
    return dataclasses.replace(recipe, evaluation=BranchEvaluation())


def losses(model: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (model / "training" / "log.jsonl").read_text().splitlines()]


def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(str(model / "adapter" / "adapter_model.safetensors"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_a_real_run_with_its_exit_code_a_checkpoint_and_a_word_on_how_to_go_on(
    number: signal.Signals, plain: ContrastiveRecipe, tmp_path: Path
) -> None:
    endless = dataclasses.replace(
        plain, optimisation=dataclasses.replace(plain.optimisation, steps=100_000), checkpoint_every=0
    )
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(endless))
    command = [sys.executable, "-m", "lightir", "train", "recipe.yaml", "--out", "model", "--device", "cpu"]
    listening = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731  # a shell may ignore it
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=listening)
    log = tmp_path / "model.run" / "log.jsonl"
    until = time.monotonic() + 300
    while not (log.is_file() and log.read_text().count("\n") >= 2):
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    _, messages = process.communicate(timeout=300)
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], messages
    assert f"lightir: {'interrupted' if number == signal.SIGINT else 'terminated'}; checkpoints are in" in messages
    assert "--resume" in messages
    last = json.loads(log.read_text().splitlines()[-1])["step"]
    assert [path.name for path in checkpoints(log.parent / "checkpoints")] == [f"step-{last:07d}"]
    assert not (tmp_path / "model").exists()


def test_a_run_resumed_after_ctrl_c_equals_an_uninterrupted_one(
    plain: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(plain, tmp_path / "whole", device="cpu")
    original = Loop._optimizer_step

    def interrupted(self: Loop) -> dict[str, object]:
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    monkeypatch.setattr(Loop, "_optimizer_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(plain, tmp_path / "cut", device="cpu")
    monkeypatch.undo()
    names = [path.name for path in checkpoints(tmp_path / "cut.run" / "checkpoints")]
    assert names == ["step-0000002", "step-0000003"]
    with pytest.raises(AlreadyExists, match="unfinished run"):
        train(plain, tmp_path / "cut", device="cpu")
    resumed = train(plain, tmp_path / "cut", resume=True, device="cpu")
    assert losses(resumed) == losses(whole)
    assert all(torch.equal(weights(resumed)[name], weight) for name, weight in weights(whole).items())


def test_a_second_ctrl_c_interrupts_at_once_and_afterwards_all_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals within ONE_PRESS count as one: torchrun repeats Ctrl-C to processes that the terminal has interrupted."""
    before = signal.getsignal(signal.SIGINT)
    with noted_interrupts() as interrupted:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted()
    monkeypatch.setattr(stopping, "ONE_PRESS", 0.0)
    with pytest.raises(KeyboardInterrupt), noted_interrupts() as interrupted:  # noqa: PT012
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupted()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_and_ignored_signals_are_left_alone() -> None:
    result = []

    def elsewhere() -> None:
        with noted_interrupts() as interrupted:
            result.append((interrupted(), signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert result == [(False, before)]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with noted_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_again(
    plain: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: Loop) -> dict[str, object]:
        raise OSError("the cable")

    monkeypatch.setattr(Loop, "_optimizer_step", broken)
    with pytest.raises(OSError, match="the cable"):
        train(plain, tmp_path / "model", device="cpu")
    monkeypatch.undo()
    with caplog.at_level(logging.WARNING):
        train(plain, tmp_path / "model", device="cpu")
    assert "before its first checkpoint" in caplog.text


def test_a_run_that_is_still_going_on_is_not_begun_again(plain: ContrastiveRecipe, tmp_path: Path) -> None:
    (tmp_path / "model.run").mkdir()
    (tmp_path / "model.run" / "log.jsonl").touch()
    with (
        exclusive_writer(tmp_path / "model.run"),
        pytest.raises(AlreadyExists, match=r"another process is writing .*model\.run"),
    ):
        train(plain, tmp_path / "model", device="cpu")
    assert (tmp_path / "model.run" / "log.jsonl").exists()


@contextmanager
def a_full_disk() -> Iterator[None]:
    """Limit files to 4 kB, so that real writes fail half-way."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize(
    ("method", "kept", "message"),
    [
        ("_save_checkpoint", "step-0000002", r"step 4 cannot be written.* MB are free.*make room and resume"),
        ("_write_model", "step-0000006", r"cut cannot be written.* MB are free.*step-0000006 is complete: make room"),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint_whole(
    method: str, kept: str, message: str, plain: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies while it writes the second checkpoint or the model."""
    whole = train(plain, tmp_path / "whole", device="cpu")
    original = getattr(Loop, method)

    def on_a_full_disk(self: Loop, *args: Path) -> None:
        if self.step < 4:
            return original(self, *args)
        with a_full_disk():
            return original(self, *args)

    monkeypatch.setattr(Loop, method, on_a_full_disk)
    with pytest.raises(WriteFailed, match=message):
        train(plain, tmp_path / "cut", device="cpu")
    monkeypatch.undo()
    assert checkpoints(tmp_path / "cut.run" / "checkpoints")[-1].name == kept
    assert not (tmp_path / "cut").exists()
    resumed = train(plain, tmp_path / "cut", resume=True, device="cpu")
    assert losses(resumed) == losses(whole)


def _process(number: int, world: int, meeting: Path, recipe: ContrastiveRecipe, out: Path) -> None:
    join(number, world, meeting)
    original = Loop._optimizer_step

    def dying(self: Loop) -> dict[str, object]:
        if self.step == 3 and number == 1:
            os._exit(9)
        return original(self)

    Loop._optimizer_step = dying  # type: ignore[method-assign]
    try:
        train(recipe, out, device="cpu")
    except RuntimeError:
        os._exit(7)


def test_a_dead_process_leaves_the_last_checkpoint_whole(plain: ContrastiveRecipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(plain, model=dataclasses.replace(plain.model, lora_dropout=0.0))
    context = multiprocessing.start_processes(
        _process, args=(2, tmp_path / "meeting", recipe, tmp_path / "cut"), nprocs=2, join=False, start_method="fork"
    )
    assert context is not None
    for process in context.processes:
        process.join(timeout=120)
    assert [process.exitcode for process in context.processes] == [7, 9]
    assert [path.name for path in checkpoints(tmp_path / "cut.run" / "checkpoints")] == ["step-0000002"]
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    # The run continues in one process; two processes sum in another order.
    assert losses(resumed) == pytest.approx(losses(train(recipe, tmp_path / "whole", device="cpu")), rel=1e-3)


def test_a_records_numbers_are_named_by_their_place() -> None:
    record = {"step": 3, "loss": 1.5, "dataset": "x", "on": True, "development": {"mean": {"dense": 0.5}, "step": 2}}
    assert dict(numbers(record)) == {"loss": 1.5, "development/mean/dense": 0.5, "development/step": 2.0}


def test_without_tensorboard_its_absence_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with caplog.at_level(logging.INFO):
        curves = Curves(tmp_path, step=0)
    curves.write({"step": 1, "loss": 2.0})
    curves.close()
    assert "lightir[tensorboard]" in caplog.text
    assert not list(tmp_path.iterdir())


def test_tensorboard_reads_what_the_log_says(plain: ContrastiveRecipe, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = train(plain, tmp_path / "model", device="cpu")
    events = EventAccumulator(str(model / "training" / "tensorboard"))
    events.Reload()
    assert [Scalar.value for Scalar in events.Scalars("loss")] == pytest.approx(losses(model))
    assert [Scalar.step for Scalar in events.Scalars("loss")] == [1, 2, 3, 4, 5, 6]


def _stopped_and_resumed(number: int, world: int, meeting: Path, recipe: ContrastiveRecipe, out: Path) -> None:
    join(number, world, meeting)
    train(recipe, out / "whole", device="cpu")
    for name in ("two", "one"):
        cut(lambda name=name: train(recipe, out / name, device="cpu"), at=3)  # type: ignore[misc]
    train(recipe, out / "two", resume=True, device="cpu")
    dist.destroy_process_group()


def test_each_process_goes_on_with_its_own_dropout_and_another_number_of_them_is_said(
    plain: ContrastiveRecipe, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    multiprocessing.spawn(_stopped_and_resumed, args=(2, tmp_path / "meeting", plain, tmp_path), nprocs=2)
    assert losses(tmp_path / "two") == losses(tmp_path / "whole")
    one, other = weights(tmp_path / "two"), weights(tmp_path / "whole")
    assert all(torch.equal(one[name], item) for name, item in other.items())
    states = load_checkpoint(tmp_path / "one.run" / "checkpoints", recipe=plain)["random"]
    assert not torch.equal(states[0]["torch"], states[1]["torch"])
    alone = train(plain, tmp_path / "one", resume=True, device="cpu")
    assert "2 processes wrote the checkpoint and 1 resume it" in caplog.text
    assert losses(alone)[:2] == losses(tmp_path / "whole")[:2]
    assert losses(alone)[2:] != losses(tmp_path / "whole")[2:]
