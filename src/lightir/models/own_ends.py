"""End tokens of a model's own: extra rows of the input embeddings, outside the vocabulary and never predicted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lightir.contract import hash_arrays
from lightir.models.backbones import Backbone
from lightir.models.model_files import read_tensors

OWN_ENDS = "ends.safetensors"
"""File of a model folder: embeddings of the model's own end tokens."""


class ExtendedEmbedding(nn.Module):
    """Input embeddings with extra rows, whose ids start at the vocabulary's size."""

    def __init__(self, base: nn.Module, extra: Tensor) -> None:
        """Append (n, hidden) rows to those of an embedding module."""
        super().__init__()
        self.base = base
        self.extra = nn.Parameter(extra.detach().clone().float())

    @property
    def weight(self) -> Tensor:
        """Rows of the vocabulary, without the extra ones."""
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the rows of the ids."""
        n = len(self.weight)
        known: Tensor = self.base(input_ids.clamp(max=n - 1))
        own = self.extra[(input_ids - n).clamp(min=0)].to(known.dtype)
        return torch.where((input_ids >= n)[..., None], own, known)


def add_ends(backbone: Backbone, embeddings: Tensor, *, trainable: bool = True) -> Backbone:
    """Return the backbone with n end tokens of its own, whose embeddings are (n, hidden) rows."""
    module = backbone.model.get_input_embeddings()
    base = module.base if isinstance(module, ExtendedEmbedding) else module
    extended = ExtendedEmbedding(base, embeddings.to(backbone.device))
    extended.extra.requires_grad_(trainable)
    backbone.model.set_input_embeddings(extended)
    n = len(extended.weight)
    return dataclasses.replace(backbone, end_ids=tuple(range(n, n + len(embeddings))))


def fresh_ends(backbone: Backbone, n: int) -> Tensor:
    """Return (n, hidden) fp32 initial embeddings of new end tokens: the end token's plus noise drawn by torch."""
    with torch.no_grad():
        ids = torch.tensor([backbone.eos_id], device=backbone.device)
        end: Tensor = backbone.model.get_input_embeddings()(ids).float()
        return end + 0.1 * end.std() * torch.randn(n, end.shape[1]).to(end.device)


def own_ends(backbone: Backbone) -> Tensor | None:
    """Return the (n, hidden) fp32 embeddings of the backbone's own end tokens, or None if it has none."""
    module = backbone.model.get_input_embeddings()
    if not isinstance(module, ExtendedEmbedding):
        return None
    extra: Tensor = module.extra.detach().float()
    return extra


def save_ends(backbone: Backbone, folder: Path | str) -> str:
    """Write the embeddings of the backbone's own end tokens, if any; return their hash, "" without."""
    ends = own_ends(backbone)
    if ends is None:
        return ""
    save_file({"embeddings": ends.cpu().contiguous()}, str(Path(folder) / OWN_ENDS))
    return ends_hash(ends.cpu())


def ends_hash(embeddings: Tensor) -> str:
    """Return 16 hexadecimal digits over (n, hidden) fp32 embeddings."""
    return hash_arrays(embeddings.numpy())


def saved_ends(folder: Path | str) -> Tensor | None:
    """Read the embeddings of a model folder's own end tokens; None if it has none."""
    path = Path(folder) / OWN_ENDS
    return read_tensors(path)["embeddings"] if path.is_file() else None
