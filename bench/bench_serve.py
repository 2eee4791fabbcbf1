"""Cost of the service: a request beside the same search in Python, and beside the least that uvicorn answers.

A data set is indexed by its words. The table shows the CPU time per query in milliseconds: `search` (ids and scores),
`hits` (with titles, snippets and metadata), and what hits spend on reading documents and on snippets. Then the service
and a bare ASGI app, which answers with as many bytes, are processes of their own, and this one sends them the queries
over one connection. Their CPU time is that of their process, system included.

    python bench/bench_serve.py --dataset medquad/
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from lightir.data import Dataset
from lightir.index import Index, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.search.snippets import snippets
from origin import print_origin

SMALLEST = "--dataset {data}/tiny --queries 5 --requests 20"
BY_SYNTAX = SearchOptions(syntax=True)
ROUNDS = 5
TICKS = os.sysconf("SC_CLK_TCK")
BARE = """
import sys, uvicorn
body = b"x" * int(sys.argv[1])
headers = [(b"content-type", b"application/json"), (b"content-length", sys.argv[1].encode())]
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
config = uvicorn.Config(app, port=0, loop="uvloop", http="httptools", log_level="error", access_log=False)
listening = config.bind_socket()
listening.listen()
print(f"bare at http://127.0.0.1:{listening.getsockname()[1]}", file=sys.stderr, flush=True)
uvicorn.Server(config).run([listening])
"""


def cpu_ms(queries: Sequence[str], call: Callable[[str], object]) -> float:
    """Return the CPU time per call, the least of several rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for query in queries:
            call(query)
        taken.append((time.process_time() - start) * 1000 / len(queries))
    return min(taken)


def library_figures(folder: Path, queries: Sequence[str]) -> dict[str, float]:
    """Return the CPU time per query of each task of the library."""
    with Index.open(folder) as index:
        searcher, view = Searcher(index), index.view
        rankings = {query: next(iter(searcher.search([query], 10, BY_SYNTAX).values())) for query in queries}
        doc_ords = {
            query: np.array([view.doc_ord(doc_id) for doc_id in ranking.doc_ids], dtype=np.uint32)
            for query, ranking in rankings.items()
        }
        texts = {query: [document.text for document in view.documents_at(at)] for query, at in doc_ords.items()}
        lengths = [len(text) for shown in texts.values() for text in shown]
        mean, median = statistics.mean(lengths), statistics.median(lengths)
        print(f"characters of a hit's text: {mean:,.0f} (mean), {median:,.0f} (median)")
        tasks: dict[str, Callable[[str], object]] = {
            "search": lambda query: searcher.search([query], 10, BY_SYNTAX),
            "hits": lambda query: searcher.hits(query, 10, BY_SYNTAX),
            "  documents": lambda query: view.documents_at(doc_ords[query]),
            "  snippets": lambda query: snippets(texts[query], query, view.word_analyzer),
        }
        return {name: cpu_ms(queries, call) for name, call in tasks.items()}


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Run a server; yield its process id and its address, which it prints to stderr."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if " at http://" not in line:
            sys.exit(f"the server did not start: {line}")
        yield process.pid, urlsplit(line.rpartition(" at ")[2].strip()).netloc
    finally:
        process.terminate()
        process.communicate()


def served_ms(pid: int, address: str, bodies: Sequence[bytes], n_requests: int) -> tuple[float, float, float, int]:
    """Return a server's CPU time per request, median and 99th percentile of wall time, and the bytes of an answer."""
    connection = http.client.HTTPConnection(address)
    taken, before = [], 0.0
    size = 0
    for i in range(-len(bodies), n_requests):  # the first round warms up
        if i == 0:
            before = process_cpu_s(pid)
        start = time.perf_counter()
        connection.request("POST", "/v1/search", bodies[i % len(bodies)], {"content-type": "application/json"})
        answer = connection.getresponse()
        size = len(answer.read())
        if answer.status != 200:
            sys.exit(f"the server answered {answer.status}")
        if i >= 0:
            taken.append((time.perf_counter() - start) * 1000)
    cpu = (process_cpu_s(pid) - before) * 1000 / n_requests
    connection.close()
    return cpu, statistics.median(taken), float(np.percentile(taken, 99)), size


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, its threads and the system's work for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="BEIR folder")
    parser.add_argument("--queries", type=int, default=600, help="number of queries")
    parser.add_argument("--requests", type=int, default=5000, help="number of requests per server")
    args = parser.parse_args()
    print_origin()
    dataset = Dataset.open(args.dataset)
    queries = [query.text for query in dataset.queries()][: args.queries]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "index"
        build_index(document_shards(dataset.corpus()), folder, progress=False)
        figures = library_figures(folder, queries)
        for name, value in figures.items():
            print(f"{name:<16} {value:8.3f} ms of CPU")
        measure_servers(folder, queries, args.requests)


def measure_servers(folder: Path, queries: Sequence[str], n_requests: int) -> None:
    """Print the figures of the service, for hits and for ids, and of the bare app."""
    forms: dict[str, dict[str, Any]] = {"service, hits": {}, "service, ids": {"ids_only": True}}
    size = 0
    for name, options in forms.items():
        bodies = [json.dumps({"query": query, **options}).encode() for query in queries]
        with running(["-m", "lightir", "serve", str(folder), "--port", "0", "--read-only"]) as (pid, address):
            size = show(name, served_ms(pid, address, bodies, n_requests))
        with running(["-c", BARE, str(size)]) as (pid, address):
            show(f"  bare, {size} bytes", served_ms(pid, address, bodies, n_requests))


def show(name: str, figures: tuple[float, float, float, int]) -> int:
    """Print the figures of a server and return the bytes of an answer."""
    cpu, median, p99, size = figures
    print(f"{name:<20} {cpu:8.3f} ms of CPU, wall clock {median:.3f} ms (median), {p99:.3f} ms (p99)", flush=True)
    return size


if __name__ == "__main__":
    main()
