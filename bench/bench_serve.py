"""Cost of the service: a request beside the same search in Python, and beside the least that uvicorn answers.

A data set is indexed by its words. The table shows the CPU time per query in milliseconds: `search` (ids and scores),
`hits` (with titles, snippets and metadata), and what hits spend on reading documents and on snippets. Then the service
and a bare ASGI app, which answers with as many bytes, are processes of their own. They get the queries over one
connection, and by wrk over several. Their CPU time is that of their process, system included. The service also measures
the CPU time of `hits` or `search` inside it; "added" is the rest of a request. All figures are those of the round with
the least CPU time, since other programs of a machine can only add to it.

With --load, wrk sends dense searches over several connections: to the service with one process and with several, to
the bare app, and to Chroma's server if it is installed, which gets vectors where the service gets texts. All have the
same random vectors, so that hits mean nothing.

    python bench/bench_serve.py --dataset medquad/
    python bench/bench_serve.py --dataset medquad/ --load 10
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

from lightir.addresses import resolve_query_encoder
from lightir.data import Dataset
from lightir.index import Index, build_index, document_shards
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher, SearchOptions
from lightir.search.snippets import snippets
from lightir.shards import Shard
from origin import print_origin
from serve_load import chroma, is_available, loaded

SMALLEST = "--dataset {data}/tiny --queries 5 --requests 20 --seconds 1"
Figures = TypeVar("Figures", bound=tuple[Any, ...])
BY_SYNTAX = SearchOptions(syntax=True)
ROUNDS = 15
SERVED_ROUNDS = 6
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

TIMED = """
import signal, sys, time
from pathlib import Path
from lightir.search import Searcher
from lightir.serve.serve_options import ServeOptions
from lightir.serve.server import serve
taken, n = 0.0, 0
def timed(call):
    def run(*args, **options):
        global taken, n
        start = time.thread_time()
        try:
            return call(*args, **options)
        finally:
            taken, n = taken + time.thread_time() - start, n + 1
    return run
Searcher.hits, Searcher.search = timed(Searcher.hits), timed(Searcher.search)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGUSR1, lambda *_: print(taken, n, file=sys.stderr, flush=True))
options = ServeOptions(port=0, read_only=True)
serve(Path(sys.argv[1]), options, started=lambda at: print(f"lightir at {at}", file=sys.stderr, flush=True))
"""
CONNECTIONS = 8


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


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        process: its process.
        address: host and port.
    """

    process: subprocess.Popen[str]
    address: str

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self.process.pid

    def searches(self) -> tuple[float, int]:
        """Return the CPU time in seconds and the number of searches inside a service that runs TIMED."""
        assert self.process.stderr is not None
        self.process.send_signal(signal.SIGUSR1)
        taken, n = self.process.stderr.readline().split()
        return float(taken), int(n)

    def searched_ms(self, before: tuple[float, int]) -> float:
        """Return the mean CPU time in milliseconds of the searches since others."""
        taken, n = self.searches()
        return (taken - before[0]) * 1000 / (n - before[1])


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[Server]:
    """Run a server, which prints its address to stderr."""
    process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if " at http://" not in line:
            sys.exit(f"the server did not start: {line}")
        yield Server(process, urlsplit(line.rpartition(" at ")[2].strip()).netloc)
    finally:
        process.terminate()
        process.communicate()


def served(server: Server, bodies: Sequence[bytes], n_requests: int) -> tuple[float, list[float], int]:
    """Return a server's CPU time per request, the wall time of each in ms, and the bytes of an answer."""
    connection = http.client.HTTPConnection(server.address)
    taken, before, size = [], process_cpu_s(server.pid), 0
    for i in range(n_requests):
        start = time.perf_counter()
        connection.request("POST", "/v1/search", bodies[i % len(bodies)], {"content-type": "application/json"})
        answer = connection.getresponse()
        size = len(answer.read())
        if answer.status != 200:
            sys.exit(f"the server answered {answer.status}")
        taken.append((time.perf_counter() - start) * 1000)
    connection.close()
    return (process_cpu_s(server.pid) - before) * 1000 / n_requests, taken, size


