"""A batch of any size in the memory of a few texts (GradCache: Gao, Zhang, Han & Callan, arXiv 2101.06983)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

EncodedVectors = tuple[Tensor | None, ...]


def in_pieces(encode: Callable[[Any], EncodedVectors], items: Sequence[Any] | Tensor, *, size: int) -> EncodedVectors:
    """Encode all items piece by piece, with the activations of one piece in memory; gradients are the same.

    A contrastive loss needs the vectors of the whole batch but not their activations: each piece is encoded without
    keeping activations, and again when the backward pass has the gradient of its vectors. Dropout is the same in both.

    Args:
        encode: function from items to vectors with one row per item (any of them may be None); a row must not depend on
            other items.
        items: sequence or tensor of n items.
        size: number of items in a piece; 0 encodes all at once and keeps all activations.
    """
    if not size:
        return encode(items)
    starts = range(0, max(len(items), 1), size)
    pieces: list[EncodedVectors] = [
        checkpoint(encode, items[start : start + size], use_reentrant=False) for start in starts
    ]
    return tuple(None if rows[0] is None else torch.cat(rows) for rows in zip(*pieces, strict=True))
