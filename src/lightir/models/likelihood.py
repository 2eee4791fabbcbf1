"""LLM-QL's query likelihood: sequences `<bos> I1 d I2 [E] q`, the attention stop and the input corruption.

With the attention stop, tokens after [E] see the passage only through [E]. The keys and values of [E] are then enough
to score or generate any number of queries without the passage.
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

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.framing import Framed
from lightir.models.heads import soft_cap
from lightir.models.masks import causal_mask, continue_rows, filled_layers, model_mask, text_positions

SCORING_CHUNK = 512
"""Maximum number of positions whose logits exist at one time: 512 x 128,000 terms in fp32 are 260 MB."""


# ---- input corruption


def corrupt_words(text: str, *, ratio: float, mask: str, rng: np.random.Generator) -> str:
    """Replace each white-space word of a text by the mask with probability `ratio`; white space is unchanged."""
    is_masked = iter(rng.random(len(text.split())) < ratio)
    return re.sub(r"\S+", lambda word: mask if next(is_masked) else word[0], text)


def corrupt_tokens(framed: Framed, *, ratio: float, mask_id: int, rng: np.random.Generator) -> Framed:
    """Replace each of a framed text's own tokens by mask_id with probability `ratio`; the frame is unchanged."""
    ids, start, stop = framed
    own = np.where(rng.random(stop - start) < ratio, mask_id, ids[start:stop])
    return [*ids[:start], *own.tolist(), *ids[stop:]], start, stop


# ---- sequences and their attention


@dataclass(frozen=True, slots=True)
class Sequences:
    """A padded batch of framed passages, each followed by a query.

    Attributes:
        input_ids: (B, T) int64.
        valid: (B, T) bool, true except on padding.
        passage: (B, T) bool, true on the passage's own tokens.
        query: (B, T) bool, true on the query's tokens, after [E].
        first_end: (B,) int64 position of the first [E].
        last_end: (B,) int64 position of the last [E]; the same if there is one.
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
    """Append to each framed passage the tokens of its query, and pad.

    Args:
        framed: framed passages, which end in n_ends times [E].
        queries: token ids of each passage's query.
        n_ends: number of [E] tokens.
        device: device of the tensors.
        padding_side: side of the padding of shorter rows.
        pad_to: the length is padded to a multiple of this, so that compiled layers see few shapes.

    Raises:
        InvalidInput: n_ends is 0.
    """
    if n_ends < 1:
        raise InvalidInput("the passage's frame needs an end token, through which the query sees the passage")
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
    """Return the (B, T, T) bool mask [query, key]: causal, and tokens after [E] see nothing before [E].

    Row i may attend column j iff j <= i and (i <= last_end or j >= first_end); the paper has one [E]. A padding
    position attends itself alone.

    Args:
        valid: (B, T) bool, true except on padding, which may be on either side.
        first_end: (B,) int64 position of the first [E].
        last_end: (B,) int64 position of the last [E].
    """
    positions = torch.arange(valid.shape[1], device=valid.device)
    before_stop = positions <= last_end[:, None]
    after_start = positions >= first_end[:, None]
    seen = before_stop[:, :, None] | after_start[:, None, :]
    return causal_mask(valid) & seen | torch.eye(len(positions), dtype=torch.bool, device=valid.device)


def sequence_states(backbone: Backbone, sequences: Sequences, *, stop: bool) -> Tensor:
    """Return the last hidden states (B, T, H), with the attention stop or plainly causal.

    Raises:
        InvalidInput: the backbone attends both ways, so its tokens see those that they predict, or has no head.
    """
    require_generator(backbone)
    valid = sequences.valid
    allowed = attention_stop(valid, sequences.first_end, sequences.last_end) if stop else causal_mask(valid)
    positions = text_positions(valid)
    mask = model_mask(backbone, allowed, positions, positions)
    return backbone.states(sequences.input_ids, mask, position_ids=positions, use_cache=False)


def require_generator(backbone: Backbone) -> None:
    """Refuse a backbone that predicts no next token.

    Raises:
        InvalidInput: the backbone attends both ways, or has no language-modelling head.
    """
    if backbone.attention != "causal" or backbone.head is None:
        raise InvalidInput(f"{backbone.address}: query likelihood needs a causal model with a language-modelling head")


# ---- likelihood


def log_likelihood(backbone: Backbone, states: Tensor, input_ids: Tensor, wanted: Tensor) -> Tensor:
    """Sum log p(token | visible tokens) over the wanted tokens of each row (Eq. 10): (B,) fp32, 0 without any.

    Args:
        backbone: backbone with the LM head.
        states: (B, T, H) last hidden states; the state before a token predicts it.
        input_ids: (B, T) int64.
        wanted: (B, T) bool mask of the scored tokens; a row's first token cannot be scored.
    """
    rows, positions = wanted.nonzero(as_tuple=True)
    log_probs = token_log_probs(backbone, states[rows, positions - 1], input_ids[rows, positions])
    return _row_sums(rows, log_probs, len(states))


def token_log_probs(backbone: Backbone, states: Tensor, targets: Tensor) -> Tensor:
    """Return log p of each target, predicted by its state: (n,) fp32 (fp64 for double states).

    Args:
        backbone: backbone with the LM head.
        states: (n, H) states that predict the targets.
        targets: (n,) int64 token ids.
    """
    parts = []
    for first in range(0, len(targets) or 1, SCORING_CHUNK):
        chunk = slice(first, first + SCORING_CHUNK)
        # Logits are many times the states' size: recomputed in the backward pass rather than kept.
        if torch.is_grad_enabled():
            parts.append(checkpoint(_target_log_probs, backbone, states[chunk], targets[chunk], use_reentrant=False))
        else:
            parts.append(_target_log_probs(backbone, states[chunk], targets[chunk]))
    return torch.cat(parts)


def _row_sums(rows: Tensor, values: Tensor, n: int) -> Tensor:
    """Sum values by their row number: (n,)."""
    return torch.zeros(n, dtype=values.dtype, device=values.device).index_add(0, rows, values)


def _target_log_probs(backbone: Backbone, states: Tensor, targets: Tensor) -> Tensor:
    return -F.cross_entropy(next_logits(backbone, states), targets, reduction="none")


def next_logits(backbone: Backbone, states: Tensor) -> Tensor:
    """Return (n, V) logits in fp32 (fp64 for double states), since bfloat16 logits of 16 to 32 are 0.125 apart."""
    head = backbone.head
    if head is None:
        raise InvalidInput(f"{backbone.address} has no language-modelling head")
    wide = torch.float64 if states.dtype == torch.float64 else torch.float32
    with torch.autocast(states.device.type, enabled=False):
        bias = None if head.bias is None else head.bias.to(wide)
        logits = F.linear(states.to(wide), head.weight.to(wide), bias)
    return logits if head.softcap is None else soft_cap(logits, head.softcap)


# ---- cached end states


@dataclass(frozen=True, slots=True)
class EndStates:
    """The part of n passages that a query sees with the attention stop: the keys and values of [E].

    Attributes:
        layers: keys and values of each layer at [E], (n, heads, ends, head width) each.
        positions: (n, ends) int64 position of each [E] in its passage.
        states: (n, H) last hidden state at the last [E], which predicts the first query token.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]
    positions: Tensor
    states: Tensor

    def take(self, rows: Tensor) -> EndStates:
        """Return the end states of the passages in `rows` (int64), in that order; rows may repeat."""
        layers = tuple((keys[rows], values[rows]) for keys, values in self.layers)
        return EndStates(layers, self.positions[rows], self.states[rows])

    @classmethod
    def join(cls, parts: Sequence[EndStates]) -> EndStates:
        """Return the end states of the passages of all parts, one part after the other."""
        layers = tuple(
            (torch.cat([keys for keys, _ in layer]), torch.cat([values for _, values in layer]))
            for layer in zip(*(part.layers for part in parts), strict=True)
        )
        return cls(layers, torch.cat([part.positions for part in parts]), torch.cat([part.states for part in parts]))

    @property
    def n_bytes(self) -> int:
        """Number of bytes of all tensors."""
        tensors = [self.positions, self.states, *(tensor for layer in self.layers for tensor in layer)]
        return sum(tensor.nbytes for tensor in tensors)


