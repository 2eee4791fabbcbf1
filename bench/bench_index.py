"""An index that changes: building and its memory, one document from add to found, searching, snippets, filtering,
compacting.

Texts become an index beside bm25s and tantivy, where they are installed; documents a second of CPU count the process's
own time, so that other work counts little.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from lightir.analysis import Analyzer
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.search.snippets import slow_snippet, snippets
from lightir.types import Document
from optional import is_installed
from origin import print_origin

SMALLEST = "--n-docs 300 --n-adds 2"
WORDS, WORDS_PER_DOCUMENT = 50_000, 60
TEXTS, TEXTS_ADDED = 50_000, 10_000


def main() -> None:
    """Build, change, search, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n-docs", type=int, default=200_000)
    parser.add_argument("--n-adds", type=int, default=50)
    parser.add_argument("--dir", help="where to write (default: the system's folder for temporary files)")
    args = parser.parse_args()
    print_origin()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        bench(Path(folder, "index"), args.n_docs, args.n_adds)


def bench(folder: Path, n_docs: int, n_adds: int) -> None:
    """The steps, one after the other, on one index of tokens."""
    before = peak_bytes()
    built = timed(
        lambda: build_index(document_shards(documents(0, n_docs)), folder, options=IndexOptions(analyzer="words")),
        n_docs,
    )
    print(f"build     {built}, at most {(peak_bytes() - before) / 1e6:,.0f} MB more than before")
    some = list(documents(0, min(n_docs, TEXTS)))
    for analyzer in ("words", "english"):
        path = folder.with_name(analyzer)
        print(f"texts     {timed(lambda: build_texts(some, path, analyzer), len(some))}, {analyzer}")  # noqa: B023
    peer_builds(some, folder.with_name("tantivy"))
    probe_s = probe(folder)
    queries = [" ".join(f"w{i}" for i in terms) for terms in np.random.default_rng(1).zipf(1.4, (200, 5)) % WORDS]
    with IndexWriter.open(folder) as writer, Index.open(folder) as index:
        searcher = Searcher(index)
        show("search", per_call(queries, lambda query: searcher.search([query], 10)))
        start_cpu = time.process_time()
        with_snippets = per_call(queries, lambda query: searcher.hits(query, 10))
        cpu_ms = (time.process_time() - start_cpu) / len(queries) * 1e3
        show("hits", with_snippets, f", 10 with titles and snippets; {cpu_ms:.2f} ms of CPU")
        show_snippets()
        batch = list(documents(2 * n_docs, TEXTS_ADDED))
        print(f"add       {timed(lambda: writer.add(batch), len(batch))}, {len(batch):,} at once")
        more = list(documents(n_docs, n_adds))

        def add(document: Document) -> None:
            writer.add([document])
            index.refresh()
            assert document.doc_id in searcher.search([document.title], 1)["0"].doc_ids

        show("add, found", per_call(more, add), f"; writing and flushing 4 kB alone {probe_s * 1e3:.2f} ms")
        show(
            "search",
            per_call(queries, lambda query: searcher.search([query], 10)),
            f", {index.info().segments} segments",
        )
        wanted = [{"n": {"gte": i % 90, "lt": i % 90 + 10}} for i in range(len(queries))]
        start = time.perf_counter()
        ranking = searcher.search(queries[:1], 10, SearchOptions(filter=wanted[0]))["0"]
        first_s = time.perf_counter() - start
        again = per_call(queries, lambda query: searcher.search([query], 10, SearchOptions(filter=wanted[0])))
        show("filtered", again, f"; the first time {first_s * 1e3:,.0f} ms; {len(ranking)} found")
        pairs = list(zip(queries, wanted, strict=True))
        other = per_call(pairs, lambda pair: searcher.search([pair[0]], 10, SearchOptions(filter=pair[1])))
        show("values", other, ", another filter each")

        def add_and_filter(document: Document) -> None:
            writer.add([document])
            index.refresh()
            searcher.search([document.title], 1, SearchOptions(filter=wanted[0]))

        show(
            "add, both",
            per_call(list(documents(3 * n_docs + TEXTS_ADDED, n_adds)), add_and_filter),
            ", found with a filter",
        )
        start, n_before = time.perf_counter(), len(writer)
        writer.delete_where({"n": {"lt": 10}})
        print(f"delete    {(time.perf_counter() - start) * 1e3:10,.1f} ms for {n_before - len(writer):,} documents")
        start = time.perf_counter()
        writer.compact()
        print(f"compact   {len(writer) / (time.perf_counter() - start):10,.0f} documents/s")
        index.refresh()
        show("search", per_call(queries, lambda query: searcher.search([query], 10)))


