"""Typos, search as you type, synonyms and German compounds over many words, beside SQLite FTS5 and tantivy in one run.

Documents have 20 words from a Zipf distribution over words of four to nine letters. Each task is measured over 50
queries of two words, one after the other on one thread. The tables show the median and the 95th percentile of CPU time
per query in milliseconds for the ten best ids, and the memory that each engine's process takes beyond its start.

- Plain: both words are known. The typo: one letter of the second word is replaced, so that no document has it.
- As you type: the first three letters of the second word.
- Synonyms: the second word has three synonyms.

FTS5 finds no misspelled words. Its prefix index has two and three letters.

With --compounds every other word is a compound of two of the 2,000 most frequent ones, and lightir analyzes German.

- Plain: both words match themselves alone, as in the other engines.
- Compounds: the words are looked up among all words, most of them for the first time. Again: the same queries.

    python bench/bench_words.py --documents 100000
    python bench/bench_words.py --documents 100000 --compounds
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.types import Document
from lightir.words.synonyms import Synonyms
from optional import is_installed
from origin import print_origin
from own_process import ExtraMemory, in_own_process

SMALLEST = "--documents 500"
N_WORDS, LENGTH, N_QUERIES = 100_000, 20, 50
N_PARTS = 2_000
TYPO, TYPING, SYNONYMS, COMPOUNDS, AGAIN = "one typo", "as you type", "three synonyms", "compounds", "again"
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def vocabulary() -> list[str]:
    """Return the words, the most frequent first; the same in each call."""
    rng = np.random.default_rng(0)
    words: dict[str, None] = {}
    while len(words) < N_WORDS:
        letters = rng.choice(list(LETTERS), size=int(rng.integers(4, 10)))
        words["".join(letters.tolist())] = None
    return list(words)


def with_compounds(words: list[str]) -> list[str]:
    """Return the first half of the words, each followed by a compound of two frequent ones."""
    rng = np.random.default_rng(3)
    compounds = ["".join(rng.choice(words[:N_PARTS], 2).tolist()) for _ in range(N_WORDS // 2)]
    return [word for pair in zip(words, compounds, strict=False) for word in pair]


def texts(n: int, words: list[str]) -> Iterator[str]:
    """Yield n random texts; the same for the same n."""
    rng = np.random.default_rng(1)
    for _ in range(n):
        ranks = np.minimum(rng.zipf(1.2, LENGTH), N_WORDS) - 1
        yield " ".join(words[rank] for rank in ranks.tolist())


def pairs(words: list[str]) -> list[tuple[str, str]]:
    """Return the queries: one of the 20 most frequent words, and one of the next 480."""
    rng = np.random.default_rng(2)
    return [(words[rng.integers(0, 20)], words[rng.integers(20, 500)]) for _ in range(N_QUERIES)]


def misspelled(word: str, known: set[str]) -> str:
    """Return a word that is unknown and has one other letter."""
    at = len(word) // 2
    return next(
        wrong for letter in LETTERS if (wrong := word[:at] + letter + word[at + 1 :]) not in known and wrong != word
    )


def other_words(word: str, words: list[str]) -> list[str]:
    """Return the three synonyms of a word: those that follow it in the vocabulary."""
    at = words.index(word)
    return words[at + 1 : at + 4]


Search = Callable[[str, str], object]
Tasks = dict[str, Search]
"""Task -> function of the query's two words."""


def lightir_tasks(folder: Path, n: int, words: list[str]) -> Tasks:
    """Build an index and return its tasks."""
    documents = (Document(f"d{i:07}", text) for i, text in enumerate(texts(n, words)))
    options = IndexOptions(analyzer="words")
    build_index(document_shards(documents), folder / "index", options=options, progress=False)
    index, known = Index.open(folder / "index"), set(words)
    rules = "\n".join(", ".join([second, *other_words(second, words)]) for _, second in pairs(words))
    plain, exact = Searcher(index), SearchOptions(typos=False)
    with_synonyms = Searcher(index, synonyms=Synonyms.parse(rules.encode()))
    typing = SearchOptions(as_you_type=True)
    return {
        "plain": lambda a, b: plain.search([f"{a} {b}"], 10, exact),
        TYPO: lambda a, b: plain.search([f"{a} {misspelled(b, known)}"], 10),
        TYPING: lambda a, b: plain.search([f"{a} {b[:3]}"], 10, typing),
        SYNONYMS: lambda a, b: with_synonyms.search([f"{a} {b}"], 10, exact),
    }


def compound_tasks(folder: Path, n: int, words: list[str]) -> Tasks:
    """Build a German index and return its tasks."""
    documents = (Document(f"d{i:07}", text) for i, text in enumerate(texts(n, words)))
    options = IndexOptions(analyzer="auto-german")
    build_index(document_shards(documents), folder / "index", options=options, progress=False)
    searcher = Searcher(Index.open(folder / "index"))
    on, off = SearchOptions(typos=False), SearchOptions(typos=False, compounds=False)

    def search(a: str, b: str) -> object:
        return searcher.search([f"{a} {b}"], 10, on)

    return {"plain": lambda a, b: searcher.search([f"{a} {b}"], 10, off), COMPOUNDS: search, AGAIN: search}


