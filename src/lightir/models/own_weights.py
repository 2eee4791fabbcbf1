"""Full fine-tuning: the weights of a backbone, and their folder in a model folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone, drop_pooler, lm_head, load_transformer
from lightir.models.model_files import without_progress_bars
from lightir.models.own_ends import ExtendedEmbedding
from lightir.runtime.backbone_files import weights_hash


def train_all(backbone: Backbone) -> Backbone:
    """Return the backbone with all weights trainable, the head's too; call it after moving them to their device."""
    backbone = dataclasses.replace(backbone, whole=True)
    for parameter in all_weights(backbone).values():
        parameter.requires_grad_(True)
    return backbone


def all_weights(backbone: Backbone) -> dict[str, Tensor]:
    """Return the trunk's weights by name, and the head's under "head." unless they are the input embeddings."""
    weights: dict[str, Tensor] = dict(backbone.trunk.named_parameters())
    if (head := backbone.head) is not None:
        known = {id(tensor) for tensor in weights.values()}
        own = {"head.weight": head.weight, "head.bias": head.bias}
        if head.transform is not None:
            own |= {f"head.transform.{name}": tensor for name, tensor in head.transform.named_parameters()}
        weights |= {name: tensor for name, tensor in own.items() if tensor is not None and id(tensor) not in known}
    return weights


def save_weights(backbone: Backbone, folder: Path | str, *, dtype: torch.dtype | None = None) -> str:
    """Write a backbone in transformers' format, as `load_backbone` reads it, and return the hash of its weights.

    Args:
        backbone: backbone without an adapter.
        folder: folder to write the files into.
        dtype: type of the written weights; None is that of each tensor.

    Raises:
        InvalidInput: the backbone has an adapter, or was not read from a folder.
    """
    if isinstance(backbone.trunk, PeftModel) or not backbone.files:
        raise InvalidInput(f"{backbone.address}: saving all weights requires a model from a folder, without an adapter")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write = _write_causal if backbone.kind == "causal" else _write_encoder
    write(backbone, folder, dtype)
    for path in sorted(Path(backbone.files).iterdir()):
        if path.suffix in (".json", ".txt", ".model") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    return weights_hash(folder)


def _write_causal(backbone: Backbone, folder: Path, dtype: torch.dtype | None) -> None:
    prefix = backbone.model.base_model_prefix
    tensors = {f"{prefix}.{name}": tensor for name, tensor in _trunk_weights(backbone).items()}
    head = {name: tensor for name, tensor in all_weights(backbone).items() if name.startswith("head.")}
    tensors |= {name.replace("head.", "lm_head."): tensor for name, tensor in head.items()}
    plain = {name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous() for name, tensor in tensors.items()}
    save_file(plain, str(folder / "model.safetensors"), metadata={"format": "pt"})


def _write_encoder(backbone: Backbone, folder: Path, dtype: torch.dtype | None) -> None:
    """Read the model again and copy the trained weights into it, since each family names its head differently."""
    model = load_transformer(backbone.files, AutoConfig.from_pretrained(backbone.files), backbone.model.dtype)
    drop_pooler(model)
    head, trained = lm_head(model), backbone.head
    with torch.no_grad():
        model.base_model.load_state_dict(_trunk_weights(backbone))
        if head is not None and trained is not None:
            head.weight.copy_(trained.weight)
            if head.bias is not None and trained.bias is not None:
                head.bias.copy_(trained.bias)
            if head.transform is not None and trained.transform is not None:
                head.transform.load_state_dict(trained.transform.state_dict())
    with without_progress_bars():
        nn.Module.to(model, dtype or model.dtype)
        model.save_pretrained(folder)


def _trunk_weights(backbone: Backbone) -> dict[str, Tensor]:
    """Return the trunk's tensors under transformers' names, without the model's own end tokens."""
    tensors: dict[str, Tensor] = backbone.model.state_dict()
    if not isinstance(backbone.model.get_input_embeddings(), ExtendedEmbedding):
        return tensors
    return {name.replace(".base.", "."): tensor for name, tensor in tensors.items() if not name.endswith(".extra")}
