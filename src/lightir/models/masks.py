"""Query tokens encoded alone but together: many tokens share one prompt in one forward (LightRetriever, A.5, Eq. 10).

A causal backbone runs `<bos> prompt | t_0 <eos> | t_1 <eos> | ...`: every token sees the prompt and itself only, and
every block's positions restart at the prompt's length, so a state equals that of `<bos> prompt t <eos>` run alone. With
"last" and "mean" pooling the state at <eos> is never read and no earlier state sees it, so blocks have the token alone.
Where attention goes both ways (encoders, bidirectional causal models) the prompt's own states depend on the token:
nothing can be shared, and each `[CLS] prompt t [SEP]` is a sequence by itself.
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
"""Tokens that share one copy of the prompt in one row: attention grows with its square, the prompt's cost falls."""


@dataclass(frozen=True, slots=True)
class BlockMask:
    """Who may attend whom, and where everyone stands.

    Attributes:
        allowed: (batch, length, length) bool, [query, key]. A padding position attends itself alone.
        position_ids: (batch, length) int64: 0..P-1 in the prompt, P, P+1, ... in every block; 0 in padding.
        valid: (batch, length) bool: no padding.
    """

    allowed: Tensor
    position_ids: Tensor
    valid: Tensor


@dataclass(frozen=True, slots=True)
class PromptCache:
    """A prompt's keys and values in every layer, computed once.

    Attributes:
        ids: <bos> and the prompt.
        layers: a layer's keys and values, (1, heads, len(ids), head width) each.
        state_sum: (hidden,) fp32 sum of the prompt's last hidden states, for "mean_all" pooling.
    """

    ids: tuple[int, ...]
    layers: tuple[tuple[Tensor, Tensor], ...]
    state_sum: Tensor


def block_mask(
    prompt_lengths: Tensor, block_counts: Tensor, *, width: int, length: int, padding_side: str = "right"
) -> BlockMask:
    """The shared-prompt mask of a batch.

    Args:
        prompt_lengths: (batch,) int64 P, <bos> included.
        block_counts: (batch,) int64 number of tokens.
        width: positions a block, 2 with <eos>.
        length: positions a row, padding included.
        padding_side: "left" or "right".

    Raises:
        InvalidInput: a row needs more than `length`, or an unknown side.
    """
    used = prompt_lengths + width * block_counts
    if bool((used > length).any()) or padding_side not in ("left", "right"):
        raise InvalidInput(f"rows of {used.tolist()} positions in {length}, padded {padding_side!r}")
    start = length - used if padding_side == "left" else torch.zeros_like(used)
    place = torch.arange(length, device=used.device)[None, :] - start[:, None]
    valid = (place >= 0) & (place < used[:, None])
    beyond = place - prompt_lengths[:, None]
    in_prompt = valid & (beyond < 0)
    block = torch.where(in_prompt, -1, beyond.div(width, rounding_mode="floor"))
    position_ids = torch.where(in_prompt, place, prompt_lengths[:, None] + beyond.remainder(width)) * valid
    together = in_prompt[:, None, :] | (block[:, :, None] == block[:, None, :])
    earlier = place[:, None, :] <= place[:, :, None]
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
    blocks_per_row: int = BLOCKS_PER_ROW,
    padding_side: str = "right",
) -> Tensor:
    """(n, hidden) fp32: the pooled state of `<bos> prompt t <eos>` for every token, before any standardisation.

    Args:
        backbone: the model; gradients flow as its parameters ask for them.
        prompt_ids: the prompt's ids without specials.
        token_ids: (n,) int64, any order, repetitions allowed (the caller saves work by giving distinct ones).
        pooling: "eos", "last" (the token itself), "mean" (over the text's own tokens: the token itself again), or
            "mean_all" (over prompt, token and specials), "first" (the begin token, where both ways are seen).
        begin: put the backbone's begin token, if it has one, in front.
        end: put its end token behind; without it "eos" is the token itself.
        cache: from prompt_cache, of the same prompt and begin: its keys and values are not computed again.
        blocks_per_row: tokens in one row of the batch, without a cache; with one each is a row by itself.
        padding_side: of the shorter last row, without a cache.

    Raises:
        InvalidInput: an unknown pooling, one that no token can reach, or a cache of another prompt or for a backbone
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
        own, prompt_sum = _shared(backbone, frame, blocks, blocks_per_row, padding_side)
    own = own.to(at_least_fp32(own.dtype))
    if pooling == "mean_all":
        return (prompt_sum + own.sum(dim=1)) / (len(frame) + width)
    return own[:, -1] if pooling == "eos" else own[:, 0]


@torch.no_grad()
def prompt_cache(backbone: Backbone, prompt_ids: Sequence[int], *, begin: bool = True) -> PromptCache | None:
    """The prompt's keys and values for token_states; None where nothing can be shared (no prompt, or both ways)."""
    frame = _frame(backbone, prompt_ids, begin)
    if backbone.attention != "causal" or not frame:
        return None
    ids = torch.tensor([frame], device=backbone.device)
    one = torch.tensor([len(frame)], device=backbone.device)
    mask = block_mask(one, torch.zeros_like(one), width=1, length=len(frame))
    # Plain layers, also where attention slides: which keys a token may see is for our own mask to say.
    cache = DynamicCache()
    states = backbone.states(
        ids,
        model_mask(backbone, mask.allowed, mask.position_ids, mask.position_ids),
        position_ids=mask.position_ids,
        past_key_values=cache,
        use_cache=True,
    )
    layers = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, DynamicLayer)]
    filled = tuple((keys, values) for keys, values in layers if keys is not None and values is not None)
    return PromptCache(tuple(frame), filled, states[0].float().sum(dim=0))


