"""The cost of the query syntax: phrases, exclusions, conditions on fields and names, beside the same words alone.

Products have 60 words from a Zipf distribution, an id, one of 200 brands and a part number in a field with the flag
`key`. The table shows the median CPU time per query in milliseconds on one thread, over 20 queries of two words by
BM25, and the first time after the index was opened. Every query is new, so nothing that an earlier one of its kind
computed is used again, except columns of fields, which the first query reads.

    python bench/bench_query_syntax.py --documents 100000
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lightir.index import Field, Index, IndexOptions, Schema, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from origin import print_origin

SMALLEST = "--documents 300"
N_WORDS, N_BRANDS, LENGTH, N_QUERIES = 20_000, 200, 60, 20
SCHEMA = Schema({"brand": Field("keyword"), "part": Field("keyword", key=True)})
SYNTAX = SearchOptions(syntax=True)


def spelled(number: int) -> str:
    """Return a word of letters for a number."""
    return "w" + "".join("bcdfghklmn"[int(digit)] + "a" for digit in str(number))


def products(n: int) -> Iterator[Document]:
    """Yield n random products; the same for the same n."""
    rng = np.random.default_rng(0)
    for i in range(n):
        words = np.minimum(rng.zipf(1.2, LENGTH), N_WORDS)
        metadata = {"brand": f"brand{int(rng.zipf(1.5)) % N_BRANDS}", "part": f"P{7 * i:09}"}
        yield Document(f"SKU-{i:07}-X", " ".join(map(spelled, words.tolist())), metadata=metadata)


def queries(n: int) -> dict[str, list[str]]:
    """Return the queries of each task for an index of n products."""
    rng = np.random.default_rng(1)
    pairs = [(spelled(int(rng.integers(2, 20))), spelled(int(rng.integers(20, 200)))) for _ in range(10 * N_QUERIES)]
    distinct = list(dict.fromkeys(pairs))[:N_QUERIES]
    chosen = rng.integers(0, n, N_QUERIES).tolist()
    return {
        "words": [f"{a} {b}" for a, b in distinct],
        "phrase": [f'"{a} {b}"' for a, b in distinct],
        "excluded word": [f"{a} -{b}" for a, b in distinct],
        "value of a field": [f"{a} {b} brand:BRAND{i}" for i, (a, b) in enumerate(distinct)],
        "id": [f"SKU-{i:07}-X" for i in chosen],
        "words and an id": [f"{a} SKU-{i:07}-X" for i, (a, _) in zip(chosen, distinct, strict=False)],
        "id in small letters": [f"sku-{i:07}-x" for i in chosen],
        "part number": [f"P{7 * i:09}" for i in chosen],
    }


def cpu_ms(index: Index, asked: list[str], options: SearchOptions) -> tuple[float, float]:
    """Return the CPU time of the first query, and the median of the others."""
    searcher = Searcher(index)
    taken = []
    for query in asked:
        start = time.process_time()
        searcher.search([query], 10, options)
        taken.append((time.process_time() - start) * 1000)
    return taken[0], statistics.median(taken[1:])


def added_us(index: Index, asked: list[str]) -> float:
    """Return by how many microseconds the syntax makes queries of plain words slower."""
    searcher = Searcher(index)
    searcher.search(asked, 10)
    best = []
    for options in (SearchOptions(), SYNTAX):
        runs = []
        for _ in range(15):
            start = time.process_time()
            for query in asked:
                searcher.search([query], 10, options)
            runs.append((time.process_time() - start) / len(asked) * 1e6)
        best.append(min(runs))
    return best[1] - best[0]


def n_candidates(index: Index, phrase: str) -> int:
    """Return the number of documents that have all words of a phrase, whose texts are read."""
    words = phrase.strip('"').split()
    masks = [index.view.with_phrase(word) for word in words]
    return sum(int(np.logical_and.reduce(of_segment).sum()) for of_segment in zip(*masks, strict=True))


def main() -> None:
    """Build an index, measure the tasks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    args = parser.parse_args()
    print_origin()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")
        options = IndexOptions(schema=SCHEMA)
        build_index(document_shards(products(args.documents)), path, options=options, progress=False)
        print(f"| {args.documents:,} products | first, ms | median, ms |\n|---|---:|---:|")
        asked = queries(args.documents)
        for name, of_task in asked.items():
            with Index.open(path) as index:
                first, median = cpu_ms(index, of_task, SYNTAX)
            print(f"| {name} | {first:,.2f} | {median:,.2f} |")
        with Index.open(path) as index:
            candidates = [n_candidates(index, phrase) for phrase in asked["phrase"]]
            print(f"\ndocuments with all words of a phrase, median: {statistics.median(candidates):,.0f}")
            print(f"plain words with syntax: {added_us(index, asked['words']):+.1f} us per query")


if __name__ == "__main__":
    main()
