"""Scores of examples as a teacher: reading, batching, and losses compared with plain loops in double precision."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from lightir.data import Mixture, TrainingSet
from lightir.errors import InvalidInput
from lightir.eval.runs import write_run
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.settings import DataRecipe
from lightir.train.stages.contrastive import train
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.head_fitting import fit_heads
from lightir.train.stages.losses import margin_mse, score_kl
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from lightir.types import Ranking
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_models import full_queries

NAN = math.nan


def loops_kl(student: np.ndarray, teacher: np.ndarray) -> float:
    result = []
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        known = [column for column, value in enumerate(t) if not math.isnan(value)]
        if len(known) < 2:
            continue
        p, q = (np.exp([row[column] for column in known]) for row in (t, s))
        p, q = p / p.sum(), q / q.sum()
        result.append(float((p * np.log(p / q)).sum()))
    return float(np.mean(result)) if result else 0.0


def loops_margin(student: np.ndarray, teacher: np.ndarray, positives: list[int]) -> float:
    result = []
    for s, t, positive in zip(student.tolist(), teacher.tolist(), positives, strict=True):
        known = [c for c in range(len(s)) if c != positive and not math.isnan(t[c] + t[positive])]
        result += [((s[positive] - s[column]) - (t[positive] - t[column])) ** 2 for column in known]
    return float(np.mean(result)) if result else 0.0


TEACHERS = {
    "some": [[2.0, NAN, 1.0, NAN], [NAN, 0.5, NAN, NAN], [3.0, 1.0, 0.0, -2.0], [NAN, NAN, 1.0, 0.2]],
    "none": [[NAN] * 4] * 4,
    "no positive": [[NAN, 1.0, 2.0, NAN]] * 4,
}
POSITIVES = [0, 1, 2, 0]


@pytest.mark.parametrize("teacher", TEACHERS.values(), ids=TEACHERS)
@pytest.mark.parametrize("kind", ["kl", "margin_mse"])
def test_values_and_gradients_are_those_of_loops(kind: str, teacher: list[list[float]]) -> None:
    given = torch.tensor(teacher, dtype=torch.float64)
    student = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def plain(scores: np.ndarray) -> float:
        return loops_kl(scores, given.numpy()) if kind == "kl" else loops_margin(scores, given.numpy(), POSITIVES)

    loss = score_kl(student, given) if kind == "kl" else margin_mse(student, given, torch.tensor(POSITIVES))
    values = student.detach().numpy()
    assert loss.item() == pytest.approx(plain(values), rel=1e-12, abs=1e-15)
    (gradient,) = torch.autograd.grad(loss, student)
    torch.testing.assert_close(gradient, differences(plain, values), atol=1e-8, rtol=1e-6)


def differences(function: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-5) -> Tensor:
    result = np.zeros_like(at)
    for position in np.ndindex(at.shape):
        moved = [at.copy(), at.copy()]
        moved[0][position] += step
        moved[1][position] -= step
        result[position] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return torch.from_numpy(result)


def examples(path: Path, *, scored: bool = True) -> Path:
    lines = []
    for number in range(8):
        texts = [f"document {number} {item}" for item in ("good", "bad", "worse")]
        line = {"query": f"query {number}", "positives": texts[:1], "negatives": texts[1:], "query_id": str(number)}
        lines.append(line | ({"scores": [9.0 + number, None, number / 2]} if scored else {}))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_scores_of_examples_stand_in_the_batchs_columns(tmp_path: Path) -> None:
    given = TrainingSet.open_jsonl(examples(tmp_path / "a.jsonl"), instructions=[""])
    batch = Mixture([given], batch_size=4, n_negatives=2, seed=0).batch(0)
    assert batch.scores is not None
    for row, query in enumerate(batch.query_ids):
        for column, document in enumerate(batch.documents):
            number, kind = document.text.split()[1:]
            wanted = {"good": 9.0 + int(number), "bad": NAN, "worse": int(number) / 2}[kind] if number == query else NAN
            assert batch.scores[row, column] == pytest.approx(wanted, nan_ok=True)
    plain = TrainingSet.open_jsonl(examples(tmp_path / "b.jsonl", scored=False), instructions=[""])
    assert Mixture([plain], batch_size=4, n_negatives=2, seed=0).batch(0).scores is None


@pytest.mark.parametrize(
    ("scores", "message"), [([1.0], "1 scores for 2"), ([1.0, "x"], "'x' is not a number"), (3, "int")]
)
def test_scores_that_fit_nothing_are_refused(tmp_path: Path, scores: object, message: str) -> None:
    line = {"query": "q", "positives": ["a"], "negatives": ["b"], "scores": scores}
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(InvalidInput, match=message):
        TrainingSet.open_jsonl(tmp_path / "a.jsonl", instructions=[""])


def test_a_runs_scores_are_a_teachers(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    (plain,), _ = open_sets(dataclasses.replace(recipe, data=recipe.data[:1]), negatives=[None])
    first = plain.examples[0]
    write_run(
        tmp_path / "run.trec",
        {first.query_id: Ranking(first.query_id, [first.positive_ids[0], "other"], np.array([3.5, 1.0]))},
        tag="t",
    )
    data = (dataclasses.replace(recipe.data[0], scores=str(tmp_path / "run.trec")),)
    (scored,), _ = open_sets(dataclasses.replace(recipe, data=data), negatives=[None])
    assert scored.examples[0].scores[0] == 3.5
    assert all(math.isnan(score) for example in scored.examples[1:] for score in example.scores)
    with pytest.raises(InvalidInput, match="no score belongs"):
        plain.scored({"no such query": {"a": 1.0}})


def distilling(recipe: ContrastiveRecipe, path: Path, **losses: object) -> ContrastiveRecipe:
    """Return a recipe with all branches that learns from scores, without dropout."""
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        data=(DataRecipe(str(path)),),
        optimisation=dataclasses.replace(recipe.optimisation, negatives=2),
        losses=dataclasses.replace(recipe.losses, symmetric_sparse=0.5, **losses),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("kind", ["kl", "margin_mse"])
def test_every_trained_branch_follows_the_scores(recipe: ContrastiveRecipe, tmp_path: Path, kind: str) -> None:
    path = examples(tmp_path / "a.jsonl")
    settings = {"distillation": 0.3, "distillation_loss": kind, "distillation_temperature": 4.0, "contrast": 0.0}
    wanted = distilling(recipe, path, **settings)
    sets, _ = open_sets(wanted, negatives=[None])
    retriever = build_model(wanted, device="cpu")
    fit_heads(retriever, wanted, sets)
    batch = make_mixture(wanted, sets).batch(0)
    parts, _ = batch_losses(retriever, batch, wanted, step=3)
    documents = retriever.batch(retriever.frame_documents(batch.documents))
    queries = full_queries(retriever, batch.queries, instruction=batch.instructions[0])
    vectors = retriever.dense_from(retriever.states(documents), documents)
    assert batch.scores is not None
    given = batch.scores.astype(np.float64) / 4.0
    plain = 0.0
    for width in (32, 16, 8):  # the loss is summed over the recipe's Matryoshka widths
        cut = [torch.nn.functional.normalize(side[:, :width]) for side in (queries, vectors)]
        scores = (cut[0] @ cut[1].T).detach().double().numpy() / wanted.losses.temperature
        plain += loops_kl(scores, given) if kind == "kl" else loops_margin(scores, given, list(range(4)))
    assert float(parts["symmetric_distillation"].detach()) == pytest.approx(0.3 * plain, rel=1e-4)
    assert {name for name in parts if name.endswith("_distillation")} == {
        f"{branch}_distillation" for branch in ("symmetric", "dense", "sparse", "symmetric_sparse")
    }
    assert all(float(parts[name].detach()) == 0 for name in ("symmetric", "dense", "sparse", "symmetric_sparse"))
    untaught, _ = batch_losses(retriever, dataclasses.replace(batch, scores=None), wanted, step=3)
    assert all(float(part.detach()) == 0 for name, part in untaught.items() if name.endswith("_distillation"))


def test_a_set_without_any_scores_is_refused_before_the_first_step(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    """Its first batch may be drawn late; without the check, the run would fail only after several steps."""
    wanted = distilling(recipe, examples(tmp_path / "a.jsonl"), distillation=0.3)
    wanted = dataclasses.replace(wanted, data=(*wanted.data, recipe.data[1]))
    with pytest.raises(InvalidInput, match="no example of training set 'beta' has scores"):
        train(wanted, tmp_path / "model")
    assert not (tmp_path / "model.run" / "log.jsonl").exists()


def gradients(recipe: ContrastiveRecipe) -> dict[str, Tensor]:
    """Gradients are in double precision, except for Llama's norms: fp32 would round margins of tens."""
    sets, _ = open_sets(recipe, negatives=[None])
    retriever = build_model(recipe, device="cpu")
    wake_lora(retriever.trunk.named_parameters())
    fit_heads(retriever, recipe, sets)
    retriever.trunk.double()
    parts, _ = batch_losses(retriever, make_mixture(recipe, sets).batch(0), recipe, step=3)
    return gradients_of(parts, {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad})


@pytest.mark.parametrize(("world", "loss"), [(2, "margin_mse"), (4, "margin_mse"), (4, "kl")])
def test_several_processes_have_the_gradient_of_one(
    world: int, loss: Literal["kl", "margin_mse"], recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    wanted = distilling(recipe, examples(tmp_path / "a.jsonl"), distillation=1.0, distillation_loss=loss)
    assert_same(first_of(world, lambda: gradients(wanted), tmp_path), gradients(wanted), rtol=1e-6)