def process_cpu_s(pid: int) -> float:
    """Return the CPU time of a process, its threads and the system's work for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True, help="BEIR folder")
    parser.add_argument("--queries", type=int, default=600, help="number of queries")
    parser.add_argument("--requests", type=int, default=1000, help="number of requests per round (default %(default)s)")
    parser.add_argument("--seconds", type=int, default=2, help="seconds of wrk per round (default %(default)s)")
    parser.add_argument("--load", type=int, default=0, metavar="S", help="seconds of load per server (default: none)")
    parser.add_argument("--connections", type=int, default=32, help="number of connections of the load")
    parser.add_argument("--processes", type=int, default=2, help="number of processes under load")
    parser.add_argument("--chroma", default="chroma", help="command of Chroma's server")
    args = parser.parse_args()
    print_origin()
    dataset = Dataset.open(args.dataset)
    queries = [query.text for query in dataset.queries()][: args.queries]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "index"
        if not args.load:
            build_index(document_shards(dataset.corpus()), folder, progress=False)
            for name, value in library_figures(folder, queries).items():
                print(f"{name:<16} {value:8.3f} ms of CPU")
        if args.load:
            measure_load(dataset, queries, args)
        else:
            for name in ("hits", "ids"):
                measure_service(name, folder, queries, args.requests, args.seconds)


def measure_service(name: str, folder: Path, queries: Sequence[str], n_requests: int, seconds: int) -> None:
    """Print the figures of the service and of the bare app for hits or for ids."""
    bodies = [json.dumps({"query": query, "ids_only": name == "ids"}).encode() for query in queries]
    with running(["-c", TIMED, str(folder)]) as server:
        _, _, size = served(server, bodies, len(bodies))  # warms up

        def with_search(measure: Callable[[], tuple[float, list[float]]]) -> tuple[float, list[float], float]:
            before = server.searches()
            return *measure(), server.searched_ms(before)

        cpu, taken, searched = least(lambda: with_search(lambda: served(server, bodies, n_requests)[:2]))
        show(f"service, {name}", cpu, taken, searched)
        if is_available("wrk"):
            cpu, _, searched = least(lambda: with_search(lambda: (under_load(server, bodies, seconds), [])))
            print(in_parts(f"  {CONNECTIONS} connections", cpu, searched), flush=True)
    with running(["-c", BARE, str(size)]) as server:
        served(server, bodies, len(bodies))
        show(f"  bare, {size} bytes", *least(lambda: served(server, bodies, n_requests)[:2]))
        if is_available("wrk"):
            (cpu,) = least(lambda: (under_load(server, bodies, seconds),))
            print(f"{f'    {CONNECTIONS} connections':<20} {cpu:8.3f} ms of CPU", flush=True)


def least(measure: Callable[[], Figures]) -> Figures:
    """Return the figures of the round with the least CPU time, which comes first in them."""
    return min((measure() for _ in range(SERVED_ROUNDS)), key=lambda figures: figures[0])


def under_load(server: Server, bodies: Sequence[bytes], seconds: int) -> float:
    """Return the CPU time per request under wrk."""
    load = loaded(server.pid, server.address, "/v1/search", bodies, seconds=seconds, connections=CONNECTIONS)
    return load.cpu_ms


def in_parts(name: str, cpu: float, searched: float) -> str:
    """Return the CPU time of a request, and the parts of the search and of what the service adds."""
    return f"{name:<20} {cpu:8.3f} ms of CPU: search {searched:.3f}, added {cpu - searched:.3f}"


def show(name: str, cpu: float, taken: Sequence[float], searched: float | None = None) -> None:
    """Print the figures of a server over one connection."""
    parts = f"{name:<20} {cpu:8.3f} ms of CPU" if searched is None else in_parts(name, cpu, searched)
    median, p99 = statistics.median(taken), float(np.percentile(taken, 99))
    print(f"{parts}; wall clock {median:.3f} ms (median), {p99:.3f} ms (p99)", flush=True)


def measure_load(dataset: Dataset, queries: Sequence[str], args: argparse.Namespace) -> None:
    """Print requests a second, percentiles and CPU time of each server under load."""
    if not is_available("wrk"):
        sys.exit("--load requires wrk")
    documents = list(dataset.corpus())
    rng = np.random.default_rng(0)
    encoder = resolve_query_encoder("minilm")
    dim = CachedQueryEncoder.load(encoder).encode(["x"]).dense.shape[1]
    vectors = rng.standard_normal((len(documents), dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    print(f"{len(documents):,} documents, {dim} dimensions, {args.connections} connections, {args.load} s")
    print(f"{'server':<28} {'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'CPU ms':>8}")

    def show_load(name: str, pid: int, address: str, path: str, bodies: Sequence[bytes]) -> None:
        load = loaded(pid, address, path, bodies, seconds=args.load, connections=args.connections)
        figures = f"{load.per_second:10,.0f} {load.p50_ms:8.2f} {load.p99_ms:8.2f} {load.cpu_ms:8.3f}"
        print(f"{name:<28} {figures}", flush=True)

    asked = {"k": 10, "mode": "dense", "ids_only": True}
    bodies = [json.dumps({"query": query, **asked}).encode() for query in queries]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "index"
        shard = Shard(documents, vectors.astype(np.float16), None)
        build_index([shard], folder, query_encoder=encoder, progress=False)
        for n_processes in sorted({1, args.processes}):
            command = ["-m", "lightir", "serve", str(folder), "--port", "0", "--processes", str(n_processes)]
            with running(command) as server:
                show_load(f"lightir, {n_processes} process(es)", server.pid, server.address, "/v1/search", bodies)
    with running(["-c", BARE, "600"]) as server:
        show_load("bare app", server.pid, server.address, "/v1/search", bodies)
    if is_available(args.chroma):
        rows = rng.standard_normal((len(queries), dim)).astype(np.float32)
        asked_rows = ({"query_embeddings": [row], "n_results": 10, "include": ["distances"]} for row in rows.tolist())
        with chroma(args.chroma, documents, vectors) as (pid, address, path):
            show_load("Chroma, vectors given", pid, address, path, [json.dumps(body).encode() for body in asked_rows])


if __name__ == "__main__":
    main()
