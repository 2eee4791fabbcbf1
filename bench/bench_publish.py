"""A published index in a browser beside Pagefind on the same pages: bytes, milliseconds, quality, and agreement.

Documents of BEIR folders become pages with a title and a text, `--filler` adds pages up to `--documents`. lightir
publishes an index of them, which `--model` encodes or `--work` holds from an earlier run. Pagefind indexes the same
pages as HTML. One host on this machine serves both, with ranges and without compression, and counts the bytes that it
sends. Each query of the test splits runs twice in headless Chromium, with the titles and excerpts of ten hits: the
first run reads, the second one has all it needs. Pagefind finds pages that have all words of a query, so queries of at
most three words have a column of their own.

Then `--typed` of the queries are typed letter by letter, twice, as the page searches while a person types. A
keystroke's time is what the page takes for it while no request is open. Its CPU time is that of the page's main thread,
and includes the driver that asks.

    mkdir pagefind && echo {} > pagefind/package.json && npm install --prefix pagefind pagefind
    python bench/bench_publish.py --dataset scifact nfcorpus --filler cranfield --documents 10000 --model minilm \
        --work /tmp/pages --pagefind pagefind
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import html
import http.server
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import numpy as np

from lightir.data import Dataset
from lightir.eval import evaluate
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.publish import publish_index
from lightir.search import Searcher, SearchOptions
from lightir.types import Document, Query, Ranking
from optional import is_installed
from origin import print_origin

SMALLEST = "--dataset {data}/tiny --queries 5"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
K = 10
SHORT = 3
"""Maximum number of words of a short query."""
ASK_LIGHTIR = """async ([address, query, mode]) => {
    window.searching ??= import(`${address}published/backend.js`).then((m) => new m.PublishedBackend(address));
    const backend = await window.searching;
    const began = performance.now();
    const { hits } = await backend.search({ query, k: 10, mode });
    return [hits.map((hit) => hit.doc_id), performance.now() - began];
}"""
TYPE_LIGHTIR = """async ([address, query, mode]) => {
    window.searching ??= import(`${address}published/backend.js`).then((m) => new m.PublishedBackend(address));
    const backend = await window.searching;
    const { hits, took_ms } = await backend.search({ query, k: 10, mode, as_you_type: true });
    return [hits.map((hit) => hit.doc_id), took_ms];
}"""
ASK_PAGEFIND = """async ([address, query]) => {
    window.searching ??= import(`${address}pagefind/pagefind.js`);
    const pagefind = await window.searching;
    const began = performance.now();
    const { results } = await pagefind.search(query);
    const shown = await Promise.all(results.slice(0, 10).map((result) => result.data()));
    return [shown.map((page) => page.meta.doc_id), performance.now() - began];
}"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The answers to a list of queries.

    Attributes:
        rankings: ids of each query's hits, best first.
        sent: (n,) bytes that the host sent for each query.
        requests: (n,) requests of each query.
        again_ms: (n,) milliseconds of each query's second run.
    """

    rankings: list[list[str]]
    sent: np.ndarray
    requests: np.ndarray
    again_ms: np.ndarray


@dataclass(frozen=True, slots=True)
class Typed:
    """The answers to queries that are typed letter by letter, twice.

    Attributes:
        texts: content of the search box after each keystroke.
        rankings: ids of each keystroke's hits, best first.
        sent: (n,) bytes that the host sent for each keystroke.
        sent_for_query: bytes that it sent for all keystrokes of each query.
        took_ms: (2, n) milliseconds of each keystroke without the time that requests took, in both runs.
        cpu_ms: (2, n) milliseconds of CPU time.
    """

    texts: list[str]
    rankings: list[list[str]]
    sent: np.ndarray
    sent_for_query: list[int]
    took_ms: np.ndarray
    cpu_ms: np.ndarray


class Host(http.server.SimpleHTTPRequestHandler):
    """A host with ranges that counts what it sends."""

    protocol_version = "HTTP/1.1"
    counted: ClassVar[list[int]] = [0, 0]
    """Number of bytes and of requests since the counters were set to 0."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Send a file, or a range of its bytes."""
        path = Path(self.directory, self.path.split("?")[0].lstrip("/"))
        content = path.read_bytes() if path.is_file() else b"<!doctype html><title>bench</title>"
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        sent = content[int(asked[1]) : int(asked[2]) + 1] if asked else content
        self.counted[0] += len(sent)
        self.counted[1] += 1
        self.send_response(206 if asked else 200)
        self.send_header("content-type", self.guess_type(path) if path.is_file() else "text/html")
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)


