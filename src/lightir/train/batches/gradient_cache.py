"""A batch of any size in the memory of a few texts (GradCache: Gao, Zhang, Han & Callan, arXiv 2101.06983)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

EncodedVectors = tuple[Tensor | None, ...]


def in_pieces(encode: Callable[[Any], EncodedVectors], items: Sequence[Any] | Tensor, *, size: int) -> EncodedVectors:
    """What `encode` makes of all items, piece by piece, one piece's activations at a time; gradients are the same.

    A contrastive loss needs the vectors of the whole batch, but not how they came about: each piece is encoded without
    keeping its activations, and once more when the backward pass has the gradient of its vectors. Dropout falls alike
    in both.

    Args:
        encode: items to vectors with a row an item (any of them may be None), whatever other items are there.
        items: a sequence or tensor, n of them.
        size: of a piece; 0 encodes all at once and keeps everything.
    """
    if not size:
        return encode(items)
    starts = range(0, max(len(items), 1), size)
    pieces: list[EncodedVectors] = [
        checkpoint(encode, items[start : start + size], use_reentrant=False) for start in starts
    ]
    return tuple(None if rows[0] is None else torch.cat(rows) for rows in zip(*pieces, strict=True))
