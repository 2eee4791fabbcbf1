"""Shards served from nodes of a real Ray cluster on this machine, of which some are killed: `make test-ray`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from lightir.index.splitting import ShardedManifest, shard_of, split_index
from lightir.search import Searcher
from ray_nodes import RayNodes, descendants, killed_at_the_end, short_folder
from service_client import send
from sharded_indexes import build_random, whole

PORT = 9497
SHARDS = 2
BODIES: tuple[dict[str, Any], ...] = (
    {"query": "cat dog", "k": 50},
    {"query": "the cat and the dog at the well", "k": 5, "explain": True},
    {"query": "the cat and the dog", "k": 3, "group": "brand"},
    {"query": "cat", "k": 5, "offset": 2, "facets": ["brand"], "sort": "n"},
    {"query": ["cat", "brand:a dog"], "ids_only": True, "k": 100},
)


class Cluster(RayNodes):
    """A cluster with a folder of shards."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, PORT)
        build_random(folder / "index", 1, 60, model=True, encoded=0.8, long=True)
        self.manifest: ShardedManifest = split_index(folder / "index", folder / "shards", SHARDS, progress=False)

    @contextlib.contextmanager
    def served(self, *options: str) -> Iterator[str]:
        """Serve the shards from the cluster; yield the address of the service."""
        messages = self.folder / "serve.err"
        command = [sys.executable, "-m", "lightir", "serve", str(self.manifest.folder), "--port", "0"]
        with messages.open("w") as stderr:
            process = subprocess.Popen(
                [*command, "--ray", self.address, *options],
                env={**self.environment("first"), "OMP_NUM_THREADS": "1"},
                stderr=stderr,
            )
        try:
            wait_until(lambda: " at http://" in messages.read_text() or process.poll() is not None)
            (line,) = (line for line in messages.read_text().splitlines() if " at http://" in line)
            yield line.rpartition(" at ")[2]
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) in (0, 143, -signal.SIGTERM), messages.read_text()
        finally:
            process.kill()
            process.wait()
        wait_until(lambda: not any(self.replicas(node) for node in self.nodes))

    def replicas(self, node: str) -> dict[int, int]:
        """Return the shards of a node's replicas, by process id."""
        shard_of_process = {}
        for pid in descendants(self.nodes[node].pid):
            with contextlib.suppress(OSError):
                title = Path(f"/proc/{pid}/cmdline").read_text()
                if title.startswith(f"ray::ServeReplica:lightir-{self.manifest.version}-"):
                    shard_of_process[pid] = int(title.partition(":shard")[0].rpartition("-")[2])
        return shard_of_process

    def drain(self, node: str) -> None:
        """Tell Ray that a node will be switched off."""
        reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "moved"]
        draining = self.program("drain-node", "--address", self.address, "--node-id", self.alive()[node], *reason)
        subprocess.run([*draining, "--deadline-remaining-seconds", "300"], env=self.environment("first"), check=True)


