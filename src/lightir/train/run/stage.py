"""What a stage of training is to the loop: a recipe, parameters, losses, measures and a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from lightir.models.encoder import LightRetriever
from lightir.train.recipes.settings import Optimisation


class Every(Protocol):
    """What the loop reads of a recipe's evaluation."""

    @property
    def every(self) -> int:
        """Optimizer steps between two evaluations; 0 evaluates at the end alone."""


class StageRecipe(Protocol):
    """What the loop reads of any stage's recipe."""

    @property
    def optimisation(self) -> Optimisation:
        """Steps, batches, learning rate."""

    @property
    def evaluation(self) -> Every:
        """When to measure."""

    @property
    def checkpoint_every(self) -> int:
        """Optimizer steps between two checkpoints."""


@dataclass(frozen=True, slots=True)
class DevelopmentResult:
    """What a stage found on its development sets.

    Attributes:
        score: what decides which state is kept; higher is better.
        report: for the log.
    """

    score: float
    report: Mapping[str, Any]


class Stage(Protocol):
    """What a stage brings to the loop: what it trains, its loss, and how its model is written."""

    @property
    def retriever(self) -> LightRetriever:
        """The model; its contract names the backbone that it began with."""

    @property
    def trunk(self) -> nn.Module:
        """The module that is switched between training and evaluation."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """What is trained, by name; the order decides the optimizer's."""

    @property
    def fixed(self) -> Mapping[str, Tensor]:
        """Further tensors that a checkpoint has to hold."""

    @property
    def texts_per_step(self) -> int:
        """Documents that one optimizer step sees."""

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Take the fixed tensors of a checkpoint."""

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weighted parts of the loss of forward pass `number` (from 0, over all steps), and what to log."""

    def evaluate(self) -> DevelopmentResult | None:
        """Measures on the development sets; None without any. The trunk is in evaluation mode, without gradients."""

    def save(self, folder: Path) -> None:
        """Write the model folder with the parameters as they are."""

    def records(self) -> Mapping[str, object]:
        """What the folder `training` of the model shall tell, as JSON by file name."""
