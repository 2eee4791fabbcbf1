"""The layers' projections in 8 or 4 bits, for encoding with less memory: torchao's quantisers."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from peft import PeftModel
from torch import nn

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone

Quantizer = Literal["int8", "int8-dynamic", "int4"]
QUANTIZERS: tuple[Quantizer, ...] = get_args(Quantizer)
INT4_GROUP = 32


def quantize_layers(backbone: Backbone, kind: Quantizer) -> None:
    """Round every linear layer of the backbone, in place; embeddings, norms and heads stay as they are.

    "int8" keeps weights in 8 bits, a scale to each output. "int8-dynamic" rounds each token's activations to 8 bits
    too and multiplies integers. "int4" keeps weights in 4 bits, a scale to each 32 of an output (layers with another
    number of inputs stay); on a CPU torchao stores them in a byte each, so that there it shows what 4 bits cost in
    quality and saves no more than "int8".

    Raises:
        MissingExtra: torchao is not installed.
        InvalidInput: an unknown kind, or an adapter that is not merged.
    """
    if kind not in QUANTIZERS:
        raise InvalidInput(f"quantiser {kind!r}: expected one of {', '.join(QUANTIZERS)}")
    if isinstance(backbone.trunk, PeftModel):
        raise InvalidInput("an adapter has to be merged before layers are quantised")
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
