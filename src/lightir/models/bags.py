"""Bags of terms as tensors: means, counts and masks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lightir.models.backbones import Backbone
from lightir.models.framing import TextBatch
from lightir.vectors import Ragged


def token_means(term_ids: Ragged) -> tuple[Tensor, Tensor]:
    """Return the distinct token ids (m,) int64, and (n, m) float32 weights that mix their rows to each query's mean."""
    unique, inverse = np.unique(term_ids.term_ids, return_inverse=True)
    mixing = np.zeros((len(term_ids), len(unique)), dtype=np.float32)
    row_of = np.repeat(np.arange(len(term_ids)), term_ids.lengths)
    np.add.at(mixing, (row_of, inverse), (1 / np.maximum(term_ids.lengths, 1))[row_of].astype(np.float32))
    return torch.from_numpy(unique.astype(np.int64)), torch.from_numpy(mixing)


def mix_rows(mixing: Tensor, rows: Tensor) -> Tensor:
    """Return the (n, H) product of `token_means` weights with rows (m, H), in the rows' dtype also under autocast."""
    with torch.autocast(rows.device.type, enabled=False):
        return mixing.to(rows) @ rows


def count_terms(term_ids: Ragged, backbone: Backbone, terms: Tensor | None = None) -> Tensor:
    """Return how often each term occurs in each text: (B, V) float32, or (B, n) for the ids in `terms`, (n,) int64."""
    counts = torch.zeros(len(term_ids), backbone.vocab_size, device=backbone.device)
    rows = np.repeat(np.arange(len(term_ids)), term_ids.lengths)
    index = tuple(torch.from_numpy(ids.astype(np.int64)).to(counts.device) for ids in (rows, term_ids.term_ids))
    counts.index_put_(index, torch.ones(len(rows), device=counts.device), accumulate=True)
    return counts if terms is None else counts[:, terms]


def terms_present(batch: TextBatch, backbone: Backbone) -> Tensor:
    """Return a (B, V) bool mask of the terms that occur in each text."""
    own = torch.zeros(len(batch.input_ids), backbone.vocab_size, dtype=torch.bool, device=backbone.device)
    rows, positions = batch.own_mask.nonzero(as_tuple=True)
    own[rows, batch.input_ids[rows, positions]] = True
    return own
