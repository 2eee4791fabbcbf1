"""Metadata fields have types: inferred from documents or declared, checked by every change, compared by filters."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from factories import make_contract
from lightir.cli.app import main
from lightir.data import read_documents
from lightir.errors import InvalidInput
from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index, document_shards, infer
from lightir.index.schema import number, read_schema, span
from lightir.shards import Shard, VectorsReader, VectorsWriter
from lightir.types import Cells, Document


def documents_of(*metadata: dict[str, Any]) -> list[Document]:
    return [Document(str(i), "a cat", metadata=values) for i, values in enumerate(metadata)]


def types_of(*metadata: dict[str, Any]) -> dict[str, str]:
    return {name: known.type for name, known in infer(documents_of(*metadata)).fields.items()}


def test_the_strings_of_a_table_are_numbers_booleans_dates_keywords_and_text() -> None:
    rows = [
        {"price": "3.50", "sale": "true", "day": "2024-02-29", "sku": "00123", "note": "one two three four", "no": ""},
        {"price": "-4", "sale": "FALSE", "day": "2024-03-01 10:00", "sku": "12", "note": "", "no": ""},
        {"price": "1e3", "sale": "", "day": "2024-03-01T10:00:00+02:00", "sku": "7", "note": " ".join("x" * 99)},
    ]
    assert types_of(*map(Cells, rows)) == {
        "price": "number", "sale": "boolean", "day": "date", "sku": "keyword", "note": "text",
    }  # fmt: skip
    typed = [infer(documents_of(*map(Cells, rows))).typed(document) for document in documents_of(*map(Cells, rows))]
    first = {"price": 3.5, "sale": True, "day": "2024-02-29", "sku": "00123", "note": "one two three four"}
    assert typed[0].metadata == first
    assert typed[1].metadata == {"price": -4, "sale": False, "day": "2024-03-01 10:00", "sku": "12"}
    assert [(type(number(text)), number(text)) for text in ("-4", "24.00", "1e3", "0.5", "1e20")] == [
        (int, -4), (int, 24), (int, 1000), (float, 0.5), (float, 1e20),
    ]  # fmt: skip


def test_json_values_keep_their_types() -> None:
    metadata = [
        {"n": 1, "s": "12", "b": True, "tags": ["x", "y"], "author": {"name": "A", "age": 3}, "mixed": 1, "x.y": 1},
        {"n": 2.5, "s": None, "b": None, "tags": [], "author": {"name": "B"}, "mixed": "a", "list": [{"a": 1}]},
    ]
    schema = infer(documents_of(*metadata))
    assert {name: known.type for name, known in schema.fields.items()} == {
        "n": "number", "s": "keyword", "b": "boolean", "tags": "keyword", "author.name": "keyword",
        "author.age": "number",
    }  # fmt: skip
    assert [schema.typed(document).metadata for document in documents_of(*metadata)] == metadata


@pytest.mark.parametrize("text", ["007", "1,5", "1.", "", "x", "0x1", "1_000", "nan", "1e999", "1" * 16, "٣"])
def test_strings_that_are_no_numbers(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize("text", ["2023-02-29", "20240101", "2024-1-1", "2024-01-01T25:00", "10:00", "2024-W01-1", ""])
def test_strings_that_are_no_dates(text: str) -> None:
    assert span(text) is None


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(-5, 5), st.sampled_from(["", "1", "01", "true"]),
    st.sampled_from(["2024-01-01", "2024-01-01T00:30Z", "a b c d e f g h i j"]),
)  # fmt: skip
values = st.dictionaries(st.sampled_from(["a", "b", "c.d"]), scalars | st.lists(scalars, max_size=2), max_size=3)
objects = st.dictionaries(st.sampled_from(["a", "b", "o"]), values | scalars, max_size=3)
tables = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.sampled_from(["", "1", "2.5", "true", "x", "2024-01-01"]))


@given(st.lists(st.one_of(values, objects, tables.map(Cells)), max_size=6))
def test_inferred_types_accept_the_documents_and_change_no_json_value(metadata: list[dict[str, Any]]) -> None:
    documents = documents_of(*metadata)
    schema = infer(documents)
    for document in documents:
        typed = schema.typed(document)
        if not isinstance(document.metadata, Cells):
            assert json.dumps(typed.metadata) == json.dumps(document.metadata)
        assert schema.typed(typed) == typed


@pytest.mark.parametrize(
    ("known", "value", "shown"),
    [
        ("number", "n/a", '"n/a"; expected a number'),
        ("number", "007", '"007"; expected a number (in 64 bits, and in a string without leading zeros'),
        ("number", True, "true; expected a number"),
        ("number", 2**63, "9223372036854775808; expected a number (in 64 bits"),
        ("boolean", 1, "1; expected true or false"),
        ("date", "31.5.2024", '"31.5.2024"; expected an ISO 8601 date'),
        ("keyword", {"a": 1}, '{"a": 1}; expected a string'),
        ("number", [1, "x"], '"x"; expected a number'),
    ],
)
def test_a_value_of_another_type_is_refused_and_nothing_changes(
    known: Any, value: Any, shown: str, tmp_path: Path
) -> None:
    schema = Schema({"f": Field(known)})
    with IndexWriter.create(tmp_path / "i", options=IndexOptions(schema=schema)) as writer:
        writer.add([Document("old", "a cat")])
        with pytest.raises(InvalidInput) as caught:
            writer.add([Document("good", "a cat"), Document("bad", "a cat", metadata={"f": value})])
        assert f"document 'bad': the field 'f' is {shown}" in str(caught.value)
        assert "--type f=keyword" in str(caught.value)
        assert len(writer) == 1


def test_a_declared_type_converts_strings_and_scalars(tmp_path: Path) -> None:
    schema = Schema({"price": Field("number"), "zip": Field("keyword"), "on": Field("boolean")})
    with IndexWriter.create(tmp_path / "i", options=IndexOptions(schema=schema)) as writer:
        writer.add([Document("a", "x", metadata={"price": "3.5", "zip": 123, "on": "True", "other": "3.5"})])
        writer.add([Document("b", "x", metadata=Cells({"price": "", "zip": "0123", "on": "false", "new": ""}))])
    with Index.open(tmp_path / "i") as index:
        assert index.schema == schema
        a, b = index.documents(["a", "b"])
        assert a.metadata == {"price": 3.5, "zip": "123", "on": True, "other": "3.5"}
        assert b.metadata == {"zip": "0123", "on": False}


MOMENTS = [
    "2024-01-01", "2024-01-01T00:00", "2024-01-01T00:00:00.000001Z", "2024-01-01T23:59:59+01:00", "2024-01-02",
    "2023-12-31T23:30:00-01:00", "0001-01-01", "9999-12-31", "9999-12-31T23:59:59.999999-23:59",
    "0001-01-01T00:00+23:59",
]  # fmt: skip


def start_and_end(text: str) -> tuple[float, float]:
    """Return a span in days since 0001-01-01, by Python's arithmetic."""
    naive = datetime.datetime.fromisoformat(text)
    offset = naive.utcoffset() or datetime.timedelta()
    seconds = (naive.replace(tzinfo=None) - datetime.datetime.min) - offset
    start = seconds // datetime.timedelta(microseconds=1)
    return start, start + (86_400_000_000 if len(text) == 10 else 1)


