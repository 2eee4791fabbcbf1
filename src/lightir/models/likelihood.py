"""How likely a passage makes a query: LLM-QL's sequence `<bos> I1 d I2 [E] q`, its attention stop and input corruption.

With the stop, what comes after [E] sees the passage through [E] alone, so [E]'s keys and values are all that has to be
kept of a passage: any number of queries is then scored, or generated, without the passage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.framing import Framed
from lightir.models.masks import model_mask

PASSAGE_PROMPT = "Instruct: Given a retrieved passage, summarize the passage.\nPassage: "
PASSAGE_SUFFIX = "\nSummarization: "
QUERY_INSTRUCTION = "Given a web search query, retrieve the most relevant passage that answers the query."
QUERY_SUFFIX = "\nThe most relevant passage: "
"""The paper's words (sections 4 and 5), with the line breaks of the authors' code."""

SCORED_AT_ONCE = 512
"""Positions whose logits exist at one time: 512 x 128,000 terms in fp32 are 260 MB."""


# ---- input corruption


def corrupt_words(text: str, *, ratio: float, mask: str, rng: np.random.Generator) -> str:
    """The text with each white-space word replaced by the mask with a probability; its white space stays."""
    hit = iter(rng.random(len(text.split())) < ratio)
    return re.sub(r"\S+", lambda word: mask if next(hit) else word[0], text)


def corrupt_tokens(framed: Framed, *, ratio: float, mask_id: int, rng: np.random.Generator) -> Framed:
    """The framed text with each of its own tokens replaced by mask_id with a probability; the frame stays."""
    ids, start, stop = framed
    own = np.where(rng.random(stop - start) < ratio, mask_id, ids[start:stop])
    return [*ids[:start], *own.tolist(), *ids[stop:]], start, stop


# ---- sequences and who sees whom


@dataclass(frozen=True, slots=True)
class Sequences:
    """Framed passages with what follows their [E], padded.

    Attributes:
        input_ids: (B, T) int64.
        valid: (B, T) bool: no padding.
        passage: (B, T) bool: the passage's own tokens.
        query: (B, T) bool: what follows [E].
        first_end: (B,) int64, where [E] stands; the first one where there are several.
        last_end: (B,) int64, the last one.
    """

    input_ids: Tensor
    valid: Tensor
    passage: Tensor
    query: Tensor
    first_end: Tensor
    last_end: Tensor


def join(
    framed: Sequence[Framed],
    queries: Sequence[Sequence[int]],
    *,
    n_ends: int,
    device: torch.device | str = "cpu",
    padding_side: Literal["left", "right"] = "right",
    pad_to: int = 1,
) -> Sequences:
    """Each framed passage, which ends in n_ends times [E], with its query's tokens behind it.

    Args:
        framed: the passages.
        queries: a list of token ids for each.
        n_ends: how often [E] stands.
        device: for the tensors.
        padding_side: of shorter rows.
        pad_to: the length is padded up to a multiple, so that compiled layers meet few shapes.

    Raises:
        InvalidInput: a frame without an end.
    """
    if n_ends < 1:
        raise InvalidInput("the passage's frame needs an end token: what follows sees the passage through it")
    rows = [[*ids, *query] for (ids, _, _), query in zip(framed, queries, strict=True)]
    length = -(-max(map(len, rows), default=1) // pad_to) * pad_to
    shape = (len(rows), length)
    ids = np.zeros(shape, dtype=np.int64)
    valid, passage, query_mask = (np.zeros(shape, dtype=bool) for _ in range(3))
    last = np.zeros(len(rows), dtype=np.int64)
    for i, (row, (frame, start, stop)) in enumerate(zip(rows, framed, strict=True)):
        shift = length - len(row) if padding_side == "left" else 0
        ids[i, shift : shift + len(row)] = row
        valid[i, shift : shift + len(row)] = True
        passage[i, shift + start : shift + stop] = True
        query_mask[i, shift + len(frame) : shift + len(row)] = True
        last[i] = shift + len(frame) - 1
    arrays = (ids, valid, passage, query_mask, last - n_ends + 1, last)
    return Sequences(*(torch.from_numpy(array).to(device) for array in arrays))


def attention_stop(valid: Tensor, first_end: Tensor, last_end: Tensor) -> Tensor:
    """(B, T, T) bool, [query, key]: causal, and past [E] nothing before [E] is seen.

    Row i may attend column j iff j <= i and (i <= last_end or j >= first_end); the paper has one [E]. A padding
    position attends itself alone.

    Args:
        valid: (B, T) bool, padding on either side.
        first_end: (B,) int64.
        last_end: (B,) int64.
    """
    place = torch.arange(valid.shape[1], device=valid.device)
    before_stop = place <= last_end[:, None]
    after_start = place >= first_end[:, None]
    seen = before_stop[:, :, None] | after_start[:, None, :]
    return _causal(valid) & seen | torch.eye(len(place), dtype=torch.bool, device=valid.device)


def _causal(valid: Tensor) -> Tensor:
    length = valid.shape[1]
    order = torch.arange(length, device=valid.device)
    allowed = valid[:, None, :] & valid[:, :, None] & (order[:, None] >= order[None, :])
    return allowed | torch.eye(length, dtype=torch.bool, device=valid.device)


def sequence_states(backbone: Backbone, sequences: Sequences, *, stop: bool) -> Tensor:
    """(B, T, H) last hidden states, with the attention stop or plainly causal.

    Raises:
        InvalidInput: the backbone attends both ways, so its tokens have seen what they are to predict.
    """
    require_generator(backbone)
    valid = sequences.valid
    allowed = attention_stop(valid, sequences.first_end, sequences.last_end) if stop else _causal(valid)
    positions = (valid.long().cumsum(1) - 1).clamp(min=0)
    mask = model_mask(backbone, allowed, positions, positions)
    return backbone.states(sequences.input_ids, mask, position_ids=positions, use_cache=False)


def require_generator(backbone: Backbone) -> None:
    """Refuse a backbone that predicts no next token.

    Raises:
        InvalidInput: it attends both ways, or has no language-modelling head.
    """
    if backbone.attention != "causal" or backbone.head is None:
        raise InvalidInput(f"{backbone.address}: query likelihood needs a causal model with a language-modelling head")


# ---- likelihood


def log_likelihood(backbone: Backbone, states: Tensor, input_ids: Tensor, wanted: Tensor) -> Tensor:
    """(B,) fp32: the sum of log p(token | what it sees) over the wanted tokens of each row (Eq. 10); 0 without any.

    Args:
        backbone: whose LM head predicts.
        states: (B, T, H); the state before a token predicts it.
        input_ids: (B, T) int64.
        wanted: (B, T) bool; a row's first token is predicted by nothing and must not be wanted.
    """
    rows, places = wanted.nonzero(as_tuple=True)
    found = token_log_probs(backbone, states[rows, places - 1], input_ids[rows, places])
    return torch.zeros(len(states), dtype=found.dtype, device=states.device).index_add(0, rows, found)


def token_log_probs(backbone: Backbone, states: Tensor, targets: Tensor) -> Tensor:
    """(n,) fp32 (fp64 for double states): log p of each target, predicted by each state.

    Args:
        backbone: whose LM head predicts.
        states: (n, H).
        targets: (n,) int64.
    """
    parts = []
    for first in range(0, len(targets) or 1, SCORED_AT_ONCE):
        some, wanted = states[first : first + SCORED_AT_ONCE], targets[first : first + SCORED_AT_ONCE]
        # Logits are many times the states' size: recomputed in the backward pass rather than kept.
        if torch.is_grad_enabled():
            parts.append(checkpoint(_target_log_probs, backbone, some, wanted, use_reentrant=False))
        else:
            parts.append(_target_log_probs(backbone, some, wanted))
    return torch.cat(parts)


def _target_log_probs(backbone: Backbone, states: Tensor, targets: Tensor) -> Tensor:
    return -F.cross_entropy(next_logits(backbone, states), targets, reduction="none")


def next_logits(backbone: Backbone, states: Tensor) -> Tensor:
    """(n, V) in fp32 (fp64 for double states): in bfloat16 logits of 16 to 32 would be .125 apart."""
    head = backbone.head
    if head is None:
        raise InvalidInput(f"{backbone.address} has no language-modelling head")
    wide = torch.float64 if states.dtype == torch.float64 else torch.float32
    with torch.autocast(states.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.to(wide)
        logits = F.linear(states.to(wide), head.weight.to(wide), bias)
    cap = getattr(backbone.model.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


# ---- a passage's [E], kept


@dataclass(frozen=True, slots=True)
class EndStates:
    """All that the attention stop lets a query see of n passages.

    Attributes:
        layers: a layer's keys and values at [E], (n, heads, ends, head width) each.
        positions: (n, ends) int64, where in its passage each [E] stands.
        states: (n, H), the last hidden state at the last [E], which predicts the first query token.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    positions: Tensor
    states: Tensor

    def take(self, rows: Tensor) -> EndStates:
        """The end states of some passages, in the order of `rows` (int64), repetitions allowed."""
        layers = tuple((keys[rows], values[rows]) for keys, values in self.layers)
        return EndStates(layers, self.positions[rows], self.states[rows])


