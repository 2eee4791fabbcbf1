"""An index measured on a BEIR folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightir.data import Dataset
from lightir.errors import InvalidInput
from lightir.eval import evaluate, read_run
from lightir.index import Index, build_index, document_shards
from lightir.query import CachedQueryEncoder, CachedTable
from lightir.search import Searcher, SearchOptions
from lightir.search.index_evaluation import all_modes, evaluate_index, evaluate_systems
from lightir.shards import Shard
from small_collections import word_contract, word_table, word_tokenizer

ANIMALS = ("cat", "dog", "fish", "horse", "cow", "sheep")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set in which every query's first word finds its document, but for one query that finds nothing."""
    folder = tmp_path / "animals"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"the {name}", "text": f"{name} and animal"} for name in ANIMALS]
    queries = [{"_id": name, "text": f"{name} question"} for name in ANIMALS] + [{"_id": "none", "text": "zebra"}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in corpus))
    (folder / "queries.jsonl").write_text("".join(json.dumps(record) + "\n" for record in queries))
    judged = [f"{name}\tthe {name}\t1\n" for name in ANIMALS] + ["none\tthe cat\t1\n"]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


@pytest.fixture
def searcher(folder: Path) -> Iterator[Searcher]:
    build_index(document_shards(Dataset.open(folder).corpus()), folder.parent / "index")
    with Index.open(folder.parent / "index") as index:
        yield Searcher(index)


def test_every_mode_is_measured_over_all_judged_queries(searcher: Searcher, folder: Path) -> None:
    report = evaluate_index(searcher, folder)
    assert report.to_json() == {
        "dataset": "animals",
        "split": "test",
        "n_queries": 7,
        "missing_documents": 0,
        "systems": {"tokens": dict.fromkeys(["nDCG@10", "R@20", "R@50", "R@100", "RR@10"], pytest.approx(6 / 7))},
        "seconds": report.seconds,
    }


def test_the_runs_that_are_written_measure_the_same(searcher: Searcher, folder: Path, tmp_path: Path) -> None:
    report = evaluate_index(searcher, folder, run_dir=tmp_path / "runs")
    again = evaluate(read_run(tmp_path / "runs" / "animals.test.tokens.trec"), Dataset.open(folder).qrels("test"))
    assert again == report.systems["tokens"]


def test_systems_are_compared_under_their_names(searcher: Searcher, folder: Path) -> None:
    report = evaluate_systems({"a": (searcher, "tokens"), "b": (searcher, "tokens")}, folder)
    compared = report.comparison(reference="a")
    assert compared.kept("b") == pytest.approx(1)
    assert compared.mark("b", "animals") == ""


def test_relevant_documents_that_the_index_lacks_are_counted(searcher: Searcher, folder: Path) -> None:
    (folder / "qrels" / "dev.tsv").write_text("cat\tthe cat\t1\ncat\tgone\t1\ndog\talso gone\t0\n")
    report = evaluate_index(searcher, folder, "dev")
    assert report.missing_documents == 1
    assert report.systems["tokens"].measures["R@20"] == pytest.approx(0.25)  # cat half, dog has none relevant


def test_an_index_of_another_corpus_is_refused(searcher: Searcher, folder: Path) -> None:
    (folder / "qrels" / "dev.tsv").write_text("cat\tgone\t1\n")
    with pytest.raises(InvalidInput, match="another corpus"):
        evaluate_index(searcher, folder, "dev")


def test_rankings_are_as_deep_as_the_measures_look(searcher: Searcher, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="look 20 deep"):
        evaluate_index(searcher, folder, measures=["R@20"], k=10)
    assert set(evaluate_index(searcher, folder, measures=["AP", "R@2"]).systems["tokens"].measures) == {"AP", "R@2"}


def test_no_modes_and_unknown_ones_are_refused(searcher: Searcher, folder: Path) -> None:
    with pytest.raises(InvalidInput, match="no mode"):
        evaluate_index(searcher, folder, modes=[])
    with pytest.raises(InvalidInput, match="no dense branch"):
        evaluate_index(searcher, folder, modes=["dense"])


def test_all_modes_name_each_set_of_branches_once() -> None:
    assert all_modes(("tokens",)) == ("tokens",)
    assert all_modes(("dense", "tokens")) == ("tokens", "dense", "hybrid")
    assert all_modes(("dense", "sparse", "tokens")) == ("tokens", "dense", "sparse", "hybrid", "hybrid+tokens")


def test_fusion_and_weights_are_those_of_the_joined_modes(folder: Path, tmp_path: Path) -> None:
    contract = word_contract(sparse=None)
    documents = list(Dataset.open(folder).corpus())
    rng = np.random.default_rng(0)
    shard = Shard(documents, rng.standard_normal((len(documents), 4)).astype(np.float16), None)
    build_index([shard], tmp_path / "i", contract=contract, progress=False)
    encoder = CachedQueryEncoder(contract, word_tokenizer(), tables={"": CachedTable(word_table())})
    with Index.open(tmp_path / "i") as index:
        searcher = Searcher(index, encoder)
        report = evaluate_index(
            searcher, folder, options=SearchOptions(fusion="rrf:5", weights={"dense": 0.1, "tokens": 0.9})
        )
        assert list(report.systems) == ["tokens", "dense", "hybrid"]
        queries = list(Dataset.open(folder).queries("test"))
        run = searcher.search(queries, 100, SearchOptions(fusion="rrf:5", weights={"dense": 0.1, "tokens": 0.9}))
        expected = evaluate(run, Dataset.open(folder).qrels("test"))
        assert report.systems["hybrid"] == expected
        assert report.systems["hybrid"] != evaluate_index(searcher, folder, modes=["hybrid"]).systems["hybrid"]
