"""Search for documents that are known to exist: the figures of docs/known-items.md.

python recipes/known_items.py --shop FOLDER [--products 2000]
python recipes/known_items.py INDEX=CORPUS... [--per-kind 100] [--fusion NAME[/WEIGHTS]]...

The first form writes the catalog of a made shop, for `lightir encode`. The second form makes queries from each
corpus, each of which wants one document, and counts how often an engine returns this document first. The kinds are:

code: a word with digits that only this document has, such as a model number
name: the title, if no other document has it
rare: a word that only this document has in any form
two: such a word, and another one that at most ten documents have
question: a question with the title in it
typo: the title with one letter of a long word changed

Nonsense has no document; the last table has the scores of the first hits. Engines other than lightir are SQLite's FTS5
and tantivy, if it is installed, with their defaults and any word of the query allowed to be missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from lightir.analysis import Analyzer
from lightir.data import read_documents
from lightir.index import Index
from lightir.search import Searcher, SearchOptions
from lightir.types import Document, Query

SMALLEST = "{index}={data}/tiny --per-kind 5"
KINDS = ("code", "name", "rare", "two", "question", "typo")
EXACT_KINDS = KINDS[:5]
QUESTIONS = ("where can I find {}?", "tell me about {}", "what is known about {}?", "do you have {}?")
NONSENSE_WORDS = 3
_WORD = re.compile(r"\b\w\w+\b")
_CODE = re.compile(r"\b(?=[\w-]*\d)(?=[\w-]*[a-z])\w[\w-]{2,}\w\b", re.IGNORECASE)

Choice = TypeVar("Choice")

Engine = Callable[[str], str | None]
"""Function from a query to the id of its first hit, or None."""


class KnownItem(NamedTuple):
    """A query, and the one document that it wants."""

    kind: str
    query: str
    doc_id: str


def main() -> None:
    """Write a shop, or measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="*", metavar="INDEX=CORPUS")
    parser.add_argument("--shop", metavar="FOLDER", help="folder to write a made catalog to, as corpus.jsonl")
    parser.add_argument("--products", type=int, default=2000, help="number of products of the shop (default 2000)")
    parser.add_argument("--per-kind", type=int, default=100, help="maximum number of queries of a kind (default 100)")
    parser.add_argument(
        "--fusion",
        action="append",
        metavar="NAME[/WEIGHTS]",
        help="fusion to measure, as in linear/dense=0.65,tokens=0.35; several times for several (default: the index's "
        "and linear)",
    )
    args = parser.parse_args()
    if args.shop is not None:
        write_shop(Path(args.shop), args.products)
    total = Table()
    for pair in args.collections:
        index_folder, corpus = pair.split("=", 1)
        fusions = args.fusion or ["default", "linear"]
        total.add(measure(index_folder, list(read_documents(corpus)), fusions, args.per_kind))
    if len(args.collections) > 1:
        total.show(f"{len(args.collections)} collections together")


# The queries


def known_items(documents: Sequence[Document], per_kind: int, seed: int = 0) -> list[KnownItem]:
    """Return up to `per_kind` queries of each of KINDS, drawn from the documents."""
    rng = np.random.default_rng(seed)
    frequencies = Counter(stem for document in documents for stem in set(stems(sorted(words_of(document)))))
    titles = Counter(document.title.lower() for document in documents)
    candidates: dict[str, list[KnownItem]] = defaultdict(list)
    for document in documents:
        named = document.title and titles[document.title.lower()] == 1 and len(_WORD.findall(document.title)) > 1
        for kind, query in _queries(document, frequencies, rng):
            if kind in ("code", "rare", "two") or named:
                candidates[kind].append(KnownItem(kind, query, document.doc_id))
    drawn = []
    for kind in KINDS:
        order = rng.permutation(len(candidates[kind]))[:per_kind]
        drawn += [candidates[kind][i] for i in order]
    return drawn


def stems(words: Sequence[str]) -> list[str]:
    """Return the stem of each word: by it documents that have another form of the word count too."""
    stemmed = Analyzer("porter").terms(words)
    return [terms[0] if terms else word for word, terms in zip(words, stemmed, strict=True)]


def words_of(document: Document) -> set[str]:
    """Return the distinct lower-case words of a document."""
    return set(_WORD.findall(f"{document.title} {document.text}".lower()))


def _queries(document: Document, frequencies: Mapping[str, int], rng: np.random.Generator) -> Iterable[tuple[str, str]]:
    """Yield kinds and queries that want a document; titles are yielded whether they are unique or not."""
    text = f"{document.title} {document.text}"
    codes = [code for code in _CODE.findall(text) if _is_unique(code, frequencies)]
    words = sorted(word for word in words_of(document) if word.isascii() and word.isalpha() and len(word) > 4)
    counts = [frequencies[stem] for stem in stems(words)]
    unique = [word for word, count in zip(words, counts, strict=True) if count == 1]
    rarer = [word for word, count in zip(words, counts, strict=True) if 2 <= count <= 10]
    if codes:
        yield "code", codes[int(rng.integers(len(codes)))]
    if unique:
        yield "rare", unique[int(rng.integers(len(unique)))]
    if unique and rarer:
        yield "two", f"{unique[int(rng.integers(len(unique)))]} {rarer[int(rng.integers(len(rarer)))]}"
    yield "name", document.title
    yield "question", QUESTIONS[int(rng.integers(len(QUESTIONS)))].format(document.title)
    if misspelt := _with_typo(document.title, rng):
        yield "typo", misspelt


