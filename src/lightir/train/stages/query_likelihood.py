"""The query-likelihood stage, LLM-QL's first: [E] learns to represent the queries that a passage answers.

Each passage is masked at random and framed as `<bos> I1 d I2 [E]`; its query's tokens are predicted through [E] alone.
The ablations predict a passage from its query, which is not masked.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.likelihood import join, log_likelihood, require_generator, sequence_states
from lightir.train.batches.batch_vectors import SHAPE_STEP, framed_queries
from lightir.train.recipes.likelihood_recipe import LikelihoodRecipe
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import mean_over_processes
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.development import Development
from lightir.train.stages.likelihood_loss import masked_passages, own_rows, query_tokens, row_losses
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import ModelStage, build_model

logger = logging.getLogger(__name__)


def train(recipe: LikelihoodRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train [E], write a model folder, from which the contrastive stage can start, and return its path.

    Args:
        recipe: the run's recipe.
        out: model folder to write.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: a data set, or a checkpoint to resume from, is missing.
    """
    return run_stage(recipe, Path(out), QueryLikelihood, resume=resume, device=device)


class QueryLikelihood(ModelStage[LikelihoodRecipe]):
    """The query-likelihood stage: training sets, model and loss."""

    def __init__(self, recipe: LikelihoodRecipe, device: str) -> None:
        """Open and clean the data, and build the model."""
        self.data = StageData(recipe, negatives=None)
        super().__init__(recipe, build_model(recipe, device=device, require=require_generator), device)

    @property
    def texts_per_step(self) -> int:
        """Number of passages of a step."""
        return self.recipe.optimisation.batch_size * self.recipe.optimisation.accumulation

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the loss of batch `number` of the mixture, which also decides what is masked."""
        del step
        batch = self.data.mixture.batch(number)
        with self.autocast():
            parts, monitored = batch_losses(self.retriever, batch, self.recipe, number=number)
        return parts, {**monitored, "dataset": batch.dataset}

    def evaluate(self) -> DevelopmentResult | None:
        """Return the mean log likelihood of a query token after a relevant, unmasked document over the sets."""
        if not self.data.development:
            return None
        with self.autocast():
            per_set = {
                development.name: measure(self.retriever, development, self.recipe)
                for development in self.data.development
            }
        mean = float(np.mean(list(per_set.values())))
        logger.info("development: log likelihood of a query token %.4f", mean)
        return DevelopmentResult(mean, {"mean": {"log_likelihood": mean}, **per_set})

    def records(self) -> dict[str, object]:
        """Return facts about the training data and its decontamination."""
        return self.data.records()


def batch_losses(
    retriever: LightRetriever, batch: TrainingBatch, recipe: LikelihoodRecipe, *, number: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the parts of a batch's loss by name, sums over tokens averaged over all pairs (Eq. 10), and log values.

    Each process computes consecutive pairs; the mean of the processes' gradients is the whole batch's.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process; its queries must divide among the processes.
        recipe: the run's recipe.
        number: number of the forward pass. Seed and number decide what is masked and each pair's direction, for any
            number of processes.

    Raises:
        InvalidInput: the pairs don't divide among the processes.
    """
    own = own_rows(batch)
    framed, targets, from_query = framed_pairs(retriever, batch, recipe, number=number)
    after, before = row_losses(
        retriever,
        framed,
        targets,
        stop=recipe.attention_stop,
        compiled=recipe.model.compile,
        before=recipe.passage_lm_weight > 0,
    )
    by_passage = torch.tensor(from_query, device=after.device)
    totals: dict[str, Tensor] = {}
    monitored: dict[str, float] = {}
    for name, rows, used in (
        ("query", ~by_passage, recipe.direction != "query_to_passage"),
        ("passage", by_passage, recipe.direction != "passage_to_query"),
    ):
        if used:
            totals[name] = torch.where(rows, after, 0.0).sum()
            n_tokens = sum(len(target) for target, row in zip(targets, rows.tolist(), strict=True) if row)
            monitored[f"{name}_token"] = float(mean_over_processes(totals[name].detach(), n_tokens))
    if before is not None and recipe.direction != "query_to_passage":
        totals["passage_lm"] = recipe.passage_lm_weight * torch.where(by_passage, 0.0, before).sum()
    return {name: mean_over_processes(total, len(own)) for name, total in totals.items()}, monitored


def framed_pairs(
    retriever: LightRetriever, batch: TrainingBatch, recipe: LikelihoodRecipe, *, number: int
) -> tuple[list[Framed], list[list[int]], list[bool]]:
    """Return this process's pairs as the model reads them in forward pass `number`.

    A passage in front of [E] is masked; a query in front of [E] is not, as in the authors' code.

    Returns:
        The framed text before [E] of each pair, the tokens to predict after it, and whether the passage is predicted
        from the query.
    """
    own = own_rows(batch)
    queries, documents = [batch.queries[row] for row in own], [batch.documents[row] for row in own]
    seeds = [[recipe.optimisation.seed, 4, number, row] for row in own]
    passages = [document.full_text(recipe.documents.title_joiner) for document in documents]
    masked = masked_passages(retriever, passages, recipe.corruption, seeds=seeds)
    asked = query_tokens(retriever, queries, learn_end=recipe.learn_end)
    plain = framed_queries(retriever, queries, [batch.instructions[row] for row in own])
    end = [retriever.backbone.eos_id] if recipe.learn_end else []
    whole = [[*ids[start:stop], *end] for ids, start, stop in retriever.frame_documents(documents)]
    from_query = [_predicts_passage(recipe, seed) for seed in seeds]
    framed = [plain[i] if swapped else masked[i] for i, swapped in enumerate(from_query)]
    return framed, [whole[i] if swapped else asked[i] for i, swapped in enumerate(from_query)], from_query


def _predicts_passage(recipe: LikelihoodRecipe, seed: Sequence[int]) -> bool:
    """Return whether a pair's passage is predicted from its query: by the recipe, or for "both" by a fair coin."""
    if recipe.direction == "both":
        return bool(np.random.default_rng([*seed, 1]).random() > 0.5)
    return recipe.direction == "query_to_passage"


def measure(retriever: LightRetriever, development: Development, recipe: LikelihoodRecipe) -> float:
    """Return the mean log likelihood of a query token after the query's most relevant document, nothing masked."""
    backbone, size = retriever.backbone, recipe.optimisation.batch_size
    documents = [development.documents[int(row.argmax())] for row in development.grades]
    queries = query_tokens(retriever, [query.text for query in development.queries], learn_end=recipe.learn_end)
    total = 0.0
    for start in range(0, len(queries), size):
        framed = retriever.frame_documents(documents[start : start + size])
        targets = queries[start : start + size]
        pad_to = SHAPE_STEP if recipe.model.compile else 1
        batch = join(framed, targets, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
        states = sequence_states(backbone, batch, stop=recipe.attention_stop)
        total += float(log_likelihood(backbone, states, batch.input_ids, batch.query).sum())
    return total / max(1, sum(map(len, queries)))
