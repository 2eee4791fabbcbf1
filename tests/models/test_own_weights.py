"""Full fine-tuning: the trained weights, their gradients, and their folder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lightir.errors import InvalidInput
from lightir.models.adapters import add_lora
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.own_weights import all_weights, save_weights, train_all
from tiny_models import ENCODERS, VOCAB_SIZE, save_tiny, tiny_backbone

MODELS = [("llama", False), ("gemma3", False), ("bert", True), *((name, False) for name in ENCODERS)]


def trained(name: str, plain: bool, folder: Path) -> Backbone:
    """Return a fully trained backbone whose weights all differ from the file's."""
    save_tiny(name, folder, plain=plain)
    backbone = train_all(load_backbone(folder))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in all_weights(backbone).values():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return backbone


def outputs(backbone: Backbone) -> list[torch.Tensor]:
    """Return the states of two texts, and their maxima if there is a head."""
    ids = torch.tensor([[0, 7, 9, 1], [0, 20, 30, 1]])
    states = backbone.states(ids, torch.ones_like(ids))
    mask = torch.ones_like(ids, dtype=torch.bool)
    return [states] if backbone.head is None else [states, backbone.head.maxima(states, mask)]


@pytest.mark.parametrize(("name", "plain"), MODELS)
def test_what_was_trained_comes_back_from_its_folder(name: str, plain: bool, tmp_path: Path) -> None:
    backbone = trained(name, plain, tmp_path / "before")
    saved = save_weights(backbone, tmp_path / "after")
    loaded = load_backbone(tmp_path / "after")
    assert loaded.weights_hash == saved != load_backbone(tmp_path / "before").weights_hash
    for one, other in zip(outputs(loaded), outputs(backbone), strict=True):
        assert torch.equal(one, other)
    now, then = all_weights(loaded), all_weights(backbone)
    assert now.keys() == then.keys()
    assert all(torch.equal(now[name], then[name]) for name in now)


@pytest.mark.parametrize("plain", [False, True])
def test_an_encoders_folder_has_its_familys_names_and_the_same_bytes_each_time(plain: bool, tmp_path: Path) -> None:
    backbone = trained("bert", plain, tmp_path / "before")
    hashes = {save_weights(backbone, tmp_path / name) for name in ("after", "again")}
    assert len(hashes) == 1
    before, after = (load_file(str(tmp_path / name / "model.safetensors")) for name in ("before", "after"))
    assert before.keys() == after.keys()
    assert not any(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_every_weight_has_the_gradient_of_the_plain_head(name: str) -> None:
    """The head's weights too: an untied projection of a Llama, the transform and bias of a BERT."""
    backbone = tiny_backbone(name)
    backbone.trunk.double()
    assert backbone.head is not None
    head = dataclasses.replace(backbone.head, weight=backbone.head.weight.double().detach())
    if backbone.head.bias is not None:
        head = dataclasses.replace(head, bias=backbone.head.bias.double().detach())
    if head.transform is not None:
        head.transform.double()
    backbone = train_all(dataclasses.replace(backbone, head=head))
    weights = all_weights(backbone)
    assert {"head.weight"} <= weights.keys()
    states = backbone.states(torch.tensor([[0, 7, 9, 1]]), torch.ones(1, 4, dtype=torch.long))
    assert backbone.head is not None
    fused = backbone.head.maxima(states, torch.ones(1, 4, dtype=torch.bool))
    logits = backbone.head.features(states) @ backbone.head.weight.T
    plain = (logits if backbone.head.bias is None else logits + backbone.head.bias).max(dim=1).values
    scale = torch.linspace(-1, 1, VOCAB_SIZE, dtype=torch.double)
    for one, other in zip(
        torch.autograd.grad((fused * scale).sum(), list(weights.values()), retain_graph=True, allow_unused=True),
        torch.autograd.grad((plain * scale).sum(), list(weights.values()), allow_unused=True),
        strict=True,
    ):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_adapters_and_models_made_in_memory_are_not_saved_whole(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="from a folder"):
        save_weights(tiny_backbone("bert"), tmp_path / "a")
    save_tiny("bert", tmp_path / "bert")
    with pytest.raises(InvalidInput, match="without an adapter"):
        save_weights(add_lora(load_backbone(tmp_path / "bert")), tmp_path / "b")
