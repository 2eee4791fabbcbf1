"""The gate of a query table: weights of a query's rows that depend on the other rows of the query."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.contract import hash_arrays
from lightir.errors import InvalidInput
from lightir.vectors import IntArray

LARGEST_SCORE = 6.0
"""Scores beyond this magnitude count as this one: weights are between exp(-6) and exp(6)."""


@dataclass(frozen=True, slots=True)
class CachedGate:
    """Two short vectors per row, from which a query's rows get their weights.

    Row i of a query has the weight exp(keys[i] . c), where c is the mean of the values of the query's rows, repeats
    included. The dense query is the sum of the weighted rows, normalized to length 1.

    Attributes:
        keys: (n_rows, G) float16 or float32; the rows of the table first, then those of its bigrams.
        values: array of the shape and dtype of keys.
    """

    keys: npt.NDArray[np.float16] | npt.NDArray[np.float32]
    values: npt.NDArray[np.float16] | npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        for name, array in (("keys", self.keys), ("values", self.values)):
            if array.ndim != 2 or array.dtype not in (np.float16, np.float32) or array.shape[1] == 0:
                raise InvalidInput(
                    f"the gate's {name} are {array.dtype} of shape {array.shape}; expected float16 or float32 of "
                    "2 dimensions with at least one column"
                )
        if self.keys.shape != self.values.shape or self.keys.dtype != self.values.dtype:
            raise InvalidInput(
                f"the gate's keys are {self.keys.dtype} of shape {self.keys.shape}, but its values {self.values.dtype} "
                f"of shape {self.values.shape}; both must be the same"
            )
        if not (np.isfinite(self.keys).all() and np.isfinite(self.values).all()):
            raise InvalidInput("the gate holds NaN or infinity")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    @property
    def hash(self) -> str:
        """Hash of keys and values: 16 hexadecimal digits."""
        return hash_arrays(self.keys, self.values)

    def weights(self, rows: IntArray) -> npt.NDArray[np.float64]:
        """Return the weights of one query's rows: (n,) float64.

        Args:
            rows: (n,) row numbers, repeats included; a bigram's row is counted from the end of the table's.
        """
        if not len(rows):
            return np.zeros(0)
        context = self.values[rows].astype(np.float64).mean(axis=0)
        scores = self.keys[rows].astype(np.float64) @ context
        return np.asarray(np.exp(np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE)), dtype=np.float64)
