"""A merged model has the outputs of its adapter, in transformers' own format."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.errors import AlreadyExists, InvalidInput, NotFound
from lightir.models.adapters import add_lora
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.merged_model import write_merged
from lightir.models.model_folder import backbone_record
from lightir.models.own_weights import train_all
from lightir.text import QueryPolicy
from lightir.train.recipes.settings import ModelRecipe
from lightir.train.stages.stage_model import trainable_backbone
from tiny_models import save_tiny

IDS = torch.tensor([[0, 7, 9, 30, 1], [0, 20, 31, 32, 1]])


def save_model(folder: Path, name: str = "llama", *, rank: int = 4, attention: str = "causal") -> Path:
    """Save a model with a random adapter, or with rank 0 with random weights, and return its folder."""
    save_tiny(name, folder / "base")
    backbone = load_backbone(folder / "base")
    record = backbone_record(backbone)
    backbone = add_lora(backbone, rank=rank, alpha=8) if rank else train_all(backbone)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in (p for p in backbone.trunk.parameters() if p.requires_grad):
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    contract = Contract("csplade", record, QueryPolicy(), DocumentPolicy(), DenseHead("mean"), SparseHead())
    LightRetriever(backbone, dataclasses.replace(contract, attention=attention)).save(folder / "model")
    return folder / "model"


def outputs(model: Path) -> tuple[Tensor, Tensor]:
    """Return last hidden states and logits of a model folder whose adapter is not merged."""
    backbone = LightRetriever.load(model, merge=False).eval().backbone
    assert backbone.head is not None
    states = backbone.states(IDS, torch.ones_like(IDS)).detach()
    logits = backbone.head.features(states) @ backbone.head.weight.T
    return states, logits if backbone.head.bias is None else logits + backbone.head.bias


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("rank", [4, 0])
def test_transformers_alone_gives_the_outputs_of_the_model(name: str, rank: int, tmp_path: Path) -> None:
    model = save_model(tmp_path, name, rank=rank)
    merged = write_merged(model, tmp_path / "merged", dtype="float32")
    assert merged.left_out == ()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    with torch.no_grad():
        result = plain(IDS, output_hidden_states=True)
    states, logits = outputs(model)
    torch.testing.assert_close(result.hidden_states[-1], states, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(result.logits, logits.detach(), rtol=1e-4, atol=1e-5)
    base = load_backbone(tmp_path / "base")
    assert float((base.states(IDS, torch.ones_like(IDS)) - states).detach().abs().max()) > 0.01


def test_weights_are_rounded_once_after_the_sum(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    write_merged(model, tmp_path / "whole", dtype="float32")
    write_merged(model, tmp_path / "half")
    whole, half = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    assert whole.keys() == half.keys()
    assert all(torch.equal(half[name], whole[name].to(torch.bfloat16)) for name in whole)
    assert {tensor.dtype for tensor in half.values()} == {torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto").dtype == torch.bfloat16


def test_an_encoder_is_merged_with_its_masked_head(tmp_path: Path) -> None:
    model = save_model(tmp_path, "bert", attention="bidirectional")
    assert write_merged(model, tmp_path / "merged", dtype="float32").left_out == ()
    plain = AutoModelForMaskedLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    _, logits = outputs(model)
    with torch.no_grad():
        torch.testing.assert_close(plain(IDS).logits, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [3, 9])
def test_a_fresh_adapter_of_any_rank_starts_from_the_merged_model(tmp_path: Path, rank: int) -> None:
    model = save_model(tmp_path)
    with pytest.raises(InvalidInput, match=r"rank 4 and alpha 8, but .* or merge it .* with lightir merge"):
        trainable_backbone(ModelRecipe(str(model), lora_rank=rank), seed=0, device="cpu")
    write_merged(model, tmp_path / "merged", dtype="float32")
    recipe = ModelRecipe(str(tmp_path / "merged"), dtype="float32", lora_rank=rank)
    begun, record = trainable_backbone(recipe, seed=0, device="cpu")
    begun.trunk.eval()
    assert record.address == str(tmp_path / "merged")
    states, _ = outputs(model)
    torch.testing.assert_close(begun.states(IDS, torch.ones_like(IDS)), states, rtol=1e-4, atol=1e-5)
    assert {p.shape[0] for name, p in begun.trunk.named_parameters() if "lora_A" in name} == {rank}


def test_the_command_lists_what_the_folder_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path, attention="bidirectional")
    arguments = ["merge", str(model), "--out", str(tmp_path / "merged")]
    assert main(arguments) == 0
    assert "not in the folder: attention 'bidirectional'" in capsys.readouterr().err
    assert main(arguments) == 1
    assert "merged exists" in capsys.readouterr().err
    assert main([*arguments, "--overwrite", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "folder": str(tmp_path / "merged"),
        "left_out": ["attention 'bidirectional'; transformers reads the model causally"],
    }


def test_what_cannot_be_merged_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text").write_text("mine")
    with pytest.raises(AlreadyExists, match=r"no config\.json"):
        write_merged(model, tmp_path / "notes", overwrite=True)
    with pytest.raises(NotFound):
        write_merged(tmp_path / "gone", tmp_path / "out")
    with pytest.raises(NotFound):
        write_merged(tmp_path / "base", tmp_path / "out")
    contract = Contract.load(model)
    bare = dataclasses.replace(contract, backbone=dataclasses.replace(contract.backbone, adapter_hash=""))
    bare.save(model)
    with pytest.raises(InvalidInput, match="nothing to merge"):
        write_merged(model, tmp_path / "out")
    ends = dataclasses.replace(contract, document=dataclasses.replace(contract.document, ends_hash="x"))
    ends.save(model)
    with pytest.raises(InvalidInput, match="end tokens of its own"):
        write_merged(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
