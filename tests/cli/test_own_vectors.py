"""An index of vectors that another model made, without a query table: built, searched by given vectors, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.contract import external_contract
from lightir.errors import InvalidInput
from lightir.eval import read_run
from lightir.index import Index
from lightir.search import Searcher, SearchOptions
from lightir.search.external_vectors import GivenQueryVectors
from lightir.types import Query

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
WORDS = ["river", "stone", "cloud", "copper", "lantern", "meadow", "signal", "harbor"]
N, DIM = 60, 8


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(3).normal(size=(N + 4, DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(vectors: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus as JSON lines with vectors in another order, the same as one Parquet file, and four queries."""
    out = tmp_path_factory.mktemp("own-vectors")
    rng = np.random.default_rng(4)
    texts = [" ".join(rng.choice(WORDS, size=6)) for _ in range(N)]
    ids = [f"d{i}" for i in range(N)]
    pairs = zip(ids, texts, strict=True)
    lines = [json.dumps({"_id": i, "text": text, "year": 2000 + at}) for at, (i, text) in enumerate(pairs)]
    (out / "corpus.jsonl").write_text("\n".join(lines))
    order = rng.permutation(N)
    np.save(out / "v.npy", vectors[order])
    (out / "ids").write_text("\n".join(ids[at] for at in order))
    table = {"id": ids, "text": texts, "year": [2000 + at for at in range(N)], "embedding": vectors[:N].tolist()}
    parquet.write_table(pyarrow.table(table), out / "corpus.parquet")
    np.save(out / "queries.npy", vectors[N:])
    np.save(out / "query.npy", vectors[N : N + 1])
    queries = [json.dumps({"_id": f"q{i}", "text": text}) for i, text in enumerate(["", "river", "river", "stone"])]
    (out / "queries.jsonl").write_text("\n".join(queries))
    return out


@pytest.fixture(scope="module")
def index(folder: Path) -> Path:
    given = ["--vectors", str(folder / "v.npy"), "--vector-ids", str(folder / "ids"), "--vector-model", "embed-3"]
    assert main(["index", str(folder / "corpus.jsonl"), *given, "--made-by", "acme", "--out", str(folder / "i")]) == 0
    return folder / "i"


