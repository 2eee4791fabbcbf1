"""The cost of passages: documents of ten passages each, beside the same texts as documents of their own.

Texts have 60 words from a Zipf distribution. The table shows the build in seconds, bytes on
disk, and the median CPU time per query in milliseconds on one thread, over 20 queries of two words by BM25: ten
documents by their best passages, ten passages, ten hits with snippets, and a page with the number of all matches.

    python bench/bench_passages.py --documents 100000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lightir.index import Index, IndexOptions, PassageOptions, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from origin import print_origin

SMALLEST = "--documents 50"
PASSAGES, WORDS, N_WORDS = 10, 60, 50_000


def texts(n: int) -> Iterator[list[str]]:
    """Yield the texts of the passages of n documents; the same for the same n."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        words = np.minimum(rng.zipf(1.2, (PASSAGES, WORDS)), N_WORDS)
        yield [" ".join(f"w{word}" for word in row) for row in words.tolist()]


def queries() -> list[str]:
    """Return 20 queries of two words: one of the most frequent 20, and one of the next 180."""
    rng = np.random.default_rng(1)
    return [f"w{rng.integers(2, 20)} w{rng.integers(20, 200)}" for _ in range(20)]


def whole(number: int, parts: list[str]) -> list[Document]:
    """Return one document with a paragraph for each part; an index with passages of 64 words splits it there."""
    return [Document(f"d{number:07}", "\n\n".join(f"{part}." for part in parts), metadata={"n": len(parts)})]


def records(number: int, parts: list[str]) -> list[Document]:
    """Return the same texts as documents of their own."""
    return [Document(f"d{number:07}-{i}", f"{part}.", metadata={"n": len(parts)}) for i, part in enumerate(parts)]


def cpu_ms(task: Callable[[str], object]) -> float:
    """Return the median CPU time of a task over the queries, after a first one."""
    asked = queries()
    task(asked[0])
    taken = []
    for query in asked:
        start = time.process_time()
        task(query)
        taken.append((time.process_time() - start) * 1000)
    return statistics.median(taken)


def measure(folder: Path, n: int, *, as_passages: bool) -> dict[str, float]:
    """Build one of the two indexes and measure it."""
    options = IndexOptions(analyzer="words", passages=PassageOptions(64) if as_passages else None)
    split = whole if as_passages else records
    documents = (document for number, parts in enumerate(texts(n)) for document in split(number, parts))
    start = time.perf_counter()
    build_index(document_shards(documents), folder, options=options, progress=False)
    taken = {"build, s": time.perf_counter() - start}
    taken["on disk, MB"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    start = time.perf_counter()
    with Index.open(folder) as index:
        taken["open, ms"] = (time.perf_counter() - start) * 1000
        assert len(index.view) == n * PASSAGES
        searcher, every = Searcher(index), SearchOptions(passages=True)
        taken["10 best documents, ms"] = cpu_ms(lambda query: searcher.search([query], 10))
        taken["10 best passages, ms"] = cpu_ms(lambda query: searcher.search([query], 10, every))
        taken["10 hits with snippets, ms"] = cpu_ms(lambda query: searcher.hits(query, 10))
        taken["hits and total, ms"] = cpu_ms(lambda query: searcher.page(query))
    return taken


def main() -> None:
    """Measure both, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    args = parser.parse_args()
    print_origin()
    with tempfile.TemporaryDirectory() as folder:
        alone = measure(Path(folder, "records"), args.documents, as_passages=False)
        split = measure(Path(folder, "passages"), args.documents, as_passages=True)
    print(f"| {args.documents:,} documents of {PASSAGES} passages | records | passages | ratio |\n|---|---:|---:|---:|")
    for name, value in alone.items():
        print(f"| {name} | {value:,.2f} | {split[name]:,.2f} | {split[name] / value:.2f} |")


if __name__ == "__main__":
    main()
