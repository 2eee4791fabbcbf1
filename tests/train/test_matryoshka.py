"""Matryoshka widths: every dense loss at every width, summed, and the contract that records them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lightir.contract import Contract
from lightir.data import TrainingBatch
from lightir.errors import FormatError, InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.stages import contrastive_batch
from lightir.train.stages.contrastive import train
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.registry import read_recipe
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from tiny_recipes import RECIPES

Doubles = npt.NDArray[np.float64]

WIDTHS = (6, 4, 2)
SYMMETRIC, DENSE, ALIGNMENT, TEMPERATURE = 0.7, 1.3, 0.4, 0.2


def cosines(queries: Doubles, documents: Doubles, width: int) -> Doubles:
    """Return cosines of vectors that are cut to their first columns."""
    q, d = (x[:, :width] / np.linalg.norm(x[:, :width], axis=1, keepdims=True) for x in (queries, documents))
    return np.asarray(q @ d.T)


def log_shares(scores: Doubles, excluded: npt.NDArray[np.bool_]) -> Doubles:
    """Return log softmax over the candidates that are not excluded; minus infinity for excluded ones."""
    kept = np.where(excluded, -np.inf, scores)
    return np.asarray(kept - np.log(np.exp(kept).sum(axis=1, keepdims=True)))


def divergence(teacher: Doubles, student: Doubles) -> float:
    """Return KL(teacher || student) of two arrays of log shares (Eq. 5), the mean over queries."""
    known = teacher > -np.inf
    shares = np.exp(teacher[known])
    return float((shares * (teacher[known] - student[known])).sum() / len(teacher))


@dataclasses.dataclass
class Candidates:
    """The positives of a batch's queries, and the documents that their softmax leaves out."""

    positives: npt.NDArray[np.int64]
    excluded: npt.NDArray[np.bool_]

    def contrast(self, scores: Doubles) -> float:
        """Return Eq. 2, the mean over queries."""
        rows = np.arange(len(scores))
        return float(-log_shares(scores / TEMPERATURE, self.excluded)[rows, self.positives].mean())

    def losses(self, full: Doubles, light: Doubles, documents: Doubles, teacher: Doubles) -> dict[str, float]:
        """Return the weighted parts: Eq. 2 for both kinds of queries and Eq. 5, each summed over the widths."""
        by_width = {width: cosines(light, documents, width) for width in WIDTHS}
        return {
            "symmetric": SYMMETRIC * sum(self.contrast(cosines(full, documents, width)) for width in WIDTHS),
            "dense": DENSE * sum(self.contrast(scores) for scores in by_width.values()),
            "dense_alignment": ALIGNMENT
            * sum(divergence(teacher, log_shares(scores / TEMPERATURE, self.excluded)) for scores in by_width.values()),
        }


