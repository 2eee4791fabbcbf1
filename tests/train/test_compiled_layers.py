"""model.compile: training steps equal those of layers that are not compiled."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DocumentRecipe
from lightir.train.stages import contrastive


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="no C++ compiler")
def test_training_with_compiled_layers_has_the_losses_of_training_without(
    recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    plain = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, lora_dropout=0.0),
        optimisation=dataclasses.replace(recipe.optimisation, steps=3, negatives=0),
        losses=LossWeights(dense=0.0, sparse=0.0, dense_alignment=0.0, flops=0.0),
        heads=HeadRecipe(pooling="mean", sparse=False),
        documents=DocumentRecipe(max_tokens=48),  # the length of padded queries: one shape
        evaluation=BranchEvaluation(),
    )
    compiled = dataclasses.replace(plain, model=dataclasses.replace(plain.model, compile=True))
    expected = losses(contrastive.train(plain, tmp_path / "plain", device="cpu"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    try:
        result = losses(contrastive.train(compiled, tmp_path / "compiled", device="cpu"))
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # the layers were compiled
    finally:
        torch.compiler.reset()
    assert len(result) == 3
    assert result == pytest.approx(expected, rel=1e-4)


def losses(model: Path) -> list[float]:
    lines = (model / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in line]
