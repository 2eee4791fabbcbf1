"""From the hidden states of a text to its one vector: pooling, and a fixed standardisation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lightir.errors import InvalidInput

Pooling = Literal["eos", "last", "mean", "mean_all", "first"]
POOLINGS: tuple[Pooling, ...] = ("eos", "last", "mean", "mean_all", "first")


def pool(states: Tensor, *, attention_mask: Tensor, text_mask: Tensor, pooling: Pooling, ends: int = 1) -> Tensor:
    """(batch, hidden) fp32: one vector a row.

    Args:
        states: (batch, positions, hidden) last hidden states.
        attention_mask: (batch, positions); true where there is no padding, on whichever side.
        text_mask: (batch, positions); true at the text's own tokens: no padding, special or prompt token.
        pooling: "eos": the mean of the last `ends` attended states; "last": the text's last token; "mean": over the
            text's tokens; "mean_all": over everything attended; "first": the first attended state, [CLS] of an encoder.
            A row without text takes what it attends to instead.
        ends: how many end tokens a row has.

    Raises:
        InvalidInput: an unknown pooling.
    """
    attended = attention_mask.bool()
    text = text_mask.bool()
    text = torch.where(text.any(dim=1, keepdim=True), text, attended)
    if pooling == "eos":
        if ends == 1:
            return _at(states, attended)
        return _mean(states, attended & (attended.flip(1).cumsum(1).flip(1) <= ends))
    if pooling == "last":
        return _at(states, text)
    if pooling == "mean":
        return _mean(states, text)
    if pooling == "mean_all":
        return _mean(states, attended)
    if pooling == "first":
        return _at(states.flip(1), attended.flip(1))
    raise InvalidInput(f"pooling {pooling!r}: expected one of {list(POOLINGS)}")


class Standardization(nn.Module):
    """The fixed affine map (v - mean) / std. It commutes with averaging, so a cached query table stays exact."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        """Keep two (hidden,) fp32 vectors as buffers.

        Raises:
            InvalidInput: shapes differ, or a deviation is not positive.
        """
        super().__init__()
        if mean.shape != std.shape or mean.dim() != 1 or not bool((std > 0).all()):
            raise InvalidInput(f"mean {tuple(mean.shape)} and std {tuple(std.shape)}: two equal lengths, std above 0")
        self.register_buffer("mean", mean.detach().float().clone())
        self.register_buffer("std", std.detach().float().clone())

    @classmethod
    def fit(cls, vectors: Tensor) -> Standardization:
        """Mean and deviation of a sample (n, hidden) of documents, n >= 2; a constant dimension gets deviation 1.

        Raises:
            InvalidInput: fewer than 2 vectors.
        """
        if vectors.dim() != 2 or len(vectors) < 2:
            raise InvalidInput(f"standardisation needs at least 2 pooled documents, got shape {tuple(vectors.shape)}")
        sample = vectors.detach().double()
        std = sample.std(dim=0, correction=0)
        return cls(sample.mean(dim=0), torch.where(std > 1e-6 * std.max().clamp(min=1e-30), std, torch.ones_like(std)))

    def forward(self, vectors: Tensor) -> Tensor:
        """The standardised vectors, same shape, fp32."""
        standardised: Tensor = (vectors.float() - self.mean) / self.std
        return standardised


def _at(states: Tensor, mask: Tensor) -> Tensor:
    length = mask.shape[1]
    last = length - 1 - mask.flip(1).to(torch.uint8).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), last].to(at_least_fp32(states.dtype))


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    wide = states.to(at_least_fp32(states.dtype))
    share = mask.to(wide.dtype) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    with torch.autocast(states.device.type, enabled=False):
        return torch.einsum("btd,bt->bd", wide, share)


def at_least_fp32(dtype: torch.dtype) -> torch.dtype:
    """fp64 for fp64, which only tests compute in; fp32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32
