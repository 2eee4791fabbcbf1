"""Texts as bags of their terms, in tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightir.models.backbones import Backbone
from lightir.models.framing import TextBatch
from lightir.vectors import Ragged


def token_means(term_ids: Ragged) -> tuple[Tensor, Tensor]:
    """The distinct token ids (m,) int64, and (n, m) float32 whose product with their rows gives each query's mean."""
    unique, inverse = np.unique(term_ids.term_ids, return_inverse=True)
    mixing = np.zeros((len(term_ids), len(unique)), dtype=np.float32)
    row_of = np.repeat(np.arange(len(term_ids)), term_ids.lengths)
    np.add.at(mixing, (row_of, inverse), (1 / np.maximum(term_ids.lengths, 1))[row_of].astype(np.float32))
    return torch.from_numpy(unique.astype(np.int64)), torch.from_numpy(mixing)


def mixed(mixing: Tensor, rows: Tensor) -> Tensor:
    """(n, H): what token_means says of the rows (m, H), in their dtype, also under autocast."""
    with torch.autocast(rows.device.type, enabled=False):
        return mixing.to(rows) @ rows


def term_counts(term_ids: Ragged, backbone: Backbone, terms: Tensor | None = None) -> Tensor:
    """(B, V) float32, how often each term stands in a text; with terms (n,) int64, (B, n), of these alone."""
    counts = torch.zeros(len(term_ids), backbone.vocab_size, device=backbone.device)
    rows = np.repeat(np.arange(len(term_ids)), term_ids.lengths)
    places = tuple(torch.from_numpy(each.astype(np.int64)).to(counts.device) for each in (rows, term_ids.term_ids))
    counts.index_put_(places, torch.ones(len(rows), device=counts.device), accumulate=True)
    return counts if terms is None else counts[:, terms]


def terms_present(batch: TextBatch, backbone: Backbone) -> Tensor:
    """(B, V) bool: which terms stand in a text."""
    own = torch.zeros(len(batch.input_ids), backbone.vocab_size, dtype=torch.bool, device=backbone.device)
    rows, places = batch.own_mask.nonzero(as_tuple=True)
    own[rows, batch.input_ids[rows, places]] = True
    return own