@torch.no_grad()
def end_states(backbone: Backbone, framed: Sequence[Framed], *, n_ends: int) -> EndStates:
    """The [E] of framed passages, from one forward over them.

    Raises:
        InvalidInput: the backbone attends both ways, has no head, or the frames have no end.
    """
    require_generator(backbone)
    # Padded on the left, every [E] stands in the last columns.
    batch = join(framed, [[]] * len(framed), n_ends=n_ends, device=backbone.device, padding_side="left")
    positions = (batch.valid.long().cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache()  # plain layers, also where attention slides: our own mask says what is seen
    states = backbone.states(
        batch.input_ids,
        model_mask(backbone, _causal(batch.valid), positions, positions),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )
    layers = tuple((keys[:, :, -n_ends:].clone(), values[:, :, -n_ends:].clone()) for keys, values in _layers(cache))
    return EndStates(layers, positions[:, -n_ends:], states[:, -1].clone())


@torch.no_grad()
def likelihood_from_ends(backbone: Backbone, ends: EndStates, queries: Sequence[Sequence[int]]) -> Tensor:
    """(n,) fp32: each passage's log likelihood of its query, from [E] alone; equals the forward with attention stop.

    Args:
        backbone: the one that made the end states.
        ends: of n passages.
        queries: n lists of token ids; an empty one has log likelihood 0.
    """
    device = backbone.device
    length = max(map(len, queries), default=0)
    if not length:
        return torch.zeros(len(queries), device=device)
    ids = np.zeros((len(queries), length), dtype=np.int64)
    wanted = np.zeros((len(queries), length), dtype=bool)
    for row, query in enumerate(queries):
        ids[row, : len(query)], wanted[row, : len(query)] = query, True
    tokens, asked = torch.from_numpy(ids).to(device), torch.from_numpy(wanted).to(device)
    states, _ = continue_from(backbone, ends, tokens[:, :-1])
    before = torch.cat([ends.states[:, None], states], dim=1)
    rows, places = asked.nonzero(as_tuple=True)
    found = token_log_probs(backbone, before[rows, places], tokens[rows, places])
    return torch.zeros(len(queries), dtype=found.dtype, device=device).index_add(0, rows, found)


def continue_from(backbone: Backbone, ends: EndStates, tokens: Tensor) -> tuple[Tensor, EndStates]:
    """States (n, q, H) of tokens that follow [E]; and [E] with them joined to it, for the tokens that come next.

    Args:
        backbone: the one that made the end states.
        ends: of n passages.
        tokens: (n, q) int64; short rows are padded on the right, and their last states mean nothing.
    """
    n, length = tokens.shape
    if not length:
        return ends.states[:, None][:, :0], ends
    past = DynamicCache()
    for index, (keys, values) in enumerate(ends.layers):
        past.update(keys, values, index)
    kept = ends.positions.shape[1]
    order = torch.arange(length, device=tokens.device)
    positions = ends.positions[:, -1:] + 1 + order
    seen = order[:, None] >= order[None, :]
    allowed = F.pad(seen, (kept, 0), value=True).expand(n, -1, -1)
    everywhere = torch.cat([ends.positions, positions], dim=1)
    states = backbone.states(
        tokens,
        model_mask(backbone, allowed, positions, everywhere),
        position_ids=positions,
        past_key_values=past,
        use_cache=True,
    )
    return states, EndStates(tuple(_layers(past)), everywhere, states[:, -1])


def _layers(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    found = [(layer.keys, layer.values) for layer in cache.layers if isinstance(layer, DynamicLayer)]
    return [(keys, values) for keys, values in found if keys is not None and values is not None]
