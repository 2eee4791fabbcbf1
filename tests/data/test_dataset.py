"""A BEIR folder's parts, and what is reported when they don't fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightir.data import Dataset
from lightir.errors import InvalidInput, NotFound


def test_splits_queries_and_judgements(beir: Path) -> None:
    dataset = Dataset.open(beir)
    assert (dataset.name, dataset.splits, len(dataset)) == ("tiny", ("test", "train"), 40)
    assert len(list(dataset.queries())) == 28
    assert [query.query_id for query in dataset.queries("test")] == ["q24", "q25", "q26", "q27"]
    assert dataset.qrels("test")["q24"] == {"d24": 1}


def test_a_judged_query_that_is_not_there_is_named(beir: Path) -> None:
    (beir / "qrels" / "dev.tsv").write_text("q1\td1\t1\nq99\td1\t1\n")
    with pytest.raises(InvalidInput, match=r"has 1 query id .* 'q99'"):
        list(Dataset.open(beir).queries("dev"))


def test_an_unknown_split_is_named_with_those_there_are(beir: Path) -> None:
    with pytest.raises(NotFound, match="no split 'dev'; it has test, train"):
        Dataset.open(beir).qrels("dev")


@pytest.mark.parametrize("missing", ["corpus.jsonl", "queries.jsonl", "qrels"])
def test_a_folder_without_a_part_is_no_data_set(beir: Path, missing: str) -> None:
    (beir / missing).rename(beir / "elsewhere")
    with pytest.raises(NotFound, match="expected a BEIR folder"):
        Dataset.open(beir)


@pytest.mark.data
def test_the_real_collections_resolve(collections: Path) -> None:
    for name in ("scifact", "limit-small", "nq-utd", "cranfield"):
        dataset = Dataset.open(collections / name)
        for split in dataset.splits:
            assert {query.query_id for query in dataset.queries(split)} == set(dataset.qrels(split))
