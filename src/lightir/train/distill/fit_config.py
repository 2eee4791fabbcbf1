"""Settings of the fit of a query table, which are checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lightir.errors import InvalidInput

STORED_TEMPERATURE = 0.1
"""Default temperature of the fit to stored vectors alone, chosen on development queries of nfcorpus and scifact."""


@dataclass(frozen=True, slots=True)
class FitConfig:
    """Settings of the fit of a query table.

    Attributes:
        ridge: weight that holds the ridge regression at its start; about ridge x (query length)^2 occurrences outweigh
            it.
        ridge_iterations: number of conjugate-gradient steps; 0 leaves a fitted start as it is.
        steps: number of KL steps; 0 stops after the ridge regression.
        batch_size: queries per step.
        candidates: documents scored per step, drawn anew in each step; 0 scores the whole corpus.
        temperature: temperature of both softmaxes.
        learning_rate: peak learning rate; it falls to zero along a cosine.
        candidates_from: source of the texts that both rank: the corpora's "documents", or other "queries" of the fit,
            which need no corpus.
        cosine: weight of 1 - cosine between the table's and the teacher's vector of a query, beside the KL divergence.
        contrastive: weight of InfoNCE for the queries with labels.
        bigrams: maximum number of rows for pairs of adjacent terms, beside the terms' rows; those pairs for which the
            terms' rows alone err most.
        gate: number of columns of a gate, which weights a query's rows by one another (`lightir.query.CachedGate`); 0
            for none, or for that of the start.
        gate_learning_rate: peak learning rate of the gate.
        seed: seed of batches and candidates.
    """

    ridge: float = 0.03
    ridge_iterations: int = 40
    steps: int = 300
    batch_size: int = 256
    candidates: int = 4096
    temperature: float = 0.05
    learning_rate: float = 5e-3
    candidates_from: Literal["documents", "queries"] = "documents"
    cosine: float = 0.0
    contrastive: float = 0.5
    bigrams: int = 0
    gate: int = 0
    gate_learning_rate: float = 2e-3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ridge", "temperature", "learning_rate", "gate_learning_rate"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected above 0")
        for name in ("ridge_iterations", "steps", "candidates", "cosine", "contrastive", "bigrams", "gate", "seed"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.candidates_from not in ("documents", "queries"):
            raise InvalidInput(f'candidates_from is {self.candidates_from!r}; expected "documents" or "queries"')
        if self.batch_size < 1:
            raise InvalidInput(f"batch_size is {self.batch_size}; expected 1 or more")
