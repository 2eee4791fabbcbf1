"""Fusion fitted on judged queries: what is tried measures as a search does, and noise is no reason for a change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.eval import evaluate
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.search.fusion_tuning import METHODS, fusion_grid, tune, weight_grid
from lightir.search.language_model import Smoothing
from lightir.search.search_options import fusion_text
from lightir.shards import Shard
from lightir.types import Document, Qrels, Query
from small_collections import GivenVectors, csr, word_contract

WORDS = ("ant", "bee", "cow", "doe", "elk", "fox")
N_DOCS, N_QUERIES, DIM = 24, 30, 4


class Collection:
    """Documents on a circle and queries beside them; the nearest document is relevant, words are chance."""

    def __init__(self, folder: Path, *, noise: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        ids = [f"d{i:02d}" for i in rng.permutation(N_DOCS)]
        rows = rng.standard_normal((N_DOCS, DIM))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        documents = [Document(i, " ".join(rng.choice(WORDS, 4))) for i in ids]
        contract = word_contract(sparse=None, fusion=Fusion("linear", {"dense": 0.5, "tokens": 0.5}))
        build_index([Shard(documents, rows.astype(np.float16), None)], folder, contract=contract, progress=False)
        wanted = rng.integers(0, N_DOCS, N_QUERIES)
        vectors = rows[wanted] + noise * rng.standard_normal((N_QUERIES, DIM))
        self.queries = [Query(f"q{i}", f"{' '.join(rng.choice(WORDS, 2))} !{i}") for i in range(N_QUERIES)]
        self.queries[0] = Query(ids[int(wanted[0])], self.queries[0].text)
        self.qrels: Qrels = {
            query.query_id: {ids[int(doc)]: 2, ids[(int(doc) + 1) % N_DOCS]: 0, ids[(int(doc) + 2) % N_DOCS]: 1, "?": 1}
            for query, doc in zip(self.queries, wanted, strict=True)
        }
        texts = [query.text for query in self.queries]
        dense = {text: vector.astype(np.float32) for text, vector in zip(texts, vectors, strict=True)}
        self.encoder = GivenVectors(contract, dense, {text: {1: 1.0} for text in texts})


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[tuple[Searcher, Collection]]:
    data = Collection(tmp_path / "i", noise=0.6)
    with Index.open(tmp_path / "i") as index:
        yield Searcher(index, data.encoder), data


@pytest.mark.parametrize("smoothing", [None, Smoothing("dirichlet", 20.0)], ids=str)
@pytest.mark.parametrize("exclude_same_id", [False, True])
def test_what_is_tried_measures_as_a_search_does(
    noisy: tuple[Searcher, Collection], exclude_same_id: bool, smoothing: Smoothing | None
) -> None:
    searcher, data = noisy

    def searched(fusion: Fusion) -> float:
        run = searcher.search(
            data.queries,
            options=SearchOptions(
                fusion=fusion_text(fusion),
                weights=fusion.weights,
                depth=6,
                exclude_same_id=exclude_same_id,
                smoothing=smoothing,
            ),
        )
        return evaluate(run, data.qrels, ["nDCG@10"]).measures["nDCG@10"]

    result = tune(
        searcher,
        data.queries,
        data.qrels,
        progress=False,
        options=SearchOptions(depth=6, exclude_same_id=exclude_same_id, smoothing=smoothing),
    )
    assert result.default_value == pytest.approx(searched(result.default))
    assert list(result.by_method) == [name for name in METHODS if smoothing is None or name != "absolute"]
    for fusion, value in result.by_method.values():
        assert value == pytest.approx(searched(fusion))
        assert result.chosen_value >= value
    assert result.chosen_value == pytest.approx(searched(result.chosen))
    assert result.options.endswith(" --tokens dirichlet:20") == (smoothing is not None)


def test_a_branch_of_chance_loses_its_weight(tmp_path: Path) -> None:
    data = Collection(tmp_path / "i", noise=0.05)
    with Index.open(tmp_path / "i") as index:
        result = tune(Searcher(index, data.encoder), data.queries, data.qrels, progress=False)
    assert result.recommended
    assert result.chosen.weights["dense"] > 0.7
    assert result.default_value < result.held_out_value <= result.chosen_value
    assert result.interval[0] <= result.difference <= result.interval[1]
    assert result.interval[0] > 0
    assert result.p_value < 0.05
    assert result.options == f"--fusion {fusion_text(result.chosen)} --weights " + ",".join(
        f"{branch}={weight:g}" for branch, weight in result.chosen.weights.items()
    )


def test_chance_is_no_reason_for_a_change(noisy: tuple[Searcher, Collection]) -> None:
    searcher, data = noisy
    rng = np.random.default_rng(6)
    qrels: Qrels = {query.query_id: {f"d{rng.integers(N_DOCS):02d}": 1} for query in data.queries}
    result = tune(searcher, data.queries, qrels, progress=False)
    assert result.chosen_value > result.default_value  # what fits the very queries looks like a gain
    assert result.held_out_value < result.chosen_value
    assert not result.recommended
    assert result.p_value > 0.05


def test_the_same_seed_finds_the_same(noisy: tuple[Searcher, Collection]) -> None:
    searcher, data = noisy
    first, again = (tune(searcher, data.queries, data.qrels, folds=3, seed=7, progress=False) for _ in range(2))
    assert first == again
    json.dumps(first.to_json(), allow_nan=False)


def test_queries_without_judgements_are_left_aside(noisy: tuple[Searcher, Collection]) -> None:
    searcher, data = noisy
    qrels = dict(list(data.qrels.items())[:12])
    result = tune(searcher, data.queries, qrels, progress=False)
    assert result.n_queries == 12
    assert result == tune(searcher, data.queries[:12], qrels, progress=False)


def test_what_cannot_be_tuned_is_refused(noisy: tuple[Searcher, Collection]) -> None:
    searcher, data = noisy
    with pytest.raises(InvalidInput, match="tokens alone"):
        tune(searcher, data.queries, data.qrels, options=SearchOptions(mode="tokens"))
    with pytest.raises(InvalidInput, match="9 judged queries in 5 folds"):
        tune(searcher, data.queries[:9], data.qrels)
    with pytest.raises(InvalidInput, match="1 folds"):
        tune(searcher, data.queries, data.qrels, folds=1)
    with pytest.raises(InvalidInput, match="none of the 1 relevant"):
        tune(searcher, data.queries, {query.query_id: {"other": 1} for query in data.queries})


@pytest.mark.parametrize(("n_branches", "n_weights"), [(2, 19), (3, 36)])
def test_weights_of_the_grid_are_above_zero_and_add_up(n_branches: int, n_weights: int) -> None:
    grid = weight_grid(n_branches)
    assert len(set(grid)) == len(grid) == n_weights
    assert all(min(weights) > 0 and sum(weights) == pytest.approx(1) for weights in grid)
    assert len(fusion_grid(("dense", "sparse", "tokens")[:n_branches])) == len(METHODS) * n_weights


def test_three_branches_are_joined(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    documents = [Document(f"d{i}", " ".join(rng.choice(WORDS, 3))) for i in range(12)]
    contract = word_contract()
    sparse = csr(
        [{int(t): 2 for t in rng.choice(8, 3, replace=False)} for _ in documents], vocab_size=8, dtype=np.uint8
    )
    shard = Shard(documents, rng.standard_normal((12, DIM)).astype(np.float16), sparse)
    build_index([shard], tmp_path / "i", contract=contract, options=IndexOptions(analyzer="words"), progress=False)
    texts = [f"{word} !{i}" for i, word in enumerate(WORDS * 2)]
    dense = {text: rng.standard_normal(DIM).astype(np.float32) for text in texts}
    encoder = GivenVectors(contract, dense, {text: {int(rng.integers(8)): 1.0} for text in texts})
    queries = [Query(text, text) for text in texts]
    qrels: Qrels = {text: {f"d{rng.integers(12)}": 1} for text in texts}
    with Index.open(tmp_path / "i") as index:
        searcher, smoothing = Searcher(index, encoder), Smoothing("dirichlet", 20.0)
        for mode in ("dense+sparse+tokens", "sparse+tokens", "dense+sparse"):
            result = tune(
                searcher, queries, qrels, progress=False, options=SearchOptions(mode=mode, smoothing=smoothing)
            )
            assert result.branches == tuple(mode.split("+"))
            assert all(list(fusion.weights) == list(result.branches) for fusion, _ in result.by_method.values())
            assert (result.smoothing is None) == ("tokens" not in result.branches)
            for fusion, value in (*result.by_method.values(), (result.chosen, result.chosen_value)):
                run = searcher.search(
                    queries,
                    options=SearchOptions(
                        mode=mode, fusion=fusion_text(fusion), weights=fusion.weights, smoothing=smoothing
                    ),
                )
                assert value == pytest.approx(evaluate(run, qrels, ["nDCG@10"]).measures["nDCG@10"])


def test_the_command_tells_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Collection(tmp_path / "i", noise=0.05)
    (tmp_path / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": query.query_id, "text": query.text}) + "\n" for query in data.queries)
    )
    judged = [f"{q} 0 {doc} {grade}" for q, grades in data.qrels.items() for doc, grade in grades.items()]
    (tmp_path / "qrels").write_text("\n".join(judged) + "\n")
    monkeypatch.setattr(Index, "query_encoder", lambda self, *, threads=1: data.encoder)
    arguments = ["tune", str(tmp_path / "i"), str(tmp_path / "queries.jsonl"), "--qrels", str(tmp_path / "qrels")]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "use --fusion " in shown
    assert "linear (current)" in shown
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["recommended"] is True
    assert report["options"] in shown
    assert report["default"]["weights"] == {"dense": 0.5, "tokens": 0.5}
    assert main([*arguments, "--tokens", "dirichlet:30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"].endswith(" --tokens dirichlet:30")
    assert main([*arguments, "--tokens", "dirichlet:30", "--write"]) == 2
    assert "--write cannot be combined with --tokens" in capsys.readouterr().err
    assert main([*arguments, "--write"]) == 0
    assert f"default fusion is now {report['options']}" in capsys.readouterr().err
    with Index.open(tmp_path / "i") as index:
        result = tune(Searcher(index, data.encoder), data.queries, data.qrels, progress=False)
        assert (fusion_text(result.default), result.default.weights) == (
            report["chosen"]["fusion"],
            report["chosen"]["weights"],
        )
        assert not result.recommended
        hit = Searcher(index, data.encoder).hits(data.queries[0].text, 1)[0]
        assert hit.branches["dense"].weight == report["chosen"]["weights"]["dense"]
    assert main([*arguments, "--write"]) == 0
    captured = capsys.readouterr()
    assert "keep the current fusion" in captured.out
    assert "default fusion is now" not in captured.err


def test_a_split_and_a_file_of_judgements_are_not_both_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["tune", "index", "queries.jsonl", "--qrels", "qrels", "--split", "dev"])
    assert stop.value.code == 2
    assert "--split and --qrels cannot be combined" in capsys.readouterr().err


def test_an_index_without_a_model_joins_nothing(tmp_path: Path) -> None:
    build_index(document_shards([Document("a", "cat")]), tmp_path / "i", progress=False)
    with IndexWriter.open(tmp_path / "i") as writer, pytest.raises(InvalidInput, match="no branches to fuse"):
        writer.set_fusion(Fusion())