def _frame(backbone: Backbone, prompt_ids: Sequence[int], begin: bool) -> list[int]:
    """What stands in front of every token."""
    return [*([backbone.bos_id] if begin and backbone.bos_id is not None else []), *prompt_ids]


def model_mask(backbone: Backbone, allowed: Tensor, query_positions: Tensor, key_positions: Tensor) -> Any:
    """The 4D mask as this model takes it: bool for sdpa, additive for eager, one a layer type where types differ.

    Args:
        backbone: a causal model, or one that attends both ways.
        allowed: (batch, queries, keys) bool.
        query_positions: (batch, queries); with key_positions they say what a sliding window reaches.
        key_positions: (batch, keys).
    """
    config = backbone.model.config
    types = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    near = allowed
    if window is not None:
        distance = query_positions[:, :, None] - key_positions[:, None, :]
        # As transformers has it: looking back a window includes the token itself; both ways it does not.
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


def _shared(
    backbone: Backbone, frame: list[int], blocks: Tensor, blocks_per_row: int, padding_side: str
) -> tuple[Tensor, Tensor]:
    """States of the blocks (n, width, hidden), several in a row behind a prompt of the row's own; the prompt's sum."""
    (n, width), device = blocks.shape, blocks.device
    n_rows = -(-n // blocks_per_row)
    per_row = -(-n // n_rows)
    counts = torch.tensor([min(per_row, n - row * per_row) for row in range(n_rows)], device=device)
    padded = F.pad(blocks, (0, 0, 0, n_rows * per_row - n), value=backbone.eos_id).view(n_rows, -1)
    prompt = torch.tensor(frame, dtype=torch.int64, device=device).expand(n_rows, -1)
    n_prompt, length = len(frame), len(frame) + per_row * width
    mask = block_mask(torch.full_like(counts, n_prompt), counts, width=width, length=length, padding_side=padding_side)
    ids = torch.full((n_rows, length), backbone.eos_id, device=device)
    ids[mask.valid] = _joined(prompt, padded, counts * width)
    states = backbone.states(
        ids,
        model_mask(backbone, mask.allowed, mask.position_ids, mask.position_ids),
        position_ids=mask.position_ids,
    )
    own = states[mask.valid & (mask.valid.cumsum(dim=1) > n_prompt)]
    return own.view(n, width, -1), states[0][mask.valid[0]][:n_prompt].float().sum(dim=0)


def _joined(prompt: Tensor, blocks: Tensor, used: Tensor) -> Tensor:
    """Row after row: the prompt, then as much of the row's blocks as is used; one flat tensor."""
    everything = torch.cat([prompt, blocks], dim=1)
    places = torch.arange(everything.shape[1], device=used.device)
    return everything[places < (prompt.shape[1] + used)[:, None]]


def _continue(backbone: Backbone, blocks: Tensor, cache: PromptCache) -> Tensor:
    """States of the blocks (n, width, hidden), each a row by itself, after the prompt whose keys and values are there.

    All rows are alike to the mask and to the positions, so one row of either serves them all.
    """
    n_prompt, width = len(cache.ids), blocks.shape[1]
    positions = torch.arange(n_prompt + width, device=blocks.device)[None]
    own = positions[:, n_prompt:]
    with attention_code(backbone.model, SHARED_PROMPT):
        mask = model_mask(backbone, own[:, :, None] >= positions[:, None, :], own, positions)
        return backbone.states(blocks, mask, position_ids=own, prompt_layers=cache.layers, use_cache=False)


def _separate(backbone: Backbone, frame: list[int], token_ids: Tensor, pooling: Pooling, *, end: bool) -> Tensor:
    """Each token as a sequence of its own; all have one length, so nothing is padded."""
    n = len(token_ids)
    prompt = torch.tensor(frame, dtype=torch.int64, device=token_ids.device).expand(n, -1)
    ids = F.pad(torch.cat([prompt, token_ids[:, None]], dim=1), (0, int(end)), value=backbone.eos_id)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(n, -1)
    states = backbone.states(ids, torch.ones_like(ids), position_ids=positions)
    states = states.to(at_least_fp32(states.dtype))
    if pooling == "mean_all":
        return states.mean(dim=1)
    return states[:, {"eos": -1, "first": 0}.get(pooling, len(frame))]
