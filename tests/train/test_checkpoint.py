"""Checkpoints: whole or not there, the last two kept; and the development measures beside them."""

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
from lightir.train.recipes.settings import Optimisation
from lightir.train.run import checkpoint
from lightir.train.run.checkpoint import (
    checkpoints,
    load_checkpoint,
    random_states,
    restore_random_states,
    save_checkpoint,
)
from lightir.train.stages.development import fuse, load_development, ndcg

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
    (tmp_path / "step-0000009").mkdir()  # as a kill in the middle of a rename might leave it
    assert load_checkpoint(tmp_path, recipe=MINE) == {"step": 1}


def test_another_recipe_version_or_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound, match="no checkpoint"):
        load_checkpoint(tmp_path, recipe=MINE)
    save_checkpoint(tmp_path, 1, {}, recipe=MINE)
    with pytest.raises(FormatError, match=r"another recipe: recipe\.seed was 0 and is 1; resume"):
        load_checkpoint(tmp_path, recipe=dataclasses.replace(MINE, seed=1))
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 4)
    with pytest.raises(FormatError, match="format 3"):
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
    before = dataclasses.replace(MINE, warmup_steps=7)  # what an older release's default may have been
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
    assert ndcg(grades, grades) == pytest.approx(1.0)
    second = np.asarray([[1, 2, 0]], dtype=np.float32)
    assert ndcg(second, grades[:1]) == pytest.approx(1 / np.log2(3))
    assert ndcg(np.zeros((1, 3), np.float32), grades[:1]) == pytest.approx(1.0)
    assert ndcg(np.zeros((0, 3), np.float32), grades[:0]) == 0.0


def test_branches_are_joined_as_a_search_joins_them() -> None:
    scores = {"dense": np.asarray([[-0.2, 0.3, 0.6]], np.float32), "sparse": np.asarray([[1.0, 4.0, 0.0]], np.float32)}
    fused = fuse(scores | {"none": np.zeros((1, 3), np.float32)}, {"dense": 0.5, "sparse": 0.5, "none": 9.0})
    assert fused.tolist() == [pytest.approx([0.125, 0.75, 0.5])]
