"""Attention masks: the shared-prompt block mask (LightRetriever, Eq. 10) and the plain ones, as 4-D additive masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """Token ids, positions and permissions of `prompt | t0 eos | t1 eos | …`, one row a query.

    Attributes:
        input_ids: (B, L) int64.
        position_ids: (B, L) int64; they restart at the prompt's length in every block.
        allowed: (B, L, L) bool; allowed[b, i, j]: position i may attend position j. A pad attends itself alone.
        block_of: (B, L) int64; the block's number, -1 in the prompt, -2 on pads.
    """

    input_ids: Tensor
    position_ids: Tensor
    allowed: Tensor
    block_of: Tensor


def prompt_blocks(
    prompt_ids: Tensor, token_ids: Tensor, token_mask: Tensor, *, suffix_ids: Tensor, padding_side: str = "right"
) -> PromptBlocks:
    """All tokens of a query in one forward, as if each stood alone behind the prompt (Appendix A.5).

    With P the prompt's length and w the block's width, position i may attend j iff
    i < P: j <= i;  i >= P: j < P, or (i-P)//w == (j-P)//w and j <= i. Pads are seen by nobody.

    Args:
        prompt_ids: (P,) int64, shared by the batch; may be empty.
        token_ids: (B, n) int64.
        token_mask: (B, n) bool; False marks padding, on either side.
        suffix_ids: (w - 1,) int64, what follows each token in its block: the end token, or nothing.
        padding_side: where this function puts the pads of the whole row.

    Returns:
        L = P + n * w.
    """
    batch, n = token_ids.shape
    prompt, width = len(prompt_ids), 1 + len(suffix_ids)
    blocks = torch.cat([token_ids[..., None], suffix_ids.expand(batch, n, -1)], dim=-1).reshape(batch, n * width)
    input_ids = torch.cat([prompt_ids.expand(batch, -1), blocks], dim=1)
    prompt_positions = torch.arange(prompt, device=token_ids.device)
    block_positions = prompt + torch.arange(width, device=token_ids.device).repeat(n)
    position_ids = torch.cat([prompt_positions, block_positions]).expand(batch, -1)
    numbers = torch.arange(n, device=token_ids.device).repeat_interleave(width)
    block_of = torch.where(token_mask.repeat_interleave(width, dim=1), numbers, -2)
    block_of = torch.cat([block_of.new_full((batch, prompt), -1), block_of], dim=1)
    if padding_side == "left":  # a stable sort by "is real" puts the pads in front and keeps all else in order
        order = torch.argsort((block_of != -2).to(torch.int8), dim=1, stable=True)
        input_ids, position_ids, block_of = (x.gather(1, order) for x in (input_ids, position_ids, block_of))
    order_index = torch.arange(input_ids.shape[1], device=token_ids.device)
    causal = order_index[:, None] >= order_index[None, :]
    same = block_of[:, :, None] == block_of[:, None, :]
    to_prompt = (block_of[:, None, :] == -1) & (block_of[:, :, None] >= 0)
    real = block_of[:, :, None] >= -1
    allowed = ((same & causal) | to_prompt) & real
    allowed |= torch.eye(input_ids.shape[1], dtype=torch.bool, device=token_ids.device)
    return PromptBlocks(input_ids, position_ids.contiguous(), allowed, block_of)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, Q, K) mask to add to attention scores: 0 where allowed, the dtype's minimum elsewhere."""
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(
        ~allowed, torch.finfo(dtype).min
    )[:, None]


def model_mask(config: Any, allowed: Tensor, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype) -> Any:
    """The mask in the form that a transformers model takes, with its sliding windows honoured.

    Args:
        config: the model's configuration.
        allowed: (B, Q, K) bool.
        query_positions: (B, Q) int64; a window counts positions, so a restarted block sees what it would alone.
        key_positions: (B, K) int64.
        dtype: of the attention scores.

    Returns:
        A 4-D additive mask, or a dict of them by layer type for models with mixed layers.
    """
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    uses_window = window and (layer_types is None or "sliding_attention" in layer_types)
    full = additive(allowed, dtype)
    if not uses_window:
        return full
    near = query_positions[:, :, None] - key_positions[:, None, :] < window
    # A pad attends itself, so no row of the mask is empty.
    windowed = additive(allowed & near, dtype)
    return {"full_attention": full, "sliding_attention": windowed} if layer_types is not None else windowed
