"""GradCache: a batch in pieces has the losses and gradients of the whole batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.text import QueryPolicy
from lightir.train.batches import gradient_cache
from lightir.train.batches.gradient_cache import in_pieces
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.likelihood_recipe import LikelihoodRecipe
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe, MaskedRecipe
from lightir.train.recipes.settings import CorpusRecipe, Optimisation
from lightir.train.recipes.sidr_recipe import SidrLossWeights, SidrRecipe
from lightir.train.run.processes import average_gradients
from lightir.train.stages import sidr
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.head_fitting import fit_heads
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from processes import first_of, wake_lora

ALL = LossWeights(flops_ramp_steps=0, sparse_alignment=0.5, symmetric_sparse=0.5, query_flops=0.1, dims=(16,))
DENSE = LossWeights(dense=0.0, sparse=0.0, dense_alignment=0.0, flops=0.0)
SPARSE = LossWeights(symmetric=0.0, dense=0.0, sparse=0.0, dense_alignment=0.0, symmetric_sparse=1.0, query_flops=0.1)

Changed = Callable[[ContrastiveRecipe], ContrastiveRecipe]


def changed(
    *, attention: str = "causal", heads: HeadRecipe | None = None, losses: LossWeights, **documents: Any
) -> Changed:
    def change(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
        return dataclasses.replace(
            recipe,
            model=dataclasses.replace(recipe.model, attention=attention, lora_dropout=0.0),  # type: ignore[arg-type]
            losses=losses,
            heads=heads or HeadRecipe(pooling="mean"),
            documents=dataclasses.replace(recipe.documents, **documents),
            evaluation=BranchEvaluation(),
        )

    return change


STAGES: dict[str, Changed] = {
    "LightRetriever": changed(losses=ALL),
    "some terms": changed(losses=dataclasses.replace(ALL, symmetric_sparse=0.0, query_flops=0.0, sparse_terms=40)),
    "dense": changed(losses=DENSE, heads=HeadRecipe(sparse=False)),
    "CSplade-bi": changed(
        attention="bidirectional", losses=SPARSE, heads=HeadRecipe(dense=False, straight_through=True)
    ),
    "CSplade-echo": changed(attention="echo", losses=SPARSE, heads=HeadRecipe(dense=False)),
    "light documents": changed(
        losses=dataclasses.replace(DENSE, dense=1.0), heads=HeadRecipe(sparse=False), light=True
    ),
}


def gradients(
    recipe: ContrastiveRecipe | SidrRecipe, *, size: int, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Return losses and gradients of the first batch in double precision; only Llama's norms round to fp32."""
    recipe = dataclasses.replace(recipe, optimisation=dataclasses.replace(recipe.optimisation, gradient_cache=size))
    sets, _ = open_sets(recipe, negatives=[None for _ in recipe.data])
    retriever = prepared(recipe)
    wake_lora(retriever.trunk.named_parameters())
    if isinstance(recipe, ContrastiveRecipe):
        fit_heads(retriever, recipe, sets)
    retriever.trunk.to(dtype)
    batch = make_mixture(recipe, sets).batch(0)
    torch.manual_seed(5)
    if isinstance(recipe, ContrastiveRecipe):
        parts, _ = batch_losses(retriever, batch, recipe, step=3)
    else:
        parts, _ = sidr.batch_losses(retriever, batch, recipe, generator=np.random.default_rng(0))
    torch.autograd.backward(torch.stack(list(parts.values())).sum())
    trained = {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad}
    average_gradients(list(trained.values()))
    result = {name: p.grad for name, p in trained.items() if p.grad is not None}
    return result | {name: value.detach() for name, value in parts.items()}


def prepared(recipe: ContrastiveRecipe | SidrRecipe) -> LightRetriever:
    return build_model(recipe, device="cpu")


def same(one: dict[str, Tensor], other: dict[str, Tensor], *, rtol: float) -> None:
    assert one.keys() == other.keys()
    assert max(float(item.abs().max()) for item in one.values()) > 1e-4
    for name, expected in one.items():
        assert float((other[name] - expected).norm()) <= rtol * float(expected.norm()) + 1e-12, name


