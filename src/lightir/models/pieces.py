"""Attention over pieces of packed rows: each piece attends within itself, without a row x row mask.

A row of T positions with pieces of lengths L_1, ..., L_n costs the sum of L_i² scores instead of T². On a GPU that is
one launch of torch's variable-length FlashAttention. Elsewhere, and as its oracle in tests, the model's own attention
is called once per piece.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

try:
    from torch.nn.attention import varlen
except ImportError:  # torch 2.9
    varlen = None  # type: ignore[assignment]

HALVES = (torch.float16, torch.bfloat16)
OLDEST_GPU = (8, 0)
"""Lowest compute capability with FlashAttention in torch."""
WIDEST_HEAD = 256

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Pieces:
    """The pieces of a batch's rows, with the rows concatenated.

    Attributes:
        lengths: length of each piece, row after row; they sum to batch x positions.
        causal: whether a position attends only itself and earlier ones.
        starts: (n + 1,) int32 on the model's device: 0, then the cumulative lengths.
    """

    lengths: tuple[int, ...]
    causal: bool
    starts: Tensor = field(repr=False)

    @staticmethod
    def of(numbers: Tensor, *, causal: bool) -> Pieces:
        """Return the runs of equal numbers in each row of (B, T) int64; synchronizes with the device once."""
        first = torch.ones_like(numbers, dtype=torch.bool)
        first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        bounds = [*first.flatten().nonzero()[:, 0].tolist(), numbers.numel()]
        starts = torch.tensor(bounds, dtype=torch.int32, device=numbers.device)
        return Pieces(tuple(b - a for a, b in pairwise(bounds)), causal, starts)

    @property
    def longest(self) -> int:
        """Length of the longest piece."""
        return max(self.lengths)

    @cached_property
    def later(self) -> Tensor:
        """Additive causal mask (1, 1, longest, longest) fp32; a shorter piece uses its upper left corner."""
        full = torch.full((self.longest, self.longest), float("-inf"), device=self.starts.device)
        return full.triu(1)[None, None]


def each_piece(attend: Attend, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces) -> tuple[Tensor, None]:
    """Attend within each piece by a call of its own: the readable twin of `all_pieces`.

    Args:
        attend: function from (1, heads, L, D) queries and (1, groups, L, D) keys and values to (1, L, heads, D).
        query: (B, heads, T, D).
        key: (B, groups, T, D).
        value: (B, groups, T, D).
        pieces: pieces of the B x T positions.

    Returns:
        (B, T, heads, D), and None.
    """
    batch, heads, length, width = query.shape
    flat = [_flatten(states).movedim(0, 1)[None] for states in (query, key, value)]
    parts = [torch.split(states, list(pieces.lengths), dim=2) for states in flat]
    attended = torch.cat([attend(*piece)[0] for piece in zip(*parts, strict=True)], dim=1)
    return attended.view(batch, length, heads, width), None


def all_pieces(
    query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, scaling: float | None
) -> tuple[Tensor, None]:
    """Attend within all pieces in one launch of FlashAttention, in half precision on a GPU (see `each_piece`)."""
    batch, heads, length, width = query.shape
    attended = varlen.varlen_attn(
        _flatten(_lower(query)),
        _flatten(_lower(key)),
        _flatten(_lower(value)),
        pieces.starts,
        pieces.starts,
        pieces.longest,
        pieces.longest,
        scale=scaling,
        window_size=(-1, 0 if pieces.causal else -1),
        enable_gqa=key.shape[1] != heads,
    )
    assert isinstance(attended, Tensor)  # no log-sum-exp was requested
    return attended.view(batch, length, heads, width), None


def in_one_launch(query: Tensor, dropout: float) -> bool:
    """Return whether `all_pieces` supports these queries: FlashAttention's dtypes, widths and GPUs, and no dropout."""
    return (
        query.is_cuda
        and dropout == 0
        and _lower_dtype(query) in HALVES
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= WIDEST_HEAD
        and varlen is not None
        and {"window_size", "enable_gqa"} <= inspect.signature(varlen.varlen_attn).parameters.keys()
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(query.device) >= OLDEST_GPU
    )


def _flatten(states: Tensor) -> Tensor:
    """Reshape (B, heads, T, D) to (B x T, heads, D)."""
    return states.transpose(1, 2).flatten(0, 1)


def _lower_dtype(states: Tensor) -> torch.dtype:
    """Return autocast's dtype for attention; autocast itself does not cover the variable-length one."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else states.dtype


def _lower(states: Tensor) -> Tensor:
    return states.to(_lower_dtype(states))
