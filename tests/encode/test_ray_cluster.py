"""Encoding on two nodes of a real Ray cluster on this machine: `make test-ray`."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from lightir.files import checksums_of_files
from lightir.shards import VectorsReader
from ray_nodes import RayNodes, killed_at_the_end, short_folder
from tiny_bert import save_bert, save_model
from tiny_vectors import save_tiny_retriever

PORT = 9487
SHARDS, DOCUMENTS = 8, 512
PATCH = """
import os, pathlib, sys, time
import lightir.shards
write, folder = lightir.shards.write_aside, pathlib.Path(os.environ["PATCH_FOLDER"])
def write_aside(vectors, number, shard):
    node = os.environ["PATCH_NODE"]
    with (folder / "log").open("a") as log:
        log.write(f"{node} {number}\\n")
    with (folder / "loaded").open("a") as loaded:
        loaded.write(("torch" if sys.modules.get("torch") else "no torch") + "\\n")
    if node == "second":  # half a shard, and then nothing more
        half = vectors / f".shard-{number:05d}.half"
        half.mkdir()
        (half / "documents.jsonl").write_text("{")
        (folder / "in-the-middle").touch()
        time.sleep(600)
    while number > 1 and (folder / "hold").exists():
        time.sleep(0.05)
    return write(vectors, number, shard)
lightir.shards.write_aside = write_aside
"""
"""A sitecustomize module of the nodes: it logs each shard, and whether torch is loaded. The second node stops in the
middle of its first shard. While there is a file "hold", nobody writes a shard after the second."""


NO_TORCH = 'import sys; sys.modules["torch"] = None'
"""A sitecustomize module of a process in which torch is not installed."""


class Cluster(RayNodes):
    """Two nodes: the first encodes, the second stops in the middle of a shard and waits to be killed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PORT)
        (folder / "patch").mkdir()
        (folder / "patch" / "sitecustomize.py").write_text(PATCH)
        (folder / "no-torch").mkdir()
        (folder / "no-torch" / "sitecustomize.py").write_text(NO_TORCH)

    def environment(self, node: str) -> dict[str, str]:
        patched = {"PYTHONPATH": str(self.folder / "patch"), "PATCH_NODE": node, "PATCH_FOLDER": str(self.folder)}
        return super().environment(node) | patched

    def encode(self, model: Path, corpus: Path, out: Path, *more: str, no_torch: bool = False) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lightir", "encode", str(model), str(corpus), "--out", str(out), *more]
        path = str(self.folder / "no-torch") if no_torch else ""
        environment = {**self.environment("first"), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        return subprocess.Popen(
            [*command, "--batch-tokens", "30", "--dtype", "fp32"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may ignore it
        )

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with short_folder() as folder:
        cluster = Cluster(folder)
        with killed_at_the_end(cluster):
            cluster.start("first")
            yield cluster


@pytest.fixture(scope="module")
def inputs(cluster: Cluster) -> tuple[Path, Path, Path]:
    """A model, a corpus, and the vectors that one process encodes."""
    folder = cluster.folder
    model = save_tiny_retriever(folder)
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(f'{{"_id": "d{i}", "text": "{"word " * (5 + i % 3)}"}}\n' for i in range(DOCUMENTS)))
    alone = cluster.encode(model, corpus, folder / "alone")
    _, messages = alone.communicate()
    assert alone.returncode == 0, messages
    assert len(VectorsReader(folder / "alone").manifest["shards"]) == SHARDS
    return model, corpus, folder / "alone"


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_keeps_finished_shards_and_a_resumed_run_encodes_the_others(
    cluster: Cluster, inputs: tuple[Path, Path, Path]
) -> None:
    model, corpus, alone = inputs
    out, hold = cluster.folder / "interrupted", cluster.folder / "hold"
    hold.touch()
    interrupted = cluster.encode(model, corpus, out, "--ray", cluster.address)
    wait_for(out / "shard-00001", interrupted)
    interrupted.send_signal(signal.SIGINT)
    _, messages = interrupted.communicate(timeout=60)
    assert interrupted.returncode == 130, messages
    assert "finished shards are kept" in messages
    kept = len(VectorsReader(out, allow_incomplete=True).manifest["shards"])
    assert 1 <= kept <= 2
    hold.unlink()
    before = len(cluster.log())
    resumed = cluster.encode(model, corpus, out, "--ray", cluster.address, "--resume")
    _, messages = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, messages
    assert f"{64 * kept} encoded before" in messages
    assert len(cluster.log()) - before == SHARDS - kept
    assert checksums_of_files(out) == checksums_of_files(alone)


def test_a_node_killed_in_the_middle_of_a_shard_costs_that_shard_alone(
    cluster: Cluster, inputs: tuple[Path, Path, Path]
) -> None:
    model, corpus, alone = inputs
    cluster.start("second")
    before = len(cluster.log())
    out = cluster.folder / "killed"
    encoding = cluster.encode(model, corpus, out, "--ray", cluster.address)
    wait_for(cluster.folder / "in-the-middle", encoding)
    cluster.kill("second")
    _, messages = encoding.communicate(timeout=300)
    assert encoding.returncode == 0, messages
    logged = [line.split() for line in cluster.log()[before:]]
    lost = [number for node, number in logged if node == "second"]
    assert len(lost) == 1
    assert sorted(int(number) for node, number in logged if node == "first") == list(range(SHARDS))
    assert checksums_of_files(out) == checksums_of_files(alone)
    deadline = time.monotonic() + 180
    while "second" in cluster.alive():
        assert time.monotonic() < deadline
        time.sleep(1.0)


def test_without_torch_workers_encode_by_onnx_runtime_and_load_no_torch(
    cluster: Cluster, inputs: tuple[Path, Path, Path]
) -> None:
    folder, corpus = cluster.folder, inputs[1]
    save_bert(folder / "bert")
    save_model(folder / "onnx", folder / "bert")
    loaded = folder / "loaded"
    loaded.unlink(missing_ok=True)
    for out, more in (("alone-onnx", []), ("ray-onnx", ["--ray", cluster.address])):
        encoding = cluster.encode(folder / "onnx", corpus, folder / out, *more, no_torch=True)
        _, messages = encoding.communicate(timeout=300)
        assert encoding.returncode == 0, messages
        assert "by ONNX Runtime" in messages
    assert set(loaded.read_text().splitlines()) == {"no torch"}
    assert checksums_of_files(folder / "ray-onnx") == checksums_of_files(folder / "alone-onnx")


def test_too_large_workers_and_other_devices_are_refused(cluster: Cluster, inputs: tuple[Path, Path, Path]) -> None:
    model, corpus, _ = inputs
    for more, message in ((["--ray-cpus", "3"], "has 3 CPU"), (["--device", "cuda"], "has 1 CPU and 1 GPU")):
        refused = cluster.encode(model, corpus, cluster.folder / "refused", "--ray", cluster.address, *more)
        _, messages = refused.communicate(timeout=120)
        assert refused.returncode == 1
        assert re.search(rf"no machine of the cluster \(\d machines?\) {message}", messages)
        assert not (cluster.folder / "refused").exists()
