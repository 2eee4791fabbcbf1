"""Quantization of a backbone's linear layers to 8 or 4 bits, by torchao or as bitsandbytes' NF4."""

from __future__ import annotations

import torch
from peft import PeftModel
from torch import nn

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone
from lightir.runtime.encode_options import QUANTIZERS, Quantizer

INT4_GROUP = 32
NF4_BLOCK = 64
"""Number of weights that share a scale, as in QLoRA."""
NF4_OUTPUTS = 32
"""Group size of a layer's outputs in bitsandbytes' 4-bit products on CPUs."""


def quantize_layers(backbone: Backbone, kind: Quantizer) -> None:
    """Quantize every linear layer of the backbone in place; embeddings, norms and heads are unchanged.

    - "int8": 8-bit weights, one scale per output.
    - "int8-dynamic": also rounds each token's activations to 8 bits and multiplies integers.
    - "int4": 4-bit weights, one scale per 32 weights of an output. On a CPU torchao stores a weight in a byte, so
      there it shows the quality of 4 bits and saves no more than "int8".
    - "nf4": QLoRA's 4-bit NormalFloat (Dettmers et al., NeurIPS 2023), two weights per byte on CPUs too, one 8-bit
      scale per 64 weights of an output.

    Layers whose number of inputs is no multiple of 32 ("int4") or 64 ("nf4") are unchanged.

    Raises:
        MissingExtra: torchao, or bitsandbytes for "nf4", is not installed.
        InvalidInput: an unknown kind, or an adapter that is not merged.
    """
    if kind not in QUANTIZERS:
        raise InvalidInput(f"quantizer {kind!r}: expected one of {', '.join(QUANTIZERS)}")
    if isinstance(backbone.trunk, PeftModel):
        raise InvalidInput("an adapter must be merged before layers are quantized")
    if kind == "nf4":
        _round_to_nf4(backbone)
        return
    try:
        import torchao.quantization as ao
    except ImportError:
        raise MissingExtra("torchao is required for quantization: pip install 'lightir[quantize]'") from None
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
    group = INT4_GROUP if kind == "int4" else 1

    def fits(layer: nn.Module, _: str) -> bool:
        return isinstance(layer, nn.Linear) and layer.in_features % group == 0

    ao.quantize_(backbone.model, config, fits)


def _round_to_nf4(backbone: Backbone) -> None:
    """Replace all linear layers by bitsandbytes' 4-bit ones, which compute in the weights' former dtype."""
    try:
        from bitsandbytes.nn import Linear4bit, Params4bit
    except ImportError:
        raise MissingExtra("bitsandbytes is required for nf4: pip install 'lightir[nf4]'") from None
    on_cpu = backbone.device.type == "cpu"
    for parent in list(backbone.model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear) or layer.in_features % NF4_BLOCK:
                continue  # bitsandbytes 0.50 misreads a block that crosses the end of a row on a CPU
            dtype = layer.weight.dtype
            rounded = Linear4bit(
                layer.in_features, layer.out_features, bias=False, compute_dtype=dtype, quant_type="nf4", device="meta"
            )
            rounded.weight = Params4bit(layer.weight.detach(), blocksize=NF4_BLOCK, quant_type="nf4", module=rounded)
            rounded.bias = layer.bias
            # The kernel for AVX-512 supports whole groups only, and would round a float32 model's activations too.
            fits = dtype == torch.bfloat16 and layer.out_features % NF4_OUTPUTS == 0
            rounded.support_avx512bf16_for_cpu &= fits
            rounded = rounded.to(backbone.device).eval()
            setattr(parent, name, rounded)
            if on_cpu:  # the first call reorders the weights for the kernel, which must happen before compilation
                with torch.no_grad():
                    rounded(torch.zeros(1, layer.in_features, dtype=dtype))
