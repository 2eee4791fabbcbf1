"""Metadata are changed without texts: one transaction, checked by type, with vectors and words as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightir.cli.app import main
from lightir.errors import InvalidInput, NotFound
from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index, document_shards
from lightir.types import Cells, Document

SCHEMA = Schema({"price": Field("number"), "ean": Field("keyword"), "sale": Field("boolean"), "o.x": Field("number")})
DOCUMENTS = [
    Document("a", "a steel kettle", "Kettle", {"price": 3, "ean": "007", "tags": ["x"], "o": {"x": 1, "y": 2}}),
    Document("b", "a steel pan", metadata={"price": 5}),
    Document("c", "a pot"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_index(document_shards(DOCUMENTS), tmp_path / "i", options=IndexOptions(schema=SCHEMA), progress=False)
    return tmp_path / "i"


def metadata_of(folder: Path) -> dict[str, Any]:
    with Index.open(folder) as index:
        assert index.verify() == []
        return {doc_id: dict(document.metadata) for doc_id, document in index.get(["a", "b", "c"]).items()}


def test_fields_are_set_and_removed_and_segments_stay(folder: Path) -> None:
    before = metadata_of(folder)
    with IndexWriter.open(folder) as writer:
        segments = [live.number for live in writer.view.segments]
        changes = {
            "a": {"price": "4.5", "o.x": 7, "o.z": None, "tags": None},
            "b": Cells({"price": "", "ean": "0123", "sale": "TRUE"}),
            "c": {"o.x": 2, "q.r": None},
        }
        assert writer.set_metadata(changes) == 3
        assert writer.set_metadata(changes) == 0  # nothing is left to change
        assert [live.number for live in writer.view.segments] == segments
        assert np.concatenate(writer.view.matching({"price": 4.5}) or []).sum() == 1
        assert np.concatenate(writer.view.matching({"price": 3}) or []).sum() == 0
    assert metadata_of(folder) == {
        "a": {"price": 4.5, "ean": "007", "o": {"x": 7, "y": 2}},
        "b": {"price": 5, "ean": "0123", "sale": True},
        "c": {"o": {"x": 2}},
    }
    assert before["a"]["tags"] == ["x"]
    with Index.open(folder) as index:
        assert index.documents(["a"])[0].text == "a steel kettle"
        assert index.count({"o.x": 2}) == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"a": {"price": 9}, "b": {"price": "cheap"}}, InvalidInput, "document 'b': the field 'price' is \"cheap\""),
        ({"a": {"price": 9}, "x": {"price": 9}}, NotFound, r"no document 'x' in .* \(1 of 2 ids are missing\)"),
        ({"a": {"price": 9, "ean.x": 1}}, InvalidInput, "the field 'ean.x' cannot be set, because 'ean' is no object"),
        ({"a": {"a..b": 1}}, InvalidInput, "the field 'a..b' is not one key"),
        ({"a": {"new": {1, 2}}}, InvalidInput, "the metadata of document 'a' is not a JSON object"),
        ({1: {"price": 9}}, InvalidInput, "a doc_id is int"),
    ],
)
def test_a_bad_change_is_refused_and_nothing_changes(
    folder: Path, changes: Any, error: type[Exception], message: str
) -> None:
    before = metadata_of(folder)
    with IndexWriter.open(folder) as writer:
        generation = writer.view.generation
        with pytest.raises(error, match=message):
            writer.set_metadata(changes)
        assert writer.view.generation == generation
        assert writer.set_metadata({}) == 0
    assert metadata_of(folder) == before


def test_missing_ids_are_skipped_on_request(folder: Path) -> None:
    with IndexWriter.open(folder) as writer:
        assert writer.set_metadata({"x": {"price": 1}, "b": {"price": 1}}, skip_missing=True) == 1
    assert metadata_of(folder)["b"] == {"price": 1}


def test_an_index_without_a_schema_takes_any_value(tmp_path: Path) -> None:
    build_index(document_shards(DOCUMENTS), tmp_path / "i", progress=False)
    with IndexWriter.open(tmp_path / "i") as writer:
        writer.set_metadata({"b": {"price": "cheap", "n": [1, "x"]}})
    assert metadata_of(tmp_path / "i")["b"] == {"price": "cheap", "n": [1, "x"]}


def test_the_command_sets_fields_of_ids_and_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = str(folder)
    assert main(["set", index, "a", "b", "price=7", "ean=00900", 'tags=["s"]', "o.x=null", "note=on sale"]) == 0
    assert "2 documents changed" in capsys.readouterr().err
    fields = {"price": 7, "ean": "00900", "tags": ["s"], "note": "on sale"}
    assert metadata_of(folder) == {"a": {**fields, "o": {"y": 2}}, "b": fields, "c": {}}
    changes = folder.parent / "c.csv"
    changes.write_text("sku,price,ean\na,8,\nx,1,\nc,,001\n")
    assert main(["set", index, "--from", str(changes), "--fields", "id=sku"]) == 1
    assert "no document 'x'" in capsys.readouterr().err
    assert main(["set", index, "--from", str(changes), "--fields", "id=sku", "--skip-missing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"changed": 2, "missing": 1, "unchanged": 0}
    assert metadata_of(folder)["a"]["price"] == 8
    assert metadata_of(folder)["c"] == {"ean": "001"}
    (folder.parent / "c.jsonl").write_text('{"id": "a", "price": null, "sale": true}\n')
    assert main(["set", index, "--from", str(folder.parent / "c.jsonl")]) == 0
    assert metadata_of(folder)["a"] == {"ean": "00900", "tags": ["s"], "note": "on sale", "o": {"y": 2}, "sale": True}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["a"], 1), (["price=3"], 1), ([], 2), (["a", "price=x"], 1), (["a", "price=1", "--fields", "id=x"], 2)],
)
def test_the_command_refuses_what_names_no_change(folder: Path, arguments: list[str], code: int) -> None:
    before = metadata_of(folder)
    try:
        assert main(["set", str(folder), *arguments]) == code
    except SystemExit as misuse:
        assert misuse.code == code  # noqa: PT017
    assert metadata_of(folder) == before


def test_documents_are_printed_by_id(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", str(folder), "a"]) == 0
    expected = [
        "Kettle  [a]",
        "    price: 3",
        "    ean: 007",
        '    tags: ["x"]',
        '    o: {"x": 1, "y": 2}',
        "a steel kettle",
    ]
    assert capsys.readouterr().out.splitlines() == expected
    assert main(["get", str(folder), "b", "a", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"doc_id": "b", "title": "", "text": "a steel pan", "metadata": {"price": 5}}
    assert lines[1]["metadata"] == DOCUMENTS[0].metadata
    assert main(["get", str(folder), "x"]) == 1
    assert "no document 'x'" in capsys.readouterr().err
