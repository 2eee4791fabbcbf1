"""A controller of the FLOPS weight: the recipe gives a number of terms per document instead of a λ."""

from __future__ import annotations

import math

import torch
from torch import Tensor

PROPORTIONAL = 0.5
"""Gain on the change of the error, which damps the integral part."""

INTEGRAL = 0.03
"""Gain on the error in every step."""

LARGEST_ERROR = 1.0
"""Errors are clipped to a factor of e, so that a dense start does not wind up the weight."""

BOUNDS = 1e-4, 1e4
"""The weight stays within these factors of its start."""


class SparsityControl:
    """A proportional-integral controller of a FLOPS weight λ, by the mean number of non-zeros.

    With the error e = ln(non-zeros / target), after each optimizer step ln λ += P (e - e_before) + I e.
    """

    def __init__(self, weight: float, target: int) -> None:
        """Start with a weight above 0, for a target of at least 1 non-zero."""
        self.start, self.target = weight, target
        self.state = torch.tensor([math.log(weight), math.nan], dtype=torch.float64)
        """ln λ and the last error, NaN before the first: the state that a checkpoint stores."""
        self._seen: list[float] = []

    @property
    def weight(self) -> float:
        """The present λ."""
        return math.exp(float(self.state[0]))

    def restore(self, state: Tensor) -> None:
        """Restore a checkpoint's state."""
        self.state = state.detach().cpu().double().clone()
        self._seen = []

    def observe(self, nonzeros: float) -> None:
        """Record the mean non-zeros of one forward pass."""
        self._seen.append(nonzeros)

    def adjust(self) -> None:
        """Set the weight for the next step from the mean of this step's observations."""
        mean = sum(self._seen) / len(self._seen)
        self._seen = []
        logarithm, before = self.state.tolist()
        error = math.log(max(mean, 0.5) / self.target)  # zero non-zeros count as 0.5
        error = min(max(error, -LARGEST_ERROR), LARGEST_ERROR)
        change = 0.0 if math.isnan(before) else error - before
        low, high = (math.log(self.start * factor) for factor in BOUNDS)
        logarithm = min(max(logarithm + PROPORTIONAL * change + INTEGRAL * error, low), high)
        self.state = torch.tensor([logarithm, error], dtype=torch.float64)
