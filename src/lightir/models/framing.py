"""Framed texts as padded batches of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.runtime.frames import Framed, Framing, document_text

__all__ = ["Framed", "Framing", "TextBatch", "document_text", "pad_batch"]


@dataclass(frozen=True, slots=True)
class TextBatch:
    """A padded batch of framed texts.

    Attributes:
        input_ids: (B, T) int64.
        attention_mask: (B, T) bool, true except on padding.
        own_mask: (B, T) bool, true on the text's own tokens.
    """

    input_ids: Tensor
    attention_mask: Tensor
    own_mask: Tensor


def pad_batch(
    framed: Sequence[Framed], backbone: Backbone, *, length: int | None = None, padding_side: str = "right"
) -> TextBatch:
    """Pad framed texts to one length, on the backbone's device.

    Args:
        framed: framed texts.
        backbone: backbone with the padding id and device.
        length: length of the batch; None is the longest text's.
        padding_side: side of the padding, "left" or "right".

    Raises:
        InvalidInput: a text is longer than the batch.
    """
    longest = max((len(ids) for ids, _, _ in framed), default=0)
    total = max(longest, 1) if length is None else length
    if longest > total:
        raise InvalidInput(f"a text of {longest} tokens does not fit a batch of length {total}")
    input_ids = np.full((len(framed), total), backbone.eos_id, dtype=np.int64)
    attention, own = np.zeros((len(framed), total), dtype=bool), np.zeros((len(framed), total), dtype=bool)
    for row, (ids, start, stop) in enumerate(framed):
        shift = total - len(ids) if padding_side == "left" else 0
        input_ids[row, shift : shift + len(ids)] = ids
        attention[row, shift : shift + len(ids)] = True
        own[row, shift + start : shift + stop] = True
    return TextBatch(*(torch.from_numpy(array).to(backbone.device) for array in (input_ids, attention, own)))