@pytest.mark.parametrize("wanted", MOMENTS)
def test_dates_are_compared_as_spans_of_time(wanted: str, tmp_path: Path) -> None:
    documents = [Document(f"{i:02}", "x", metadata={"day": text}) for i, text in enumerate(MOMENTS)]
    build_index(
        document_shards(documents), tmp_path / "i", options=IndexOptions(schema=infer(documents)), progress=False
    )
    start, end = start_and_end(wanted)
    holds = {
        "gt": lambda time: time >= end, "gte": lambda time: time >= start, "lt": lambda time: time < start,
        "lte": lambda time: time < end,
    }  # fmt: skip
    with Index.open(tmp_path / "i") as index:
        for name, test in holds.items():
            expected = [i for i, text in enumerate(MOMENTS) if test(start_and_end(text)[0])]
            assert rows(index, {"day": {name: wanted}}) == expected, name
        same = [i for i, text in enumerate(MOMENTS) if start <= start_and_end(text)[0] < end]
        assert rows(index, {"day": wanted}) == rows(index, {"day": {"in": [wanted]}}) == same
        assert rows(index, {"day": None}) == []


def rows(index: Index, wanted: dict[str, Any]) -> list[int]:
    masks = index.view.matching(wanted)
    assert masks is not None
    return np.flatnonzero(np.concatenate(masks)).tolist()


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"price": "3"}, "at price: this number field is compared with a number, got '3'"),
        ({"price": {"gte": "3"}}, "at price.gte: this number field"),
        ({"and": [{"price": {"in": [1, "3"]}}]}, r"at and\[0\].price.in: this number field"),
        ({"not": {"price": True}}, "at not.price: this number field"),
        ({"brand": 3}, "at brand: this keyword field is compared with a string, got 3"),
        ({"sale": "true"}, "at sale: this boolean field is compared with true or false, got 'true'"),
        ({"sale": {"lt": 1}}, "at sale.lt: a boolean field has no order"),
        ({"day": "soon"}, "at day: this date field is compared with an ISO 8601 date"),
        ({"day": {"gt": 2024}}, "at day.gt: this date field"),
        ({"author.age": "3"}, "at author.age: this number field"),
    ],
)
def test_a_filter_with_a_value_of_another_type_is_an_error(wanted: Any, message: str, tmp_path: Path) -> None:
    metadata = {"price": 3, "brand": "x", "sale": True, "day": "2024-01-01", "author": {"age": 3}}
    documents = documents_of(metadata)
    build_index(
        document_shards(documents), tmp_path / "i", options=IndexOptions(schema=infer(documents)), progress=False
    )
    with Index.open(tmp_path / "i") as index:
        with pytest.raises(InvalidInput, match=message):
            index.view.matching(wanted)
        valid = [{"price": None}, {"sale": None}, {"unknown": "3"}, {"price": {"exists": True, "in": [3, 4.5]}}]
        assert [rows(index, wanted) for wanted in valid] == [[], [], [], [0]]


