"""Nodes of a real Ray cluster on this machine, which can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RAY = """
from ray._private import services
from ray.scripts.scripts import main
services.get_node_ip_address = lambda address=None: "127.0.0.1"
main()
"""
"""The program `ray` on a machine whose own address may be unreachable: it uses the loopback address for all nodes."""

ALIVE = """
import json, ray, sys
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(json.dumps({node["NodeName"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}))
"""

FIRST_WORKER_PORTS = {"first": 20000, "second": 20300, "third": 20600}


class RayNodes:
    """The nodes "first", which is the head, "second" and "third", with one CPU each."""

    def __init__(self, folder: Path, port: int) -> None:
        """Set where they are; `start` starts one.

        Args:
            folder: folder of their files, with a short path.
            port: port of the head.
        """
        self.folder = folder
        self.address = f"127.0.0.1:{port}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def environment(self, node: str) -> dict[str, str]:
        """Return the environment of a node, and of programs that connect to the cluster there."""
        return {
            **os.environ,
            "RAY_health_check_failure_threshold": "2",  # a killed node is known sooner
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0" if node == "first" else "1",  # 0: use the loopback address
        }

    def program(self, *arguments: str) -> list[str]:
        """Return a command of the program `ray`."""
        return [sys.executable, "-c", RAY, *arguments]

    def start(self, node: str) -> None:
        """Start a node, and wait until it runs."""
        port = self.address.rpartition(":")[2]
        first = ["--head", "--port", port, "--include-dashboard=false"]
        where = first if node == "first" else ["--address", self.address]
        lowest = FIRST_WORKER_PORTS[node]
        command = [
            *self.program("start", "--block", *where, "--node-ip-address", "127.0.0.1"),
            *("--node-name", node),
            *("--min-worker-port", str(lowest), "--max-worker-port", str(lowest + 200), "--num-cpus", "1"),
            *("--object-store-memory", "100000000", "--disable-usage-stats"),
            *(["--temp-dir", str(self.folder / "r")] if node == "first" else []),
        ]
        with (self.folder / f"{node}.out").open("wb") as out:
            self.nodes[node] = subprocess.Popen(
                command, env=self.environment(node), stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        deadline = time.monotonic() + 180
        while "Ray runtime started" not in (self.folder / f"{node}.out").read_text():
            assert self.nodes[node].poll() is None, (self.folder / f"{node}.out").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def alive(self) -> dict[str, str]:
        """Return the ids of the nodes that Ray knows and does not know to be dead, by name."""
        command = [sys.executable, "-c", ALIVE, self.address]
        asked = subprocess.run(command, env=self.environment("first"), capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr
        alive: dict[str, str] = json.loads(asked.stdout)
        return alive

    def kill(self, node: str) -> None:
        """Kill every process of a node at once, as a power failure would."""
        process = self.nodes.pop(node)
        for pid in descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    """Return a process and all processes below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return [pid]
    return [pid, *(below for child in children for below in descendants(int(child)))]


@contextlib.contextmanager
def killed_at_the_end(nodes: RayNodes) -> Iterator[None]:
    """Kill the nodes that run at the end of the block."""
    try:
        yield
    finally:
        for node in list(nodes.nodes):
            nodes.kill(node)


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a folder with a short path, since the paths of Ray's sockets have 107 characters at most; remove it."""
    folder = Path(tempfile.mkdtemp(prefix="lr"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
