"""Framed texts, read in batches of similar length; a causal model reads a prompt that all of them share once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed, TextBatch
from lightir.models.masks import PromptCache, continue_rows, prompt_cache
from lightir.runtime.documents import length_batches

TEXTS_BEHIND_PROMPT = 8
"""Least number of texts whose prompt is read by itself, which costs one more forward pass."""


@dataclass(frozen=True, slots=True)
class ReadTexts:
    """The states of a batch of texts.

    Attributes:
        positions: positions of the batch's texts in the input.
        states: (B, T, H) last hidden states, in the model's dtype.
        batch: the batch; without the prompt, if that was read by itself.
    """

    positions: list[int]
    states: Tensor
    batch: TextBatch


@torch.no_grad()
def read_texts(model: LightRetriever, framed: Sequence[Framed]) -> Iterator[ReadTexts]:
    """Yield the states of framed texts, without gradients, in batches of at most `model.batch_tokens` tokens.

    In a causal model no state of the prompt sees the text. So a prompt that all texts begin with is read once, and each
    text behind its keys and values: the text's states are those of `model.states`, up to rounding.

    Args:
        model: model, inside `reading_queries` if the texts are queries and it reads these with fewer layers.
        framed: framed texts of any number, in any order.
    """
    prompt = _shared_prompt(model, framed)
    n = 0 if prompt is None else len(prompt.ids)
    rest = [(ids[n:], start - n, stop - n) for ids, start, stop in framed]
    for positions in length_batches([len(ids) for ids, _, _ in rest], model.batch_tokens):
        batch = model.batch([rest[position] for position in positions])
        states = model.states(batch) if prompt is None else _behind(model, batch, prompt)
        yield ReadTexts(positions, states, batch)


def _shared_prompt(model: LightRetriever, framed: Sequence[Framed]) -> PromptCache | None:
    """Return the keys and values of the texts' prompt; None if it differs, or if a vector depends on its states."""
    causal = model.backbone.attention == "causal" and model.contract.attention != "echo"
    dense = model.contract.dense
    if not causal or len(framed) < TEXTS_BEHIND_PROMPT or (dense is not None and dense.pooling == "mean_all"):
        return None
    ids, start, _ = framed[0]
    # A text without tokens is pooled over its whole frame.
    if any(own[:begin] != ids[:start] or begin == stop for own, begin, stop in framed):
        return None
    return prompt_cache(model.backbone, ids[:start], begin=False)


def _behind(model: LightRetriever, batch: TextBatch, prompt: PromptCache) -> Tensor:
    ids = batch.input_ids
    positions = torch.arange(len(prompt.ids), device=ids.device)
    layers = [
        (keys.expand(len(ids), -1, -1, -1), values.expand(len(ids), -1, -1, -1)) for keys, values in prompt.layers
    ]
    return continue_rows(model.backbone, layers, positions.expand(len(ids), -1), ids)[0]
