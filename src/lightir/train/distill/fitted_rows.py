"""Rows of a table that is fitted, and the weights that its gate gives them in a query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lightir.query import CachedGate
from lightir.query.gate import LARGEST_SCORE
from lightir.vectors import Floats, Ragged


@dataclass(frozen=True, slots=True)
class FittedRows:
    """Rows of terms, then of pairs of terms, and their gate.

    Attributes:
        rows: (R, dim) float32.
        gate: gate over the R rows; None if all rows of a query weigh the same.
    """

    rows: Floats
    gate: CachedGate | None = None

    def sums(self, queries: Ragged) -> Floats:
        """Return the weighted sums of the queries' rows, (n, dim) float32: their vectors before normalization."""
        weights = None if self.gate is None else torch.from_numpy(entry_weights(self.gate, queries))
        sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(queries.term_ids.astype(np.int64)),
            torch.from_numpy(np.ascontiguousarray(self.rows, dtype=np.float32)),
            torch.from_numpy(queries.indptr[:-1]),
            mode="sum",
            per_sample_weights=weights,
        )
        return np.asarray(sums.numpy(), dtype=np.float32)

    def with_zeros(self, n: int) -> FittedRows:
        """Return the rows with n rows of zeros added, whose weight is 1 in a gate."""
        rows = np.concatenate([self.rows, np.zeros((n, self.rows.shape[1]), dtype=np.float32)])
        if self.gate is None:
            return FittedRows(rows)
        more = np.zeros((n, self.gate.keys.shape[1]), dtype=self.gate.keys.dtype)
        both = (np.concatenate([array, more]) for array in (self.gate.keys, self.gate.values))
        return FittedRows(rows, CachedGate(*both))

    def mixed(self, other: FittedRows, share: float) -> FittedRows:
        """Return (1 - share) times these rows and gate plus share times another table's, which was fitted from them.

        A gate that only the other one has keeps its values, and its keys, which start at 0, are scaled.
        """
        rows = _between(self.rows, other.rows, share)
        if other.gate is None:
            return FittedRows(rows)
        gate = CachedGate(np.zeros_like(other.gate.keys), other.gate.values) if self.gate is None else self.gate
        keys = _between(gate.keys, other.gate.keys, share)
        return FittedRows(rows, CachedGate(keys, _between(gate.values, other.gate.values, share)))


def _between(one: npt.NDArray[np.floating], other: npt.NDArray[np.floating], share: float) -> Floats:
    first, second = one.astype(np.float32), other.astype(np.float32)
    return np.asarray(first + np.float32(share) * (second - first), dtype=np.float32)


def entry_weights(gate: CachedGate, queries: Ragged) -> Floats:
    """Return the gate's weight of each entry of `queries.term_ids`, float32; see `CachedGate`."""
    keys, values = (torch.from_numpy(array.astype(np.float32)) for array in (gate.keys, gate.values))
    rows, offsets = torch.from_numpy(queries.term_ids.astype(np.int64)), torch.from_numpy(queries.indptr[:-1])
    text = torch.from_numpy(np.repeat(np.arange(len(queries)), queries.lengths))
    return np.asarray(gate_weights(keys, values, rows, offsets, text).numpy(), dtype=np.float32)


def gate_weights(
    keys: torch.Tensor, values: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor, text: torch.Tensor
) -> torch.Tensor:
    """Return exp(clip(keys[row] . mean of the values of its text's rows)) for each entry.

    Args:
        keys: (R, G) keys of the gate.
        values: (R, G) its values.
        rows: (entries,) rows of all texts, one text after the other.
        offsets: (texts,) first entry of each text.
        text: (entries,) text of each entry.
    """
    bag = torch.nn.functional.embedding_bag
    contexts = bag(rows, values, offsets, mode="mean", sparse=values.requires_grad)
    own = torch.nn.functional.embedding(rows, keys, sparse=keys.requires_grad)
    scores = (own * contexts[text]).sum(1)
    return scores.clamp(-LARGEST_SCORE, LARGEST_SCORE).exp()