@torch.no_grad()
def end_states(backbone: Backbone, framed: Sequence[Framed], *, n_ends: int) -> EndStates:
    """Encode framed passages in one forward and return the states of their [E].

    Raises:
        InvalidInput: the backbone attends both ways, has no head, or the frames have no end token.
    """
    require_generator(backbone)
    # With padding on the left, the [E] of all rows are in the last columns.
    batch = join(framed, [[]] * len(framed), n_ends=n_ends, device=backbone.device, padding_side="left")
    positions = text_positions(batch.valid)
    cache = DynamicCache()  # plain layers, also for sliding attention: our own mask selects the keys
    states = backbone.states(
        batch.input_ids,
        model_mask(backbone, causal_mask(batch.valid), positions, positions),
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
    )
    layers = tuple(
        (keys[:, :, -n_ends:].clone(), values[:, :, -n_ends:].clone()) for keys, values in filled_layers(cache)
    )
    return EndStates(layers, positions[:, -n_ends:], states[:, -1].clone())


@torch.no_grad()
def likelihood_from_ends(backbone: Backbone, ends: EndStates, queries: Sequence[Sequence[int]]) -> Tensor:
    """Return the log likelihood of each passage's query from [E] alone: (n,) fp32.

    It equals that of the whole forward with the attention stop.

    Args:
        backbone: backbone that computed the end states.
        ends: end states of n passages.
        queries: n lists of token ids; an empty query has log likelihood 0.
    """
    device = backbone.device
    length = max(map(len, queries), default=0)
    if not length:
        return torch.zeros(len(queries), device=device)
    ids = np.zeros((len(queries), length), dtype=np.int64)
    wanted = np.zeros((len(queries), length), dtype=bool)
    for row, query in enumerate(queries):
        ids[row, : len(query)], wanted[row, : len(query)] = query, True
    tokens = torch.from_numpy(ids).to(device)
    states, _ = continue_from(backbone, ends, tokens[:, :-1])
    before = torch.cat([ends.states[:, None], states], dim=1)
    rows, positions = torch.from_numpy(wanted).to(device).nonzero(as_tuple=True)
    log_probs = token_log_probs(backbone, before[rows, positions], tokens[rows, positions])
    return _row_sums(rows, log_probs, len(queries))


def continue_from(backbone: Backbone, ends: EndStates, tokens: Tensor) -> tuple[Tensor, EndStates]:
    """Return the states (n, q, H) of tokens that follow [E], and end states that include these tokens.

    Args:
        backbone: backbone that computed the end states.
        ends: end states of n passages.
        tokens: (n, q) int64; shorter rows are padded on the right, and the states of the padding are meaningless.
    """
    if not tokens.shape[1]:
        return ends.states[:, None][:, :0], ends
    states, past, everywhere = continue_rows(backbone, ends.layers, ends.positions, tokens)
    return states, EndStates(filled_layers(past), everywhere, states[:, -1])