def sqlite_tasks(folder: Path, n: int, words: list[str]) -> Tasks:
    """Build a full-text index and return its tasks."""
    connection = sqlite3.connect(folder / "words.sqlite")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5(text, prefix='2 3')")
    connection.executemany("INSERT INTO f (text) VALUES (?)", ((text,) for text in texts(n, words)))
    connection.execute("INSERT INTO f (f) VALUES ('optimize')")
    connection.commit()

    def best(match: str) -> list[tuple[int]]:
        return connection.execute("SELECT rowid FROM f WHERE f MATCH ? ORDER BY rank LIMIT 10", [match]).fetchall()

    return {
        "plain": lambda a, b: best(f'"{a}" OR "{b}"'),
        TYPING: lambda a, b: best(f'"{a}" OR "{b[:3]}" *'),
        SYNONYMS: lambda a, b: best(" OR ".join(f'"{word}"' for word in (a, b, *other_words(b, words)))),
    }


def tantivy_tasks(folder: Path, n: int, words: list[str]) -> Tasks:
    """Build an index and return its tasks."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="whitespace")
    schema, known = builder.build(), set(words)
    (folder / "tantivy").mkdir()
    index = tantivy.Index(schema, str(folder / "tantivy"))
    writer = index.writer(heap_size=200_000_000, num_threads=1)
    for text in texts(n, words):
        writer.add_document(tantivy.Document(text=text))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()

    def best(*parts: tantivy.Query) -> object:
        query = tantivy.Query.boolean_query([(tantivy.Occur.Should, part) for part in parts])
        return searcher.search(query, 10, count=False).hits

    def term(word: str) -> tantivy.Query:
        return tantivy.Query.term_query(schema, "text", word)

    def near(word: str) -> tantivy.Query:
        return tantivy.Query.fuzzy_term_query(schema, "text", word, distance=1, transposition_cost_one=True)

    return {
        "plain": lambda a, b: best(term(a), term(b)),
        TYPO: lambda a, b: best(term(a), near(misspelled(b, known))),
        TYPING: lambda a, b: best(term(a), tantivy.Query.regex_query(schema, "text", f"{b[:3]}.*")),
        SYNONYMS: lambda a, b: best(*map(term, (a, b, *other_words(b, words)))),
    }


def plain_task(make: Callable[[Path, int, list[str]], Tasks]) -> Callable[[Path, int, list[str]], Tasks]:
    """Return a function that returns the plain task alone."""
    return lambda folder, n, words: {"plain": make(folder, n, words)["plain"]}


MAKERS = {"lightir": lightir_tasks, "FTS5": sqlite_tasks, "tantivy": tantivy_tasks}
OF_COMPOUNDS = {"lightir": compound_tasks, "FTS5": plain_task(sqlite_tasks), "tantivy": plain_task(tantivy_tasks)}


def measure(name: str, n: int, compounds: bool) -> tuple[dict[str, tuple[float, float]], int]:
    """Return each task's median and 95th percentile in milliseconds, and the bytes of memory of all searches."""
    words = with_compounds(vocabulary()) if compounds else vocabulary()
    makers = OF_COMPOUNDS if compounds else MAKERS
    queries = pairs(words)
    with tempfile.TemporaryDirectory() as folder:
        tasks = makers[name](Path(folder), n, words)
        memory, results = ExtraMemory(), {}
        for task, run in tasks.items():
            run(*queries[0])
            times = []
            for query in queries:
                start = time.thread_time()
                run(*query)
                times.append(1000 * (time.thread_time() - start))
            results[task] = statistics.median(times), statistics.quantiles(times, n=20)[-1]
        return results, memory.peak()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000, help="number of documents (default %(default)s)")
    parser.add_argument("--compounds", action="store_true", help="measure compounds, over a vocabulary with compounds")
    args = parser.parse_args()
    print_origin()
    names = [name for name in MAKERS if name != "tantivy" or is_installed("tantivy")]
    results = {name: in_own_process(measure, name, args.documents, args.compounds) for name in names}
    print(
        f"{args.documents:,} documents, {N_WORDS:,} words; milliseconds of CPU per query, median and 95th percentile\n"
    )
    print(f"{'task':<16}" + "".join(f"{name:>18}" for name in results))
    for task in results["lightir"][0]:
        cells = [
            f"{'{:.3f} {:.3f}'.format(*engine[task]):>18}" if task in engine else f"{'-':>18}"
            for engine, _ in results.values()
        ]
        print(f"{task:<16}" + "".join(cells))
    print(f"{'memory, MB':<16}" + "".join(f"{n_bytes / 1e6:>18.1f}" for _, n_bytes in results.values()))


if __name__ == "__main__":
    main()
