"""A collection with both branches, its index, and what every engine has to do with it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.contract import Contract
from lightir.engines import Engine, EngineSearcher, PushOptions, push_index
from lightir.engines.engine import EngineRows
from lightir.errors import InvalidInput
from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from lightir.vectors import QueryVectors, Ragged
from small_collections import csr, word_contract

N, DIM, VOCAB_SIZE = 400, 16, 300
NOW = PushOptions(batch=64, attempts=1, wait_s=0)
FUSIONS = ("linear", "linear:min-max", "linear:z-score", "absolute", "rrf", "rrf:5", "dbsf")


def contract(**changes: Any) -> Contract:
    return word_contract(vocab_size=VOCAB_SIZE, dim=DIM, **changes)


def shard(n: int = N, seed: int = 0) -> Shard:
    """Documents with random vectors; impacts are small integers, so that many documents tie."""
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((n, DIM)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    rows = [
        {int(term): int(rng.integers(1, 4)) for term in rng.choice(VOCAB_SIZE, rng.integers(0, 12), replace=False)}
        for _ in range(n)
    ]
    documents = [
        Document(
            f"döc {i}/é" if i % 50 == 0 else f"d{i:03d}", f"text {i} 'quoted' \\ back", f"title {i}" * (i % 2), {"i": i}
        )
        for i in range(n)
    ]
    return Shard(documents, dense.astype(np.float16), csr(rows, vocab_size=VOCAB_SIZE, dtype=np.uint8))


class RandomQueries:
    """A query encoder that gives a text the vectors of its seed; "" has none."""

    def __init__(self, of: Contract | None = None) -> None:
        self.contract = of or contract()
        self.document_fingerprint = self.contract.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        dense = np.zeros((len(texts), DIM), np.float32)
        rows: list[dict[int, float]] = []
        for at, text in enumerate(texts):
            rng = np.random.default_rng(len(text) * 1000 + sum(map(ord, text)))
            rows.append({})
            if text:
                dense[at] = rng.standard_normal(DIM)
                dense[at] /= np.linalg.norm(dense[at])
                rows[at] = {int(term): 1.0 + int(term) % 2 for term in rng.choice(VOCAB_SIZE, 8, replace=False)}
        sparse = csr(rows, vocab_size=VOCAB_SIZE, dtype=np.float32)
        return QueryVectors(Ragged.from_lists([sorted(row) for row in rows]), dense, sparse)


QUERIES = ["", *(f"query {i}" for i in range(12))]


def build(folder: Path) -> Path:
    build_index([shard()], folder, options=IndexOptions(analyzer=None), contract=contract(), progress=False)
    return folder


def assert_ranks_like_the_index(engine: Engine, folder: Path, *, exact: bool = False) -> None:
    """Compare rankings and scores by each fusion with those of lightir's own search."""
    with Index.open(folder) as index:
        own, theirs = Searcher(index, RandomQueries()), EngineSearcher(engine, RandomQueries(), exact=exact)
        for options, k in [
            *((SearchOptions(fusion=fusion, depth=20), 10) for fusion in FUSIONS),
            (SearchOptions(mode="dense"), 25),
            (SearchOptions(mode="sparse"), 25),
            (SearchOptions(weights={"dense": 0.2, "sparse": 0.8}, exclude=["d003"], min_score=0.2), 7),
        ]:
            expected, theirs_run = own.search(QUERIES, k, options), theirs.search(QUERIES, k, options)
            for query_id, ranking in expected.items():
                assert list(theirs_run[query_id].doc_ids) == list(ranking.doc_ids), (options, query_id)
                np.testing.assert_allclose(theirs_run[query_id].scores, ranking.scores, rtol=0, atol=2e-5)


