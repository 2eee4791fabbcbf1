"""The interface between a training stage and the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from lightir.models.encoder import LightRetriever


@dataclass(frozen=True, slots=True)
class DevelopmentResult:
    """A stage's result on its development sets.

    Attributes:
        score: number that selects the saved state; higher is better.
        report: measures for the log.
    """

    score: float
    report: Mapping[str, Any]


class Stage(Protocol):
    """A training stage: the parameters it trains, its loss, and how its model is written."""

    @property
    def retriever(self) -> LightRetriever:
        """The model; its contract names the backbone that it started with."""

    @property
    def trunk(self) -> nn.Module:
        """The module that switches between training and evaluation."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Trained tensors by name; their order is the optimizer's."""

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Further tensors that a checkpoint stores."""

    @property
    def texts_per_step(self) -> int:
        """Number of documents in an optimizer step."""

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Restore the `fixed` tensors of a checkpoint."""

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the weighted parts of the loss of forward pass `number` (from 0, over all steps), and log values."""

    def evaluate(self) -> DevelopmentResult | None:
        """Measure the development sets, with the trunk in evaluation mode and without gradients; None without sets."""

    def complete(self) -> None:
        """Compute what the saved model needs beside its weights; all processes call this, in evaluation mode."""

    def save(self, folder: Path) -> None:
        """Write the model folder with the present parameters."""

    def records(self) -> Mapping[str, object]:
        """Return the contents of the model's folder `training`, JSON values by file name."""
