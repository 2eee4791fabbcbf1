"""Attention over pieces of rows: each piece attends within itself, and no mask of row x row is ever made.

A row of T positions that holds pieces of L_1, ..., L_n costs the sum of L_i² scores in place of T². On a GPU that is
one launch of torch's variable-length FlashAttention; everywhere else, and as its oracle, the model's own attention is
called once a piece.
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
"""Compute capability from which on torch has FlashAttention."""
WIDEST_HEAD = 256

Attend = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Any]]


@dataclass(frozen=True)
class Pieces:
    """Where the pieces of a batch's rows lie, its rows joined into one.

    Attributes:
        lengths: of the pieces, row after row; they sum to batch x positions.
        causal: a position attends none behind it.
        starts: (n + 1,) int32 on the model's device: 0, and the lengths' running sum.
    """

    lengths: tuple[int, ...]
    causal: bool
    starts: Tensor = field(repr=False)

    @staticmethod
    def of(numbers: Tensor, *, causal: bool) -> Pieces:
        """The runs of equal numbers in each row of (B, T) int64; the device is waited for once."""
        first = torch.ones_like(numbers, dtype=torch.bool)
        first[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
        bounds = [*first.flatten().nonzero()[:, 0].tolist(), numbers.numel()]
        starts = torch.tensor(bounds, dtype=torch.int32, device=numbers.device)
        return Pieces(tuple(b - a for a, b in pairwise(bounds)), causal, starts)

    @property
    def longest(self) -> int:
        """Positions of the longest piece."""
        return max(self.lengths)

    @cached_property
    def later(self) -> Tensor:
        """(1, 1, longest, longest) fp32: -inf where the key is behind the query, else 0; any piece's is a corner."""
        full = torch.full((self.longest, self.longest), float("-inf"), device=self.starts.device)
        return full.triu(1)[None, None]


def each_piece(attend: Attend, query: Tensor, key: Tensor, value: Tensor, pieces: Pieces) -> tuple[Tensor, None]:
    """Every piece by itself through the same function: the readable twin of `all_pieces`.

    Args:
        attend: from (1, heads, L, D) queries and (1, groups, L, D) keys and values to (1, L, heads, D).
        query: (B, heads, T, D).
        key: (B, groups, T, D).
        value: (B, groups, T, D).
        pieces: of B x T positions.

    Returns:
        (B, T, heads, D), and None.
    """
    batch, heads, length, width = query.shape
    flat = [_joined(each).movedim(0, 1)[None] for each in (query, key, value)]
    parts = [torch.split(each, list(pieces.lengths), dim=2) for each in flat]
    found = torch.cat([attend(*each)[0] for each in zip(*parts, strict=True)], dim=1)
    return found.view(batch, length, heads, width), None


def all_pieces(
    query: Tensor, key: Tensor, value: Tensor, pieces: Pieces, *, scaling: float | None
) -> tuple[Tensor, None]:
    """The same in one launch of FlashAttention; half precision, on a GPU. Shapes as in `each_piece`."""
    batch, heads, length, width = query.shape
    found = varlen.varlen_attn(
        _joined(_lowered(query)),
        _joined(_lowered(key)),
        _joined(_lowered(value)),
        pieces.starts,
        pieces.starts,
        pieces.longest,
        pieces.longest,
        scale=scaling,
        window_size=(-1, 0 if pieces.causal else -1),
        enable_gqa=key.shape[1] != heads,
    )
    assert isinstance(found, Tensor)  # no log-sum-exp was asked for
    return found.view(batch, length, heads, width), None


def in_one_launch(query: Tensor, dropout: float) -> bool:
    """Whether `all_pieces` takes these queries: FlashAttention's types, widths and GPUs, and no dropout."""
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


def _joined(states: Tensor) -> Tensor:
    """(B x T, heads, D) of (B, heads, T, D)."""
    return states.transpose(1, 2).flatten(0, 1)


def _lower_dtype(states: Tensor) -> torch.dtype:
    """What autocast makes of the operands of torch's own attention; it does not know the variable-length one."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else states.dtype


def _lowered(states: Tensor) -> Tensor:
    return states.to(_lower_dtype(states))