def _is_unique(code: str, frequencies: Mapping[str, int]) -> bool:
    """Whether a part of a code, such as 4821 of WX-4821-B, is in one document alone."""
    return any(frequencies[stem] == 1 for stem in stems(_WORD.findall(code.lower())))


def _with_typo(title: str, rng: np.random.Generator) -> str:
    """Return a title with one letter of one of its long words changed; "" if it has no long word."""
    long_words = [match for match in _WORD.finditer(title) if len(match.group()) > 5 and match.group().isalpha()]
    if not long_words:
        return ""
    word = long_words[int(rng.integers(len(long_words)))]
    at = int(rng.integers(word.start() + 1, word.end()))
    letter = "abcdefghijklmnopqrstuvwxyz".replace(title[at].lower(), "")[int(rng.integers(25))]
    return title[:at] + letter + title[at + 1 :]


def nonsense(n: int, documents: Sequence[Document], seed: int = 0) -> list[str]:
    """Return n different queries of one to three made words, none of which any document has."""
    rng = np.random.default_rng(seed)
    known = set().union(*map(words_of, documents))
    made: list[str] = []
    while len(made) < n:
        words = [
            "".join(rng.choice(list("zqxjkvwpy"), int(rng.integers(4, 9))))
            for _ in range(1 + len(made) % NONSENSE_WORDS)
        ]
        if known.isdisjoint(words) and " ".join(words) not in made:
            made.append(" ".join(words))
    return made


# The shop

BRANDS = "Alpenglow Brightforge Cobaltine Dunmore Everwick Fjordline Greyhaven Halvorsen Ironbark Juniper".split()  # noqa: SIM905
THINGS = {
    "backpack": ("hiking travel school climbing commuter", "liters of room", "a padded back and a rain cover"),
    "headphones": ("wireless over-ear in-ear studio noise-cancelling", "hours of battery", "a folding headband"),
    "drill": ("cordless hammer percussion compact angle", "newton meters of torque", "a two-speed gearbox"),
    "kettle": ("electric gooseneck travel glass enamel", "seconds to boil a liter", "an automatic switch"),
    "tent": ("dome tunnel ridge family ultralight", "millimeters of water column", "a sewn-in groundsheet"),
    "lamp": ("desk floor bedside reading clip-on", "lumens of warm light", "a dimmer in the cable"),
    "jacket": ("rain down fleece cycling running", "grams in size medium", "a hood that rolls away"),
    "keyboard": ("mechanical wireless ergonomic compact gaming", "million strokes per key", "a wrist rest"),
    "bicycle": ("city gravel touring folding mountain", "gears", "hydraulic disc brakes"),
    "camera": ("compact mirrorless action instant trail", "megapixels", "a weatherproof body"),
    "saucepan": ("copper steel enamelled non-stick milk", "centimeters wide", "a lid with a steam vent"),
    "watch": ("diving field pilot running dress", "meters of water resistance", "a sapphire crystal"),
}
COLORS = ["black", "white", "navy", "olive", "crimson", "amber", "teal", "slate", "sand", "plum"]
USES = ("weekends", "commuting", "beginners", "professionals", "students", "families", "small flats", "long trips")


def write_shop(folder: Path, n: int, seed: int = 0) -> None:
    """Write the products of a made shop as a BEIR corpus, with price, brand and color as metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for product in shop(n, seed):
            file.write(json.dumps(product) + "\n")


def pick(values: Sequence[Choice], rng: np.random.Generator) -> Choice:
    """Return one of some values."""
    return values[int(rng.integers(len(values)))]


def shop(n: int, seed: int = 0) -> list[dict[str, object]]:
    """Return n products, each with a model number of its own, such as WX-4821-B."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(np.arange(1000, 1000 + 4 * n))[:n]
    products: list[dict[str, object]] = []
    for i, number in enumerate(numbers.tolist()):
        thing = pick(list(THINGS), rng)
        kinds, unit, detail = THINGS[thing]
        kind, brand, color = pick(kinds.split(), rng), pick(BRANDS, rng), pick(COLORS, rng)
        letters = "".join(rng.choice(list("ABCDEFGHKLMNPRSTWX"), 2))
        code = f"{letters}-{number}-{pick('ABCD', rng)}"
        text = (
            f"Model {code}. A {kind} {thing} in {color} for {pick(USES, rng)} with {int(rng.integers(2, 90))} {unit}. "
            f"It has {detail}. {brand} repairs it for {int(rng.integers(2, 12))} years."
        )
        metadata = {"brand": brand, "color": color, "price": float(rng.integers(9, 900)) + 0.99}
        products.append({"_id": f"P{i:06d}", "title": f"{brand} {kind} {thing} {code}", "text": text, **metadata})
    return products


