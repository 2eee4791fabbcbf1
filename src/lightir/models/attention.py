"""Attention functions registered with transformers.

- `bmm_attention`: grouped-query attention as two batched matrix products, which train much faster on CPUs than torch's.
- `shared_prompt_attention`: rows that continue one prompt, whose keys and values exist once.
- `sdpa_attention`: torch's attention, for GPUs.

The first and the last accept `pieces`, the parts of packed rows, instead of a mask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel

from lightir.models.pieces import Pieces, all_pieces, each_piece, in_one_launch

NAME = "lightir_bmm"
SDPA = "lightir_sdpa"
SHARED_PROMPT = "lightir_shared_prompt"

_sdpa: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward


def bmm_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    pieces: Pieces | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute softmax(q·kᵀ·scaling + mask)·v without repeating keys and values for their groups of query heads.

    Args:
        module: attention layer, for its training flag.
        query: (B, heads, Q, D).
        key: (B, groups, K, D); heads is a multiple of groups.
        value: (B, groups, K, D).
        attention_mask: (B, 1, Q, >= K) additive mask, or None for full attention.
        scaling: factor of the scores; None is 1/sqrt(D).
        dropout: dropout of the attention probabilities in training.
        softcap: Gemma 2's cap on the scores.
        pieces: parts of the rows that attend within themselves, causally if they say so; the mask is then None.

    Returns:
        (B, Q, heads, D), and None in place of the probabilities.
    """
    if pieces is not None:

        def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
            n = query.shape[2]
            mask = pieces.later[:, :, :n, :n] if pieces.causal else None
            return bmm_attention(module, query, key, value, mask, scaling, dropout, softcap)

        return each_piece(attend, query, key, value, pieces)
    batch, heads, length, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    per_group = heads // groups
    rows = (query * (width**-0.5 if scaling is None else scaling)).reshape(batch * groups, per_group * length, width)
    scores = torch.bmm(rows, key.reshape(batch * groups, keys, width).transpose(1, 2))
    scores = scores.view(batch, groups, per_group, length, keys)
    weights = _softmax(scores, attention_mask, softcap, value.dtype)
    weights = nn.functional.dropout(weights, p=dropout, training=module.training)
    mixed = torch.bmm(
        weights.view(batch * groups, per_group * length, keys), value.reshape(batch * groups, keys, width)
    )
    return mixed.view(batch, heads, length, width).transpose(1, 2).contiguous(), None


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    pieces: Pieces | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    """Call torch's scaled_dot_product_attention, or for pieces its variable-length FlashAttention.

    If FlashAttention does not support the tensors (another device, single precision, dropout), each piece is a call of
    its own.

    Args:
        module: attention layer.
        query: (B, heads, Q, D).
        key: (B, groups, K, D); heads is a multiple of groups.
        value: (B, groups, K, D).
        attention_mask: mask in transformers' form for "sdpa".
        pieces: parts of the rows that attend within themselves, causally if they say so; the mask is then None.
        arguments: further arguments of transformers. Pieces read `dropout` and `scaling` (None is 1/sqrt(D)).

    Returns:
        (B, Q, heads, D), and None.
    """
    if pieces is None:
        return _sdpa(module, query, key, value, attention_mask, **arguments)
    dropout, scaling = arguments.get("dropout", 0.0), arguments.get("scaling")
    if in_one_launch(query, dropout):
        return all_pieces(query, key, value, pieces, scaling=scaling)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, None]:
        return _sdpa(module, query, key, value, None, dropout=dropout, scaling=scaling, is_causal=pieces.causal)

    return each_piece(attend, query, key, value, pieces)


def shared_prompt_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    *,
    prompt_layers: Sequence[tuple[Tensor, Tensor]],
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from short rows that all continue one prompt, without repeating the prompt's keys and values.

    The queries of all rows are multiplied with the prompt's keys in one product per group. Within a row there are only
    1 or 2 keys, for which elementwise multiplication is faster than a batch of tiny matrix products. No dropout.

    Args:
        module: attention layer; its layer_idx selects the prompt's layer.
        query: (B, heads, Q, D).
        key: (B, groups, Q, D).
        value: (B, groups, Q, D).
        attention_mask: (1, 1, Q, P + Q) additive mask, or None for full attention.
        scaling: factor of the scores; None is 1/sqrt(D).
        softcap: Gemma 2's cap on the scores.
        prompt_layers: keys and values of the prompt in every layer, (1, groups, P, D) each.

    Returns:
        (B, Q, heads, D), and None.
    """
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    prompt_key, prompt_value = prompt_layers[module.layer_idx]
    n_prompt = prompt_key.shape[2]
    rows = (query * (width**-0.5 if scaling is None else scaling)).view(batch, groups, -1, length, width)
    stacked = rows.transpose(0, 1).reshape(groups, -1, width)
    to_prompt = torch.bmm(stacked, prompt_key[0].transpose(1, 2)).view(groups, batch, -1, length, n_prompt)
    to_row = (rows[..., None, :] * key[:, :, None, None]).sum(dim=-1)
    scores = torch.cat([to_prompt.transpose(0, 1), to_row], dim=-1)
    weights = _softmax(scores, attention_mask, softcap, value.dtype)
    of_prompt = weights[..., :n_prompt].transpose(0, 1).reshape(groups, -1, n_prompt)
    mixed = torch.bmm(of_prompt, prompt_value[0]).view(groups, batch, -1, length, width).transpose(0, 1)
    mixed = mixed + (weights[..., n_prompt:, None] * value[:, :, None, None]).sum(dim=-2)
    return mixed.reshape(batch, heads, length, width).transpose(1, 2).contiguous(), None


@contextlib.contextmanager
def attention_code(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Use the attention function registered under this name inside the context."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _softmax(scores: Tensor, mask: Tensor | None, softcap: float | None, dtype: torch.dtype) -> Tensor:
    """Return the probabilities of (B, groups, heads per group, Q, K) scores in `dtype`, computed in at least fp32."""
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    mask = None if mask is None else mask[:, :, None, :, : scores.shape[-1]]
    if scores.requires_grad:
        scores = scores if mask is None else scores + mask
        wide = scores if scores.dtype == torch.float64 else scores.float()
        return torch.softmax(wide, dim=-1).to(dtype)
    # No backward pass needs the scores: the mask is added in place, and torch's softmax widens and rounds itself.
    scores = scores if mask is None else scores.add_(mask)
    return torch.softmax(scores, dim=-1).to(dtype)


_FORMS = (
    (NAME, bmm_attention, "eager"),
    (SHARED_PROMPT, shared_prompt_attention, "eager"),
    (SDPA, sdpa_attention, "sdpa"),
)
for _name, _function, _masks in _FORMS:
    ALL_ATTENTION_FUNCTIONS.register(_name, _function)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_name, ALL_MASK_ATTENTION_FUNCTIONS[_masks])
