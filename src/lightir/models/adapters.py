"""LoRA adapters of a backbone: created, loaded, continued, saved and merged."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lightir.addresses import hub_name
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import read_json, write_json
from lightir.models.backbones import Backbone
from lightir.models.model_files import read_tensors


def add_lora(
    backbone: Backbone, *, rank: int = 16, alpha: int = 32, dropout: float = 0.1, first_layer: int = 0
) -> Backbone:
    """Return the backbone with new, trainable fp32 LoRA matrices on all linear layers of its trunk; the rest is frozen.

    Args:
        backbone: backbone without an adapter.
        rank: rank of the matrices.
        alpha: numerator of the scale alpha / rank of the matrices' product.
        dropout: dropout of the matrices' inputs.
        first_layer: first layer with matrices; layers below it need no backward pass.

    Raises:
        InvalidInput: first_layer leaves no layer to train.
    """
    n_layers = int(backbone.model.config.num_hidden_layers)
    if not 0 <= first_layer < n_layers:
        raise InvalidInput(f"first_layer is {first_layer}; expected 0 to {n_layers - 1}")
    names = [name for name, module in backbone.model.named_modules() if isinstance(module, nn.Linear)]
    targets = [name for name in names if _layer_of(name) >= first_layer]
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=targets)
    return dataclasses.replace(backbone, trunk=_with_peft(get_peft_model, backbone.model, config))


def _layer_of(name: str) -> int:
    """Return the layer number in a module's name; 0 outside the layers."""
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def load_adapter(backbone: Backbone, folder: Path | str, *, trainable: bool = False) -> Backbone:
    """Return the backbone with the adapter of a folder that `save_adapter` wrote.

    Raises:
        NotFound: the folder holds no adapter.
        FormatError: its adapter_config.json is damaged.
    """
    _require_adapter(folder)
    trunk = _with_peft(PeftModel.from_pretrained, backbone.model, str(folder), is_trainable=trainable)
    return dataclasses.replace(backbone, trunk=trunk)


def continue_adapter(
    backbone: Backbone, folder: Path | str, *, rank: int, alpha: int, dropout: float, first_layer: int = 0
) -> Backbone:
    """Return the backbone with a saved adapter, trainable in fp32 from first_layer on and frozen below.

    Args:
        backbone: backbone without an adapter.
        folder: folder that `save_adapter` wrote.
        rank: expected rank of the adapter.
        alpha: expected alpha of the adapter.
        dropout: dropout of the matrices' inputs; it may differ from the saved one.
        first_layer: first layer that is trained.

    Raises:
        NotFound: the folder holds no adapter.
        FormatError: its adapter_config.json is damaged.
        InvalidInput: the adapter has another rank or alpha, or none in first_layer.
    """
    _require_adapter(folder)
    config = LoraConfig.from_pretrained(str(folder))
    if (config.r, config.lora_alpha) != (rank, alpha):
        raise InvalidInput(
            f"the adapter in {folder} has rank {config.r} and alpha {config.lora_alpha}, but {rank} and {alpha} were "
            "asked for; set the rank and alpha of the saved adapter to continue it, or merge it into the weights with "
            "lightir merge and start a fresh adapter of any rank from the merged folder"
        )
    lowest = min(_layer_of(name) for name in config.target_modules)
    if first_layer < lowest:
        raise InvalidInput(f"first_layer is {first_layer}, but the adapter in {folder} begins in layer {lowest}")
    config.lora_dropout = dropout
    trunk = _with_peft(PeftModel.from_pretrained, backbone.model, str(folder), is_trainable=True, config=config)
    for name, parameter in trunk.named_parameters():
        if _layer_of(name) < first_layer:
            parameter.requires_grad_(False)
    return dataclasses.replace(backbone, trunk=trunk)


def _require_adapter(folder: Path | str) -> None:
    path = Path(folder) / "adapter_config.json"
    if not path.is_file():
        raise NotFound(f"{folder} holds no adapter_config.json; expected a folder that `save_adapter` wrote")
    if not isinstance(read_json(path), dict):
        raise FormatError(f"{path} holds no JSON object; it is damaged")


class _InInputDtype(nn.Linear):
    """A linear layer that computes in its input's dtype, independent of its weight's."""

    def forward(self, states: Tensor) -> Tensor:
        return nn.functional.linear(states, self.weight.to(states.dtype))


def _with_peft(make: Callable[..., Any], *arguments: Any, **keywords: Any) -> PeftModel:
    """Build a peft model whose fp32 matrices compute in the dtype of the layer that they are added to.

    peft itself computes them in fp32 next to bfloat16 layers, which takes longer than the layer does. It also reads a
    name that transformers 5 deprecates; that warning is hidden.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        model: PeftModel = make(*arguments, **keywords)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False
            for matrix in (*module.lora_A.values(), *module.lora_B.values()):
                matrix.__class__ = _InInputDtype
    return model


def save_adapter(backbone: Backbone, folder: Path | str) -> None:
    """Write adapter_model.safetensors with bfloat16 tensors, and adapter_config.json.

    Raises:
        InvalidInput: the backbone has no adapter.
    """
    if not isinstance(backbone.trunk, PeftModel):
        raise InvalidInput("the backbone has no adapter to save; add_lora makes one")
    folder = Path(folder)
    backbone.trunk.save_pretrained(str(folder))
    config = read_json(folder / "adapter_config.json")
    # peft writes the local path of the unpacked model, and the modules in the order of a set.
    config["base_model_name_or_path"], revision = hub_name(backbone.address)
    config["revision"] = revision or None
    config["target_modules"] = sorted(config["target_modules"])
    write_json(folder / "adapter_config.json", config)
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card template
    weights = folder / "adapter_model.safetensors"
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in load_file(str(weights)).items()}
    save_file(tensors, str(weights), metadata={"format": "pt"})


def merge_adapter(backbone: Backbone) -> Backbone:
    """Return the backbone with its adapter added to the weights, irreversibly; a backbone without one is unchanged."""
    if not isinstance(backbone.trunk, PeftModel):
        return backbone
    return dataclasses.replace(backbone, trunk=backbone.trunk.merge_and_unload().eval())


def saved_adapter_hash(folder: Path | str) -> str:
    """Return the hash of an adapter folder's weights, "" without an adapter."""
    path = Path(folder) / "adapter_model.safetensors"
    return tensors_hash(read_tensors(path)) if path.is_file() else ""


def tensors_hash(tensors: dict[str, Tensor]) -> str:
    """Return 16 hexadecimal digits over names, shapes and bfloat16 values, as a saved adapter holds them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().to(torch.bfloat16).cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
