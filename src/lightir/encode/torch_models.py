"""Loading of models by torch, as the options of encoding say."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import lightir.models  # noqa: F401 - first, as it says what to install where torch is not there
from lightir.addresses import resolve_model_folder
from lightir.errors import InvalidInput
from lightir.models.devices import usable_device, weights_dtype
from lightir.models.encoder import LightRetriever
from lightir.models.quantization import quantize_layers
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.frames import Framing
from lightir.runtime.model_encoder import ModelEncoder


def load_encoder(model: LightRetriever | str | os.PathLike[str], options: EncodeOptions) -> LightRetriever:
    """Load the model of a folder with the dtype, device and quantization of the options; return a loaded one unchanged.

    Raises:
        InvalidInput: the options name a dtype, device or quantization for a loaded model, or another runtime.
    """
    if options.runtime not in ("auto", "torch"):
        raise InvalidInput(f"the runtime {options.runtime!r} only encodes documents; this needs the model in torch")
    if isinstance(model, LightRetriever):
        if options.dtype != "auto" or options.device != "auto" or options.quantize:
            raise InvalidInput("a loaded model keeps its weights, dtype and device; give its folder to choose others")
        return model
    device = usable_device(options.device)
    retriever = LightRetriever.load(
        resolve_model_folder(model), dtype=weights_dtype(options.dtype, device), device=device
    )
    if options.quantize:
        quantize_layers(retriever.backbone, options.quantize)
    return retriever


def load_framing(folder: Path) -> Framing:
    """Load the tokenizer and contract of a model folder; the weights are read in bfloat16 and dropped."""
    return LightRetriever.load(folder, dtype=torch.bfloat16).to("meta").framing


def device_and_dtype(options: EncodeOptions) -> tuple[str, str]:
    """Return the device and the dtype of the weights that the options choose on this machine.

    Raises:
        InvalidInput: this machine lacks the device.
    """
    device = usable_device(options.device)
    return device, str(weights_dtype(options.dtype, device)).removeprefix("torch.")


def torch_model(encoder: ModelEncoder) -> LightRetriever:
    """Return the model of an encoder, which can encode queries too.

    Raises:
        InvalidInput: another runtime than torch runs it.
    """
    if not isinstance(encoder.model, LightRetriever):
        raise InvalidInput("queries through the model need torch; ONNX Runtime only encodes documents")
    return encoder.model
