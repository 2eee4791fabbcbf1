"""Heads, attention and adapters compared with sentence-transformers, transformers and peft."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from lightir.models.adapters import add_lora, load_adapter, merge_adapter, save_adapter
from lightir.models.backbones import load_backbone
from lightir.models.heads import activate
from tiny_models import NAMES, save_tiny, tiny_backbone

IDS = torch.tensor([[0, 9, 40, 33, 7, 1], [0, 50, 51, 1, 1, 1], [0, 3, 1, 1, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])


@pytest.mark.parametrize("name", NAMES)
def test_sparse_vectors_are_those_of_splade_pooling(name: str, tmp_path: Path) -> None:
    modules = pytest.importorskip("sentence_transformers.sparse_encoder.modules")
    save_tiny(name, tmp_path)
    backbone = load_backbone(tmp_path)
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    with torch.no_grad():
        logits = auto.from_pretrained(tmp_path, attn_implementation="eager")(IDS, attention_mask=MASK).logits
        features = {"token_embeddings": logits, "attention_mask": MASK}
        expected = modules.SpladePooling("max").eval()(features)["sentence_embedding"]
        assert backbone.head is not None
        ours = activate(backbone.head.maxima(backbone.states(IDS, MASK), MASK.bool()))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert 0 < (ours > 0).float().mean() < 1


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral"])  # others have sliding windows
def test_bidirectional_states_are_those_of_a_causal_model_told_to_see_everything(name: str) -> None:
    """Compare with an explicit additive mask (batch, 1, query, key), which transformers uses unchanged."""
    backbone = tiny_backbone(name, attention="bidirectional")
    with torch.no_grad():
        ours = backbone.states(IDS, MASK)
    causal = tiny_backbone(name).trunk
    allowed = MASK.bool()[:, None, None].expand(-1, 1, IDS.shape[1], -1)
    with torch.no_grad():
        seen = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
        expected = causal(IDS, attention_mask=seen).last_hidden_state
    kept = MASK.bool()
    torch.testing.assert_close(ours[kept], expected[kept], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3", "bert"])
def test_a_saved_adapter_is_merged_as_peft_merges_it(name: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "adapter"
    save_tiny(name, base)
    trained = add_lora(load_backbone(base), rank=4, alpha=8, dropout=0.0)
    _shake(trained.trunk)
    save_adapter(trained, folder)
    merged = merge_adapter(load_adapter(load_backbone(base), folder))
    auto = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    plain = auto.from_pretrained(base).base_model
    with torch.no_grad():
        before = plain(IDS, attention_mask=MASK).last_hidden_state
        theirs = PeftModel.from_pretrained(plain, str(folder)).merge_and_unload()
        expected = theirs(IDS, attention_mask=MASK).last_hidden_state
        ours = merged.states(IDS, MASK)
    kept = MASK.bool()
    torch.testing.assert_close(ours[kept], expected[kept], rtol=1e-4, atol=1e-4)
    assert (expected - before)[kept].abs().max() > 0.1


def _shake(trunk: torch.nn.Module) -> None:
    """Randomize an adapter's weights, since a new adapter adds nothing."""
    generator = torch.Generator().manual_seed(5)
    for parameter in trunk.parameters():
        if parameter.requires_grad:
            parameter.data = _normal(parameter, generator)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return 0.3 * torch.randn(like.shape, generator=generator)
