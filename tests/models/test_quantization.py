"""Rounded layers: torchao's arithmetic held against the plain formula, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.adapters import add_lora
from lightir.models.quantization import INT4_GROUP, QUANTIZERS, quantize_layers
from tiny_models import tiny_backbone

X = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))


def step(values: torch.Tensor) -> torch.Tensor:
    """(R, 1): what 8 bits tell apart in a row of (R, N); rounding moves no value further."""
    return values.abs().amax(dim=1, keepdim=True) / 127


@pytest.mark.parametrize("kind", ["int8", "int8-dynamic"])
def test_int8_rounds_each_output_and_dynamic_each_token_too(kind: str) -> None:
    pytest.importorskip("torchao")
    backbone = tiny_backbone("llama")
    layer = backbone.model.layers[0].mlp.up_proj
    weight = layer.weight.detach().clone()
    quantize_layers(backbone, kind)  # type: ignore[arg-type]
    by_weights = X.abs().sum(1, keepdim=True) * step(weight).T
    by_tokens = (step(X) * (weight.abs().sum(1) + step(weight).T * weight.shape[1])) * (kind != "int8")
    error = (layer(X) - X @ weight.T).abs()
    assert (error <= by_weights + by_tokens).all()
    assert float((error / by_weights).mean()) > 0.01, "nothing was rounded"


def test_int4_rounds_groups_of_an_output() -> None:
    pytest.importorskip("torchao")
    backbone = tiny_backbone("llama")
    weight = backbone.model.layers[0].mlp.up_proj.weight.detach().clone()
    quantize_layers(backbone, "int4")
    found = backbone.model.layers[0].mlp.up_proj(torch.eye(weight.shape[1])).T
    groups = weight.reshape(-1, INT4_GROUP)
    assert float((found.reshape(-1, INT4_GROUP) - groups).abs().max() / groups.abs().max()) < 1 / 7
    distinct = {len(set(row)) for row in found.reshape(-1, INT4_GROUP).tolist()}
    assert max(distinct) <= 16


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_embeddings_and_norms_stay(kind: str) -> None:
    pytest.importorskip("torchao")
    before, after = tiny_backbone("qwen3"), tiny_backbone("qwen3")
    quantize_layers(after, kind)  # type: ignore[arg-type]
    torch.testing.assert_close(after.model.embed_tokens.weight, before.model.embed_tokens.weight)
    torch.testing.assert_close(after.model.norm.weight, before.model.norm.weight)


def test_what_cannot_be_quantised_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="'int3': expected one of int8, int8-dynamic, int4"):
        quantize_layers(tiny_backbone("llama"), "int3")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="has to be merged"):
        quantize_layers(add_lora(tiny_backbone("llama"), rank=2, alpha=4), "int8")
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lightir\[quantize\]'"):
        quantize_layers(tiny_backbone("llama"), "int8")
