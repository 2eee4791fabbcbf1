"""Facets, sorting, browsing and metadata updates of a shop, beside SQLite FTS5 and tantivy in one run.

Products have texts of 20 words from a Zipf distribution, a price, one of 200 brands and a number in stock. Each task is
measured over 20 queries of two words, one after the other on one thread, after a first query that reads what is read
once. The table shows the median CPU time per query. Every engine must find the same number of matches.

    python bench/bench_fields.py --documents 100000
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index, document_shards
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.types import Document
from optional import is_installed
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--documents 500"
N_WORDS, N_BRANDS, LENGTH = 20_000, 200, 20
SCHEMA = Schema({"price": Field("number"), "stock": Field("number"), "brand": Field("keyword")})
FILTER_PRICE = 50


@dataclass(frozen=True, slots=True)
class Product:
    """A row of the shop."""

    doc_id: str
    text: str
    price: int
    brand: str
    stock: int


def products(n: int) -> Iterator[Product]:
    """Yield n random products; the same for the same n."""
    rng = np.random.default_rng(0)
    for i in range(n):
        words = np.minimum(rng.zipf(1.2, LENGTH), N_WORDS)
        price, stock = int(rng.integers(1, 1000)), int(rng.integers(0, 50))
        brand = f"brand{int(rng.zipf(1.5)) % N_BRANDS}"
        yield Product(f"p{i:07}", " ".join(f"w{word}" for word in words.tolist()), price, brand, stock)


def queries() -> list[str]:
    """Return 20 queries of two words: one of the most frequent 20, and one of the next 180."""
    rng = np.random.default_rng(1)
    return [f"w{rng.integers(2, 20)} w{rng.integers(20, 200)}" for _ in range(20)]


Tasks = dict[str, Callable[[str], int | None]]
"""Task -> function of a query that returns the number of matches, or None if the engine did not count them."""


def lightir_tasks(folder: Path, n: int) -> Tasks:
    """Build an index and return its tasks."""
    documents = (
        Document(row.doc_id, row.text, metadata={"price": row.price, "brand": row.brand, "stock": row.stock})
        for row in products(n)
    )
    options = IndexOptions(analyzer="words", schema=SCHEMA)
    build_index(document_shards(documents), folder / "index", options=options, progress=False)
    index = Index.open(folder / "index")
    searcher, cheap = Searcher(index), SearchOptions(filter={"price": {"lt": FILTER_PRICE}})

    def change(query: str) -> None:
        with IndexWriter.open(folder / "index") as writer:
            writer.set_metadata({"p0000001": {"price": len(query)}})
        index.refresh()

    def changed_facet(query: str) -> int:
        change(query)
        return searcher.page(query, PageOptions(facets={"brand": 10})).total

    def plain(query: str) -> None:
        searcher.search([query], 10)

    return {
        "search, 10 ids": plain,
        "search, 10 hits": lambda query: len(searcher.hits(query, 10)) and None,
        "hits and total": lambda query: searcher.page(query).total,
        "facet brand": lambda query: searcher.page(query, PageOptions(facets={"brand": 10})).total,
        "sort by price": lambda query: searcher.page(query, PageOptions(sort="price")).total,
        "one hit per brand": lambda query: searcher.page(query, PageOptions(group="brand")).total,
        "browse, price < 50, by stock": lambda _: searcher.page("", PageOptions(sort="stock:desc"), cheap).total,
        "browse, facet brand": lambda _: searcher.page("", PageOptions(facets={"brand": 10}), cheap).total,
        "set one price": change,
        "set one price, facet brand": changed_facet,
    }


def sqlite_tasks(folder: Path, n: int) -> Tasks:
    """Build a table with a full-text index and return its tasks."""
    connection = sqlite3.connect(folder / "shop.sqlite")
    connection.execute(
        "CREATE TABLE p (id INTEGER PRIMARY KEY, doc_id TEXT, text TEXT, price INT, brand TEXT, stock INT)"
    )
    connection.execute("CREATE VIRTUAL TABLE f USING fts5(text, content='p', content_rowid='id')")
    rows = ((r.doc_id, r.text, r.price, r.brand, r.stock) for r in products(n))
    connection.executemany("INSERT INTO p (doc_id, text, price, brand, stock) VALUES (?, ?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO f (f) VALUES ('rebuild')")
    connection.execute("CREATE INDEX p_price ON p (price)")
    connection.execute("CREATE UNIQUE INDEX p_doc_id ON p (doc_id)")
    connection.commit()
    matches, cheap = "FROM f JOIN p ON p.id = f.rowid WHERE f MATCH ?", f"FROM p WHERE price < {FILTER_PRICE}"

    def select(statement: str, query: str | None) -> list[tuple[int]]:
        words = [] if query is None else [query.replace(" ", " OR ")]
        return connection.execute(statement, words).fetchall()

    def count(query: str) -> int:
        return select("SELECT count(*) FROM f WHERE f MATCH ?", query)[0][0]

    def with_count(statement: str) -> Callable[[str], int]:
        return lambda query: (select(statement, query), count(query))[1]

    def browsed(statement: str) -> Callable[[str], int]:
        return lambda _: (select(statement, None), select(f"SELECT count(*) {cheap}", None)[0][0])[1]

    def change(query: str) -> None:
        connection.execute("UPDATE p SET price = ? WHERE doc_id = 'p0000001'", (len(query),))
        connection.commit()

    def facet(query: str) -> int:
        select(hits, query)
        select(f"SELECT brand, count(*) {matches} {by_brand}", query)
        return count(query)

    top = "SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT 10"
    hits = "SELECT p.* FROM p JOIN (SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT 10) ON id = rowid"
    groups = f"SELECT brand, min(rank) AS best {matches} GROUP BY brand ORDER BY best LIMIT 10"
    by_brand = "GROUP BY brand ORDER BY 2 DESC, 1 LIMIT 10"
    return {
        "search, 10 ids": lambda query: len(select(top, query)) and None,
        "search, 10 hits": lambda query: len(select(hits, query)) and None,
        "hits and total": with_count(hits),
        "facet brand": facet,
        "sort by price": with_count(f"SELECT p.* {matches} ORDER BY price, doc_id LIMIT 10"),
        "one hit per brand": with_count(groups),
        "browse, price < 50, by stock": browsed(f"SELECT * {cheap} ORDER BY stock DESC, doc_id LIMIT 10"),
        "browse, facet brand": browsed(f"SELECT brand, count(*) {cheap} {by_brand}"),
        "set one price": change,
        "set one price, facet brand": lambda query: (change(query), facet(query))[1],
    }


def tantivy_tasks(folder: Path, n: int) -> Tasks:
    """Build an index with fast fields and return its tasks; grouping it does not have."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="whitespace", stored=True)
    builder.add_text_field("doc_id", tokenizer_name="raw", stored=True)
    builder.add_text_field("brand", tokenizer_name="raw", stored=True, fast=True)
    builder.add_unsigned_field("price", stored=True, indexed=True, fast=True)
    builder.add_unsigned_field("stock", stored=True, fast=True)
    (folder / "tantivy").mkdir()
    schema = builder.build()
    index = tantivy.Index(schema, str(folder / "tantivy"))
    writer = index.writer(heap_size=200_000_000, num_threads=1)
    for row in products(n):
        document = tantivy.Document(text=row.text, doc_id=row.doc_id, brand=row.brand)
        document.add_unsigned("price", row.price)
        document.add_unsigned("stock", row.stock)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    cheap = tantivy.Query.range_query(schema, "price", tantivy.FieldType.Unsigned, 0, FILTER_PRICE, include_upper=False)
    by_brand = {"brand": {"terms": {"field": "brand", "size": 10}}}

    def found(query: str | None, **settings: object) -> int | None:
        parsed = cheap if query is None else index.parse_query(query, ["text"])
        result = searcher.search(parsed, 10, **settings)
        _ = [searcher.doc(address).to_dict() for _, address in result.hits]
        return result.count

    def ids(query: str) -> None:
        _ = [address.doc for _, address in searcher.search(index.parse_query(query, ["text"]), 10, count=False).hits]

    def facet(query: str | None) -> int | None:
        searcher.aggregate(cheap if query is None else index.parse_query(query, ["text"]), by_brand)
        return found(query)

    up, down = tantivy.Order.Asc, tantivy.Order.Desc
    return {
        "search, 10 ids": ids,
        "search, 10 hits": lambda query: found(query, count=False) and None,
        "hits and total": found,
        "facet brand": facet,
        "sort by price": lambda query: found(query, order_by_field="price", order=up),
        "browse, price < 50, by stock": lambda _: found(None, order_by_field="stock", order=down),
        "browse, facet brand": lambda _: facet(None),
    }