def wait_until(holds: Callable[[], bool], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with short_folder() as folder:
        cluster = Cluster(folder)
        with killed_at_the_end(cluster):
            cluster.start("first")
            cluster.start("second")
            yield cluster


@pytest.fixture(scope="module")
def one(cluster: Cluster) -> Iterator[Searcher]:
    with whole(cluster.folder / "index") as searcher:
        yield searcher


def search(address: str, body: Mapping[str, Any]) -> tuple[int, Any]:
    status, answer = send(address, "POST", "/v1/search", dict(body))
    return status, answer


def ranking(answer: Any) -> list[tuple[str, float]]:
    return [(hit["doc_id"], hit["score"]) for hit in answer["hits"]]


class Asking:
    """Searches again and again in several threads, and notes answers that are not those of one index."""

    def __init__(self, address: str, one: Searcher) -> None:
        self._address, self._stop = address, threading.Event()
        self._expected = [(hit.doc_id, hit.score) for hit in one.hits("cat dog", 20)]
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        self._answers: list[bool] = []
        self.wrong: list[Any] = []

    @property
    def n_answers(self) -> int:
        return len(self._answers)

    def _run(self) -> None:
        while not self._stop.is_set():
            status, answer = send(self._address, "GET", "/v1/search?q=cat%20dog&k=20", {})  # which is asked once
            is_right = status == 200 and ranking(answer) == self._expected
            self._answers.append(is_right)
            if not is_right:
                self.wrong.append((status, answer))

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def test_answers_are_those_of_one_index_and_a_lost_replica_or_node_is_answered_for(
    cluster: Cluster, one: Searcher, serve: Any
) -> None:
    with cluster.served("--replicas", "2") as address, serve(cluster.folder / "index", "--read-only") as (_, single):
        for node in ("first", "second"):
            assert sorted(cluster.replicas(node).values()) == [*range(SHARDS)], node
        for body in BODIES:
            expected, answered = search(single, body), search(address, body)
            assert timeless(answered) == timeless(expected)
        with Asking(address, one) as asking:
            victim = min(cluster.replicas("first"))
            wait_until(lambda: asking.n_answers > 20)
            before = asking.n_answers
            os.kill(victim, signal.SIGSTOP)  # so that it has questions when it ends
            time.sleep(1)
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in cluster.replicas("first") and asking.n_answers > before + 20)
            wait_until(lambda: len(cluster.replicas("first")) == SHARDS)
            before = asking.n_answers
            cluster.kill("second")
            wait_until(lambda: asking.n_answers > before + 200)
        assert asking.wrong == []
    cluster.start("second")


def test_a_shard_without_a_machine_is_named_until_it_has_another(cluster: Cluster, one: Searcher) -> None:
    with cluster.served("--ray-cpus", "1") as address:  # each node has one CPU, and so one shard
        (lost,) = cluster.replicas("second").values()
        every = {"query": "cat dog", "k": 1000, "mode": "tokens", "ids_only": True}
        status, complete = search(address, every)
        assert (status, "missing_shards" in complete) == (200, False)
        cluster.kill("second")
        status, problem = search(address, every)
        assert (status, problem["missing_shards"]) == (503, [lost])
        assert f"shards that do not answer: {lost}; " in problem["detail"]
        status, partial = search(address, {**every, "allow_partial": True})
        assert (status, partial["missing_shards"]) == (200, [lost])
        assert ranking(partial) == [pair for pair in ranking(complete) if shard_of(pair[0], SHARDS) != lost]
        assert 0 < len(partial["hits"]) < len(complete["hits"])
        status, unready = send(address, "GET", "/ready", {})
        assert (status, unready["missing_shards"]) == (503, [lost])
        cluster.start("second")
        wait_until(lambda: send(address, "GET", "/ready", {})[0] == 200)
        assert timeless(search(address, every)) == timeless((200, complete))
        assert [*cluster.replicas("second").values()] == [lost]
        cluster.start("third")
        with Asking(address, one) as asking:
            cluster.drain("second")
            wait_until(lambda: not cluster.replicas("second") and asking.n_answers > 20)
        assert [*cluster.replicas("third").values()] == [lost]
        assert asking.wrong == []


def timeless(answer: tuple[int, Any]) -> Any:
    """Return an answer without the time that it took."""
    status, content = answer
    for result in content.get("results", [content]):
        result.pop("took_ms", None)
    return status, content


def test_a_folder_that_cannot_be_served_is_said(cluster: Cluster) -> None:
    moved = cluster.folder / "shards" / "shard-0001"
    moved.rename(cluster.folder / "elsewhere")
    command = [sys.executable, "-m", "lightir", "serve", str(cluster.manifest.folder), "--port", "0"]
    try:
        refused = subprocess.run(
            [*command, "--ray", cluster.address],
            env=cluster.environment("first"),
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        (cluster.folder / "elsewhere").rename(moved)
    assert refused.returncode == 1
    assert f"shard 1 does not start on the cluster: {moved} does not exist; expected an index folder" in refused.stderr
