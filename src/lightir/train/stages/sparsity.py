"""The FLOPS weight found while training: ask for 128 terms a document, not for a λ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PROPORTIONAL = 0.5
"""Share of a change of the error that the weight's logarithm follows at once: what damps the integral part."""

INTEGRAL = 0.03
"""Share of the error that it follows in every step."""

LARGEST_ERROR = 1.0
"""Errors count as at most a factor of e, so that a dense start does not wind the weight up."""

BOUNDS = 1e-4, 1e4
"""The weight stays within these factors of its start."""


class SparsityControl:
    """A proportional-integral controller of a FLOPS weight λ, by the mean number of non-zeros.

    With the error e = ln(non-zeros / target), after each optimizer step ln λ += P (e - e_before) + I e.
    """

    def __init__(self, weight: float, target: int) -> None:
        """Begin with a weight above 0, for a target of at least 1 non-zero."""
        self.start, self.target = weight, target
        self.state = torch.tensor([math.log(weight), math.nan], dtype=torch.float64)
        """ln λ and the last error, NaN before the first: all that a checkpoint needs."""
        self._seen: list[float] = []

    @property
    def weight(self) -> float:
        """λ as it is now."""
        return math.exp(float(self.state[0]))

    def restore(self, state: Tensor) -> None:
        """Take a checkpoint's state."""
        self.state = state.detach().cpu().double().clone()
        self._seen = []

    def observe(self, nonzeros: float) -> None:
        """Note the mean non-zeros of one forward pass."""
        self._seen.append(nonzeros)

    def adjust(self) -> None:
        """Set the weight for the next step, from the mean of what was observed in this one."""
        mean = sum(self._seen) / len(self._seen)
        self._seen = []
        logarithm, before = self.state.tolist()
        error = math.log(max(mean, 0.5) / self.target)  # no non-zeros at all count as half a one
        error = min(max(error, -LARGEST_ERROR), LARGEST_ERROR)
        change = 0.0 if math.isnan(before) else error - before
        low, high = (math.log(self.start * factor) for factor in BOUNDS)
        logarithm = min(max(logarithm + PROPORTIONAL * change + INTEGRAL * error, low), high)
        self.state = torch.tensor([logarithm, error], dtype=torch.float64)