def assert_push_and_search(engine: Engine, folder: Path, *, exact: bool = False) -> None:
    """Push, search, push again, change the index, prune, and read everything back."""
    with Index.open(folder) as index:
        report = push_index(index, engine, NOW)
        assert (report.sent, report.unchanged, report.deleted) == (N, 0, 0)
        assert engine.count() == N
        assert_ranks_like_the_index(engine, folder, exact=exact)
        again = push_index(index, engine, NOW)
        assert (again.sent, again.unchanged) == (0, N)
    hits = EngineSearcher(engine, RandomQueries(), exact=exact).hits("query 3", 5)
    with Index.open(folder) as index:
        own = Searcher(index, RandomQueries()).hits("query 3", 5)
    for hit, expected in zip(hits, own, strict=True):
        assert (hit.doc_id, hit.title, hit.snippet, hit.metadata) == (
            expected.doc_id,
            expected.title,
            expected.snippet,
            expected.metadata,
        )
        assert {branch: score.rank for branch, score in hit.branches.items()} == {
            branch: score.rank for branch, score in expected.branches.items()
        }


def assert_changes_are_pushed(engine: Engine, folder: Path) -> None:
    """Replace a document and delete another: the next push sends one row, and deletes one if it is asked to."""
    source = shard()
    changed = Document("d007", "new text", "", {"i": -1})
    with IndexWriter.open(folder) as writer:
        at = np.array([8], dtype=np.int64)
        other = source.take(at)
        writer.upsert([changed], dense=other.dense, sparse=other.sparse)
        writer.delete(["d009"])
    with Index.open(folder) as index:
        report = push_index(index, engine, NOW)
        assert (report.sent, report.deleted, report.surplus) == (1, 0, 1)
        pruned = push_index(index, engine, PushOptions(batch=64, prune=True, attempts=1))
        assert (pruned.sent, pruned.deleted, pruned.surplus) == (0, 1, 0)
    assert engine.count() == N - 1
    (document,) = engine.fetch(["d007", "no such id"], ()).documents
    assert document == changed
    assert_ranks_like_the_index(engine, folder)


class Killed(BaseException):
    """A process that ends between two requests."""


def assert_resumes(engine: Engine, folder: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Stop a push after two requests; the next one sends the rest."""
    engine.drop()
    upsert, calls = engine.upsert, []

    def killed(rows: EngineRows) -> None:
        calls.append(len(rows))
        if len(calls) > 2:
            raise Killed
        upsert(rows)

    with Index.open(folder) as index, monkeypatch.context() as patched:
        patched.setattr(engine, "upsert", killed)
        with contextlib.suppress(Killed):
            push_index(index, engine, NOW)
        patched.undo()
        report = push_index(index, engine, NOW)
        assert (report.sent, report.unchanged) == (len(index) - 128, 128)
    assert engine.count() == report.sent + report.unchanged
    assert_ranks_like_the_index(engine, folder)


def assert_reads_back(engine: Engine, folder: Path) -> None:
    """All rows have the documents and the dense vectors of the index."""
    documents: dict[str, Document] = {}
    vectors: dict[str, np.ndarray] = {}
    for rows in engine.rows(64):
        for at, document in enumerate(rows.documents):
            documents[document.doc_id] = document
            vectors[document.doc_id] = rows.dense[at]
    with Index.open(folder) as index:
        ids = index.ids()
        assert sorted(documents) == ids
        assert documents == index.get(ids)
        np.testing.assert_allclose(
            np.array([vectors[doc_id] for doc_id in ids]), index.dense_vectors(ids), rtol=0, atol=1e-6
        )


def assert_fuses_natively(engine: Engine, folder: Path, depth: int = 50) -> None:
    """The engine's reciprocal rank fusion gives scores that its ties allow, and the best document of all."""
    native = EngineSearcher(engine, RandomQueries(), native=True).search(QUERIES, 5, SearchOptions(depth=depth))
    assert len(native["0"]) == 0
    with Index.open(folder) as index:
        own = Searcher(index, RandomQueries())
        dense, sparse = (own.search(QUERIES, N, SearchOptions(mode=mode)) for mode in ("dense", "sparse"))
    for query_id, ranking in native.items():
        low, high = {}, {}
        for rank, doc_id in enumerate(dense[query_id].doc_ids, 1):
            low[doc_id] = high[doc_id] = 1 / (60 + rank) if rank <= depth else 0.0
        scores = sparse[query_id].scores
        for doc_id, score in zip(sparse[query_id].doc_ids, scores, strict=True):
            first, last = int((scores > score).sum()) + 1, int((scores >= score).sum())
            high[doc_id] += 1 / (60 + first) if first <= depth else 0.0
            low[doc_id] += 1 / (60 + last) if last <= depth else 0.0
        for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True):
            assert low[doc_id] - 1e-6 <= score <= high[doc_id] + 1e-6
        assert not len(ranking) or ranking.scores[0] >= max(low.values()) - 1e-6


