"""Settings of the fit of a query table, which are checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from lightir.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Settings of the fit of a query table.

    Attributes:
        ridge: weight that holds the ridge regression at its start; about ridge x (query length)^2 occurrences outweigh
            it.
        ridge_iterations: number of conjugate-gradient steps.
        steps: number of KL steps; 0 stops after the ridge regression.
        batch_size: queries per step.
        candidates: documents scored per step, drawn anew in each step; 0 scores the whole corpus.
        temperature: temperature of both softmaxes.
        learning_rate: peak learning rate; it falls to zero along a cosine.
        contrastive: weight of InfoNCE for the queries with labels.
        bigrams: maximum number of rows for the most frequent pairs of terms in the queries, beside the terms' rows.
        seed: seed of batches and candidates.
    """

    ridge: float = 0.03
    ridge_iterations: int = 40
    steps: int = 300
    batch_size: int = 256
    candidates: int = 4096
    temperature: float = 0.05
    learning_rate: float = 5e-3
    contrastive: float = 0.5
    bigrams: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ridge", "temperature", "learning_rate"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected above 0")
        for name in ("ridge_iterations", "steps", "candidates", "contrastive", "bigrams", "seed"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}; expected 1 or more")
