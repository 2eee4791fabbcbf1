"""LLM-QL's query likelihood of a batch (Eq. 10), for its own stage and for one that also trains contrastively."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.likelihood import corrupt_tokens, corrupt_words, join, log_likelihood, sequence_states
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import SHAPE_STEP
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.likelihood_recipe import CorruptionRecipe
from lightir.train.run.processes import mean_over_processes, rank, world_size


def own_rows(batch: TrainingBatch) -> range:
    """Return the rows of the pairs that this process computes.

    Raises:
        InvalidInput: the pairs don't divide among the processes.
    """
    n, processes = len(batch.queries), world_size()
    if n % processes:
        raise InvalidInput(f"a batch of {n} queries does not divide among {processes} processes; change batch_size")
    return range(rank() * n // processes, (rank() + 1) * n // processes)


def masked_passages(
    retriever: LightRetriever, passages: Sequence[str], corruption: CorruptionRecipe, *, seeds: Sequence[Sequence[int]]
) -> list[Framed]:
    """Mask passages and frame them as documents.

    Args:
        retriever: the model.
        passages: titles with texts.
        corruption: ratio, unit and mask.
        seeds: seed of each passage's mask.

    Raises:
        InvalidInput: the unit is the token and the mask is not one token.
    """
    ratio, generators = corruption.ratio, [np.random.default_rng(seed) for seed in seeds]
    if corruption.unit == "word":
        pairs = zip(passages, generators, strict=True)
        masked = [corrupt_words(text, ratio=ratio, mask=corruption.mask, rng=rng) for text, rng in pairs]
        return retriever.frame_documents(masked)
    mask = retriever.backbone.tokenizer.term_ids([corruption.mask]).row(0).tolist()
    if len(mask) != 1:
        raise InvalidInput(
            f"corruption.mask {corruption.mask!r} is {len(mask)} tokens; expected one, to replace a token"
        )
    return [
        corrupt_tokens(framed, ratio=ratio, mask_id=mask[0], rng=rng)
        for framed, rng in zip(retriever.frame_documents(passages), generators, strict=True)
    ]


def query_tokens(retriever: LightRetriever, queries: Sequence[str], *, learn_end: bool) -> list[list[int]]:
    """Return the tokens to predict of each query: its own, and the end token if it is learned."""
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    end = [retriever.backbone.eos_id] if learn_end else []
    return [[*term_ids.row(row).tolist(), *end] for row in range(len(queries))]


def row_losses(
    retriever: LightRetriever,
    framed: Sequence[Framed],
    targets: Sequence[Sequence[int]],
    *,
    stop: bool,
    compiled: bool = False,
    before: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return -Σ log p of each row's tokens after [E], and of its own text's tokens before [E]: (B,) each.

    Args:
        retriever: the model.
        framed: the texts before [E], in frames that end in [E].
        targets: tokens to predict after [E].
        stop: attention stop: tokens after [E] see nothing before [E].
        compiled: pad to few shapes.
        before: also score the framed text; None is returned without.
    """
    backbone = retriever.backbone
    pad_to = SHAPE_STEP if compiled else 1
    batch = join(framed, targets, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
    states = sequence_states(backbone, batch, stop=stop)
    after = -log_likelihood(backbone, states, batch.input_ids, batch.query)
    if not before:
        return after, None
    first = torch.zeros_like(batch.passage)
    first[:, 0] = True  # no state predicts it if the frame begins without a prompt
    return after, -log_likelihood(backbone, states, batch.input_ids, batch.passage & ~first)


def joint_loss(
    retriever: LightRetriever, batch: TrainingBatch, recipe: ContrastiveRecipe, *, number: int
) -> tuple[Tensor, dict[str, float]]:
    """Return the weighted query likelihood of a contrastive batch's queries after their positives, and log values.

    The mean over pairs of Eq. 10, for one-stage training (LLM-QL, section 4.2: the sum of both losses). Each process
    computes consecutive pairs.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process.
        recipe: the run's recipe.
        number: number of the forward pass. Seed and number decide what is masked, for any number of processes.
    """
    settings, own = recipe.likelihood, own_rows(batch)
    passages = [batch.documents[row].full_text(recipe.documents.title_joiner) for row in own]
    seeds = [[recipe.optimisation.seed, 5, number, row] for row in own]
    framed = masked_passages(retriever, passages, settings.corruption, seeds=seeds)
    targets = query_tokens(retriever, [batch.queries[row] for row in own], learn_end=settings.learn_end)
    after, _ = row_losses(retriever, framed, targets, stop=settings.attention_stop, compiled=recipe.model.compile)
    token = mean_over_processes(after.detach().sum(), sum(map(len, targets)))
    return settings.weight * mean_over_processes(after.sum(), len(own)), {"query_token": float(token)}
