"""Checkpoints: each is complete or missing, the last two are kept; and their development measures."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from lightir.data import Dataset
from lightir.errors import FormatError, NotFound
from lightir.eval import evaluate
from lightir.index import Index, IndexOptions, build_index
from lightir.search import Searcher
from lightir.search.fusion_tuning import METHODS
from lightir.search.search_options import parse_fusion
from lightir.shards import Shard
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.settings import Optimisation
from lightir.train.run import checkpoint
from lightir.train.run.checkpoint import (
    checkpoints,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from lightir.train.stages.development import fused, load_development, ndcg_of_fusion, ndcg_of_scores
from lightir.types import Branch, Document
from small_collections import VOCAB_SIZE, GivenVectors, csr, word_contract

MINE = Optimisation()


def test_the_last_two_are_kept_and_the_last_is_read(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"step": step}, recipe=MINE)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-0000002", "step-0000003"]
    assert load_checkpoint(tmp_path, recipe=MINE) == {"step": 3}


def test_a_write_that_is_cut_off_leaves_the_last_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1}, recipe=MINE)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 2, {"step": 2}, recipe=MINE)
    (tmp_path / "step-0000009").mkdir()  # a kill during a rename can leave this
    assert load_checkpoint(tmp_path, recipe=MINE) == {"step": 1}


def test_another_recipe_version_or_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="no checkpoint"):
        load_checkpoint(tmp_path, recipe=MINE)
    save_checkpoint(tmp_path, 1, {}, recipe=MINE)
    with pytest.raises(FormatError, match=r"another recipe: recipe\.seed was 0 and is 1; resume"):
        load_checkpoint(tmp_path, recipe=dataclasses.replace(MINE, seed=1))
    monkeypatch.setattr(checkpoint, "READABLE", (3, 5))
    with pytest.raises(FormatError, match="format 4; this release reads 3 and 5"):
        load_checkpoint(tmp_path, recipe=MINE)


def test_a_field_that_is_newer_than_the_run_counts_as_its_default_there(tmp_path: Path) -> None:
    written = save_checkpoint(tmp_path, 1, {"step": 1}, recipe=MINE)
    header = json.loads((written / "checkpoint.json").read_text())
    del header["recipe"]["gradient_cache"]
    (written / "checkpoint.json").write_text(json.dumps(header))
    assert load_checkpoint(tmp_path, recipe=MINE) == {"step": 1}
    with pytest.raises(FormatError, match=r"recipe\.gradient_cache was 0 and is 4"):
        load_checkpoint(tmp_path, recipe=dataclasses.replace(MINE, gradient_cache=4))


def test_a_default_that_changed_since_the_run_began_is_a_difference(tmp_path: Path) -> None:
    before = dataclasses.replace(MINE, warmup_steps=7)  # a default of an older release
    save_checkpoint(tmp_path, 1, {}, recipe=before)
    assert load_checkpoint(tmp_path, recipe=before) == {}
    with pytest.raises(FormatError, match=r"recipe\.warmup_steps was 7 and is 20"):
        load_checkpoint(tmp_path, recipe=MINE)


def test_a_checkpoint_from_before_the_record_of_what_was_given_is_read_without(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {}, recipe=MINE, given={"data": {"a": "1"}, "backbone": "x"})
    with pytest.raises(FormatError, match=r"another backbone: data\.a was '1' and is '2'; resume"):
        load_checkpoint(tmp_path, recipe=MINE, given={"data": {"a": "2"}, "backbone": "x"})
    header = json.loads((tmp_path / "step-0000001" / "checkpoint.json").read_text())
    del header["given"]
    (tmp_path / "step-0000001" / "checkpoint.json").write_text(json.dumps(header))
    assert load_checkpoint(tmp_path, recipe=MINE, given={"data": {"a": "2"}, "backbone": "x"}) == {}


def test_random_states_come_back_through_a_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"random": random_states()}, recipe=MINE)
    drawn = random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002
    restore_random_states(load_checkpoint(tmp_path, recipe=MINE)["random"])
    assert drawn == (random.random(), float(np.random.rand()), float(torch.rand(())))  # noqa: NPY002


def test_a_development_set_holds_all_relevant_documents(datasets: tuple[Path, Path]) -> None:
    result = load_development(Dataset.open(datasets[0]), "dev", queries=5, documents=8)
    assert result.grades.shape == (5, 8)
    assert result.grades.sum(axis=1).tolist() == [1.0] * 5
    for row, query in enumerate(result.queries):
        assert result.documents[int(result.grades[row].argmax())].doc_id == f"alpha-{query.query_id.split('-')[0]}"


def test_ndcg_of_known_rankings() -> None:
    grades = np.asarray([[1, 0, 0], [0, 2, 1]], dtype=np.float32)
    assert ndcg_of_scores(grades, grades) == pytest.approx(1.0)
    second = np.asarray([[1, 2, 0]], dtype=np.float32)
    assert ndcg_of_scores(second, grades[:1]) == pytest.approx(1 / np.log2(3))
    assert ndcg_of_scores(np.zeros((1, 3), np.float32), grades[:1]) == pytest.approx(1.0)
    assert ndcg_of_scores(np.zeros((0, 3), np.float32), grades[:0]) == 0.0


@pytest.mark.parametrize("method", [method for method in METHODS if method != "absolute"])  # needs queries, see fused
@pytest.mark.parametrize("n_documents", [1, 30, 1100])
def test_development_sets_join_branches_to_the_bit_as_a_search_does(
    tmp_path: Path, method: str, n_documents: int
) -> None:
    """Few distinct scores make many ties; there are more documents than a list holds."""
    rng = np.random.default_rng(n_documents)
    rows = rng.integers(-2, 3, (n_documents, 4)).astype(np.float16)
    counts = rng.integers(0, 3, (n_documents, VOCAB_SIZE)) * (rng.random((n_documents, VOCAB_SIZE)) < 0.3)
    impacts = [{term: int(count) for term, count in enumerate(row) if count} for row in counts]
    documents = [Document(f"d{i:04d}", "") for i in range(n_documents)]
    fusion = dataclasses.replace(parse_fusion(method), weights={"dense": 0.6, "sparse": 0.4})
    contract = word_contract(fusion=fusion)
    shard = Shard(documents, rows, csr(impacts, vocab_size=VOCAB_SIZE, dtype=np.uint8))
    options = IndexOptions(analyzer=None)
    build_index([shard], tmp_path / "index", contract=contract, options=options, progress=False)
    texts = [f"q{i}" for i in range(6)]
    vectors = {text: rng.integers(-1, 2, 4).astype(np.float32) + np.float32(0.5) for text in texts}
    terms = {text: {int(term): 1.0 for term in rng.integers(1, VOCAB_SIZE, 2)} for text in texts}
    with Index.open(tmp_path / "index") as index:
        run = Searcher(index, GivenVectors(contract, vectors, terms)).search(texts, 10)
    weights = np.array([[terms[text].get(term, 0.0) for term in range(VOCAB_SIZE)] for text in texts], np.float32)
    scores: dict[Branch, np.ndarray] = {
        "dense": np.stack([vectors[text] for text in texts]) @ rows.astype(np.float32).T,
        "sparse": weights @ counts.astype(np.float32).T,
    }
    for ranking, candidates in zip(run.values(), fused(scores, fusion, k=10), strict=True):
        assert [int(doc_id[1:]) for doc_id in ranking.doc_ids] == candidates.doc_ords.tolist()
        assert ranking.scores.tolist() == candidates.scores.tolist()
    grades = rng.integers(0, 2, scores["dense"].shape).astype(np.float32)
    grades[:, 0] = 1.0
    judged = {
        text: {document.doc_id: int(grade) for document, grade in zip(documents, row, strict=True)}
        for text, row in zip(map(str, range(6)), grades, strict=True)
    }
    expected = evaluate(run, judged, ["nDCG@10"]).measures["nDCG@10"]
    assert ndcg_of_fusion(scores, grades, fusion) == pytest.approx(expected)


def test_a_run_resumes_after_its_recipe_explains_itself_otherwise(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {}, recipe=recipe)
    assert load_checkpoint(tmp_path, recipe=dataclasses.replace(recipe, deviations={"heads.top_k": "why"})) == {}
