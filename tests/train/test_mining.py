"""BM25 hard negatives: what is taken, what never is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from lightir.data import read_negatives
from lightir.errors import InvalidInput, NotFound
from lightir.train.mining import choose_negatives, mine, negatives_files
from lightir.train.recipe import Recipe
from lightir.types import Ranking

TEXTS = {"a": ("", "one"), "b": ("", "two"), "c": ("", "one"), "d": ("", "four")}


def ranking(**scores: float) -> Ranking:
    return Ranking("q", list(scores), np.asarray(list(scores.values())))


def test_relevant_documents_and_their_copies_are_no_negatives() -> None:
    found = choose_negatives(ranking(a=4, b=3, c=2, d=1), {"a"}, TEXTS, first_rank=1, margin=None)
    assert found == ["b", "d"]


def test_ranks_before_the_first_are_left_out() -> None:
    assert choose_negatives(ranking(b=4, d=3, a=2), {"a"}, TEXTS, first_rank=2, margin=None) == ["d"]


def test_the_margin_leaves_out_what_scores_near_the_best_relevant_one() -> None:
    scores = ranking(b=9.6, a=10, d=9.4)
    assert choose_negatives(scores, {"a"}, TEXTS, first_rank=1, margin=0.95) == ["d"]
    assert choose_negatives(ranking(b=9, d=1), {"a"}, TEXTS, first_rank=1, margin=0.5) == ["b", "d"]


def test_mining_finds_documents_of_the_same_words(datasets: tuple[Path, Path], tmp_path: Path) -> None:
    n = mine(datasets[0], "train", tmp_path / "negatives.jsonl", n_negatives=3)
    negatives = read_negatives(tmp_path / "negatives.jsonl")
    assert n == len(negatives) == 36
    for query_id, doc_ids in negatives.items():
        assert len(doc_ids) == 3
        assert f"alpha-{query_id.split('-')[0]}" not in doc_ids
    assert [path.name for path in tmp_path.iterdir()] == ["negatives.jsonl"]


def test_a_recipe_mines_once_and_finds_it_again(recipe: Recipe, tmp_path: Path) -> None:
    data = (dataclasses.replace(recipe.data[0], negatives="bm25"), recipe.data[1])
    recipe = dataclasses.replace(recipe, data=data)
    first, none = negatives_files(recipe, tmp_path)
    assert first is not None
    assert none is None
    first.write_text(json.dumps({"query_id": "river-0", "negatives": []}) + "\n")
    assert negatives_files(recipe, tmp_path) == [first, None]
    assert len(first.read_text().splitlines()) == 1


def test_senseless_ranks_and_missing_files_are_refused(
    recipe: Recipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="ranks 5 to 4"):
        mine(datasets[0], "train", tmp_path / "n.jsonl", first_rank=5, depth=4)
    with pytest.raises(NotFound, match="split"):
        mine(datasets[0], "nothing", tmp_path / "n.jsonl")
    data = dataclasses.replace(recipe.data[0], negatives=str(tmp_path / "gone.jsonl"))
    with pytest.raises(NotFound, match=r"gone\.jsonl"):
        negatives_files(dataclasses.replace(recipe, data=(data,)), tmp_path)
