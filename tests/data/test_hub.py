"""Hugging Face data sets in folders that `datasets` saved: both kinds of columns, and what is not understood."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

from lightir.data import open_hub, read_hub_documents
from lightir.errors import InvalidInput, MissingExtra, NotFound
from lightir.types import Document


def saved(folder: Path, rows: list[dict[str, Any]], *, split: str | None = None) -> str:
    """The address of a data set with these rows."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(rows)
    (datasets.DatasetDict({split: table}) if split else table).save_to_disk(folder)
    return f"hf:{folder}"


def passage(number: int) -> dict[str, str]:
    return {"docid": f"d{number}", "title": f"title {number}", "text": f"text {number}"}


def test_tevatrons_columns(tmp_path: Path) -> None:
    rows = [
        {"query_id": "q1", "query": "a b", "positive_passages": [passage(1)], "negative_passages": [passage(2)]},
        {"query_id": "q2", "query": "c", "positive_passages": [passage(2), passage(3)], "negative_passages": []},
        {"query_id": "q1", "query": "a b", "positive_passages": [passage(4)], "negative_passages": [passage(5)]},
    ]
    training = open_hub(saved(tmp_path / "tevatron", rows, split="dev"), split="dev", instructions=("find",))
    assert training.name == "tevatron"
    assert [(e.query_id, e.query, e.positive_ids, e.negative_ids) for e in training.examples] == [
        ("q1", "a b", ("d1", "d4"), ("d2", "d5")),
        ("q2", "c", ("d2", "d3"), ()),
    ]
    assert training.documents["d3"] == Document("d3", "text 3", "title 3")
    assert sorted(training.documents) == ["d1", "d2", "d3", "d4", "d5"]
    assert training.instructions == ("find",)


def test_sentence_transformers_columns_with_scores(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "yes", "negative": "no", "scores": [2.0, -1.0]},
        {"anchor": "b", "positive": "well", "negative": "yes", "scores": [0.5, None]},
        {"anchor": "a", "positive": "yes", "negative": "never", "scores": [3.0, 0.0]},
    ]
    training = open_hub(saved(tmp_path / "st", rows), instructions=("",))
    first, second = training.examples
    assert [training.documents[d].text for d in (*first.positive_ids, *first.negative_ids)] == ["yes", "no", "never"]
    assert first.scores == (2.0, -1.0, 0.0)  # of two scores for one document the first counts
    assert second.scores[0] == 0.5
    assert math.isnan(second.scores[1])
    assert second.negative_ids == first.positive_ids  # equal texts are one document


def test_numbered_negatives_and_lists_come_in_order(tmp_path: Path) -> None:
    row = {"query": "q", "positive": "p", "negative_10": "x", "negative_2": "y", "negative_1": ["z", "w"]}
    training = open_hub(saved(tmp_path / "numbered", [row]), instructions=("",))
    (example,) = training.examples
    assert [training.documents[doc_id].text for doc_id in example.negative_ids] == ["z", "w", "y", "x"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"sentence": "a", "positive": "b"}],
            r"columns are \['sentence', 'positive'\]; expected one of query, anchor",
        ),
        ([{"anchor": "a", "label": 1}], "expected one of positive_passages, positive"),
        ([{"anchor": "a", "positive": []}, {"anchor": "b", "positive": ["x"]}], "row 1: positive is empty"),
        ([{"anchor": "a", "positive": "x", "score": [1.0, 2.0]}], "row 1: 2 scores for 1 document"),
        ([{"anchor": "a", "positive": 3}], "row 1: positive: text is int"),
        (
            [{"query": "a", "pos": [{"docid": "d", "text": t}], "query_id": t} for t in ("x", "y")],
            "row 2: duplicate document id 'd' with another text",
        ),
        (
            [{"query": t, "pos": "x", "query_id": "q"} for t in ("x", "y")],
            "row 2: query 'q' has the text 'y', but another one earlier",
        ),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    address = saved(tmp_path / "bad", rows)
    with pytest.raises(InvalidInput, match=message):
        list(open_hub(address, instructions=("",)).examples)


def test_a_split_or_a_set_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = saved(tmp_path / "some", [{"anchor": "a", "positive": "b"}], split="dev")
    with pytest.raises(NotFound, match="has no split 'train'; it has dev"):
        open_hub(address, instructions=("",))
    monkeypatch.setattr(importlib.import_module("datasets").config, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotFound, match=r"cannot load data set 'nobody/nothing': .*hf:FOLDER"):
        open_hub("hf:nobody/nothing", instructions=("",))


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingExtra, match=r"lightir\[datasets\]"):
        open_hub("hf:some/set", instructions=("",))


def test_a_corpus_is_read_with_its_ids_titles_and_texts(tmp_path: Path) -> None:
    rows = [{"docid": "a", "title": "T", "text": "one", "more": 1}, {"docid": "b", "title": None, "text": " "}]
    address = saved(tmp_path / "corpus", [*rows, {"docid": "c", "title": "", "text": "three", "more": 2}])
    assert list(read_hub_documents(address)) == [Document("a", "one", "T"), Document("c", "three")]
    plain = saved(tmp_path / "plain", [{"passage": "one"}, {"passage": ""}, {"passage": "three"}], split="part")
    assert list(read_hub_documents(plain, split="part")) == [Document("0", "one"), Document("2", "three")]
    with pytest.raises(NotFound, match="no split 'train'; it has part"):
        list(read_hub_documents(plain))
    with pytest.raises(InvalidInput, match=r"the columns are \['x'\]; expected one of text, passage, contents"):
        list(read_hub_documents(saved(tmp_path / "wrong", [{"x": "y"}])))
