"""A minimum score: what is below it is left out, whatever the branches."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lightir.cli import main
from lightir.errors import InvalidInput
from lightir.index import Index, IndexOptions, build_index
from lightir.index.token_queries import Alternatives
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from small_collections import GivenVectors, word_contract

TEXTS = {"a": "lamp WX 4821", "b": "lamp", "c": "kettle", "d": "lamp kettle"}
QUERIES = {"4821": (1, 0), "lamp": (0, 1), "zzqq": (0.25, 0)}
EMPTY: dict[str, dict[int, float]] = {query: {} for query in QUERIES}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three documents with vectors, and d, which is pending."""
    rows = np.array([(0.5, 0.5), (0, 1), (1, 0)], np.float16)
    encoded = Shard([Document(i, TEXTS[i]) for i in "abc"], rows, None)
    waiting = Shard([Document("d", TEXTS["d"])], None, None)
    contract = word_contract(dim=2, sparse=None)
    build_index(
        [waiting, encoded], tmp_path / "i", options=IndexOptions(analyzer="words"), contract=contract, progress=False
    )
    return tmp_path / "i"


def searcher_of(index: Index) -> Searcher:
    contract = word_contract(dim=2, sparse=None)
    return Searcher(index, GivenVectors(contract, {q: np.array(v, np.float32) for q, v in QUERIES.items()}, EMPTY))


@pytest.mark.parametrize("mode", ["dense+tokens", "dense", "tokens"])
@pytest.mark.parametrize("fusion", ["absolute", "linear", "rrf"])
@pytest.mark.parametrize("least", [-1.0, 0.0, 0.1, 0.3, 0.5, 0.75, 9.0])
def test_what_is_below_the_minimum_is_left_out(folder: Path, mode: str, fusion: str, least: float) -> None:
    with Index.open(folder) as index:
        searcher = searcher_of(index)
        every = searcher.search(list(QUERIES), 10, SearchOptions(mode=mode, fusion=fusion))
        options = SearchOptions(mode=mode, fusion=fusion, min_score=least)
        for query_id, ranking in searcher.search(list(QUERIES), 10, options).items():
            pairs = list(zip(every[query_id].doc_ids, every[query_id].scores.tolist(), strict=True))
            kept = [pair for pair in pairs if pair[1] >= least]
            assert list(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)) == kept
            hits = searcher.hits(list(QUERIES)[int(query_id)], 10, options, explain=True)
            assert [(hit.doc_id, hit.score) for hit in hits] == kept


def test_a_word_that_one_document_has_outweighs_every_cosine(folder: Path) -> None:
    with Index.open(folder) as index:
        options = SearchOptions(mode="dense+tokens", fusion="absolute", weights={"dense": 0.5, "tokens": 0.5})
        searcher = searcher_of(index)
        code, nonsense = (searcher.search([query], 10, options)["0"] for query in ("4821", "zzqq"))
        assert code.doc_ids[0] == "a"  # though c has the better cosine
        assert max(nonsense.scores) == 0.125  # the share of a cosine of 0.25; by linear it would be 0.5
        linear = searcher.search(["zzqq"], 10, SearchOptions(mode="dense+tokens", fusion="linear"))["0"]
        assert max(linear.scores) >= 0.5


@pytest.mark.parametrize("wrong", ["0.3", float("nan"), float("inf")])
def test_a_minimum_is_a_finite_number(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="min_score is"):
        SearchOptions(min_score=wrong)


def test_a_page_has_no_minimum(folder: Path) -> None:
    with Index.open(folder) as index, pytest.raises(InvalidInput, match="without min_score"):
        searcher_of(index).page("lamp", PageOptions(), SearchOptions(mode="tokens", min_score=0.1))


def test_the_command_says_when_nothing_reaches_the_minimum(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", str(folder), "lamp", "--mode", "tokens", "--min-score", "0.01"]) == 0
    assert "no good match" not in capsys.readouterr().err
    assert main(["search", str(folder), "lamp", "--mode", "tokens", "--min-score", "99"]) == 0
    message = "no good match: no document has a score of 99 or more"
    assert message in capsys.readouterr().err
    assert main(["search", str(folder), "lamp", "--mode", "tokens", "--min-score", "99", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hints"] == [message]


def test_alternatives_to_words_do_not_raise_what_a_query_can_reach(folder: Path) -> None:
    with Index.open(folder) as index:
        view = index.view
        idfs = [math.log1p((4 - df + 0.5) / (df + 0.5)) for df in (0, 3)]  # of an unknown word, and of "lamp"
        for rows, groups, reach in (
            ([["lamq", "lamp"]], [Alternatives("lamq", ("lamp",), (0.5,))], sum(idfs)),  # a correction keeps the word
            ([["lamp"]], [Alternatives("light", ("lamp", "kettle"), (1.0, 1.0))], idfs[1] * 2),  # a synonym replaces it
            ([["lamq"]], [], idfs[0]),
        ):
            queries = view.words.queries(rows, alternatives=[groups])
            assert queries.unknown is not None
            assert queries.vectors.weights.sum(dtype=np.float64) + queries.unknown[0] == pytest.approx(reach)