def measure(tasks: Tasks) -> dict[str, tuple[float, list[int | None]]]:
    """Return the median milliseconds of CPU time per query of each task, and the number of matches of each query."""
    results = {}
    for name, run in tasks.items():
        run(queries()[0])
        times, counts = [], []
        for query in queries():
            start = time.thread_time()
            counts.append(run(query))
            times.append(1000 * (time.thread_time() - start))
        results[name] = statistics.median(times), counts
    return results


def measure_engine(make: Callable[[Path, int], Tasks], n: int) -> tuple[dict[str, tuple[float, list[int | None]]], int]:
    """Return what `measure` returns, and the bytes of memory that all tasks take beyond the opened index."""
    with tempfile.TemporaryDirectory() as folder:
        tasks, memory = make(Path(folder), n), ExtraMemory()
        return measure(tasks), memory.peak()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000, help="number of products (default %(default)s)")
    args = parser.parse_args()
    print_origin()
    makers = {"lightir": lightir_tasks, f"FTS5 {sqlite3.sqlite_version}": sqlite_tasks}
    if is_installed("tantivy"):
        makers["tantivy"] = tantivy_tasks
    measured = {name: in_own_process(measure_engine, make, args.documents) for name, make in makers.items()}
    results = {name: of_engine for name, (of_engine, _) in measured.items()}
    print(f"{args.documents:,} products, milliseconds of CPU time per query (median of 20)\n")
    print(f"{'task':<30}" + "".join(f"{name:>14}" for name in results))
    for task in results["lightir"]:
        counts = {
            str(engine[task][1]) for engine in results.values() if task in engine and engine[task][1][0] is not None
        }
        if len(counts) > 1:
            raise SystemExit(f"{task}: the engines find different numbers of documents")
        cells = [f"{engine[task][0]:14.2f}" if task in engine else f"{'-':>14}" for engine in results.values()]
        print(f"{task:<30}" + "".join(cells))
    print(f"{'memory, MB':<30}" + "".join(f"{n_bytes / 1e6:14.1f}" for _, n_bytes in measured.values()))


if __name__ == "__main__":
    main()
