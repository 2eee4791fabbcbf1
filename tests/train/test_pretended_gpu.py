"""Every stage as it runs on a GPU: two steps on a pretended one equal two steps on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.heads import top_k_weights
from lightir.models.model_folder import backbone_record
from lightir.models.projection import StoredTerms, largest_maxima, projection_max
from lightir.text import QueryPolicy
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, TeacherRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.stages import contrastive
from lightir.train.stages.registry import read_recipe
from pretended_cuda import pretended_cuda
from pretended_nccl import pretended_nccl
from tiny_models import save_tiny, write_sentence_transformer
from tiny_recipes import RECIPES, tiny_recipe

CHOSEN = (
    "csplade-adaptation-tiny",
    "csplade-echo-tiny",
    "lightretriever-tiny",
    "lightretriever-light-both-tiny",
    "llm-ql-tiny",
    "llm2vec-masked-tiny",
    "sidr-splade-tiny-light",
)
"""One recipe of each stage, and variants that take other code paths."""


def losses(model: Path) -> list[float]:
    lines = (model / "training" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in line]


def plain(recipe: Any) -> Any:
    """Return the recipe in float32, without dropout, with a checkpoint every step."""
    model = dataclasses.replace(recipe.model, dtype="float32", lora_dropout=0.0)
    return dataclasses.replace(recipe, model=model, checkpoint_every=1)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_stage_on_a_gpu_has_the_losses_that_it_has_on_the_cpu(
    name: str, recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    kind, given = read_recipe(RECIPES / f"{name}.yaml")
    tiny = plain(tiny_recipe(given, recipe.model.address, datasets, tmp_path))
    expected = losses(kind.train(tiny, tmp_path / "cpu", device="cpu"))
    with pretended_cuda(autocast=False):
        result = losses(kind.train(tiny, tmp_path / "cuda", device="cuda"))
    assert result == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_stage_gives_nccl_tensors_on_the_gpu_only(
    name: str, recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Train under a time budget, with checkpoints and development sets, as the first of two like processes."""
    kind, given = read_recipe(RECIPES / f"{name}.yaml")
    tiny = plain(tiny_recipe(given, recipe.model.address, datasets, tmp_path))
    settings = dataclasses.replace(tiny.optimisation, steps=2, max_minutes=60.0)
    with pretended_cuda(autocast=False), pretended_nccl() as called:
        result = losses(kind.train(dataclasses.replace(tiny, optimisation=settings), tmp_path / "cuda", device="cuda"))
    assert len(result) == 2
    assert {"all_reduce", "broadcast"} <= set(called)


@pytest.mark.parametrize("autocast", [True, False])
def test_what_a_contrastive_batch_may_also_have(autocast: bool, recipe: ContrastiveRecipe, tmp_path: Path) -> None:
    """Test a teacher, GradCache, packed rows and recomputed activations, also under bfloat16 autocast."""
    teacher = TeacherRecipe(str(write_sentence_transformer(tmp_path / "teacher")), weight=0.5)
    settings = dataclasses.replace(recipe.optimisation, steps=2, gradient_cache=3, packed_tokens=64)
    model = dataclasses.replace(recipe.model, gradient_checkpointing=True)
    rich = plain(dataclasses.replace(recipe, teacher=teacher, optimisation=settings, model=model))
    expected = losses(contrastive.train(rich, tmp_path / "cpu", device="cpu"))
    with pretended_cuda(autocast=autocast):
        out = contrastive.train(rich, tmp_path / "cuda", device="cuda")
    assert losses(out) == pytest.approx(expected, rel=0.05 if autocast else 2e-3)  # the teacher is in bfloat16
    assert json.loads((out / "training" / "environment.json").read_text())["device"] == "pretended"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("biased", [True, False])
def test_the_fused_head_and_its_gradients_are_those_of_the_cpu(dtype: torch.dtype, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(3, 7, 16, generator=generator), torch.randn(300, 16, generator=generator)
    bias = torch.randn(300, generator=generator) - 3
    mask = torch.rand(3, 7, generator=generator) > 0.3
    mask[1] = False  # a text without a position of its own

    def everything(device: str) -> list[torch.Tensor]:
        given = [item.to(dtype).to(device).detach().requires_grad_() for item in (states, weight)]
        offset = bias.to(device).detach().requires_grad_() if biased else None
        values, positions = projection_max(*given, mask=mask.to(device), bias=offset)
        torch.log1p(values.relu()).square().sum().backward()
        largest = largest_maxima(
            *(item.detach() for item in given),
            mask=mask.to(device),
            bias=bias.to(device),
            stored=StoredTerms(10, 0.0),
        )
        wanted = [values, positions, *(item.grad for item in given), top_k_weights(largest.relu(), 10)]
        wanted += [] if offset is None else [offset.grad]
        assert all(item is not None and item.device.type == device for item in wanted)
        return [item.detach().cpu() for item in wanted if item is not None]

    expected = everything("cpu")
    with pretended_cuda():
        result = everything("cuda")
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_teacher_on_the_gpu_fits_the_table_that_one_on_the_cpu_fits(tmp_path: Path) -> None:
    teacher, corpus = write_sentence_transformer(tmp_path / "teacher"), tmp_path / "corpus.jsonl"
    words = ("river", "engine", "planet", "bread", "piano", "forest")
    lines = [json.dumps({"_id": word, "title": word, "text": f"the {word} and more of it"}) for word in words]
    corpus.write_text("\n".join(lines))
    rows = []
    for device in ("cpu", "cuda"):
        with pretended_cuda() if device == "cuda" else contextlib.nullcontext():
            out = distill(
                teacher,
                [corpus],
                out=tmp_path / device,
                options=DistillationOptions(spans=20, table_dtype="fp16", device=device),
            )
        rows.append(load_file(out / "query-encoder" / "model.safetensors")["embeddings"].astype(np.float32))
    assert np.corrcoef(rows[1].ravel(), rows[0].ravel())[0, 1] > 0.99  # the teacher is in bfloat16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["train", "cache", "distill", "encode", "evaluate", "expand", "mine", "rerank"])
def test_a_gpu_that_is_not_there_is_said(
    command: str,
    recipe: ContrastiveRecipe,
    datasets: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_tiny("llama", tmp_path / "bare")
    backbone = load_backbone(str(tmp_path / "bare"))
    contract = Contract("lightretriever", backbone_record(backbone), QueryPolicy(), DocumentPolicy(), DenseHead(), None)
    LightRetriever(backbone, contract).save(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    (tmp_path / "run.trec").write_text("")
    model, data, out = str(tmp_path / "model"), str(datasets[0]), str(tmp_path / "out")
    arguments = {
        "train": [str(tmp_path / "recipe.yaml"), "-o", out],
        "cache": [model, "-o", out],
        "distill": [model, "--corpus", data, "-o", out],
        "encode": [model, data, "-o", out],
        "evaluate": [model, "--dataset", data, "--split", "dev"],
        "expand": [model, data, "-o", out],
        "mine": [data, "--model", model, "-o", out],
        "rerank": [model, "--run", str(tmp_path / "run.trec"), "--corpus", data, "--queries", data, "-o", out],
    }
    assert main([command, *arguments[command], "--device", "cuda:1"]) == 1
    assert "device 'cuda:1' cannot be used here" in capsys.readouterr().err
    assert not Path(out).exists()
