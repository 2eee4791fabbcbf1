"""Quantized layers: the arithmetic against plain formulas, and errors."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.adapters import add_lora
from lightir.models.backbones import Backbone, wrap_model
from lightir.models.compilation import layers_compiled_for_any_shape
from lightir.models.quantization import INT4_GROUP, NF4_BLOCK, QUANTIZERS, quantize_layers
from tiny_models import tiny_backbone, tiny_tokenizer

X = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))

# Dettmers et al., QLoRA, appendix E.
NEGATIVE = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
SMALL = [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
POSITIVE = [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0]
NF4 = torch.tensor([*NEGATIVE, *SMALL, *POSITIVE])


def wide_backbone(dtype: torch.dtype) -> Backbone:
    """Return a model whose layers have 64 or 192 inputs, except for one with 80, and 16, 64 or 192 outputs."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config).eval().to(dtype)
    for layer in model.model.layers:
        layer.self_attn.q_proj = nn.Linear(64, 64).to(dtype)  # a bias
    backbone = wrap_model(model, tiny_tokenizer(), special_ids={"bos": 0, "eos": 1})
    backbone.model.odd = nn.Linear(80, 64).to(dtype)
    return backbone


def nearest_nf4(weight: torch.Tensor) -> torch.Tensor:
    """Round a weight to NF4: the largest magnitude of each 64, and for each value the nearest of 16 fractions of it."""
    blocks = weight.float().reshape(-1, NF4_BLOCK)
    scales = blocks.abs().amax(1, keepdim=True)
    return (NF4[((blocks / scales)[..., None] - NF4).abs().argmin(-1)] * scales).reshape(weight.shape)


def step(values: torch.Tensor) -> torch.Tensor:
    """Return the 8-bit step of each row of (R, N), an upper bound of the rounding error: (R, 1)."""
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
    actual = backbone.model.layers[0].mlp.up_proj(torch.eye(weight.shape[1])).T
    groups = weight.reshape(-1, INT4_GROUP)
    assert float((actual.reshape(-1, INT4_GROUP) - groups).abs().max() / groups.abs().max()) < 1 / 7
    distinct = {len(set(row)) for row in actual.reshape(-1, INT4_GROUP).tolist()}
    assert max(distinct) <= 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nf4_layers_compute_with_the_nearest_of_sixteen_values(dtype: torch.dtype) -> None:
    pytest.importorskip("bitsandbytes")
    rounded, reference = wide_backbone(dtype), wide_backbone(dtype)
    exact = wide_backbone(dtype)
    quantize_layers(rounded, "nf4")
    n_rounded = 0
    for name, layer in reference.model.named_modules():
        if isinstance(layer, nn.Linear) and layer.in_features % NF4_BLOCK == 0:
            expected = nearest_nf4(layer.weight.detach())
            actual = rounded.model.get_submodule(name)(torch.eye(layer.in_features, dtype=dtype)).detach()
            actual = (actual if layer.bias is None else actual - layer.bias.detach()).T.float()
            scale = float(layer.weight.detach().abs().max())
            assert float((actual - expected).abs().max()) < 0.03 * scale, name  # scales are rounded to 8 bits, too
            with torch.no_grad():
                layer.weight.copy_(expected)
            n_rounded += 1
    assert n_rounded == 14
    assert type(rounded.model.odd) is nn.Linear
    ids = torch.randint(2, 258, (3, 11), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        actual, expected, unrounded = (
            backbone.states(ids, torch.ones_like(ids)).float() for backbone in (rounded, reference, exact)
        )
    assert float((actual - expected).norm() / expected.norm()) < 0.02
    assert float((actual - unrounded).norm() / unrounded.norm()) > 0.05, "nothing was rounded"
    if dtype == torch.bfloat16:  # the layers of bitsandbytes' own kernel
        with torch.no_grad(), layers_compiled_for_any_shape(rounded):
            compiled = rounded.states(ids, torch.ones_like(ids)).float()
        assert float((actual - compiled).norm() / actual.norm()) < 0.02


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_embeddings_and_norms_stay(kind: str) -> None:
    pytest.importorskip("bitsandbytes" if kind == "nf4" else "torchao")
    before, after = tiny_backbone("qwen3"), tiny_backbone("qwen3")
    quantize_layers(after, kind)  # type: ignore[arg-type]
    torch.testing.assert_close(after.model.embed_tokens.weight, before.model.embed_tokens.weight)
    torch.testing.assert_close(after.model.norm.weight, before.model.norm.weight)


def test_what_cannot_be_quantised_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="'int3': expected one of int8, int8-dynamic, int4, nf4"):
        quantize_layers(tiny_backbone("llama"), "int3")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="must be merged"):
        quantize_layers(add_lora(tiny_backbone("llama"), rank=2, alpha=4), "int8")
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lightir\[quantize\]'"):
        quantize_layers(tiny_backbone("llama"), "int8")
    monkeypatch.setitem(sys.modules, "bitsandbytes.nn", None)
    with pytest.raises(MissingExtra, match=r"pip install 'lightir\[nf4\]'"):
        quantize_layers(tiny_backbone("llama"), "nf4")