@contextlib.contextmanager
def hosted(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Host, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def pages_of(datasets: Sequence[Dataset], fillers: Sequence[Dataset], limit: int) -> Iterator[Document]:
    """Yield the documents of data sets, each id after the name of its set."""
    n = 0
    for dataset in (*datasets, *fillers):
        for document in dataset.corpus():
            if n == limit:
                return
            n += 1
            yield Document(f"{dataset.name}-{document.doc_id}", document.text, document.title)


def queries_of(
    datasets: Sequence[Dataset], split: str, limit: int | None
) -> tuple[list[Query], dict[str, dict[str, int]]]:
    """Return the judged queries of data sets, and their qrels."""
    queries, qrels = [], {}
    for dataset in datasets:
        judged = dataset.qrels(split)
        for query in [query for query in dataset.queries(split) if query.query_id in judged][:limit]:
            name = f"{dataset.name}-{query.query_id}"
            queries.append(Query(name, query.text))
            qrels[name] = {f"{dataset.name}-{doc_id}": grade for doc_id, grade in judged[query.query_id].items()}
    return queries, qrels


def make_index(folder: Path, pages: Sequence[Document], model: str | None) -> None:
    """Build an index of the pages, unless an earlier run did; with vectors if there is a model."""
    if folder.exists():
        return
    options = IndexOptions(boosts={"title": 5})
    if model is None:
        build_index(document_shards(pages), folder, options=options, progress=False)
        return
    from lightir.encode import encode_corpus

    vectors = folder.with_name("vectors")
    encode_corpus(model, pages, vectors)
    build_index(vectors, folder, options=options)


def write_pages(folder: Path, pages: Sequence[Document]) -> None:
    """Write each page as HTML."""
    folder.mkdir()
    for i, page in enumerate(pages):
        title, text = html.escape(page.title or page.doc_id), html.escape(page.text)
        name = html.escape(page.doc_id, quote=True)
        (folder / f"{i}.html").write_text(
            f'<!doctype html><html lang="en"><title>{title}</title><body><main data-pagefind-body>'
            f'<h1>{title}</h1><p data-pagefind-meta="doc_id:{name}">{text}</p></main></body></html>',
            encoding="utf-8",
        )


def measured(browser: Any, folder: Path, script: str, queries: Sequence[Query], *more: str) -> Measured:
    """Ask all queries twice in a new browser context."""
    rankings, sent, requests, again = [], [], [], []
    with hosted(folder) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        for query in queries:
            Host.counted[:] = [0, 0]
            doc_ids, _ = page.evaluate(script, [address, query.text, *more])
            sent.append(Host.counted[0])
            requests.append(Host.counted[1])
            again.append(page.evaluate(script, [address, query.text, *more])[1])
            rankings.append(doc_ids)
        page.context.close()
    return Measured(rankings, np.array(sent), np.array(requests), np.array(again))


def typed(browser: Any, folder: Path, queries: Sequence[Query], mode: str) -> Typed:
    """Type the first query, which reads what all need, and then all queries letter by letter, twice."""
    texts = [query.text[:n] for query in queries for n in range(1, len(query.text) + 1)]
    sent, took_ms, cpu_ms = [], [], []
    with hosted(folder) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.evaluate(TYPE_LIGHTIR, [address, queries[0].text, mode])
        clock = page.context.new_cdp_session(page)
        clock.send("Performance.enable", {"timeDomain": "threadTicks"})
        for run in range(2):
            rankings = []
            for text in texts:
                Host.counted[:] = [0, 0]
                before = cpu_seconds(clock)
                doc_ids, milliseconds = page.evaluate(TYPE_LIGHTIR, [address, text, mode])
                cpu_ms.append(1000 * (cpu_seconds(clock) - before))
                took_ms.append(milliseconds)
                rankings.append(doc_ids)
                if run == 0:
                    sent.append(Host.counted[0])
        page.context.close()
    ends = np.cumsum([len(query.text) for query in queries])
    by_query = [int(part.sum()) for part in np.split(np.array(sent), ends[:-1])]
    times = (np.array(values).reshape(2, -1) for values in (took_ms, cpu_ms))
    return Typed(texts, rankings, np.array(sent), by_query, *times)


def cpu_seconds(clock: Any) -> float:
    """Return the CPU time of a page's main thread."""
    metrics = {metric["name"]: metric["value"] for metric in clock.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ThreadTime"])


def typed_row(name: str, got: Typed) -> str:
    """Return a row of the table of keystrokes."""
    figures = [f"{len(got.texts):,}", f"{np.median(got.sent) / 1000:.1f} kB"]
    figures += [f"{np.percentile(got.sent, 95) / 1000:.1f} kB", f"{np.median(got.sent_for_query[1:]) / 1000:.0f} kB"]
    for run in range(2):
        for times in (got.took_ms[run], got.cpu_ms[run]):
            figures += [f"{np.median(times):.1f} ms", f"{np.percentile(times, 95):.1f} ms"]
    return f"| {name} | {' | '.join(figures)} |"


def print_keystrokes(browser: Any, folder: Path, modes: Sequence[str], queries: Sequence[Query]) -> dict[str, Typed]:
    """Type queries in each mode, and print the table."""
    columns = ["keystrokes", "sent", "95 %", "a query's keystrokes"]
    for run in ("first run", "again"):
        columns += [f"{run}, without requests", "95 %", "CPU", "95 %"]
    print(f"\n| typed | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
    got = {}
    for mode in modes:
        got[mode] = typed(browser, folder, queries, mode)
        print(typed_row(mode, got[mode]), flush=True)
    return got


def page_kilobytes(browser: Any, folder: Path, query: str) -> float:
    """Return what a person's first query takes, with the page."""
    with hosted(folder) as address:
        Host.counted[:] = [0, 0]
        page = browser.new_context().new_page()
        page.goto(f"{address}index.html#{urlencode({'q': query})}")
        page.locator("li.hit").first.wait_for()
        page.context.close()
    return Host.counted[0] / 1000


def row(name: str, got: Measured, queries: Sequence[Query], qrels: dict[str, dict[str, int]]) -> str:
    """Return a row of the table."""
    rankings = zip(queries, got.rankings, strict=True)
    run = {q.query_id: Ranking(q.query_id, tuple(ids), -np.arange(len(ids), dtype=np.float64)) for q, ids in rankings}
    quality = evaluate(run, qrels, ["nDCG@10"])
    short = [quality.per_query["nDCG@10"][q.query_id] for q in queries if len(q.text.split()) <= SHORT]
    later, requests = got.sent[1:], got.requests[1:]
    empty = sum(not ids for ids in got.rankings) / len(queries)
    figures = [
        f"{got.sent[0] / 1000:.0f} kB",
        f"{np.median(later) / 1000:.1f} kB",
        f"{np.percentile(later, 95) / 1000:.1f} kB",
        f"{np.median(requests):.0f}",
        f"{np.median(got.again_ms):.1f} ms",
        f"{np.percentile(got.again_ms, 95):.1f} ms",
        f"{quality.measures['nDCG@10']:.3f}",
        f"{np.mean(short):.3f}" if short else "-",
        f"{empty:.0%}",
    ]
    return f"| {name} | {' | '.join(figures)} |"


def agreement(
    index: Path, mode: str, rankings: list[list[str]], texts: Sequence[str], *, as_you_type: bool = False
) -> str:
    """Return how often the page's hits are those of the Python searcher."""
    queries = [Query(f"{i:05d}", text) for i, text in enumerate(texts)]
    with Index.open(index) as opened:
        options = SearchOptions(mode=mode, typos=False, compounds=False, as_you_type=as_you_type)
        run = Searcher(opened).search(queries, K, options)
    expected = [list(run[query.query_id].doc_ids) for query in queries]
    pairs = list(zip(expected, rankings, strict=True))
    same = np.mean([set(one) == set(other) for one, other in pairs])
    ordered = np.mean([one == other for one, other in pairs])
    shared = np.mean([len({*one} & {*other}) / len(one) if one else 1.0 for one, other in pairs])
    name = f"{mode}, typed" if as_you_type else mode
    return f"| {name} | {same:.1%} | {ordered:.1%} | {shared:.2%} |"


def pagefind_program(folder: str | None) -> Path | None:
    """Return Pagefind's command; None with a message if it is not installed."""
    program = None if folder is None else Path(folder, "node_modules", ".bin", "pagefind")
    if program is None or not program.exists():
        print("Pagefind is not installed and is skipped (npm install --prefix DIR pagefind, then --pagefind DIR)")
        return None
    return program


def compare(args: argparse.Namespace, work: Path) -> None:
    """Publish the pages in both ways, and print the tables."""
    datasets, fillers = [Dataset.open(name) for name in args.dataset], [Dataset.open(name) for name in args.filler]
    pages = list(pages_of(datasets, fillers, args.documents))
    queries, qrels = queries_of(datasets, args.split, args.queries)
    make_index(work / "index", pages, args.model)
    with Index.open(work / "index") as index:
        site = publish_index(index, work / "site", overwrite=True, progress=False)
    modes = ["hybrid", *site.branches] if len(site.branches) > 1 else list(site.branches)
    print(f"{len(pages):,} pages, {len(queries):,} queries; site: {site.n_files} files, {site.n_bytes / 1e6:.1f} MB")
    program = pagefind_program(args.pagefind)
    if program is not None:
        shutil.rmtree(work / "pages", ignore_errors=True)
        write_pages(work / "pages", pages)
        subprocess.run([program, "--site", work / "pages"], check=True, stdout=subprocess.DEVNULL)
        version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    if CHROMIUM is None or not is_installed("playwright"):
        print("Chromium is not installed, so nothing is searched")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        print(f"{browser.browser_type.name} {browser.version}\n")
        print(f"the page with its first query: {page_kilobytes(browser, work / 'site', queries[0].text):.0f} kB\n")
        columns = ["first query", "later", "95 %", "requests", "again", "95 %", "nDCG@10", "short queries", "no hits"]
        print(f"| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")
        got = {mode: measured(browser, work / "site", ASK_LIGHTIR, queries, mode) for mode in modes}
        for mode in modes:
            print(row(f"lightir, {mode}", got[mode], queries, qrels), flush=True)
        if program is not None:
            peer = measured(browser, work / "pages", ASK_PAGEFIND, queries)
            print(row(version, peer, queries, qrels), flush=True)
        keystrokes = print_keystrokes(browser, work / "site", modes, queries[:: -(-len(queries) // args.typed)])
        browser.close()
    print("\n| as the Python searcher | same ten | in the same order | shared hits |\n|---|---:|---:|---:|")
    for mode in modes:
        print(agreement(work / "index", mode, got[mode].rankings, [query.text for query in queries]))
        print(agreement(work / "index", mode, keystrokes[mode].rankings, keystrokes[mode].texts, as_you_type=True))


def main() -> None:
    """Read the arguments, and run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", required=True, help="BEIR folders whose queries are asked")
    parser.add_argument("--filler", nargs="*", default=[], help="BEIR folders that give further documents")
    parser.add_argument(
        "--documents", type=int, default=10_000, help="maximum number of documents (default %(default)s)"
    )
    parser.add_argument("--split", default="test", help="split of the queries (default %(default)s)")
    parser.add_argument("--queries", type=int, help="maximum number of queries per data set (default: all)")
    parser.add_argument(
        "--typed", type=int, default=40, help="maximum number of queries typed letter by letter (default %(default)s)"
    )
    parser.add_argument("--model", help="model that encodes the documents (default: words alone)")
    parser.add_argument(
        "--work", help="folder of index, site and pages, kept for a later run (default: a temporary one)"
    )
    parser.add_argument("--pagefind", help="folder with node_modules of Pagefind (default: skip it)")
    args = parser.parse_args()
    print_origin()
    if args.work is not None:
        Path(args.work).mkdir(exist_ok=True)
        compare(args, Path(args.work))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(args, Path(folder))


if __name__ == "__main__":
    main()