# The engines


def sqlite_engine(documents: Sequence[Document]) -> Engine:
    """Return SQLite's FTS5 with its Porter stemmer and BM25 over title and text."""
    connection = sqlite3.connect(":memory:")
    connection.execute(
        "CREATE VIRTUAL TABLE documents USING fts5(doc_id UNINDEXED, text, tokenize = 'porter unicode61')"
    )
    rows = ((document.doc_id, f"{document.title} {document.text}") for document in documents)
    connection.executemany("INSERT INTO documents VALUES (?, ?)", rows)

    def first(query: str) -> str | None:
        words = " OR ".join(f'"{word}"' for word in _WORD.findall(query))
        rows = connection.execute("SELECT doc_id FROM documents WHERE documents MATCH ? ORDER BY rank LIMIT 1", [words])
        return next((row[0] for row in rows), None)

    return first


def tantivy_engine(documents: Sequence[Document]) -> Engine | None:
    """Return tantivy with its English stemmer; None if it is not installed."""
    try:
        import tantivy
    except ImportError:
        print("tantivy is not installed, so its column is missing: pip install tantivy")
        return None
    schema = tantivy.SchemaBuilder()
    schema.add_text_field("doc_id", stored=True)
    schema.add_text_field("text", tokenizer_name="en_stem")
    index = tantivy.Index(schema.build())
    writer = index.writer()
    for document in documents:
        writer.add_document(tantivy.Document(doc_id=document.doc_id, text=f"{document.title} {document.text}"))
    writer.commit()
    index.reload()
    searcher = index.searcher()

    def first(query: str) -> str | None:
        parsed = index.parse_query(" ".join(_WORD.findall(query.lower())), ["text"])
        hits = searcher.search(parsed, 1).hits
        return searcher.doc(hits[0][1])["doc_id"][0] if hits else None

    return first


def options_of(fusion: str) -> SearchOptions:
    """Return the options of a fusion such as linear/dense=0.65,tokens=0.35, or default."""
    name, _, weights = fusion.partition("/")
    pairs = [pair.split("=") for pair in weights.split(",") if pair]
    given = {branch: float(weight) for branch, weight in pairs} or None
    return SearchOptions(fusion=None if name == "default" else name, weights=given)


def lightir_engine(searcher: Searcher, options: SearchOptions) -> Engine:
    """Return a search of an index."""

    def first(query: str) -> str | None:
        doc_ids = searcher.search([Query("", query)], 1, options)[""].doc_ids
        return doc_ids[0] if doc_ids else None

    return first


# The tables


@dataclass(slots=True)
class Table:
    """Counts of queries by kind, and of those whose document each engine finds first.

    Attributes:
        queries: number of queries of each kind.
        first: engine -> number of those queries of each kind.
    """

    queries: Counter[str] = field(default_factory=Counter)
    first: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, other: Table) -> None:
        """Add the counts of another table."""
        self.queries += other.queries
        for engine, counts in other.first.items():
            self.first.setdefault(engine, Counter()).update(counts)

    def show(self, heading: str) -> None:
        """Print the shares as Markdown."""
        print(f"\n{heading}\n\n| first of all | queries | " + " | ".join(self.first) + " |")
        print("|---|---:|" + "---:|" * len(self.first))
        for kind in KINDS:
            if n := self.queries[kind]:
                shares = [f"{counts[kind] / n:.3f}" for counts in self.first.values()]
                print(f"| {kind} | {n} | " + " | ".join(shares) + " |", flush=True)


def measure(index_folder: str, documents: Sequence[Document], fusions: Sequence[str], per_kind: int) -> Table:
    """Measure a collection, print its tables, and return the first."""
    items = known_items(documents, per_kind)
    with Index.open(index_folder) as index:
        searcher = Searcher(index)
        engines: dict[str, Engine | None] = {"FTS5": sqlite_engine(documents), "tantivy": tantivy_engine(documents)}
        engines["BM25"] = lightir_engine(searcher, SearchOptions(mode="tokens"))
        hybrid = {name: options_of(name) for name in fusions}
        engines |= {name: lightir_engine(searcher, options) for name, options in hybrid.items()}
        there = {name: engine for name, engine in engines.items() if engine is not None}
        table = Table(Counter(item.kind for item in items))
        for name, engine in there.items():
            table.first[name] = Counter(item.kind for item in items if engine(item.query) == item.doc_id)
        table.show(f"{index_folder}: {len(documents):,} documents")
        print_nonsense(searcher, nonsense(per_kind, documents), hybrid)
    return table


def print_nonsense(searcher: Searcher, queries: Sequence[str], hybrid: Mapping[str, SearchOptions]) -> None:
    """Print the median and the highest score of first hits that nothing should have."""
    for name, options in hybrid.items():
        scores = [float(max(ranking.scores, default=0.0)) for ranking in searcher.search(queries, 1, options).values()]
        print(
            f"nonsense by {name}: first scores have median {statistics.median(scores):.3f}, maximum {max(scores):.3f}"
        )


if __name__ == "__main__":
    main()
