"""Shared-prompt encoding: many query tokens, each encoded alone, in one forward (LightRetriever, A.5, Eq. 10).

A causal backbone runs `<bos> prompt | t_0 <eos> | t_1 <eos> | ...`: every token sees only the prompt and itself, and
the positions of every block restart at the prompt's length, so a state equals that of `<bos> prompt t <eos>` run alone.
With "last" and "mean" pooling the state at <eos> is never read and no earlier state sees it, so blocks hold the token
alone. If attention goes both ways (encoders, bidirectional causal models), the prompt's states depend on the token:
nothing can be shared, and each `[CLS] prompt t [SEP]` is a sequence of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lightir.errors import InvalidInput
from lightir.models.attention import SDPA, SHARED_PROMPT, attention_code
from lightir.models.backbones import Backbone
from lightir.models.pooling import POOLINGS, Pooling, at_least_fp32

BLOCKS_PER_ROW = 64
"""Number of tokens that share a copy of the prompt: more lower the prompt's cost, and raise that of attention."""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """The mask and positions of shared-prompt rows, padded on the right.

    Attributes:
        allowed: (batch, length, length) bool, [query, key]. A padding position attends itself alone.
        position_ids: (batch, length) int64: 0..P-1 in the prompt, P, P+1, ... in every block; 0 in padding.
        valid: (batch, length) bool, true except on padding.
    """

    allowed: Tensor
    position_ids: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class PromptCache:
    """Keys and values of a prompt in every layer.

    Attributes:
        ids: <bos> and the prompt.
        layers: keys and values of each layer, (1, heads, len(ids), head width) each.
        state_sum: (hidden,) fp32 sum of the prompt's last hidden states, for "mean_all" pooling.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    state_sum: Tensor


def block_mask(prompt_lengths: Tensor, block_counts: Tensor, *, width: int, length: int) -> BlockMask:
    """Return the shared-prompt mask of a batch.

    Args:
        prompt_lengths: (batch,) int64 length P of each prompt, <bos> included.
        block_counts: (batch,) int64 number of tokens of each row.
        width: number of positions of a block, 2 with <eos>.
        length: number of positions of a row, padding included.

    Raises:
        InvalidInput: a row needs more than `length` positions.
    """
    used = prompt_lengths + width * block_counts
    if bool((used > length).any()):
        raise InvalidInput(f"rows of {used.tolist()} positions do not fit {length}")
    positions = torch.arange(length, device=used.device)
    valid = positions < used[:, None]
    beyond = positions - prompt_lengths[:, None]
    in_prompt = valid & (beyond < 0)
    block = torch.where(in_prompt, -1, beyond.div(width, rounding_mode="floor"))
    position_ids = torch.where(in_prompt, positions, prompt_lengths[:, None] + beyond.remainder(width)) * valid
    together = in_prompt[:, None, :] | (block[:, :, None] == block[:, None, :])
    earlier = positions[None, :] <= positions[:, None]
    allowed = together & earlier & valid[:, None, :] & valid[:, :, None]
    allowed |= torch.eye(length, dtype=torch.bool, device=used.device)
    return BlockMask(allowed, position_ids, valid)