def show_snippets() -> None:
    """Snippets of ten documents of 1,500 characters, and of one of ten million, with the time of the readable twin."""
    rng = np.random.default_rng(2)
    words = [f"{chr(97 + i % 26)}w{i}ing" for i in range(WORDS)]
    text = " ".join(words[i] for i in rng.zipf(1.4, 1_500_000) % WORDS)[:10_000_000]
    analyzer, query = Analyzer("english"), " ".join(words[10:14])
    wanted = frozenset(analyzer.terms([query])[0])
    for texts in ([text[i : i + 1500] for i in range(0, 15_000, 1500)], [text]):
        snippets(texts, query, analyzer)
        fast = per_call([texts] * 5, lambda texts: snippets(texts, query, analyzer))
        twin = per_call([texts] * 5, lambda texts: [slow_snippet(one, wanted, analyzer, length=240) for one in texts])
        ratio = statistics.median(twin) / statistics.median(fast)
        show("snippets", fast, f", {len(texts)} of {len(texts[0]):,} characters, {ratio:.1f} times as fast as the twin")


def build_texts(some: Sequence[Document], folder: Path, analyzer: str) -> None:
    """An index of texts."""
    build_index(document_shards(some), folder, options=IndexOptions(analyzer=analyzer), progress=False)


def peer_builds(some: Sequence[Document], folder: Path) -> None:
    """Index the texts with other engines on one thread; tantivy stores texts and ids, bm25s neither."""
    texts = [document.full_text() for document in some]

    def with_bm25s() -> None:
        import bm25s

        bm25s.BM25().index(bm25s.tokenize(texts, stopwords=None, show_progress=False), show_progress=False)

    def with_tantivy() -> None:
        import tantivy

        folder.mkdir()
        builder = tantivy.SchemaBuilder().add_text_field("id", stored=True, tokenizer_name="raw")
        builder.add_text_field("text", stored=True, index_option="freq")
        writer = tantivy.Index(builder.build(), str(folder)).writer(heap_size=200_000_000, num_threads=1)
        for document, text in zip(some, texts, strict=True):
            writer.add_document(tantivy.Document(id=document.doc_id, text=text))
        writer.commit()
        writer.wait_merging_threads()

    for package, build in (("bm25s", with_bm25s), ("tantivy", with_tantivy)):
        if is_installed(package):
            print(f"texts     {timed(build, len(some))}, {package}")


def timed(work: Callable[[], object], n: int) -> str:
    """Documents a second, and a second of CPU."""
    start, start_cpu = time.perf_counter(), time.process_time()
    work()
    took_s, took_cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return f"{n / took_s:10,.0f} documents/s, {n / took_cpu:,.0f} a second of CPU"


def documents(first: int, n: int) -> Iterator[Document]:
    """Zipf-distributed words; the title is a word of its own."""
    rng = np.random.default_rng(first)
    for i in range(first, first + n):
        text = " ".join(f"w{word}" for word in rng.zipf(1.2, WORDS_PER_DOCUMENT) % WORDS)
        yield Document(f"document-{i:09d}", text, f"unique{i}", {"n": i % 100})


def probe(folder: Path) -> float:
    """Seconds for 4 kB to be written and flushed."""
    times = []
    for _ in range(10):
        start = time.perf_counter()
        with (folder / "probe").open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        times.append(time.perf_counter() - start)
    (folder / "probe").unlink()
    return statistics.median(times)


def per_call(arguments: Sequence[Any], call: Callable[[Any], object]) -> list[float]:
    """Seconds of each call."""
    times = []
    for one in arguments:
        start = time.perf_counter()
        call(one)
        times.append(time.perf_counter() - start)
    return times


def show(name: str, times: list[float], more: str = "") -> None:
    """One line: the median and the worst of a hundred."""
    p50, p99 = np.percentile(np.array(times) * 1e3, [50, 99])
    print(f"{name:<10}{p50:9.2f} ms p50, {p99:.2f} ms p99{more}")


def peak_bytes() -> int:
    """The most memory that the process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
