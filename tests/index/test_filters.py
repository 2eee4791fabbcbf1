"""A filter matches the same documents as a loop over the metadata; a malformed filter is refused with its location."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings

from filter_definition import RANGES, matches
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.index.connections import Connection
from lightir.index.metadata_filters import parse
from lightir.index.segments.columns import COLUMNS_KEPT, Columns, MetadataSource
from lightir.index.store import Store
from lightir.index.store_row import store_row
from lightir.search import Searcher, SearchOptions
from lightir.types import Document


def in_memory() -> sqlite3.Connection:
    """Return a connection with the settings of a store, to an empty table of metadata."""
    connection = sqlite3.connect(":memory:", factory=Connection)
    connection.path, connection.lock = Path("memory"), threading.RLock()
    connection.execute("CREATE TABLE metadata (doc_key INTEGER PRIMARY KEY, value TEXT)")
    return connection


ODD_KEYS = ("\\", "a\\b", "\\u0061", "a\tb", "\n", "\x01", "\x7f", "\u2028", "a/b")
"""Keys that JSON writes with escapes, and keys that only look escaped."""

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.sampled_from([0.5, 1.0, -2.0]),
    st.sampled_from(["", "a", "b", "é", "1", "'"]),
)
orders = st.one_of(st.integers(-2, 3), st.sampled_from([0.5, 1.0]), st.sampled_from(["", "a", "é", "1"]))
fields = st.sampled_from(["x", "y", "x.y", "über", "a'b", "$", "x]", *ODD_KEYS, f"x.{ODD_KEYS[0]}"])
stored = st.recursive(
    scalars,
    lambda inner: (
        st.lists(scalars, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", ODD_KEYS[0]]), inner, max_size=2)
    ),
)
metadatas = st.dictionaries(st.sampled_from(["x", "y", "über", "a'b", "$", "x]", *ODD_KEYS]), stored, max_size=4)
tests = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(RANGES, orders), "in": st.lists(scalars, max_size=3), "exists": st.booleans()}
).filter(bool)
leaves = st.dictionaries(fields, scalars | tests, max_size=2)
wanted_filters = st.recursive(
    leaves,
    lambda inner: st.fixed_dictionaries(
        {}, optional={"and": st.lists(inner, max_size=2), "or": st.lists(inner, max_size=2), "not": inner}
    ),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.lists(metadatas, max_size=5), wanted_filters)
@example([{"über": None}], {"über": None})
@example([{"x": 1}, {"x": True}, {"x": 0}], {"x": {"in": [True]}})
@example([{key: 1} for key in ODD_KEYS], {"or": [{key: 1} for key in ODD_KEYS]})
@example([{"x": {"a\\b": 1}}, {"x": {"a\b": 1}}], {"x.a\\b": {"exists": True}})
def test_a_filter_matches_the_documents_of_a_loop(metadata: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
    connection = in_memory()
    values = [(json.dumps(record, ensure_ascii=False),) for record in metadata]  # as the store writes it
    connection.executemany("INSERT INTO metadata (value) VALUES (?)", values)
    expected = [i for i, record in enumerate(metadata) if matches(record, wanted)]
    assert by_columns(connection, len(metadata), wanted) == expected
    connection.close()


def by_columns(connection: sqlite3.Connection, n: int, wanted: dict[str, Any]) -> list[int]:
    """Return the documents that match by the columns; keys descend, so their order differs from that of the rows."""
    keys = np.arange(n, 0, -1)
    store = Store(Path("memory"), connection)  # type: ignore[arg-type]
    rows = Columns(keys).matching(parse(wanted), MetadataSource(store.documents.values_of, 0, 0))
    return sorted((keys[rows] - 1).tolist())


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "at its top: expected an object"),
        ({"price": {"gte": []}}, r"at price\.gte: expected a number or a string"),
        ({"and": [{"a": 1}, {"price": {"gte": None}}]}, r"at and\[1\]\.price\.gte"),
        ({"or": {"a": 1}}, "at or: expected a list"),
        ({"not": [{}]}, "at not: expected an object"),
        ({"a": {"like": "x"}}, r"at a\.like: unknown test"),
        ({"a": {}}, "at a: expected a value"),
        ({"a": ["x"]}, "at a: expected a value or a test"),
        ({"a": {"in": "x"}}, r"at a\.in: expected a list"),
        ({"a": {"in": 3}}, r"at a\.in: expected a list of values, got 3"),
        ({"a": {"in": ["\ud800"]}}, r"at a\.in\[0\]: .* UTF-8"),
        ({"a": {"in": ["x" * 20] * 9 + [()]}}, r"at a\.in\[9\]"),
        ({"a": {"lt": True}}, r"at a\.lt: expected a number or a string, got True"),
        ({"\ud800": 1}, "cannot be written as UTF-8"),
        ({"a": [0] * 20}, r"got \[0(, 0){18}, 0\];"),
        ({"a": [0] * 30}, r"got \[0(, 0){18},\.\.\.;"),
        ({"a": {"in": [1, {}]}}, r"at a\.in\[1\]"),
        ({"a": {"exists": 1}}, r"at a\.exists: expected true or false"),
        ({"a": float("nan")}, "at a: expected a finite number"),
        ({"a..b": 1}, r"at a\.\.b: a field is one key"),
        ({'a"b': 1}, "without double quotes and NUL"),
        ({"a\0b": 1}, "without double quotes and NUL"),
        ({"": 1}, "a field is one key"),
        ({"a": "\ud800"}, "at a: .* UTF-8"),
        ({1: 2}, "a field is a string"),
        ({"or": [{f"f{i}": i} for i in range(501)]}, "more than 500 tests"),
    ],
)
def test_a_malformed_filter_is_refused_with_its_location(wanted: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        parse(wanted)


EDGES = [2**53, 2**63, 2**64, 10**30, 10**300]
numbers = st.one_of(
    st.sampled_from([sign * (edge + step) for edge in EDGES for step in (-1, 0, 1) for sign in (1, -1)]),
    st.sampled_from([sign * float(edge) for edge in EDGES for sign in (1, -1)]),
    st.sampled_from([0, -0.0, 0.1, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, 2**1024 - 2**971]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: number == int(number)).map(int),
)
texts = st.text(st.sampled_from('a0\0\n"\\ é中😀'), max_size=3)


@settings(max_examples=200)
@given(st.data())
def test_every_value_is_compared_exactly(data: st.DataObject) -> None:
    """Integers of any size, floats and strings, alone and in lists, equal or ordered as in Python."""
    pool = data.draw(st.lists(numbers, min_size=1, max_size=4)) + data.draw(st.lists(texts, max_size=3))
    value = st.sampled_from([*pool, None, True, False])
    stored = data.draw(st.lists(value | st.lists(value | st.just({}) | st.just([1]), max_size=3), max_size=6))
    operand = st.sampled_from(pool) | numbers | texts
    name = data.draw(st.sampled_from([*RANGES, "in"]))
    wanted = {"x": {name: data.draw(st.lists(operand, max_size=3) if name == "in" else operand)}}
    connection = in_memory()
    rows = [(store_row(Document("d", "", "", {"x": x}))[3],) for x in stored]
    connection.executemany("INSERT INTO metadata (value) VALUES (?)", rows)
    try:
        expected = [i for i, x in enumerate(stored) if matches({"x": x}, wanted)]
        assert by_columns(connection, len(stored), wanted) == expected
    finally:
        connection.close()


def test_integers_of_more_than_64_bits_are_found_in_an_index(tmp_path: Path) -> None:
    large = {"a": 2**63, "b": 2**63 + 1, "c": -(2**64) - 1, "d": 10**400, "e": [1, 2**70]}
    documents = [Document(doc_id, "cat", "", {"n": n}) for doc_id, n in large.items()]
    build_index(document_shards(documents), tmp_path / "i", progress=False)
    with Index.open(tmp_path / "i") as index:
        for wanted, doc_ids in (
            ({"n": 2**63}, "a"),
            ({"n": 2**63 + 1}, "b"),
            ({"n": {"in": [-(2**64) - 1, 2**70]}}, "ce"),
            ({"n": {"gt": 2**63}}, "bde"),
            ({"n": {"lt": 1.5}}, "ce"),
            ({"n": {"gte": 1e308}}, "d"),
        ):
            ranking = Searcher(index).search(["cat"], options=SearchOptions(filter=wanted))["0"]
            assert sorted(ranking.doc_ids) == list(doc_ids), wanted
        assert [document.metadata["n"] for document in index.documents(list(large))] == list(large.values())


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 2**1024, float("inf"), float("-inf"), float("nan"), json.loads("1e400")]
)
@pytest.mark.parametrize("test_name", ["{}", "gt", "gte", "lt", "lte", "in"])
def test_a_number_beyond_all_floats_is_refused_by_name(number: float, test_name: str) -> None:
    wanted = {"n": number if test_name == "{}" else {test_name: [number] if test_name == "in" else number}}
    with pytest.raises(InvalidInput, match=r"the filter is malformed at n.*: expected a finite number below 1.8e308"):
        parse(wanted)


def test_a_column_is_read_once_until_metadata_are_replaced_and_never_from_a_later_state() -> None:
    read: list[tuple[str, int]] = []

    def source(described: int, generation: int, *, n_there: int = 3) -> MetadataSource:
        def values(path: str, keys: npt.NDArray[np.int64]) -> list[tuple[int, str, int]]:
            read.append((path, generation))
            return [(row, "integer", described) for row in range(min(n_there, len(keys)))]

        return MetadataSource(values, described, generation)

    columns = Columns(np.arange(4))
    same, other = parse({"x": 0}), parse({"x": {"gte": 0}})
    assert columns.matching(same, source(0, 5)).tolist() == [True, True, True, False]
    assert columns.matching(other, source(0, 5)).sum() == columns.matching(other, source(0, 9, n_there=1)).sum() == 3
    assert read == [('$."x"', 5)]
    assert columns.matching(same, source(0, 2, n_there=4)).all(), "an earlier state has what has gone since"
    assert columns.matching(same, source(0, 5)).sum() == 3, "and what it read is not kept in place of the later one's"
    assert not columns.matching(same, source(1, 9)).any()
    assert columns.matching(other, source(1, 10)).sum() == 3
    assert [generation for _, generation in read] == [5, 2, 9]
    for i in range(COLUMNS_KEPT):
        columns.matching(parse({f"y{i}": 1}), source(1, 10))
    columns.matching(same, source(1, 10))
    assert len(read) == 3 + COLUMNS_KEPT + 1


def test_filters_follow_added_described_and_deleted_documents(tmp_path: Path) -> None:
    documents = [Document(f"{i}", "cat", metadata={"n": i, "odd": i % 2 == 1}) for i in range(40)]
    with IndexWriter.create(tmp_path / "i") as writer:
        writer.add(documents)
    with Index.open(tmp_path / "i") as index:

        def found(wanted: dict[str, Any]) -> list[int]:
            return sorted(
                int(doc_id)
                for doc_id in Searcher(index).search(["cat"], 100, SearchOptions(filter=wanted))["0"].doc_ids
            )

        assert found({"n": {"lt": 3}}) == [0, 1, 2]
        with IndexWriter.open(tmp_path / "i") as writer:
            writer.upsert([Document("1", "cat", metadata={"n": 100})])  # its text is the same
            writer.delete(["2"])
            writer.add([Document("77", "cat", metadata={"n": -1})])
            assert found({"n": {"lt": 3}}) == [0, 1, 2]
            index.refresh()
            assert found({"n": {"lt": 3}}) == [0, 77]
            assert found({"n": 100}) == [1]
            assert found({"odd": {"exists": False}}) == [1, 77]
            assert found({"not": {"n": {"gte": 0}}}) == [77]
            many_fields = {f"field{i}": {"exists": False} for i in range(COLUMNS_KEPT)}
            assert found({**many_fields, "n": {"in": [100, -1]}}) == [1, 77]


def test_deep_nesting_is_refused_and_allowed_nesting_runs(tmp_path: Path) -> None:
    test = {"a": {"gte": 1, "in": [1, "a", True]}}
    wanted: dict[str, Any] = test
    for _ in range(8):
        wanted = {**test, "or": [test, test, {**test, **wanted}]}
    widest = {"and": [{"or": [{f"f{i}": {"lt": i}} for i in range(498)]}, {"not": {"a": 1}}]}
    build_index(document_shards([Document("x", "cat")]), tmp_path / "i", progress=False)
    with Index.open(tmp_path / "i") as index:
        assert len(Searcher(index).search(["cat"], options=SearchOptions(filter=wanted))["0"]) == 0
        assert len(Searcher(index).search(["cat"], options=SearchOptions(filter=widest))["0"]) == 0
        assert (
            len(Searcher(index).search(["cat"], options=SearchOptions(filter={"a": {"in": list(range(100_000))}}))["0"])
            == 0
        )
        nots: dict[str, Any] = {"a": 1}
        for _ in range(8):
            nots = {"not": nots}
        assert len(Searcher(index).search(["cat"], options=SearchOptions(filter=nots))["0"]) == 0
        for deeper in ({"not": nots}, {"or": [nots]}):
            with pytest.raises(InvalidInput, match="deeper than 8"):
                Searcher(index).search(["cat"], options=SearchOptions(filter=deeper))
        with pytest.raises(InvalidInput, match="deeper than 8"):
            Searcher(index).search(["cat"], options=SearchOptions(filter={"not": wanted}))


def test_k_results_are_returned_if_k_match(tmp_path: Path) -> None:
    documents = [Document(f"{i:03d}", "cat " * (1 + (i * 7) % 13), metadata={"rare": i % 50 == 7}) for i in range(500)]
    for size in (64, 65_536):
        build_index(
            document_shards(documents),
            tmp_path / "i",
            options=IndexOptions(segment_documents=size),
            progress=False,
            overwrite=True,
        )
        with Index.open(tmp_path / "i") as index:
            ranking = Searcher(index).search(["cat"], 10, SearchOptions(filter={"rare": True}))["0"]
            assert sorted(ranking.doc_ids) == [f"{i:03d}" for i in range(7, 500, 50)]
            whole = [i for i in Searcher(index).search(["cat"], 500)["0"].doc_ids if int(i) % 50 == 7]
            assert list(ranking.doc_ids) == whole


def test_values_that_look_like_sql_are_values(tmp_path: Path) -> None:
    build_index(
        document_shards([Document("x", "cat", metadata={"a' OR 1=1 --": "'; DROP TABLE documents; --"})]),
        tmp_path / "i",
        progress=False,
    )
    with Index.open(tmp_path / "i") as index:
        ranking = Searcher(index).search(
            ["cat"], options=SearchOptions(filter={"a' OR 1=1 --": "'; DROP TABLE documents; --"})
        )["0"]
        assert list(ranking.doc_ids) == ["x"]
        assert len(Searcher(index).search(["cat"], options=SearchOptions(filter={"a": "' OR 1=1 --"}))["0"]) == 0
        index.verify()
