"""Choice of the program that runs a model, and loading of the model."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract, refuse_external
from lightir.errors import InvalidInput, MissingExtra
from lightir.kernel.bert import has_tiles
from lightir.runtime.backbone_files import backbone_path
from lightir.runtime.document_model import DocumentModel
from lightir.runtime.encode_options import RUNTIME_NAMES, RUNTIMES, EncodeOptions, Program, Runtime
from lightir.runtime.frames import Framing

TORCH_LOADER = "lightir.encode.torch_models"
"""Module that loads models by torch; imported when a model needs it."""

TORCH_SIZE = "about 1 GB with torch's CPU build"
ONNX_SIZE = "77 MB"
"""Sizes of the extras on disk, for messages."""

WITHOUT_RUNTIME = (
    "encoding documents needs a program that runs the model: "
    f"pip install 'lightir[encode]' (ONNX Runtime, {ONNX_SIZE}; encoders of the BERT family, such as minilm) "
    f"or 'lightir[train]' (torch, {TORCH_SIZE}; all models)"
)


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def has_onnxruntime() -> bool:
    """Return whether ONNX Runtime is installed, without importing it."""
    return importlib.util.find_spec("onnxruntime") is not None


def choose_runtime(contract: Contract, wanted: Runtime = "auto") -> Program:
    """Return the program that runs a model: the wanted one; for "auto" torch, else ONNX Runtime, else the kernel.

    Raises:
        InvalidInput: an unknown runtime.
        MissingExtra: the runtime is not installed, or the model needs torch, which is missing.
    """
    if wanted not in RUNTIMES:
        raise InvalidInput(f"runtime {wanted!r}: expected one of {', '.join(RUNTIMES)}")
    if wanted == "torch" or (wanted == "auto" and has_torch()):
        if not has_torch():
            raise MissingExtra(f"torch is not installed ({TORCH_SIZE}): pip install 'lightir[train]'")
        return "torch"
    if wanted == "onnx" and not has_onnxruntime():
        raise MissingExtra(f"ONNX Runtime is not installed ({ONNX_SIZE}): pip install 'lightir[encode]'")
    runtime: Program = "onnx" if wanted == "onnx" or (wanted == "auto" and has_onnxruntime()) else "kernel"
    if wanted == "auto" and runtime == "kernel" and not (has_tiles() and contract.sparse is None):
        raise MissingExtra(WITHOUT_RUNTIME)
    if reason := needs_torch(contract):
        kind = InvalidInput if has_torch() else MissingExtra
        name = RUNTIME_NAMES[runtime]
        raise kind(f"{reason}, which {name} does not run here; torch does: pip install 'lightir[train]'")
    return runtime


def needs_torch(contract: Contract) -> str:
    """Return why a model can only be run by torch; "" if others can run it too."""
    record = contract.backbone
    if record.kind != "encoder":
        return f"{record.address} is a causal language model"
    sparse = contract.sparse
    if contract.dense is None or (
        sparse is not None and (not sparse.encoder_hash or sparse.bias_hash or sparse.lexical)
    ):
        return f"the model over {record.address} has learned sparse vectors"
    if contract.document.light:
        return f"the model over {record.address} encodes documents token by token"
    if record.adapter_hash or contract.document.ends_hash:
        return f"the model over {record.address} has an adapter or end tokens of its own"
    return ""


def require_runtime(folder: Path, wanted: Runtime = "auto") -> Program:
    """Return the program that runs the model of a folder (`choose_runtime`), whose backbone is here or on a hub.

    Raises:
        InvalidInput, MissingExtra: as `choose_runtime`; or the package of the backbone is not installed.
        NotFound: the backbone is missing.
    """
    contract = Contract.load(folder)
    runtime = choose_runtime(contract, wanted)
    backbone_path(folder, contract)
    return runtime


def load_model(model: DocumentModel | str | os.PathLike[str], options: EncodeOptions) -> DocumentModel:
    """Load the model of a folder as the options say; return a loaded one unchanged.

    Raises:
        InvalidInput: the options name a runtime, dtype, device or quantization for a loaded model; or one that the
            runtime does not support.
        MissingExtra: no runtime is installed that can run the model.
        NotFound, ContractMismatch, FormatError: the model's files are missing, damaged, or differ from its contract.
    """
    if not isinstance(model, str | os.PathLike):
        if (options.runtime, options.dtype, options.device) != ("auto", "auto", "auto") or options.quantize:
            raise InvalidInput("a loaded model keeps its weights, dtype and device; give its folder to choose others")
        return model
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    refuse_external(contract, str(folder))
    runtime = choose_runtime(contract, options.runtime)
    if runtime == "torch":
        loaded: DocumentModel = _torch_loader().load_encoder(folder, options)
        return loaded
    from lightir.runtime.bert_encoder import BertEncoder

    return BertEncoder.load(folder, replace(options, runtime=runtime))


def load_framing(folder: Path, options: EncodeOptions) -> Framing:
    """Load what frames a model's documents: its tokenizer and contract. The weights are read, and dropped.

    Args:
        folder: model folder.
        options: options of loading the model, whose runtime is not "auto".

    Raises:
        InvalidInput, NotFound, ContractMismatch, FormatError: as `load_model`.
    """
    refuse_external(Contract.load(folder), str(folder))
    if options.runtime == "torch":
        framing: Framing = _torch_loader().load_framing(folder)
        return framing
    from lightir.runtime.bert_encoder import load_framing

    return load_framing(folder, options)


def device_and_dtype(options: EncodeOptions) -> tuple[str, str]:
    """Return the device and the dtype of the weights that the options choose on this machine, such as "cpu", "float32".

    Args:
        options: options of loading the model, whose runtime is not "auto".

    Raises:
        InvalidInput: the runtime does not support the options, or this machine lacks the device.
    """
    if options.runtime == "torch":
        chosen: tuple[str, str] = _torch_loader().device_and_dtype(options)
        return chosen
    from lightir.runtime.bert_encoder import require_supported

    require_supported(options)
    return "cpu", "bfloat16" if options.runtime == "kernel" else "float32"


def _torch_loader() -> Any:
    return importlib.import_module(TORCH_LOADER)