METADATA: tuple[dict[str, Any], ...] = (
    {"n": 1, "s": "b", "tags": ["x", "y"], "deep": {"er": 5}, "t": True},
    {"n": 1.5, "s": "B", "tags": [], "deep": {"er": "5"}, "t": False},
    {"n": -3, "s": "ä", "tags": ["y", 1, None], "deep": [{"er": 5}], "t": None},
    {"n": "1", "s": None, "tags": "x", "a.b": 1, "back\\slash": "it's 100%"},
    {"n": [1, "b", 2**60], "s": "", "tags": [["x"]], "0": "zero"},
    {},
)

FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 1},
    {"n": 1.0},
    {"n": {"gt": 1}},
    {"n": {"gt": 2**60 - 1}},
    {"n": {"in": [0, -0.0, 2**60, "1"]}},
    {"not": {"n": {"gt": 0}, "t": True}},
    {"s": {"gte": "b"}, "n": 1},
    {"n": {"gte": 1, "lt": 2}},
    {"n": {"lte": -2.5}},
    {"n": {"gte": "1"}},
    {"n": 2**60},
    {"n": 2**60 + 1},
    {"s": "b"},
    {"s": {"gt": "B"}},
    {"s": {"lt": "c"}},
    {"s": None},
    {"s": {"exists": True}},
    {"s": {"exists": False}},
    {"tags": "x"},
    {"tags": {"in": ["y", 1]}},
    {"tags": {"in": []}},
    {"tags": None},
    {"tags": {"exists": True}},
    {"not": {"tags": "x"}},
    {"deep.er": 5},
    {"deep.er": "5"},
    {"deep.er": {"exists": False}},
    {"t": True},
    {"t": {"in": [False, None]}},
    {"0": "zero"},
    {"back\\slash": {"exists": True}},
    {"or": [{"n": 1}, {"s": "ä"}]},
    {"or": []},
    {"and": [{"n": {"exists": True}}, {"not": {"or": [{"n": 1.5}, {"t": True}]}}], "s": {"in": ["", "ä", None]}},
    {"s": "it's %s {id} \"; DROP TABLE docs"},
)


VALUES = (1, 1.0, 1.5, -3, 2**60, "1", "b", "B", "ä", "", "x", "y", True, False, None, "it's 100%", 'quo"te', "zero")
FIELDS = ("n", "s", "tags", "deep.er", "deep", "t", "back\\slash", "0", "missing")


