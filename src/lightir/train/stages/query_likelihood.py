"""The query-likelihood stage, LLM-QL's first: [E] learns to represent the queries that a passage answers.

Each passage is masked at random and framed as `<bos> I1 d I2 [E]`; its query's tokens are predicted through [E] alone.
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
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.likelihood import (
    corrupt_tokens,
    corrupt_words,
    join,
    log_likelihood,
    require_generator,
    sequence_states,
)
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import SHAPE_STEP, framed_queries
from lightir.train.recipes.likelihood_recipe import LikelihoodRecipe
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import mean_over_processes, rank, world_size
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.development import Development
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
    return run_stage(recipe, Path(out), lambda device: QueryLikelihood(recipe, device), resume=resume, device=device)


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
    """Return the parts of a batch's loss by name, means over its pairs of sums over tokens (Eq. 10), and log values.

    Each process computes consecutive pairs; the mean of the processes' gradients is the whole batch's.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process; its queries must divide among the processes.
        recipe: the run's recipe.
        number: number of the forward pass. Seed and number decide what is masked, for any number of processes.

    Raises:
        InvalidInput: the pairs don't divide among the processes.
    """
    n, processes = len(batch.queries), world_size()
    if n % processes:
        raise InvalidInput(f"a batch of {n} queries does not divide among {processes} processes; change batch_size")
    own = range(rank() * n // processes, (rank() + 1) * n // processes)
    queries, documents = [batch.queries[i] for i in own], [batch.documents[i] for i in own]
    joiner = recipe.documents.title_joiner
    passages = [document.full_text(joiner) for document in documents]
    seeds = [[recipe.optimisation.seed, 4, number, row] for row in own]
    parts: dict[str, Tensor] = {}
    monitored: dict[str, float] = {}
    if recipe.direction != "query_to_passage":
        framed = masked_texts(retriever, passages, recipe, seeds=seeds)
        targets = query_tokens(retriever, queries, recipe)
        after, before = _losses(retriever, framed, targets, recipe)
        parts |= {"query": after} | ({"passage_lm": before} if before is not None else {})
        monitored["query_token"] = per_token(after, targets)
    if recipe.direction != "passage_to_query":
        instructions = [batch.instructions[i] for i in own]
        query_seeds = [[*seed, 1] for seed in seeds]
        framed = masked_texts(retriever, queries, recipe, seeds=query_seeds, instructions=instructions)
        targets = [ids[start:stop] for ids, start, stop in retriever.frame_documents(documents)]
        after, before = _losses(retriever, framed, targets, recipe)
        parts |= {"passage": after} | ({"query_lm": before} if before is not None else {})
        monitored["passage_token"] = per_token(after, targets)
    return {name: mean_over_processes(part * len(own), len(own)) for name, part in parts.items()}, monitored


def per_token(mean: Tensor, targets: Sequence[Sequence[int]]) -> float:
    """Convert a mean over this process's pairs to the mean over all processes' tokens."""
    return float(mean_over_processes(mean.detach() * len(targets), sum(map(len, targets))))


def masked_texts(
    retriever: LightRetriever,
    texts: Sequence[str],
    recipe: LikelihoodRecipe,
    *,
    seeds: Sequence[Sequence[int]],
    instructions: Sequence[str] | None = None,
) -> list[Framed]:
    """Mask texts and frame them: as queries with one instruction each, as documents without instructions.

    Raises:
        InvalidInput: the unit is the token and the mask is not one token.
    """

    def frame(texts: Sequence[str]) -> list[Framed]:
        if instructions is None:
            return retriever.frame_documents(texts)
        return framed_queries(retriever, texts, instructions)

    corruption = recipe.corruption
    ratio, generators = corruption.ratio, [np.random.default_rng(seed) for seed in seeds]
    pairs = zip(texts, generators, strict=True)
    if corruption.unit == "word":
        return frame([corrupt_words(text, ratio=ratio, mask=corruption.mask, rng=rng) for text, rng in pairs])
    mask = retriever.backbone.tokenizer.term_ids([corruption.mask]).row(0).tolist()
    if len(mask) != 1:
        raise InvalidInput(
            f"corruption.mask {corruption.mask!r} is {len(mask)} tokens; expected one, to replace a token"
        )
    return [
        corrupt_tokens(framed, ratio=ratio, mask_id=mask[0], rng=rng)
        for framed, rng in zip(frame(texts), generators, strict=True)
    ]


def query_tokens(retriever: LightRetriever, queries: Sequence[str], recipe: LikelihoodRecipe) -> list[list[int]]:
    """Return the tokens to predict of each query: its own, and the end token if the recipe learns it."""
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    end = [retriever.backbone.eos_id] if recipe.learn_end else []
    return [[*term_ids.row(row).tolist(), *end] for row in range(len(queries))]


def _losses(
    retriever: LightRetriever, framed: Sequence[Framed], targets: Sequence[Sequence[int]], recipe: LikelihoodRecipe
) -> tuple[Tensor, Tensor | None]:
    """Return -Σ log p of the tokens after [E], and the weighted one of the text before it (None without a weight)."""
    backbone = retriever.backbone
    pad_to = SHAPE_STEP if recipe.model.compile else 1
    batch = join(framed, targets, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
    states = sequence_states(backbone, batch, stop=recipe.attention_stop)
    after = -log_likelihood(backbone, states, batch.input_ids, batch.query).mean()
    if not recipe.passage_lm_weight:
        return after, None
    first = torch.zeros_like(batch.passage)
    first[:, 0] = True  # no state predicts it if the frame begins without a prompt
    before = -log_likelihood(backbone, states, batch.input_ids, batch.passage & ~first).mean()
    return after, recipe.passage_lm_weight * before


def measure(retriever: LightRetriever, development: Development, recipe: LikelihoodRecipe) -> float:
    """Return the mean log likelihood of a query token after the query's most relevant document, nothing masked."""
    backbone, size = retriever.backbone, recipe.optimisation.batch_size
    documents = [development.documents[int(row.argmax())] for row in development.grades]
    queries = query_tokens(retriever, [query.text for query in development.queries], recipe)
    total = 0.0
    for start in range(0, len(queries), size):
        framed = retriever.frame_documents(documents[start : start + size])
        targets = queries[start : start + size]
        pad_to = SHAPE_STEP if recipe.model.compile else 1
        batch = join(framed, targets, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
        states = sequence_states(backbone, batch, stop=recipe.attention_stop)
        total += float(log_likelihood(backbone, states, batch.input_ids, batch.query).sum())
    return total / max(1, sum(map(len, queries)))