def token_states(
    backbone: Backbone,
    prompt_ids: Sequence[int],
    token_ids: Tensor,
    *,
    pooling: Pooling = "eos",
    begin: bool = True,
    end: bool = True,
    cache: PromptCache | None = None,
) -> Tensor:
    """Return the pooled state of `<bos> prompt t <eos>` for every token: (n, hidden) fp32, not standardized.

    Args:
        backbone: backbone; gradients flow to its trainable parameters.
        prompt_ids: ids of the prompt without special tokens.
        token_ids: (n,) int64 in any order. Repeated ids are encoded repeatedly.
        pooling: "eos"; "last" or "mean", both the token's own state; "mean_all", the mean over prompt, token and
            special tokens; "first", the begin token's state, for backbones that attend both ways.
        begin: whether the backbone's begin token, if it has one, starts the sequence.
        end: whether its end token ends the sequence; without it "eos" is the token's own state.
        cache: `prompt_cache` of the same prompt and begin, whose keys and values are reused.

    Raises:
        InvalidInput: an unknown pooling, "first" for a causal backbone, or a cache of another prompt or for a backbone
            that attends both ways.
    """
    if pooling not in POOLINGS:
        raise InvalidInput(f"pooling {pooling!r}: expected one of {list(POOLINGS)}")
    if pooling == "first" and backbone.attention == "causal":
        raise InvalidInput("pooling 'first': a causal model's first state sees no text; use 'eos' or 'mean'")
    frame = _frame(backbone, prompt_ids, begin)
    if cache is not None and (backbone.attention != "causal" or cache.ids != tuple(frame)):
        raise InvalidInput("the prompt cache belongs to another prompt, or the backbone attends both ways")
    token_ids = token_ids.to(backbone.device)
    if not len(token_ids):
        return torch.zeros(0, backbone.hidden_size, device=backbone.device)
    if backbone.attention != "causal":
        return _separate(backbone, frame, token_ids, pooling, end=end)
    width = 1 if pooling in ("last", "mean") or not end else 2
    blocks = F.pad(token_ids[:, None], (0, width - 1), value=backbone.eos_id)
    if cache is not None:
        own, prompt_sum = _continue(backbone, blocks, cache), cache.state_sum
    else:
        own, prompt_sum = _shared(backbone, frame, blocks)
    own = own.to(at_least_fp32(own.dtype))
    if pooling == "mean_all":
        return (prompt_sum + own.sum(dim=1)) / (len(frame) + width)
    return own[:, -1] if pooling == "eos" else own[:, 0]


@torch.no_grad()
def prompt_cache(backbone: Backbone, prompt_ids: Sequence[int], *, begin: bool = True) -> PromptCache | None:
    """Return a prompt's keys and values for `token_states`; None without a prompt, or if attention goes both ways."""
    frame = _frame(backbone, prompt_ids, begin)
    if backbone.attention != "causal" or not frame:
        return None
    ids = torch.tensor([frame], device=backbone.device)
    one = torch.tensor([len(frame)], device=backbone.device)
    mask = block_mask(one, torch.zeros_like(one), width=1, length=len(frame))
    # Plain layers, also for sliding attention: our own mask selects the keys that a token sees.
    cache = DynamicCache()
    states = backbone.states(
        ids,
        model_mask(backbone, mask.allowed, mask.position_ids, mask.position_ids),
        position_ids=mask.position_ids,
        past_key_values=cache,
        use_cache=True,
    )
    return PromptCache(tuple(frame), filled_layers(cache), states[0].float().sum(dim=0))


def continue_rows(
    backbone: Backbone, layers: Sequence[tuple[Tensor, Tensor]], positions: Tensor, tokens: Tensor
) -> tuple[Tensor, DynamicCache, Tensor]:
    """Run rows of tokens behind keys and values that are computed already.

    Args:
        backbone: causal backbone that computed them.
        layers: keys and values of each layer, (n, heads, kept, head width) each.
        positions: (n, kept) int64 positions of these keys in their texts, ascending.
        tokens: (n, q) int64; shorter rows are padded on the right, and the states of the padding are meaningless.

    Returns:
        The states (n, q, H), the cache of both keys and values, and their positions (n, kept + q).
    """
    past = DynamicCache()  # plain layers, also for sliding attention: our own mask selects the keys
    for index, (keys, values) in enumerate(layers):
        past.update(keys, values, index)
    order = torch.arange(tokens.shape[1], device=tokens.device)
    own = positions[:, -1:] + 1 + order
    seen = order[:, None] >= order[None, :]
    allowed = F.pad(seen, (positions.shape[1], 0), value=True).expand(len(tokens), -1, -1)
    everywhere = torch.cat([positions, own], dim=1)
    states = backbone.states(
        tokens,
        model_mask(backbone, allowed, own, everywhere),
        position_ids=own,
        past_key_values=past,
        use_cache=True,
    )
    return states, past, everywhere


def filled_layers(cache: DynamicCache) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the keys and values of each layer of a cache."""
    layers = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return tuple((keys, values) for keys, values in layers if keys is not None and values is not None)


def causal_mask(valid: Tensor) -> Tensor:
    """Return the causal (B, T, T) bool mask [query, key] for (B, T) valid positions; padding attends itself alone."""
    order = torch.arange(valid.shape[1], device=valid.device)
    allowed = valid[:, None, :] & valid[:, :, None] & (order[:, None] >= order[None, :])
    return allowed | torch.eye(len(order), dtype=torch.bool, device=valid.device)


def text_positions(valid: Tensor) -> Tensor:
    """Return each position's number in its text, from 0: (B, T) int64 for (B, T) valid positions on any side."""
    return (valid.long().cumsum(1) - 1).clamp(min=0)