def random_filter(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """Return a filter of one to three parts over the fields of METADATA."""
    wanted: dict[str, Any] = {}
    for _ in range(int(rng.integers(1, 4 - depth))):
        kind = rng.integers(8 if depth < 2 else 5)
        field, value = str(rng.choice(FIELDS)), VALUES[rng.integers(len(VALUES))]
        if kind < 2:
            wanted[field] = value
        elif kind == 2:
            wanted[field] = {"in": [VALUES[i] for i in rng.integers(len(VALUES), size=3)]}
        elif kind == 3:
            wanted[field] = {"exists": bool(rng.integers(2))}
        elif kind == 4:
            is_ordered = isinstance(value, int | float | str) and not isinstance(value, bool)
            wanted[field] = {str(rng.choice(["gt", "gte", "lt", "lte"])): value if is_ordered else 1}
        elif kind == 5:
            wanted["not"] = random_filter(rng, depth + 1)
        else:
            wanted["and" if kind == 6 else "or"] = [random_filter(rng, depth + 1) for _ in range(2)]
    return wanted


def assert_filters_like_the_index(engine: Engine, folder: Path) -> None:
    """Each filter gives the rankings of the index, whose fields have no types."""
    source = shard(120)
    documents = [
        Document(document.doc_id, document.text, "", METADATA[at % len(METADATA)])
        for at, document in enumerate(source.documents)
    ]
    options = IndexOptions(analyzer=None)
    plain = Shard(documents, source.dense, source.sparse)
    build_index([plain], folder, options=options, contract=contract(), overwrite=True, progress=False)
    rng = np.random.default_rng(0)
    with Index.open(folder) as index:
        push_index(index, engine, NOW)
        own, theirs = Searcher(index, RandomQueries()), EngineSearcher(engine, RandomQueries())
        numbers = set()
        for wanted in (*FILTERS, *(random_filter(rng) for _ in range(100))):
            chosen = SearchOptions(filter=wanted, depth=20)
            expected, answers = own.search(QUERIES[:3], 10, chosen), theirs.search(QUERIES[:3], 10, chosen)
            for query_id, ranking in expected.items():
                assert list(answers[query_id].doc_ids) == list(ranking.doc_ids), (wanted, query_id)
                np.testing.assert_allclose(answers[query_id].scores, ranking.scores, rtol=0, atol=2e-5)
            numbers.add(len(expected["1"]))
        assert {0, 10} <= numbers
        everything = theirs.search(QUERIES[:3], 10, SearchOptions(depth=20))  # no filter is kept
        assert len(everything["1"]) == 10


DATES: tuple[dict[str, Any], ...] = (
    {"when": "2024-05-31", "n": 1},
    {"when": "2024-05-31T00:00:00+02:00", "n": 2, "deep": {"at": "1969-12-31"}},
    {"when": "2024-05-31T23:59:59.999999Z", "n": 1},
    {"when": ["2024-06-01 00:00", "2023-01-01"], "n": 3},
    {"when": None, "deep": {"at": "1970-01-01T00:00"}},
    {"n": 1},
)

DATE_FILTERS: tuple[dict[str, Any], ...] = (
    {"when": "2024-05-31"},
    {"when": "2024-05-30T22:00:00Z"},
    {"when": {"gt": "2024-05-31"}},
    {"when": {"gte": "2024-05-31"}},
    {"when": {"lt": "2024-05-31"}},
    {"when": {"lte": "2024-05-31"}, "n": 1},
    {"when": {"in": ["2023-01-01", "2024-05-31T00:00"]}},
    {"when": {"in": []}},
    {"when": None},
    {"not": {"when": {"gte": "2024-05-31"}}},
    {"or": [{"when": "2024-06-01"}, {"n": 2}], "deep.at": {"lt": "1970-01-01"}},
    {"deep.at": {"gte": "1970-01-01"}},
    {"n": {"gte": 2}, "when": {"exists": True}},
)


def assert_dates_are_compared_as_in_the_index(engine: Engine, folder: Path) -> None:
    """A filter of a date field compares spans of time, not strings, in every engine."""
    source, schema = shard(60), Schema({"when": Field("date"), "deep.at": Field("date")})
    documents = [
        Document(document.doc_id, document.text, "", DATES[at % 6]) for at, document in enumerate(source.documents)
    ]
    options = IndexOptions(analyzer=None, schema=schema)
    plain = Shard(documents, source.dense, source.sparse)
    build_index([plain], folder, options=options, contract=contract(), overwrite=True, progress=False)
    engine.drop()
    with Index.open(folder) as index:
        push_index(index, engine, NOW)
        own, theirs = Searcher(index, RandomQueries()), EngineSearcher(engine, RandomQueries())
        assert theirs.collection.dates == ("when", "deep.at")
        for wanted in DATE_FILTERS:
            chosen = SearchOptions(filter=wanted, depth=60)
            expected, answers = own.search(QUERIES[:3], 60, chosen), theirs.search(QUERIES[:3], 60, chosen)
            for query_id, ranking in expected.items():
                assert list(answers[query_id].doc_ids) == list(ranking.doc_ids), (wanted, query_id)
        for searcher in (own, theirs):
            with pytest.raises(InvalidInput, match="ISO 8601"):
                searcher.search(["a"], 3, SearchOptions(filter={"when": "yesterday"}))
