"""Backbones of which every weight is trained: what those weights are, and their file in a model folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.model_files import weights_hash
from lightir.models.own_ends import ExtendedEmbedding

OWN_WEIGHTS = "backbone"
"""In a model folder: the backbone's weights, where all of them were trained."""


def train_all(backbone: Backbone) -> Backbone:
    """The backbone with all of its weights trainable, the head's too; call it when they are where they are to be."""
    backbone = dataclasses.replace(backbone, whole=True)
    for parameter in all_weights(backbone).values():
        parameter.requires_grad_(True)
    return backbone


def all_weights(backbone: Backbone) -> dict[str, Tensor]:
    """The trunk's weights by name, and the head's under "head." where they are no copy of the input embeddings."""
    found: dict[str, Tensor] = dict(backbone.trunk.named_parameters())
    if (head := backbone.head) is not None:
        known = {id(each) for each in found.values()}
        own = {"head.weight": head.weight, "head.bias": head.bias}
        found |= {name: each for name, each in own.items() if each is not None and id(each) not in known}
    return found


def save_weights(backbone: Backbone, folder: Path | str) -> str:
    """Write a causal model in transformers' own form, as load_backbone reads it; the hash of its weights comes back.

    Raises:
        InvalidInput: an encoder, a model with an adapter, or one that was not read from a folder.
    """
    if backbone.kind != "causal" or isinstance(backbone.trunk, PeftModel) or not backbone.files:
        raise InvalidInput(f"{backbone.address}: only causal models without an adapter, from a folder, are saved whole")
    folder = Path(folder)
    folder.mkdir(parents=True)
    for path in sorted(Path(backbone.files).iterdir()):
        if path.suffix in (".json", ".txt", ".model") and not path.name.endswith(".index.json"):
            shutil.copyfile(path, folder / path.name)
    prefix = backbone.model.base_model_prefix
    tensors = {f"{prefix}.{name}": each for name, each in backbone.model.state_dict().items()}
    embeddings = backbone.model.get_input_embeddings()
    if isinstance(embeddings, ExtendedEmbedding):
        tensors = {n.replace(".base.", "."): each for n, each in tensors.items() if not n.endswith(".extra")}
    head = {name: each for name, each in all_weights(backbone).items() if name.startswith("head.")}
    tensors |= {name.replace("head.", "lm_head."): each for name, each in head.items()}
    plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    save_file(plain, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return weights_hash(folder)