@pytest.mark.parametrize("change", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_pieces_have_the_losses_and_gradients_of_the_whole_batch(
    recipe: ContrastiveRecipe, change: Changed, size: int
) -> None:
    wanted = change(recipe)
    same(gradients(wanted, size=0), gradients(wanted, size=size), rtol=1e-6)


@pytest.mark.parametrize("name", ["LightRetriever", "CSplade-bi", "CSplade-echo"])
def test_packed_texts_have_the_losses_and_gradients_of_padded_ones(
    recipe: ContrastiveRecipe, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = STAGES[name](recipe)
    padded: list[LightRetriever] = []
    forward = LightRetriever.states
    monkeypatch.setattr(LightRetriever, "states", lambda self, batch: padded.append(self) or forward(self, batch))
    packed = dataclasses.replace(wanted, optimisation=dataclasses.replace(wanted.optimisation, packed_tokens=70))
    expected = gradients(wanted, size=0)
    assert padded
    padded.clear()
    same(expected, gradients(packed, size=0), rtol=1e-6)
    same(expected, gradients(packed, size=3), rtol=1e-6)
    assert not padded  # neither documents nor queries
    with pytest.raises(InvalidInput, match="packed_tokens"):
        dataclasses.replace(packed, model=dataclasses.replace(packed.model, compile=True))


def test_sidrs_stage_too(recipe: ContrastiveRecipe) -> None:
    wanted = SidrRecipe(
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        data=recipe.data,
        optimisation=recipe.optimisation,
        losses=SidrLossWeights(light=1.0),
        query=QueryPolicy(weighting="expansion"),
        documents=recipe.documents,
    )
    same(gradients(wanted, size=0), gradients(wanted, size=2), rtol=1e-6)


def test_dropout_falls_alike_in_both_forwards(recipe: ContrastiveRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = STAGES["LightRetriever"](recipe)
    wanted = dataclasses.replace(wanted, model=dataclasses.replace(wanted.model, lora_dropout=0.3))
    cached = gradients(wanted, size=2)
    monkeypatch.setattr(gradient_cache, "checkpoint", lambda encode, items, use_reentrant: encode(items))
    same(gradients(wanted, size=2), cached, rtol=1e-6)


def test_one_pieces_activations_are_kept_at_a_time() -> None:
    alive, most = 0, 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, rows: Tensor) -> Tensor:
            nonlocal alive, most
            if torch.is_grad_enabled() or rows.requires_grad:
                alive += 1
                most = max(most, alive)
            ctx.save_for_backward(rows)
            return rows * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            nonlocal alive
            (_,) = ctx.saved_tensors
            alive -= 1
            return gradient * 2

    weight = torch.ones(3, requires_grad=True)

    def encode(items: list[float]) -> tuple[Tensor | None, ...]:
        return Counted.apply(torch.tensor(items)[:, None] * weight), None  # type: ignore[no-untyped-call]

    rows, nothing = in_pieces(encode, [1.0, 2.0, 3.0, 4.0, 5.0], size=2)
    assert nothing is None
    assert rows is not None
    alive = most = 0
    rows.square().sum().backward()  # type: ignore[no-untyped-call]
    assert most == 1
    torch.testing.assert_close(weight.grad, torch.full((3,), 8.0 * (1 + 4 + 9 + 16 + 25)))


@pytest.mark.parametrize("world", [2, 4])
def test_several_processes_have_the_gradient_of_one_without_a_cache(
    world: int, recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    wanted = STAGES["LightRetriever"](recipe)
    several = first_of(world, lambda: gradients(wanted, size=1), tmp_path)
    same(gradients(wanted, size=0), several, rtol=1e-6)


@pytest.mark.parametrize("kind", ["adaptation", "masked", "likelihood", "negative"])
def test_it_is_refused_where_it_means_nothing(recipe: ContrastiveRecipe, kind: str) -> None:
    corpora = tuple(CorpusRecipe(item.name) for item in recipe.data)
    with pytest.raises(InvalidInput, match="gradient_cache"):  # noqa: PT012
        asked = Optimisation(gradient_cache=-1 if kind == "negative" else 4)
        if kind == "adaptation":
            AdaptationRecipe(recipe.model, corpora, asked)
        elif kind == "masked":
            MaskedRecipe(dataclasses.replace(recipe.model, attention="bidirectional"), corpora, asked)
        elif kind == "likelihood":
            LikelihoodRecipe(recipe.model, recipe.data, optimisation=asked)
        else:
            dataclasses.replace(recipe, optimisation=asked)