def truth(vectors: np.ndarray, query: int, k: int) -> list[str]:
    """The k documents of the highest cosines, from the definition."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = unit[:N].astype(np.float16).astype(np.float32) @ unit[N + query]
    return [f"d{at}" for at in np.argsort(-scores, kind="stable")[:k]]


def test_queries_are_searched_by_the_vectors_that_the_caller_hands_in(index: Path, vectors: np.ndarray) -> None:
    with Index.open(index) as opened:
        assert opened.contract == external_contract("embed-3", DIM, maker="acme")
        searcher = Searcher(opened)
        run = searcher.search(["", "river", "river", "stone"], 10, SearchOptions(mode="dense"), vectors=vectors[N:])
    assert {query_id: ranking.doc_ids for query_id, ranking in run.items()} == {
        str(query): truth(vectors, query, 10) for query in range(4)
    }  # two queries of one text have their own vectors


def test_hybrid_search_joins_given_vectors_and_words(index: Path, vectors: np.ndarray) -> None:
    with Index.open(index) as opened:
        given = GivenQueryVectors(opened.contract, ["", "q"], vectors[N : N + 2])
        explained = Searcher(opened, given).hits("river", 3)
        run = Searcher(opened).search([Query("q", "river")], 3, vectors=vectors[N : N + 1])
    assert set(explained[0].branches) == {"dense", "tokens"}
    assert [hit.doc_id for hit in explained] == run["q"].doc_ids


def test_the_commands_index_a_parquet_file_of_documents_with_vectors_and_search_it_by_a_file_of_vectors(
    folder: Path, vectors: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = str(folder / "corpus.parquet"), str(folder / "p")
    assert main(["index", file, "--vectors", file, "--vector-model", "embed-3", "--out", out]) == 0
    assert "--query-vectors FILE" in capsys.readouterr().err
    with Index.open(out) as opened:
        assert dict(opened.documents(["d7"])[0].metadata) == {"year": 2007}  # without the vector
    run = ["--queries", str(folder / "queries.jsonl"), "--query-vectors", str(folder / "queries.npy")]
    assert main(["search", out, *run, "--mode", "dense", "--run", str(folder / "run")]) == 0
    ranked = read_run(folder / "run")
    assert [ranked[f"q{query}"].doc_ids for query in range(4)] == [truth(vectors, query, 10) for query in range(4)]
    one = ["search", out, "no such words", "--query-vectors", str(folder / "query.npy"), "--mode", "dense", "--json"]
    capsys.readouterr()
    assert main(one) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert [hit["doc_id"] for hit in hits] == truth(vectors, 0, 10)


def test_an_index_is_evaluated_with_vectors_that_the_caller_hands_in(
    folder: Path, index: Path, vectors: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl"):
        (data / name).write_bytes((folder / name).read_bytes())
    relevant = {query: truth(vectors, query, 1)[0] for query in (1, 3)}  # rows are those of all queries, not these
    lines = [f"q{query}\t{doc_id}\t1\n" for query, doc_id in relevant.items()]
    (data / "qrels" / "test.tsv").write_text("".join(lines))
    evaluate = ["evaluate", str(index), "--dataset", str(data), "--modes", "dense", "--json", "--measures", "RR@10"]
    capsys.readouterr()
    assert main([*evaluate, "--query-vectors", str(folder / "queries.npy"), "--run-dir", str(tmp_path / "runs")]) == 0
    assert json.loads(capsys.readouterr().out)["systems"]["dense"] == {"RR@10": 1.0}
    run = read_run(tmp_path / "runs" / "data.test.dense.trec")
    assert {name: ranking.doc_ids for name, ranking in run.items()} == {f"q{i}": truth(vectors, i, 10) for i in (1, 3)}
    np.save(tmp_path / "two.npy", vectors[[N + 3, N + 1]])
    (tmp_path / "two").write_text("q3\nq1\n")
    given = ["--query-vectors", str(tmp_path / "two.npy")]
    assert main([*evaluate, *given, "--query-vector-ids", str(tmp_path / "two")]) == 0
    assert json.loads(capsys.readouterr().out)["systems"]["dense"] == {"RR@10": 1.0}
    assert main([*evaluate, *given]) == 1  # two rows for four queries
    assert main([*evaluate, "--query-vector-ids", str(tmp_path / "two")]) == 2
    assert main([*evaluate, *given, "--task", "x"]) == 2


def test_without_vectors_of_queries_the_words_are_searched_on_request(
    index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(index), "river"]) == 1
    assert "--query-vectors FILE" in capsys.readouterr().err
    assert main(["search", str(index), "river", "--mode", "tokens"]) == 0


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--vector-model", "m"], "requires --vectors"),
        (["--vectors", "v.npy", "--vector-model", "m", "--model", "minilm"], "exclude each other"),
        (["--vectors", "v.npy", "--made-by", "acme"], "require --vector-model"),
        (["--similarity", "dot"], "require --vector-model"),
    ],
)
def test_options_about_vectors_are_checked_before_anything_is_read(
    folder: Path, tmp_path: Path, more: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(folder / "corpus.jsonl"), *more, "--out", str(tmp_path / "i")]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [np.zeros((3, DIM)), np.zeros((4, DIM + 1)), np.full((4, DIM), np.nan), np.zeros(4), np.zeros((0, DIM))]
)
def test_vectors_of_another_shape_are_refused(index: Path, given: np.ndarray) -> None:
    with Index.open(index) as opened, pytest.raises(InvalidInput, match=r"expected \(4, 8\)"):
        Searcher(opened).search(["a", "b", "c", "d"], vectors=given)


def test_a_query_without_a_vector_is_named(index: Path, vectors: np.ndarray) -> None:
    with Index.open(index) as opened:
        searcher = Searcher(opened, GivenQueryVectors(opened.contract, ["a"], vectors[:1]))
        with pytest.raises(InvalidInput, match="query 'b' has no vector"):
            searcher.search([Query("b", "river")])
        with pytest.raises(InvalidInput, match="only the given queries have vectors"):
            searcher.encoder.encode(["river"])
