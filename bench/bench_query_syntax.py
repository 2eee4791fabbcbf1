"""The cost of the query syntax: phrases, exclusions, conditions on fields and names, beside SQLite FTS5 and tantivy.

Products have 60 words from a Zipf distribution, an id, one of 200 brands and a part number in a field with the flag
`key`. The table shows the median CPU time per query in milliseconds on one thread, over 20 queries of two words by
BM25, and the first time after the index was opened. Every query is new, so nothing that an earlier one of its kind
computed is used again, except columns of fields, which the first query reads. Each engine runs in a process of its own,
whose additional memory for all searches the last line shows. SQLite looks up ids and part numbers in indexes of its
own, tantivy in fields of whole strings; neither finds them within a query of words without being told so.

    python bench/bench_query_syntax.py --documents 100000
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lightir.index import Field, Index, IndexOptions, Schema, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from optional import is_installed
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--documents 300"
N_WORDS, N_BRANDS, LENGTH, N_QUERIES = 20_000, 200, 60, 20
SCHEMA = Schema({"brand": Field("keyword"), "part": Field("keyword", key=True)})
SYNTAX = SearchOptions(syntax=True)
Tasks = dict[str, Callable[[str], object]]


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


def cpu_ms(search: Callable[[str], object], asked: list[str]) -> tuple[float, float]:
    """Return the CPU time of the first query, and the median of the others."""
    taken = []
    for query in asked:
        start = time.process_time()
        search(query)
        taken.append((time.process_time() - start) * 1000)
    return taken[0], statistics.median(taken[1:])


def sqlite_tasks(folder: Path, n: int) -> Tasks:
    """Build a full-text index and a table, and return the tasks."""
    connection = sqlite3.connect(folder / "products.sqlite")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5(text)")
    connection.execute("CREATE TABLE d (doc INTEGER PRIMARY KEY, id TEXT, brand TEXT, part TEXT)")
    for i, document in enumerate(products(n)):
        connection.execute("INSERT INTO f (rowid, text) VALUES (?, ?)", (i, document.text))
        metadata = document.metadata
        connection.execute(
            "INSERT INTO d VALUES (?, ?, ?, ?)", (i, document.doc_id, metadata["brand"], metadata["part"])
        )
    connection.execute("INSERT INTO f (f) VALUES ('optimize')")
    for index in ("d (id)", "d (id COLLATE NOCASE)", "d (part)"):
        connection.execute(f"CREATE UNIQUE INDEX i{sum(map(ord, index))} ON {index}")
    connection.commit()

    def rows(statement: str, *values: str) -> list[tuple[int]]:
        return connection.execute(statement, values).fetchall()

    def best(match: str) -> list[tuple[int]]:
        return rows("SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT 10", match)

    def of_brand(query: str) -> list[tuple[int]]:
        a, b, brand = query.split()
        joined = "SELECT f.rowid FROM f JOIN d ON d.doc = f.rowid WHERE f MATCH ? AND brand = ? ORDER BY rank LIMIT 10"
        return rows(joined, f"{a} OR {b}", brand.removeprefix("brand:").lower())

    return {
        "words": lambda query: best(query.replace(" ", " OR ")),
        "phrase": best,
        "excluded word": lambda query: best(query.replace(" -", " NOT ")),
        "value of a field": of_brand,
        "id": lambda query: rows("SELECT doc FROM d WHERE id = ?", query),
        "id in small letters": lambda query: rows("SELECT doc FROM d WHERE id = ? COLLATE NOCASE", query),
        "part number": lambda query: rows("SELECT doc FROM d WHERE part = ?", query),
    }


def tantivy_tasks(folder: Path, n: int) -> Tasks:
    """Build an index and return its tasks."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="whitespace")
    for name in ("id", "brand", "part"):
        builder.add_text_field(name, tokenizer_name="raw")
    schema = builder.build()
    (folder / "tantivy").mkdir()
    index = tantivy.Index(schema, str(folder / "tantivy"))
    writer = index.writer(heap_size=200_000_000, num_threads=1)
    for document in products(n):
        writer.add_document(tantivy.Document(id=document.doc_id, text=document.text, **document.metadata))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    must, should, never = tantivy.Occur.Must, tantivy.Occur.Should, tantivy.Occur.MustNot

    def term(word: str, field: str = "text") -> tantivy.Query:
        return tantivy.Query.term_query(schema, field, word)

    def best(query: tantivy.Query) -> object:
        return searcher.search(query, 10, count=False).hits

    def joined(*parts: tuple[tantivy.Occur, tantivy.Query]) -> tantivy.Query:
        return tantivy.Query.boolean_query(list(parts))

    def words(query: str) -> tantivy.Query:
        return joined(*((should, term(word)) for word in query.split()))

    def excluding(query: str) -> object:
        a, b = query.split(" -")
        return best(joined((must, term(a)), (never, term(b))))

    def of_brand(query: str) -> object:
        text, _, brand = query.rpartition(" brand:")
        return best(joined((must, words(text)), (must, term(brand.lower(), "brand"))))

    return {
        "words": lambda query: best(words(query)),
        "phrase": lambda query: best(tantivy.Query.phrase_query(schema, "text", query.strip('"').split())),
        "excluded word": excluding,
        "value of a field": of_brand,
        "id": lambda query: best(term(query, "id")),
        "part number": lambda query: best(term(query, "part")),
    }


PEERS = {"FTS5": sqlite_tasks, "tantivy": tantivy_tasks}
Times = dict[str, tuple[float, float]]


def measure_peer(name: str, n: int) -> tuple[Times, int]:
    """Return the times of each task of an engine, and the memory of all its searches in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        tasks, asked, memory = PEERS[name](Path(folder), n), queries(n), ExtraMemory()
        times = {task: cpu_ms(search, asked[task]) for task, search in tasks.items()}
        return times, memory.peak()


def best_ten(searcher: Searcher, query: str) -> object:
    """Search one query."""
    return searcher.search([query], 10, SYNTAX)


def measure_lightir(path: Path, n: int) -> tuple[Times, int]:
    """Return the times of each task of an index, which is opened for each, and the memory of all searches in bytes."""
    times, memory = {}, ExtraMemory()
    for task, of_task in queries(n).items():
        with Index.open(path) as index:
            times[task] = cpu_ms(partial(best_ten, Searcher(index)), of_task)
    return times, memory.peak()


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


def print_table(n: int, results: dict[str, tuple[Times, int]]) -> None:
    """Print the first and the median time of each task and engine, and the memory."""
    print(f"| {n:,} products | " + " | ".join(f"{name}: first, median" for name in results) + " |")
    print("|---|" + "---:|" * len(results))
    for task in queries(n):
        cells = [", ".join(f"{ms:,.2f}" for ms in times.get(task, ())) or "–" for times, _ in results.values()]
        print(f"| {task} | " + " | ".join(cells) + " |")
    print("| memory, MB | " + " | ".join(f"{n_bytes / 1e6:.1f}" for _, n_bytes in results.values()) + " |")


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
        results = {"lightir": in_own_process(measure_lightir, path, args.documents)}
        for name in PEERS:
            if name != "tantivy" or is_installed("tantivy"):
                results[name] = in_own_process(measure_peer, name, args.documents)
        print_table(args.documents, results)
        asked = queries(args.documents)
        with Index.open(path) as index:
            candidates = [n_candidates(index, phrase) for phrase in asked["phrase"]]
            print(f"\ndocuments with all words of a phrase, median: {statistics.median(candidates):,.0f}")
            print(f"plain words with syntax: {added_us(index, asked['words']):+.1f} us per query")


if __name__ == "__main__":
    main()