def slopes(value: Callable[[Doubles], float], at: Doubles, *, step: float = 1e-5) -> Doubles:
    """Return the gradient of a function of an array by central differences."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        moved = np.zeros_like(at)
        moved[index] = step
        gradient[index] = (value(at + moved) - value(at - moved)) / (2 * step)
    return gradient


@pytest.fixture
def prepared(recipe: ContrastiveRecipe) -> tuple[ContrastiveRecipe, LightRetriever, TrainingBatch]:
    """Return a dense recipe with two further widths, its model, and a batch with an excluded document."""
    losses = LossWeights(
        symmetric=SYMMETRIC,
        dense=DENSE,
        sparse=0.0,
        dense_alignment=ALIGNMENT,
        flops=0.0,
        temperature=TEMPERATURE,
        dims=WIDTHS[1:],
    )
    heads = HeadRecipe(pooling="mean", sparse=False)
    evaluation = dataclasses.replace(recipe.evaluation, by="dense")
    dense = dataclasses.replace(recipe, losses=losses, heads=heads, evaluation=evaluation)
    sets, _ = open_sets(dense, negatives=[None, None])
    batch = make_mixture(dense, sets).batch(0)
    excluded = batch.false_negatives.copy()
    excluded[0, 1] = True
    return dense, build_model(dense, device="cpu"), dataclasses.replace(batch, false_negatives=excluded)


def test_every_dense_loss_is_the_papers_at_each_width_by_value_and_gradient(
    prepared: tuple[ContrastiveRecipe, LightRetriever, TrainingBatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, retriever, batch = prepared
    generator = np.random.default_rng(3)
    sizes = {"full": len(batch.queries), "light": len(batch.queries), "documents": len(batch.documents)}
    arrays = {name: generator.normal(size=(size, WIDTHS[0])) for name, size in sizes.items()}
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    monkeypatch.setattr(contrastive_batch, "document_vectors", lambda *_: (tensors["documents"], None))
    monkeypatch.setattr(contrastive_batch, "full_query_vectors", lambda *_: (tensors["full"], None))
    monkeypatch.setattr(contrastive_batch, "light_query_vectors", lambda *_: tensors["light"])
    parts, _ = batch_losses(retriever, batch, recipe, step=0)

    candidates = Candidates(np.arange(len(batch.queries)), batch.false_negatives)
    assert candidates.excluded.any()
    # The teacher is the full encoder at its full width, and gets no gradient.
    teacher = log_shares(cosines(arrays["full"], arrays["documents"], WIDTHS[0]) / TEMPERATURE, candidates.excluded)
    expected = candidates.losses(teacher=teacher, **arrays)
    assert {name: part.item() for name, part in parts.items()} == pytest.approx(expected, rel=1e-12)
    torch.stack(list(parts.values())).sum().backward()
    for name, tensor in tensors.items():

        def total(moved: Doubles, name: str = name) -> float:
            return sum(candidates.losses(teacher=teacher, **(arrays | {name: moved})).values())

        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.numpy(), slopes(total, arrays[name]), rtol=1e-6, atol=1e-8)


def test_a_model_records_the_widths_that_it_was_trained_at(recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    losses = dataclasses.replace(recipe.losses, dims=(8, 16))
    short = dataclasses.replace(recipe, losses=losses, optimisation=dataclasses.replace(recipe.optimisation, steps=1))
    contract = Contract.load(train(short, tmp_path / "model", device="cpu"))
    assert contract.dense is not None
    assert contract.dense.dims == (32, 16, 8)
    assert LightRetriever.load(tmp_path / "model").contract == contract
    assert contract.width_warning(32) == contract.width_warning(16) == contract.width_warning(8) == ""
    assert "was trained at 32, 16, 8 columns, not at 12" in contract.width_warning(12)
    plain = dataclasses.replace(short, losses=dataclasses.replace(losses, dims=()))
    plain_contract = Contract.load(train(plain, tmp_path / "plain", device="cpu"))
    assert plain_contract.dense is not None
    assert plain_contract.dense.dims == ()
    assert plain_contract.width_warning(32) == ""
    assert "records no Matryoshka widths" in plain_contract.width_warning(16)


@pytest.mark.parametrize("dims", [[32], [64, 8]])
def test_a_width_that_is_no_cut_is_refused_before_the_first_step(
    recipe: ContrastiveRecipe, tmp_path: Path, dims: list[int]
) -> None:
    wide = dataclasses.replace(recipe, losses=dataclasses.replace(recipe.losses, dims=tuple(dims)))
    with pytest.raises(InvalidInput, match=r"losses\.dims is \[.*below the full width, 32"):
        train(wide, tmp_path / "model", device="cpu")


@pytest.mark.parametrize("dims", ["[0]", "[4, 4]"])
def test_widths_are_distinct_numbers_above_zero(dims: str) -> None:
    with pytest.raises(FormatError, match=r"losses\.dims is .*expected distinct widths of at least 1"):
        read_recipe(RECIPES / "lightretriever-tiny.yaml", overrides=[f"losses.dims={dims}"])
