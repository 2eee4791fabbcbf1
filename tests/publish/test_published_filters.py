"""Filters and facets of the script of a published page, beside those of the Python searcher."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.index import Field, Index, IndexOptions, IndexWriter, PassageOptions, Schema
from lightir.publish import publish_index, vector_files
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.types import Document
from published_indexes import ask, make_index, needs_node, random_documents

pytestmark = needs_node

SCHEMA = Schema(
    {
        "kind": Field("keyword"),
        "price": Field("number"),
        "day": Field("date"),
        "open": Field("boolean"),
        "maker.name": Field("keyword"),
        "sku": Field("keyword", key=True),
        "note": Field("text"),
    }
)
VALUES: dict[str, list[Any]] = {
    "kind": ["a", "b", "ä", "🐈", "\uff5e", ""],
    "price": [0, 1, 2.5, -3, 1e6, 2**53 - 1],
    "day": ["2024-02-29", "2024-03-01", "2024-02-29T12:00:00+14:00", "1969-12-31T23:59:59.999999", "0999-01-01T00:30Z"],
    "open": [True, False],
    "maker.name": ["x", "y"],
}
ASKED: dict[str, list[Any]] = {
    **VALUES,
    "day": [*VALUES["day"], "2024-02-28", "2024-02-29 00:00", "2024-02-28T22:00:00Z", "1970-01-01"],
    "price": [*VALUES["price"], 0.5, -1e9],
    "kind": [*VALUES["kind"], "c", "\U0001f600"],
}
ABSOLUTE = Fusion("absolute", {"dense": 0.45, "tokens": 0.55}, spans={"dense": (0.1, 0.8)})
EXACT = {"typos": False, "compounds": False}
QUERIES = ["", "the cats run", "kettles", "zebra", "how do dogs sleep"]


def documents_with_fields(n: int) -> list[Document]:
    """Random documents, of which some lack fields, and some have lists and nulls."""
    rng = np.random.default_rng(5)
    documents = []
    for i, document in enumerate(random_documents(n)):
        metadata: dict[str, Any] = {"sku": f"s{i}", "note": "a note"}
        for name, known in VALUES.items():
            choice = int(rng.integers(0, 6))
            values = [known[int(j)] for j in rng.integers(0, len(known), 3)]
            value: Any = None if choice == 0 else values if choice == 1 else [] if choice == 2 else values[0]
            if choice != 3:
                if name == "maker.name":
                    metadata["maker"] = {"name": value}
                else:
                    metadata[name] = value
        documents.append(dataclasses.replace(document, metadata=metadata))
    return documents


def random_filter(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """A filter of tests of one or two fields, and of `and`, `or` and `not`."""
    kind = int(rng.integers(0, 8 if depth < 2 else 5))
    if kind >= 5:
        parts = [random_filter(rng, depth + 1) for _ in range(int(rng.integers(0, 3)))]
        return {"not": random_filter(rng, depth + 1)} if kind == 7 else {"and" if kind == 5 else "or": parts}
    wanted: dict[str, Any] = {}
    for name in rng.choice(list(ASKED), int(rng.integers(1, 3)), replace=False):
        values = [ASKED[name][int(j)] for j in rng.integers(0, len(ASKED[name]), 3)]
        test = str(rng.choice(["eq", "in", "exists", "null", "gt", "gte", "lt", "lte"]))
        if test in ("eq", "null"):
            wanted[str(name)] = values[0] if test == "eq" else None
        elif test in ("in", "exists"):
            wanted[str(name)] = {test: [*values, None][: int(rng.integers(0, 5))] if test == "in" else bool(kind % 2)}
        elif name != "open":
            wanted[str(name)] = {test: values[0]}
    return wanted


@pytest.fixture(scope="module", params=["words and vectors", "passages"])
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index of two segments and its publication."""
    folder = tmp_path_factory.mktemp("fields")
    documents = documents_with_fields(90)
    if request.param == "passages":
        options = IndexOptions(passages=PassageOptions(tokens=16), schema=SCHEMA)
        with IndexWriter.create(folder / "index", options=options) as writer:
            writer.add(documents)
    else:
        make_index(folder, documents[:60], options=IndexOptions(boosts={"title": 5}, schema=SCHEMA))
        with IndexWriter.open(folder / "index") as writer:
            rows = np.random.default_rng(2).standard_normal((30, 16)).astype(np.float32)
            writer.add(documents[60:], dense=rows / np.linalg.norm(rows, axis=1, keepdims=True))
            writer.delete([document.doc_id for document in documents[5:12]])
    with Index.open(folder / "index") as index:
        publish_index(index, folder / "site", progress=False)
    return folder / "index", folder / "site"


