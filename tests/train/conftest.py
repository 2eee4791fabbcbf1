"""A random tiny model in a folder, and data sets small enough to train on in seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from collections_for_training import write_dataset
from lightir.train.recipes.contrastive_recipe import BranchEvaluation, ContrastiveRecipe, HeadRecipe, LossWeights
from lightir.train.recipes.settings import DataRecipe, DevSet, DocumentRecipe, ModelRecipe
from lightir.train.recipes.settings import Optimisation as Settings
from tiny_models import BOS, EOS, VOCAB_SIZE, tiny_tokenizer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a two-layer Llama and a byte tokenizer, in the form that Hugging Face saves."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tiny_tokenizer().save(folder / "tokenizer.json")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of two data sets."""
    root = tmp_path_factory.mktemp("data")
    return write_dataset(root / "alpha", "alpha"), write_dataset(root / "beta", "beta")


@pytest.fixture
def recipe(model_folder: Path, datasets: tuple[Path, Path]) -> ContrastiveRecipe:
    """Return a recipe with all losses, fitted heads, two data sets, development evaluation and dropout."""
    return ContrastiveRecipe(
        model=ModelRecipe(str(model_folder), dtype="float32", lora_rank=4, lora_alpha=8, lora_dropout=0.1),
        data=tuple(DataRecipe(str(folder)) for folder in datasets),
        optimisation=Settings(steps=6, batch_size=4, negatives=1, learning_rate=1e-2, warmup_steps=1),
        losses=LossWeights(sparse_alignment=0.5, flops_ramp_steps=4, dims=(16, 8)),
        heads=HeadRecipe(pooling="mean", standardize=True, calibrate=0.5, recalibrate=True, calibration_documents=12),
        documents=DocumentRecipe(max_tokens=48, train_tokens=32),
        evaluation=BranchEvaluation(sets=(DevSet(str(datasets[0]), queries=6, documents=10),), every=3),
        checkpoint_every=2,
    )