CSV = "sku,text,price,ean,sale\na,boils water,3.5,00123,true\nb,fries eggs,,00456,false\n"


def test_a_build_infers_types_which_options_change_and_info_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.csv").write_text(CSV)
    (tmp_path / "schema.json").write_text('{"price": "keyword", "ean": {"type": "keyword", "key": true}}')
    command = ["index", str(tmp_path / "c.csv"), "--fields", "id=sku"]
    assert main([*command, "--out", str(tmp_path / "i")]) == 0
    assert "fields: price (number), ean (keyword), sale (boolean)" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "j"), "--schema", str(tmp_path / "schema.json")]) == 0
    assert "fields: price (keyword), ean (keyword, key), sale (boolean)" in capsys.readouterr().err
    types = ["--type", "price=text,ean=key", "--type", "sale=keyword"]
    assert main([*command, "--out", str(tmp_path / "k"), *types]) == 0
    assert main(["info", str(tmp_path / "k"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fields"] == {"price": "text", "ean": "keyword, key", "sale": "keyword"}
    with Index.open(tmp_path / "i") as index:
        assert index.documents(["a"])[0].metadata == {"price": 3.5, "ean": "00123", "sale": True}
    assert main(["search", str(tmp_path / "i"), "eggs", "--json", "--filter", '{"price": "3"}']) == 1
    assert "malformed at price: this number field" in capsys.readouterr().err
    (tmp_path / "more.csv").write_text("sku,text,price\nc,a pot,cheap\n")
    assert main(["add", str(tmp_path / "i"), str(tmp_path / "more.csv"), "--fields", "id=sku"]) == 1
    assert "document 'c': the field 'price' is \"cheap\"; expected a number" in capsys.readouterr().err


def test_a_later_row_of_another_type_fails_the_build_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightir.index.schema.INFERRED_DOCUMENTS", 1)
    (tmp_path / "c.csv").write_text("id,text,size\na,x,1\nb,y,XL\n")
    assert main(["index", str(tmp_path / "c.csv"), "--out", str(tmp_path / "i")]) == 1
    assert not (tmp_path / "i").exists()
    assert main(["index", str(tmp_path / "c.csv"), "--out", str(tmp_path / "i"), "--type", "size=keyword"]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected an object of field -> type"),
        ('{"a": "int"}', "the field 'a': type 'int' is unknown; expected number, boolean, date, keyword, text, key"),
        ('{"a": {"type": "text", "weight": 2}}', "the field 'a' is {.*}; expected one of number"),
        ('{"a": {"type": "number", "key": true}}', "a key field is a keyword"),
        ('{"a": {"type": "keyword", "key": "yes"}}', "expected one of number"),
        ('{"a.": "text"}', "'a.' is not one key or several joined by dots"),
    ],
)
def test_a_malformed_schema_file_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(content)
    with pytest.raises(InvalidInput, match=message):
        read_schema(tmp_path / "schema.json")


def test_a_vectors_folder_remembers_that_metadata_came_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text(CSV)
    documents = list(read_documents(tmp_path / "c.csv", fields={"id": "sku"}))
    with VectorsWriter(tmp_path / "v", make_contract()) as writer:
        writer.add(Shard(documents, np.ones((2, 8), np.float16), None))
        writer.add(Shard([Document("c", "x", metadata={"price": "1"})], np.ones((1, 8), np.float16), None))
        writer.finish()
    stored = list(VectorsReader(tmp_path / "v").documents())
    assert [isinstance(document.metadata, Cells) for document in stored] == [True, True, False]
    assert [isinstance(shard.documents[0].metadata, Cells) for shard in VectorsReader(tmp_path / "v")] == [True, False]


def test_an_index_without_a_schema_has_none(tmp_path: Path) -> None:
    build_index(document_shards(documents_of({"a": 1}, {"a": "1"})), tmp_path / "i", progress=False)
    with Index.open(tmp_path / "i") as index:
        assert index.schema is None
        assert index.info().fields is None
        assert rows(index, {"a": "1"}) == [1]
    assert subprocess.run([sys.executable, "-m", "lightir", "info", str(tmp_path / "i")], check=True).returncode == 0