def test_filtered_hits_are_those_of_the_searcher(published: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(8)
    bodies = [{"query": QUERIES[i % 5], "k": 7, "filter": random_filter(rng)} for i in range(300)]
    answers = ask(published[1], [("search", body) for body in bodies])
    n_hits = set()
    with Index.open(published[0]) as index:
        searcher = Searcher(index)
        for body, answer in zip(bodies, answers, strict=True):
            assert "error" not in answer["answer"], (body, answer["answer"])
            page = searcher.page(body["query"], PageOptions(limit=7), SearchOptions(filter=body["filter"], **EXACT))
            hits = [hit["doc_id"] for hit in answer["answer"]["hits"]]
            assert hits == [hit.doc_id for hit in page.hits], body
            n_hits.add(len(hits))
    assert n_hits >= {0, 3, 7}


def test_facets_and_totals_are_those_of_the_searcher(published: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(9)
    names = [*VALUES, "sku"]
    bodies = [
        {"query": QUERIES[i % 5], "k": 1, "ids_only": True, "total": True, "facets": names, "as_you_type": True}
        | ({"filter": random_filter(rng)} if i % 3 else {})
        for i in range(150)
    ]
    answers = ask(published[1], [("search", body) for body in bodies])
    with Index.open(published[0]) as index:
        searcher = Searcher(index)
        for body, answer in zip(bodies, answers, strict=True):
            options = SearchOptions(filter=body.get("filter"), as_you_type=True, **EXACT)
            page = searcher.page(body["query"], PageOptions(limit=1, facets=dict.fromkeys(names, 10)), options)
            expected = {name: [dataclasses.asdict(one) for one in counts] for name, counts in page.facets.items()}
            assert answer["answer"]["facets"] == expected, body
            assert answer["answer"]["total"] == page.total, body


def test_modes_have_their_own_matches(published: tuple[Path, Path]) -> None:
    with Index.open(published[0]) as index:
        modes = index.branches if len(index.branches) > 1 else ()
        bodies = [{"query": "cats", "mode": mode, "ids_only": True, "facets": ["kind"]} for mode in modes]
        for body, answer in zip(bodies, ask(published[1], [("search", body) for body in bodies]), strict=True):
            page = Searcher(index).page("cats", PageOptions(limit=1), SearchOptions(mode=body["mode"], **EXACT))
            assert answer["answer"]["total"] == page.total


def test_fields_are_read_when_they_are_first_used(published: tuple[Path, Path]) -> None:
    filtered = {"query": "cats", "filter": {"kind": "a"}}
    counted = {"query": "cats", "ids_only": True, "facets": ["kind", "open"]}
    bodies = ({"query": "cats"}, filtered, filtered, counted, counted)
    requests: list[tuple[str, Any]] = [("info", None), *(("search", body) for body in bodies)]
    info, plain, first, again, facets, last = ask(published[1], requests)
    assert info["answer"]["fields"] == {
        "kind": "keyword", "price": "number", "day": "date", "open": "boolean", "maker.name": "keyword",
    }  # fmt: skip
    assert plain["requests"] > 0
    assert first["requests"] > 0
    assert again["requests"] == 0
    assert facets["requests"] == 1
    assert last["requests"] == 0


def test_codes_and_refined_rows_are_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_files, "WHOLE_BYTES", 0)
    options = IndexOptions(schema=SCHEMA)
    index = make_index(tmp_path, documents_with_fields(150), dim=32, options=options, fusion=ABSOLUTE)
    with Index.open(index) as opened:
        publish_index(opened, tmp_path / "site", progress=False)
        rng = np.random.default_rng(10)
        bodies = [{"query": QUERIES[1 + i % 4], "k": 10, "filter": random_filter(rng)} for i in range(60)]
        for mode in ("dense", "hybrid"):
            answers = ask(tmp_path / "site", [("search", {**body, "mode": mode}) for body in bodies])
            for body, answer in zip(bodies, answers, strict=True):
                asked = SearchOptions(mode=mode, filter=body["filter"], **EXACT)
                expected = [hit.doc_id for hit in Searcher(opened).hits(body["query"], 10, asked)]
                assert [hit["doc_id"] for hit in answer["answer"]["hits"]] == expected, body


@pytest.mark.parametrize(
    "wanted",
    [
        {"price": "1"}, {"price": {"gt": "1"}}, {"kind": 1}, {"kind": {"lt": 2}}, {"open": {"gt": True}},
        {"open": "true"}, {"day": "yesterday"}, {"day": {"gte": 2024}}, {"day": "2024-02-30"}, {"kind": {}},
        {"day": "2024-02-29T24:00"}, {"kind": {"like": "a"}}, {"kind": ["a"]}, {"kind": {"in": "a"}}, ["kind"],
        {"kind": {"exists": 1}}, {"and": {"kind": "a"}}, {"not": [{"kind": "a"}]}, {"or": ["a"]},
        {"kind": {"in": [["a"]]}},
    ],
)  # fmt: skip
def test_malformed_filters_are_refused_as_by_the_searcher(published: tuple[Path, Path], wanted: Any) -> None:
    (answer,) = ask(published[1], [("search", {"query": "cats", "filter": wanted})])
    assert answer["answer"]["status"] == 422
    assert answer["answer"]["error"].startswith("the filter is malformed at ")
    with Index.open(published[0]) as index, pytest.raises(InvalidInput):
        Searcher(index).hits("cats", 3, SearchOptions(filter=wanted))


def test_a_field_of_many_values_is_no_facet(tmp_path: Path) -> None:
    options = IndexOptions(schema=Schema({"url": Field("keyword")}))
    with IndexWriter.create(tmp_path / "index", options=options) as writer:
        writer.add([Document(f"d{i:04d}", "cats", metadata={"url": f"u{i}"}) for i in range(1001)])
    with Index.open(tmp_path / "index") as index:
        publish_index(index, tmp_path / "site", progress=False)
    info, answer = ask(tmp_path / "site", [("info", None), ("search", {"query": "cats", "filter": {"url": "u1000"}})])
    assert info["answer"]["fields"] == {}
    assert [hit["doc_id"] for hit in answer["answer"]["hits"]] == ["d1000"]
