"""Grouped-query attention as two batched matrix products: on CPUs much faster to train through than torch's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "lightir_bmm"


def bmm_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """softmax(q·kᵀ·scaling + mask)·v, keys and values never repeated for their groups of query heads.

    Args:
        module: the attention layer; read for its training flag.
        query: (B, heads, Q, D).
        key: (B, groups, K, D); heads is a multiple of groups.
        value: (B, groups, K, D).
        attention_mask: (B, 1, Q, >= K) additive, or None for full attention.
        scaling: of the scores; 1/sqrt(D) by default.
        dropout: of the attention probabilities in training.
        softcap: Gemma 2's cap on the scores.

    Returns:
        (B, Q, heads, D), and None where other implementations return the probabilities.
    """
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    per_group = heads // groups
    rows = (query * (width**-0.5 if scaling is None else scaling)).reshape(batch * groups, per_group * length, width)
    scores = torch.bmm(rows, key.reshape(batch * groups, keys, width).transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, groups, per_group, length, keys)
    if attention_mask is not None:
        scores = scores + attention_mask[:, :, None, :, :keys]
    weights = torch.softmax(scores.float(), dim=-1).to(value.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    mixed = torch.bmm(
        weights.view(batch * groups, per_group * length, keys), value.reshape(batch * groups, keys, width)
    )
    return mixed.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, bmm_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
