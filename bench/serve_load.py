"""Load on servers: wrk's requests a second and percentiles, and the CPU time of a server's processes per request."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightir.types import Document

SCRIPT = """
local bodies, next_body = {}, 0
for line in io.lines("%s") do bodies[#bodies + 1] = line end
request = function()
  next_body = next_body %% #bodies + 1
  return wrk.format("POST", "%s", {["content-type"] = "application/json"}, bodies[next_body])
end
"""
TICKS_A_SECOND = 100
CHROMA = "/api/v2/tenants/default_tenant/databases/default_database/collections"


@dataclass(frozen=True, slots=True)
class Load:
    """Figures that wrk measured.

    Attributes:
        per_second: requests a second.
        p50_ms: median of the time of a request.
        p99_ms: its 99th percentile.
        cpu_ms: CPU time of the server's processes per request, system included.
    """

    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


def loaded(pid: int, address: str, path: str, bodies: Sequence[bytes], *, seconds: int, connections: int) -> Load:
    """Send requests over several connections for some seconds, each as soon as the former one is answered."""
    with tempfile.TemporaryDirectory() as temporary:
        lines, script = Path(temporary) / "bodies", Path(temporary) / "wrk.lua"
        lines.write_bytes(b"\n".join(bodies) + b"\n")
        script.write_text(SCRIPT % (lines, path))
        command = ["wrk", "-t1", f"-c{connections}", "--latency", "-s", str(script), f"http://{address}{path}"]
        subprocess.run([*command, "-d1s"], check=True, capture_output=True)
        before = tree_cpu_s(pid)
        output = subprocess.run([*command, f"-d{seconds}s"], check=True, capture_output=True, text=True).stdout
        cpu_s = tree_cpu_s(pid) - before
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"requests failed:\n{output}")
    n_requests = int(_number(r"(\d+) requests in", output))
    return Load(
        _number(r"Requests/sec:\s+([\d.]+)", output),
        _milliseconds(r"50%\s+([\d.]+)(\w+)", output),
        _milliseconds(r"99%\s+([\d.]+)(\w+)", output),
        cpu_s * 1000 / n_requests,
    )


def tree_cpu_s(pid: int) -> float:
    """Return the CPU time of a process and its child processes."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND + sum(map(tree_cpu_s, map(int, children)))


@contextmanager
def chroma(command: str, documents: Sequence[Document], vectors: np.ndarray) -> Iterator[tuple[int, str, str]]:
    """Run Chroma's server with a collection; yield its process id, its address and the path of queries."""
    with tempfile.TemporaryDirectory() as temporary:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        port = address.rpartition(":")[2]
        arguments = [command, "run", "--path", temporary, "--host", "127.0.0.1", "--port", port]
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(f"http://{address}/api/v2/heartbeat")
            path = f"{CHROMA}/{_post(address, CHROMA, {'name': 'documents'})['id']}"
            for start in range(0, len(documents), 500):
                part = slice(start, start + 500)
                added: dict[str, Any] = {
                    "ids": [document.doc_id for document in documents[part]],
                    "embeddings": vectors[part].tolist(),
                    "documents": [document.text for document in documents[part]],
                }
                _post(address, f"{path}/add", added)
            yield process.pid, address, f"{path}/query"
        finally:
            process.terminate()
            process.wait()


def is_available(command: str) -> bool:
    """Return whether a command is installed, and print it if not."""
    if shutil.which(command) is None:
        print(f"{command} is not installed and is skipped")
    return shutil.which(command) is not None


def _wait_for(url: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


def _post(address: str, path: str, body: Any) -> Any:
    headers = {"content-type": "application/json"}
    asked = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return json.load(answer)


def _number(pattern: str, output: str) -> float:
    match = re.search(pattern, output)
    if match is None:
        raise SystemExit(f"wrk printed no {pattern}:\n{output}")
    return float(match[1])


def _milliseconds(pattern: str, output: str) -> float:
    match = re.search(pattern, output)
    if match is None:
        raise SystemExit(f"wrk printed no {pattern}:\n{output}")
    return float(match[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[match[2]]
