"""Queries that only the first layers of the model read (LightRetriever's baseline "first layer")."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from lightir.contract import Contract
from lightir.encode.full_queries import FullQueryEncoder
from lightir.errors import FormatError, InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.distill.teacher import load_teacher
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.stages.contrastive import Contrastive, train
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.registry import read_recipe
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from processes import assert_same, first_of, gradients_of, wake_lora
from tiny_recipes import RECIPES


@pytest.fixture
def first_layer(recipe: ContrastiveRecipe) -> ContrastiveRecipe:
    """Return a dense recipe whose queries pass one of the model's two layers, without dropout."""
    return dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        optimisation=dataclasses.replace(recipe.optimisation, steps=2),
        losses=LossWeights(dense=0.0, sparse=0.0, dense_alignment=0.0, flops=0.0),
        heads=HeadRecipe(pooling="mean", sparse=False),
        evaluation=dataclasses.replace(recipe.evaluation, by="symmetric"),
        query_layers=1,
    )


def vectors(model: LightRetriever, texts: list[str], *, queries: bool) -> torch.Tensor:
    """Return the normalized vectors of texts, one text at a time, through all of the model's layers."""
    rows = []
    for text in texts:
        (framed,) = model.frame_queries([text]) if queries else model.frame_documents([text])
        batch = model.batch([framed])
        rows.append(F.normalize(model.dense_from(model.states(batch), batch), dim=-1))
    return torch.cat(rows).detach()


def first_layer_vectors(model: LightRetriever, texts: list[str]) -> torch.Tensor:
    """Return the normalized vectors of queries through a model whose other layers are taken out."""
    trunk = model.backbone.model
    layers = trunk.layers
    trunk.layers = layers[:1]
    try:
        return vectors(model, texts, queries=True)
    finally:
        trunk.layers = layers


@pytest.mark.parametrize("packed", [0, 64])
def test_training_reads_queries_with_the_first_layer_and_documents_with_all(
    first_layer: ContrastiveRecipe, packed: int
) -> None:
    optimisation = dataclasses.replace(first_layer.optimisation, packed_tokens=packed)
    recipe = dataclasses.replace(first_layer, optimisation=optimisation)
    sets, _ = open_sets(recipe, negatives=[None, None])
    batch, model = make_mixture(recipe, sets).batch(0), build_model(recipe, device="cpu")
    with torch.no_grad():
        for name, parameter in model.trunk.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(3))
    parts, _ = batch_losses(model, batch, recipe, step=0)
    queries = first_layer_vectors(model, list(batch.queries))
    documents = torch.cat([vectors(model, [document.full_text()], queries=False) for document in batch.documents])
    scores = (queries @ documents.T / recipe.losses.temperature).masked_fill(
        torch.from_numpy(batch.false_negatives), -torch.inf
    )
    expected = F.cross_entropy(scores, torch.arange(len(queries)))
    torch.testing.assert_close(parts["symmetric"].detach(), expected, rtol=1e-4, atol=1e-4)
    whole = F.cross_entropy(vectors(model, list(batch.queries), queries=True) @ documents.T, torch.arange(len(queries)))
    assert abs(float(whole) - float(expected)) > 1e-2
    parts["symmetric"].backward()
    moved = {name for name, p in model.trunk.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert any(".layers.0." in name for name in moved)
    assert any(".layers.1." in name for name in moved)  # by way of the documents


def parameter_gradients(recipe: ContrastiveRecipe) -> dict[str, torch.Tensor]:
    stage = Contrastive(recipe, Path("unused"), "cpu")
    wake_lora(stage.parameters.items())
    parts, _ = stage.losses(0, step=0)
    return gradients_of(parts, stage.parameters)


@pytest.mark.parametrize("packed", [0, 64])
def test_two_processes_have_the_gradient_of_one(first_layer: ContrastiveRecipe, packed: int, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        first_layer, optimisation=dataclasses.replace(first_layer.optimisation, packed_tokens=packed)
    )
    one = parameter_gradients(recipe)
    assert_same(first_of(2, lambda: parameter_gradients(recipe), tmp_path), one, rtol=1e-4)
    whole = parameter_gradients(dataclasses.replace(recipe, query_layers=0))
    assert any(float((whole[name] - gradient).norm()) > 0.01 * float(gradient.norm()) for name, gradient in one.items())


def test_the_model_encodes_queries_as_it_was_trained(first_layer: ContrastiveRecipe, tmp_path: Path) -> None:
    out = train(first_layer, tmp_path / "model", device="cpu")
    contract = Contract.load(out)
    assert contract.query_layers == 1
    assert not contract.has_light_queries
    model = LightRetriever.load(out)
    texts = ["alpha river aaaa", "alpha bread"]
    dense = FullQueryEncoder(model).encode(texts).dense
    assert dense is not None
    torch.testing.assert_close(torch.from_numpy(dense), first_layer_vectors(model, texts), rtol=1e-4, atol=1e-5)
    whole = vectors(model, texts, queries=True)
    assert float((whole - torch.from_numpy(dense)).abs().max()) > 0.01
    with pytest.raises(InvalidInput, match=r"layers of their own, .*: it has no light queries"):
        model.token_vectors(torch.tensor([5]))
    with pytest.raises(InvalidInput, match="reads queries with 1 layers only, which a teacher cannot"):
        load_teacher(out)


def test_layers_that_the_model_lacks_are_refused_before_the_first_step(
    first_layer: ContrastiveRecipe, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=r"query_layers is 3, but .* is a model of 2 layers"):
        train(dataclasses.replace(first_layer, query_layers=3), tmp_path / "model", device="cpu")


@pytest.mark.parametrize("overrides", [["query_layers=-1"], ["query_layers=1", "losses.dense=1.0"]])
def test_light_queries_pass_all_layers(overrides: list[str]) -> None:
    with pytest.raises(FormatError, match=r"query_layers is .*expected 0 or more, and 0 with losses\.dense"):
        read_recipe(RECIPES / "lightretriever-symmetric-tiny.yaml", overrides=overrides)