def _frame(backbone: Backbone, prompt_ids: Sequence[int], begin: bool) -> list[int]:
    """Return the ids in front of every token."""
    return [*([backbone.bos_id] if begin and backbone.bos_id is not None else []), *prompt_ids]


def model_mask(backbone: Backbone, allowed: Tensor, query_positions: Tensor, key_positions: Tensor) -> Any:
    """Return the 4D mask in this model's form: bool for sdpa, additive for eager, one per layer type if types differ.

    Args:
        backbone: backbone, causal or bidirectional.
        allowed: (batch, queries, keys) bool mask, without sliding windows.
        query_positions: (batch, queries) positions of the queries, for sliding windows.
        key_positions: (batch, keys) positions of the keys.
    """
    config = backbone.model.config
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    near = allowed
    if window is not None:
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        # As in transformers: a causal window includes the token itself, a bidirectional one does not.
        near = allowed & (distance.abs() <= window if backbone.attention == "bidirectional" else distance < window)
    if "sliding_attention" in types:
        return {"full_attention": _as_4d(backbone, allowed), "sliding_attention": _as_4d(backbone, near)}
    return _as_4d(backbone, allowed if types else near)


def _as_4d(backbone: Backbone, allowed: Tensor) -> Tensor:
    allowed = allowed[:, None]
    if backbone.model.config._attn_implementation in ("sdpa", SDPA):
        return allowed
    dtype = backbone.model.dtype
    return torch.zeros((), dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)


def _shared(backbone: Backbone, frame: list[int], blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Run up to BLOCKS_PER_ROW blocks in a row behind one prompt: states (n, width, hidden), and the prompt's sum."""
    (n, width), device = blocks.shape, blocks.device
    n_rows = -(-n // BLOCKS_PER_ROW)
    per_row = -(-n // n_rows)
    counts = torch.tensor([min(per_row, n - row * per_row) for row in range(n_rows)], device=device)
    padded = F.pad(blocks, (0, 0, 0, n_rows * per_row - n), value=backbone.eos_id).view(n_rows, -1)
    prompt = torch.tensor(frame, dtype=torch.int64, device=device).expand(n_rows, -1)
    n_prompt, ids = len(frame), torch.cat([prompt, padded], dim=1)
    mask = block_mask(torch.full_like(counts, n_prompt), counts, width=width, length=ids.shape[1])
    states = backbone.states(
        ids,
        model_mask(backbone, mask.allowed, mask.position_ids, mask.position_ids),
        position_ids=mask.position_ids,
    )
    own = states[:, n_prompt:][mask.valid[:, n_prompt:]]
    return own.view(n, width, -1), states[0, :n_prompt].float().sum(dim=0)


def _continue(backbone: Backbone, blocks: Tensor, cache: PromptCache) -> Tensor:
    """Run each block as a row of its own behind the cached prompt: states (n, width, hidden).

    All rows have the same mask and positions, so one row of either is broadcast.
    """
    n_prompt, width = len(cache.ids), blocks.shape[1]
    positions = torch.arange(n_prompt + width, device=blocks.device)[None]
    own = positions[:, n_prompt:]
    with attention_code(backbone.model, SHARED_PROMPT):
        mask = model_mask(backbone, own[:, :, None] >= positions[:, None, :], own, positions)
        return backbone.states(blocks, mask, position_ids=own, prompt_layers=cache.layers, use_cache=False)


def _separate(backbone: Backbone, frame: list[int], token_ids: Tensor, pooling: Pooling, *, end: bool) -> Tensor:
    """Run each token as a sequence of its own; all have one length, so nothing is padded."""
    n = len(token_ids)
    prompt = torch.tensor(frame, dtype=torch.int64, device=token_ids.device).expand(n, -1)
    ids = F.pad(torch.cat([prompt, token_ids[:, None]], dim=1), (0, int(end)), value=backbone.eos_id)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(n, -1)
    states = backbone.states(ids, torch.ones_like(ids), position_ids=positions)
    states = states.to(at_least_fp32(states.dtype))
    if pooling == "mean_all":
        return states.mean(dim=1)
    return states[:, {"eos": -1, "first": 0}.get(pooling, len(frame))]
