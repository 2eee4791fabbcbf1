"""Pages of results: totals, facets, sorting, groups and browsing equal those of plain loops over the documents."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from lightir.errors import InvalidInput
from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index, document_shards
from lightir.index.segments.columns import least
from lightir.search import Page, PageOptions, Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from small_collections import animal_shard, word_contract, word_table, write_folder

SCHEMA = Schema(
    {
        "n": Field("number"),
        "on": Field("boolean"),
        "day": Field("date"),
        "brand": Field("keyword"),
        "o.x": Field("number"),
    }
)
NUMBERS = (0, 1, 1.0, -1, 0.5, 2**53, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1, 1e300)
DAYS = ("2024-01-01", "2024-01-01T00:00Z", "2024-01-01T01:00+02:00", "2023-12-31T23:00", "0001-01-01")
VALUES = {"n": NUMBERS, "on": (True, False), "day": DAYS, "brand": ("b", "a", "é", "", "B"), "o.x": (1, 2)}
WORDS = ("ant", "bee", "cow")


def random_documents(rng: np.random.Generator, n: int) -> list[Document]:
    documents = []
    for doc_id in rng.permutation(3 * n)[:n].tolist():
        metadata: dict[str, Any] = {}
        for name, values in VALUES.items():
            chosen = [values[i] for i in rng.integers(0, len(values), rng.integers(0, 4)).tolist()]
            if chosen:
                value = chosen[0] if rng.random() < 0.6 else chosen
                metadata |= {"o": {"x": value}} if name == "o.x" else {name: value}
            elif rng.random() < 0.3 and name != "o.x":
                metadata[name] = None
        text = " ".join(rng.choice(WORDS, rng.integers(0, 4)))
        documents.append(Document(f"d{doc_id}", text, metadata=metadata))
    return documents


def values_of(document: Document, name: str) -> list[Any]:
    value = document.metadata.get("o", {}).get("x") if name == "o.x" else document.metadata.get(name)
    values = value if isinstance(value, list) else [value]
    return [one for one in values if one is not None]


def key_of(value: Any, name: str) -> Any:
    """Return what a value compares by: a date by its time."""
    return DAY_TIMES[value] if name == "day" else value


DAY_TIMES = dict(zip(DAYS, (10.0, 10.0, 9.0, 9.0, 0.0), strict=True))  # in hours, from another zero


def sorted_by(documents: list[Document], sort: str | None) -> list[str]:
    if sort is None:
        return sorted(document.doc_id for document in documents)
    name, _, direction = sort.partition(":")
    down = direction == "desc"
    by_id = sorted(documents, key=lambda document: document.doc_id)
    known = [document for document in by_id if values_of(document, name)]
    known.sort(
        key=lambda document: (max if down else min)(key_of(v, name) for v in values_of(document, name)), reverse=down
    )
    return [d.doc_id for d in known] + [d.doc_id for d in by_id if not values_of(d, name)]


def facet_of(documents: list[Document], name: str, n: int) -> list[tuple[Any, int]]:
    counts = Counter(value for document in documents for value in {*values_of(document, name)})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:n]


def leaders_of(ids: list[str], documents: dict[str, Document], name: str) -> list[str]:
    seen: set[Any] = set()
    kept = []
    for doc_id in ids:
        values = [key_of(value, name) for value in values_of(documents[doc_id], name)]
        if not values or min(values) not in seen:
            kept.append(doc_id)
        seen |= {min(values)} if values else set()
    return kept


class Shop:
    """An index of random documents in several segments, some of them deleted, and the documents that are left."""

    def __init__(self, folder: Path, seed: int, n: int) -> None:
        rng = np.random.default_rng(seed)
        documents = random_documents(rng, n)
        options = IndexOptions(schema=SCHEMA, segment_documents=7)
        with IndexWriter.create(folder, options=options) as writer:
            for start in range(0, n, 10):
                writer.add(documents[start : start + 10])
            deleted = {document.doc_id for document in documents if rng.random() < 0.2}
            writer.delete(deleted)
        self.index = Index.open(folder)
        self.documents = {d.doc_id: d for d in documents if d.doc_id not in deleted}
        self.rng = rng


@pytest.fixture(scope="module", params=[(0, 40), (1, 9), (2, 1), (3, 0)], ids=str)
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop") / "i", *request.param)
    yield shop
    shop.index.close()


sorts = st.sampled_from([None, *(f"{name}{way}" for name in VALUES for way in ("", ":asc", ":desc"))])
filters = st.sampled_from([None, {"on": True}, {"brand": {"in": ["a", "b"]}}, {"n": {"gte": 1}}, {"brand": "none"}])
queries = st.sampled_from(["", " ", "ant", "bee cow", "yak", "ant yak"])
groups = st.sampled_from([None, "brand", "day", "n"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(queries, filters, sorts, groups, st.integers(0, 12), st.integers(1, 12), st.integers(1, 3))
def test_a_page_is_that_of_a_loop(
    shop: Shop, query: str, wanted: Any, sort: str | None, group: str | None, offset: int, limit: int, n: int
) -> None:
    options, page = SearchOptions(filter=wanted), PageOptions(offset, limit, dict.fromkeys(VALUES, n), sort, group)
    answer = Searcher(shop.index).page(query, page, options)
    passing = [d for d in shop.documents.values() if wanted is None or passes(d, wanted)]
    matching = [d for d in passing if not query.strip() or {*query.split()} & {*d.text.split()}]
    assert answer.total == len(matching)
    assert {name: [(c.value, c.count) for c in counts] for name, counts in answer.facets.items()} == {
        name: facet_of(matching, name, n) for name in VALUES
    }
    ids = sorted_by(matching, sort)
    if sort is None and query.strip() and shop.documents:
        ids = list(Searcher(shop.index).search([query], len(shop.documents), options)["0"].doc_ids)
    if group is not None:
        ids = leaders_of(ids, shop.documents, group)
    assert [hit.doc_id for hit in answer.hits] == ids[offset : offset + limit]
    assert all(hit.metadata == shop.documents[hit.doc_id].metadata for hit in answer.hits)


def passes(document: Document, wanted: dict[str, Any]) -> bool:
    ((name, test),) = wanted.items()
    values = values_of(document, name)
    if isinstance(test, dict):
        return any(value in test["in"] if "in" in test else value >= test["gte"] for value in values)
    return test in values


@pytest.mark.parametrize("query", ["ant", "bee cow"])
def test_the_scores_of_a_page_are_those_of_the_hits(shop: Shop, query: str) -> None:
    searcher = Searcher(shop.index)
    hits = searcher.hits(query, 50, explain=True)
    assert searcher.page(query, PageOptions(limit=50), explain=True).hits == hits
    by_id = {hit.doc_id: hit for hit in hits}
    for hit in searcher.page(query, PageOptions(limit=50, sort="n:desc")).hits:
        assert hit.score == by_id[hit.doc_id].score
    assert all((hit.score, hit.branches) == (0, {}) for hit in searcher.page("").hits)


def test_excluded_documents_are_not_counted(shop: Shop) -> None:
    every = Searcher(shop.index).page("", PageOptions(limit=100))
    without = Searcher(shop.index).page(
        "", PageOptions(limit=100), SearchOptions(exclude=[*list(shop.documents)[:1], "x"])
    )
    assert without.total == max(0, every.total - 1)
    assert {hit.doc_id for hit in without.hits} == {*list(shop.documents)[1:]}


@pytest.mark.parametrize("mode", ["dense", "sparse", "dense+sparse", "dense+tokens", "hybrid+tokens"])
@pytest.mark.parametrize("depth", [1, 2, 100])
def test_vector_branches_match_the_documents_of_their_lists(mode: str, depth: int, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    build_index([animal_shard()], tmp_path / "index", query_encoder=folder, progress=False)
    with Index.open(tmp_path / "index") as index:
        searcher, query = Searcher(index), "cat well"
        expected: set[str] = set()
        for branch in ("dense", "sparse"):
            if branch in mode or ("hybrid" in mode):
                run = searcher.search([query], max(depth, 1), SearchOptions(mode=branch))
                expected |= {*run["0"].doc_ids}
        if "tokens" in mode:
            expected |= {*searcher.search([query], 100, SearchOptions(mode="tokens"))["0"].doc_ids}
        answer = searcher.page(query, PageOptions(limit=1), SearchOptions(mode=mode, depth=depth))
        assert answer.total == len(expected)
        whole = searcher.page(query, PageOptions(limit=100), SearchOptions(mode=mode))
        hits = searcher.hits(query, 100, SearchOptions(mode=mode))
        assert whole.hits == hits
        parts = [searcher.page(query, PageOptions(i, 2), SearchOptions(mode=mode)).hits for i in range(0, 10, 2)]
        assert [hit.doc_id for hit in itertools.chain(*parts)] == [hit.doc_id for hit in hits]


@pytest.mark.parametrize("mode", [None, "dense", "tokens", "dense+tokens"])
def test_pages_of_pending_documents_are_parts_of_the_hits(mode: str | None, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "q", word_contract(), {"": {"embeddings": word_table()}})
    waiting = [Document(f"w{i}", text) for i, text in enumerate(["cat", "a well", "the dog at the well", "nothing"])]
    build_index([animal_shard(), Shard(waiting, None, None)], tmp_path / "i", query_encoder=folder, progress=False)
    with Index.open(tmp_path / "i") as index:
        searcher, options = Searcher(index), SearchOptions(mode=mode)
        assert index.view.n_pending == 4
        for query in ("cat well", "dog", "nothing"):
            hits = searcher.hits(query, 100, options)
            pages = [searcher.page(query, PageOptions(offset, 2), options) for offset in range(0, 20, 2)]
            assert [hit for page in pages for hit in page.hits] == hits
            assert {page.total for page in pages} == {len(hits)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": -1}, "offset is -1"),
        ({"offset": 1.5}, "offset is 1.5"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": 2**31 - 1, "offset": 1}, "limit is 2147483647"),
        ({"facets": ["brand"]}, "facets is list; expected a dict"),
        ({"facets": {"brand": 0}}, "the facet 'brand' has 0 values"),
        ({"sort": ":desc"}, "the sort is ':desc'"),
        ({"sort": "color"}, "the field 'color' has no type; the fields with one: n, on, day, brand, o.x"),
        ({"facets": {"color": 3}}, "the field 'color' has no type"),
        ({"group": "color"}, "the field 'color' has no type"),
    ],
)
def test_a_bad_page_is_refused(shop: Shop, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Searcher(shop.index).page("", PageOptions(**changes))


def test_an_index_without_schema_is_browsed_but_not_sorted(tmp_path: Path) -> None:
    build_index(document_shards([Document("b", "x"), Document("a", "x")]), tmp_path / "i", progress=False)
    with Index.open(tmp_path / "i") as index:
        answer = Searcher(index).page("")
        assert (answer.total, [hit.doc_id for hit in answer.hits]) == (2, ["a", "b"])
        with pytest.raises(InvalidInput, match="has no schema, so its fields have no types"):
            Searcher(index).page("", PageOptions(sort="n"))


def test_ids_are_listed_in_parts_counted_and_read(shop: Shop) -> None:
    ids = sorted(shop.documents)
    wanted = {"brand": {"in": ["a", "b"]}}
    passing = [doc_id for doc_id in ids if passes(shop.documents[doc_id], wanted)]
    assert shop.index.ids() == ids
    assert shop.index.ids(wanted) == passing
    assert (shop.index.count(), shop.index.count(wanted)) == (len(ids), len(passing))
    listed: list[str] = []
    while part := shop.index.ids(wanted, after=listed[-1] if listed else None, limit=3):
        assert len(part) <= 3
        listed += part
    assert listed == passing
    assert shop.index.ids(after="d5") == [doc_id for doc_id in ids if doc_id > "d5"]
    read = shop.index.get(["none", *reversed(ids)])
    assert list(read) == ids[::-1]
    assert read == shop.documents
    for call in (lambda: shop.index.ids(limit=0), lambda: shop.index.get("d1"), lambda: shop.index.get([1])):
        with pytest.raises(InvalidInput):
            call()


def test_a_whole_text_is_returned_with_its_matches(tmp_path: Path) -> None:
    text = f"The  ant.\n{'x ' * 500}Ants and a cow"
    build_index(document_shards([Document("a", text)]), tmp_path / "i", progress=False)
    with Index.open(tmp_path / "i") as index:
        (hit,) = Searcher(index).hits("ants cow", full_text=True)
        assert hit.snippet == text
        assert [text[start:end] for start, end in hit.highlights] == ["ant", "Ants", "cow"]
        (short,) = Searcher(index).page("ants cow").hits
        assert len(short.snippet) < 300
        assert Searcher(index).page("", full_text=True).hits[0].snippet == text


@given(st.lists(st.integers(-2, 2), max_size=8), st.integers(0, 9))
def test_the_least_keys_are_those_of_a_stable_sort(keys: list[int], n: int) -> None:
    assert least(np.array(keys, dtype=np.int64), n).tolist() == sorted(range(len(keys)), key=lambda i: keys[i])[:n]


def test_a_page_is_a_record(shop: Shop) -> None:
    assert Searcher(shop.index).page("nothing at all") == Page([], 0, {})
