"""The layers' projections in 8 or 4 bits, for encoding with less memory: torchao's quantisers and bitsandbytes' NF4."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from peft import PeftModel
from torch import nn

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone

Quantizer = Literal["int8", "int8-dynamic", "int4", "nf4"]
QUANTIZERS: tuple[Quantizer, ...] = get_args(Quantizer)
INT4_GROUP = 32
NF4_BLOCK = 64
"""Weights that share a scale, as QLoRA has them."""
NF4_OUTPUTS = 32
"""A layer's outputs come in groups of so many where bitsandbytes multiplies 4-bit weights on a CPU."""


def quantize_layers(backbone: Backbone, kind: Quantizer) -> None:
    """Round every linear layer of the backbone, in place; embeddings, norms and heads stay as they are.

    "int8" keeps weights in 8 bits, a scale to each output. "int8-dynamic" rounds each token's activations to 8 bits
    too and multiplies integers. "int4" keeps weights in 4 bits, a scale to each 32 of an output (layers with another
    number of inputs stay); on a CPU torchao stores them in a byte each, so that there it shows what 4 bits cost in
    quality and saves no more than "int8". "nf4" is QLoRA's 4-bit NormalFloat (Dettmers et al., NeurIPS 2023): a byte
    for two weights on CPUs too, and a scale of 8 bits to each 64 of an output (layers with another number of inputs
    stay).

    Raises:
        MissingExtra: torchao, or for "nf4" bitsandbytes, is not installed.
        InvalidInput: an unknown kind, or an adapter that is not merged.
    """
    if kind not in QUANTIZERS:
        raise InvalidInput(f"quantiser {kind!r}: expected one of {', '.join(QUANTIZERS)}")
    if isinstance(backbone.trunk, PeftModel):
        raise InvalidInput("an adapter has to be merged before layers are quantised")
    if kind == "nf4":
        _round_to_nf4(backbone)
        return
    try:
        import torchao.quantization as ao
    except ImportError:
        raise MissingExtra("torchao is needed to quantise: pip install 'lightir[quantize]'") from None
    on_cpu = backbone.device.type == "cpu"
    config = {
        "int8": ao.Int8WeightOnlyConfig,
        "int8-dynamic": ao.Int8DynamicActivationInt8WeightConfig,
        "int4": lambda: (
            ao.IntxWeightOnlyConfig(
                weight_dtype=torch.int4,  # type: ignore[attr-defined]  # torch does not list it
                granularity=ao.PerGroup(INT4_GROUP),
            )
            if on_cpu
            else ao.Int4WeightOnlyConfig(group_size=INT4_GROUP)
        ),
    }[kind]()
    of = INT4_GROUP if kind == "int4" else 1
    ao.quantize_(backbone.model, config, lambda layer, _: isinstance(layer, nn.Linear) and layer.in_features % of == 0)


def _round_to_nf4(backbone: Backbone) -> None:
    """Put bitsandbytes' layers in the place of all linear ones; they compute in the type that weights had."""
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError:
        raise MissingExtra("bitsandbytes is needed for nf4: pip install 'lightir[nf4]'") from None
    on_cpu = backbone.device.type == "cpu"
    for parent in list(backbone.model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear) or layer.in_features % NF4_BLOCK:
                continue  # where a block runs over the end of a row, bitsandbytes 0.50 reads it wrong on a CPU
            dtype = layer.weight.dtype
            rounded = Linear4bit(
                layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta"
            )
            rounded.weight = Params4bit(layer.weight.detach(), blocksize=NF4_BLOCK, quant_type="nf4", module=rounded)
            rounded.bias = layer.bias
            # Its kernel for such CPUs takes whole groups alone, and would round a float32 model's activations too.
            fits = dtype == torch.bfloat16 and layer.out_features % NF4_OUTPUTS == 0
            rounded.support_avx512bf16_for_cpu &= fits
            rounded = rounded.to(backbone.device).eval()
            setattr(parent, name, rounded)
            if on_cpu:  # it puts its weights into the order of its kernel at the first call, which none may compile
                with torch.no_grad():
                    rounded(torch.zeros(1, layer.in_features, dtype=dtype))
