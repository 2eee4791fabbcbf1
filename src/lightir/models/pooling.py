"""Pooling of a text's hidden states into one vector, and its fixed standardization."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from lightir.errors import InvalidInput

Pooling = Literal["eos", "last", "mean", "mean_all", "first"]
POOLINGS: tuple[Pooling, ...] = ("eos", "last", "mean", "mean_all", "first")


def pool(states: Tensor, *, attention_mask: Tensor, text_mask: Tensor, pooling: Pooling, ends: int = 1) -> Tensor:
    """Pool each text's states into one vector: (batch, hidden) fp32.

    Args:
        states: (batch, positions, hidden) last hidden states.
        attention_mask: (batch, positions), true except on padding, which may be on either side.
        text_mask: (batch, positions), true on the text's own tokens: no padding, special or prompt token.
        pooling: "eos", mean of the last `ends` attended states; "last", the text's last token; "mean", mean of the
            text's tokens; "mean_all", mean of everything attended; "first", first attended state ([CLS] of an
            encoder). A row without text pools everything attended instead.
        ends: number of end tokens of a row.

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


def standardize(vectors: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return (vectors - mean) / deviation; the map commutes with averaging, so a cached query table stays exact."""
    return (vectors - mean) / deviation


def fit_standardization(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of (n, hidden) document vectors, (hidden,) fp32 each, n >= 2.

    A constant dimension gets deviation 1.

    Raises:
        InvalidInput: fewer than 2 vectors.
    """
    if vectors.dim() != 2 or len(vectors) < 2:
        raise InvalidInput(f"standardization needs at least 2 pooled documents, got shape {tuple(vectors.shape)}")
    sample = vectors.detach().double()
    deviation = sample.std(dim=0, correction=0)
    constant = deviation <= 1e-6 * deviation.max().clamp(min=1e-30)
    return sample.mean(dim=0).float(), torch.where(constant, torch.ones_like(deviation), deviation).float()


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
    """Return fp64 for fp64, which only tests use, and fp32 for any other dtype."""
    return torch.float64 if dtype == torch.float64 else torch.float32
