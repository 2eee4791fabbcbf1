"""One batch's loss: dense and sparse in one document forward, the queries full and light, over all processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.data import Batch as DataBatch
from lightir.errors import InvalidInput
from lightir.models.bags import token_means
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Batch, Framed
from lightir.models.losses import (
    alignment_kl,
    flops,
    flops_ramp,
    gather,
    info_nce,
    margin_mse,
    matryoshka,
    mean_pairwise_cosine,
    rank,
    score_kl,
    similarity,
    world_size,
)
from lightir.models.masks import BLOCKS_PER_ROW
from lightir.text import query_term_ids, sparse_queries
from lightir.train.gradient_cache import Vectors, in_pieces
from lightir.train.packing import states_without_padding
from lightir.train.recipe import Recipe
from lightir.train.settings import packed_attention
from lightir.train.teacher import Teacher
from lightir.types import Document

SHAPE_STEP = 48
"""Compiled layers meet query lengths that are multiples of this: each new shape costs seconds of compilation."""

LIGHT_TOKENS_STEP = 256
"""The same for the distinct tokens of a batch's light queries."""


WATCHED = 64
"""Documents whose sparse vectors' mean cosine is logged where there are no dense ones: they are wide."""


def batch_losses(
    retriever: LightRetriever, batch: DataBatch, recipe: Recipe, *, step: int, teacher: Teacher | None = None
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The weighted parts of a batch's loss, by name, and what is worth watching.

    Each process encodes its share of the queries with their documents; the vectors are gathered with their gradients,
    so that every process has the loss of the whole batch.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process; its queries must divide among the processes.
        recipe: losses, query policy and documents are read.
        step: optimizer steps done, for the FLOPS ramp and the sample of terms.
        teacher: whose scores the full encoder learns from.
    """
    losses, device = recipe.losses, retriever.backbone.device
    share = share_of(batch, process=rank(), processes=world_size())
    terms = None
    if max(losses.sparse, losses.symmetric_sparse, losses.flops) > 0:
        terms = batch_terms(retriever, batch, recipe, step=step)
    dense, sparse = _document_vectors(retriever, share.documents, recipe, terms)
    candidates = Candidates(
        None if dense is None else gather(dense),
        torch.from_numpy(share.positives).to(device),
        torch.from_numpy(share.excluded).to(device),
        _given_scores(share, recipe, device),
    )
    full, weights = _full_query_vectors(retriever, share, recipe)
    parts, full_scores = _dense_losses(retriever, share, recipe, candidates, full)
    if teacher is not None and full_scores is not None:
        scores = gather(teacher.queries(share.queries)) @ gather(teacher.documents(share.documents)).T
        kl = alignment_kl(full_scores, scores / recipe.teacher.temperature, excluded=candidates.excluded)
        parts["teacher"] = recipe.teacher.weight * kl
    monitored = {} if candidates.dense is None else {"cosine": mean_pairwise_cosine(candidates.dense)}
    if sparse is not None and terms is not None:
        sparse = gather(sparse)
        parts |= _sparse_losses(retriever, batch, recipe, sparse, terms, candidates, full_scores, step=step)
        monitored["nonzeros"] = nonzeros(sparse[:, terms.sample]) * terms.factor
        monitored["dead"] = dead_share(sparse[:, terms.sample])
        if weights is not None:
            weights = gather(weights)
            parts |= _symmetric_sparse_losses(weights, sparse, recipe, candidates, step=step)
            monitored["query_nonzeros"] = nonzeros(weights)
        if candidates.dense is None:
            monitored["cosine"] = mean_pairwise_cosine(sparse[:WATCHED])
    return parts, monitored


def nonzeros(weights: Tensor) -> float:
    """Mean number of terms above zero in a row."""
    return float((weights.detach() > 0).sum(1).float().mean())


def dead_share(weights: Tensor) -> float:
    """Share of the terms that no row gives a weight; at 1, CSplade's dying ReLU (section 3.1), no gradient is left."""
    return float((weights.detach() <= 0).all(0).float().mean())


@dataclass(frozen=True, slots=True)
class Candidates:
    """The documents of the whole batch, D of them, which each of its n queries scores.

    Attributes:
        dense: (D, H) pooled vectors, not yet normalised; None without a dense branch.
        positives: (n,) int64, each query's own.
        excluded: (n, D) bool, left out of a query's softmax.
        scores: (n, D) a teacher's scores that came with the data, divided by their temperature, NaN where there are
            none; None where they are not learned from.
    """

    dense: Tensor | None
    positives: Tensor
    excluded: Tensor
    scores: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The vocabulary terms that a batch's documents are projected on.

    Attributes:
        ids: (m,) int64, or None for the whole vocabulary in its order.
        queries: positions among these terms of those that the batch's queries hold.
        sample: the span of these terms that FLOPS and the count of non-zeros are taken over.
        factor: vocabulary size / size of the sample.
    """

    ids: Tensor | None
    queries: Tensor
    sample: slice
    factor: float


def batch_terms(retriever: LightRetriever, batch: DataBatch, recipe: Recipe, *, step: int) -> Terms:
    """All terms, or the queries' and a sample drawn from seed and step, the same on every process."""
    device, vocab_size = retriever.backbone.device, retriever.backbone.vocab_size
    rows = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, batch.queries)
    used = np.unique(rows.term_ids).astype(np.int64)
    wanted = recipe.losses.sparse_terms
    if wanted == 0 or wanted >= vocab_size:
        return Terms(None, torch.from_numpy(used).to(device), slice(0, vocab_size), 1.0)
    generator = np.random.default_rng([recipe.optimisation.seed, 3, step])
    drawn = generator.choice(vocab_size, wanted, replace=False)
    ids = torch.from_numpy(np.concatenate([used, drawn])).to(device)
    return Terms(ids, torch.arange(len(used), device=device), slice(len(used), None), vocab_size / wanted)


def _document_vectors(
    retriever: LightRetriever, documents: Sequence[Document], recipe: Recipe, terms: Terms | None
) -> Vectors:
    """Dense and sparse vectors of this process's documents, as far as there are branches."""

    def encode(framed: Sequence[Framed]) -> Vectors:
        length = retriever.contract.document.max_tokens if recipe.model.compile else None
        batch = retriever.batch(framed, length=length)
        return retriever.document_vectors(
            batch,
            states=_packed_states(retriever, batch, recipe),
            dense=retriever.contract.dense is not None,
            sparse=terms is not None,
            terms=None if terms is None else terms.ids,
            straight_through=recipe.heads.straight_through,
        )

    return in_pieces(encode, retriever.frame_documents(documents), size=recipe.optimisation.gradient_cache)


def _packed_states(retriever: LightRetriever, batch: Batch, recipe: Recipe) -> Tensor | None:
    """The batch's last hidden states, computed in rows that texts share; None where the recipe pads."""
    if not recipe.optimisation.packed_tokens:
        return None
    attention = packed_attention(recipe.optimisation, recipe.model)
    row = recipe.optimisation.packed_tokens
    return states_without_padding(retriever.backbone, batch, length=row, attention=attention)


def _full_query_vectors(retriever: LightRetriever, share: Share, recipe: Recipe) -> Vectors:
    """Dense and sparse vectors of this process's queries through the whole model; None where no loss wants them."""
    dense, sparse = recipe.losses.symmetric > 0, recipe.losses.symmetric_sparse > 0
    if not (dense or sparse):
        return None, None

    def encode(framed: Sequence[Framed]) -> Vectors:
        states, batch = full_query_states(retriever, framed, recipe)
        soft = recipe.heads.straight_through
        return (
            retriever.dense_from(states, batch) if dense else None,
            retriever.sparse_from(states, batch, straight_through=soft) if sparse else None,
        )

    framed = framed_queries(retriever, share.queries, share.instructions)
    return in_pieces(encode, framed, size=recipe.optimisation.gradient_cache)


def _light_query_vectors(retriever: LightRetriever, share: Share, recipe: Recipe) -> Tensor:
    """(n, H) means of token vectors; each distinct token behind an instruction is encoded once."""
    groups = by_instruction(share.instructions)
    blocks = [
        _light_vectors(retriever, [share.queries[row] for row in rows], instruction, recipe)
        for instruction, rows in groups.items()
    ]
    order = torch.tensor([row for rows in groups.values() for row in rows], device=blocks[0].device)
    return torch.cat(blocks)[order.argsort()]


def _light_vectors(retriever: LightRetriever, queries: Sequence[str], instruction: str, recipe: Recipe) -> Tensor:
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    pad_to = LIGHT_TOKENS_STEP if recipe.model.compile else 1
    tokens, mixing = token_means(term_ids)

    def encode(some: Tensor) -> Vectors:
        return (retriever.token_vectors(some, instruction=instruction, pad_to=pad_to),)

    (rows,) = in_pieces(encode, tokens, size=recipe.optimisation.gradient_cache * BLOCKS_PER_ROW)
    assert rows is not None  # token_vectors gives a tensor
    return mixing.to(rows) @ rows


def _dense_losses(
    retriever: LightRetriever,
    share: Share,
    recipe: Recipe,
    candidates: Candidates,
    full: Tensor | None,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Symmetric, light and alignment losses; and the full encoder's scaled scores (n, D), None without it."""
    losses, dense = recipe.losses, candidates.dense
    if dense is None:
        return {}, None
    dims = (dense.shape[1], *losses.dims)
    parts: dict[str, Tensor] = {}
    full_scores = None

    def contrast(queries: Tensor, documents: Tensor) -> Tensor:
        return info_nce(
            queries @ documents.T,
            candidates.positives,
            temperature=losses.temperature,
            excluded=candidates.excluded,
        )

    def scaled_scores(queries: Tensor) -> Tensor:
        return F.normalize(queries, dim=-1) @ F.normalize(dense, dim=-1).T / losses.temperature

    if full is not None:
        full = gather(full)
        parts["symmetric"] = losses.symmetric * losses.contrast * matryoshka(contrast, full, dense, dims=dims)
        full_scores = scaled_scores(full)
        parts |= _distilled("symmetric", full_scores, recipe, candidates)
    if losses.dense > 0:
        light = gather(_light_query_vectors(retriever, share, recipe))
        parts["dense"] = losses.dense * losses.contrast * matryoshka(contrast, light, dense, dims=dims)
        parts |= _distilled("dense", scaled_scores(light), recipe, candidates)
        if losses.dense_alignment > 0 and full_scores is not None:
            alignment = alignment_kl(scaled_scores(light), full_scores, excluded=candidates.excluded)
            parts["dense_alignment"] = losses.dense_alignment * alignment
    return parts, full_scores


def _sparse_losses(
    retriever: LightRetriever,
    batch: DataBatch,
    recipe: Recipe,
    sparse: Tensor,
    terms: Terms,
    candidates: Candidates,
    full_scores: Tensor | None,
    *,
    step: int,
) -> dict[str, Tensor]:
    """Contrast, alignment and FLOPS of the documents' weights (D, m) of the batch's terms."""
    losses = recipe.losses
    parts: dict[str, Tensor] = {}
    if losses.sparse > 0:
        queries = sparse_query_matrix(retriever, batch.queries)
        used = terms.queries if terms.ids is None else terms.ids[terms.queries]
        scores = similarity(queries[:, used].to(sparse.dtype), sparse[:, terms.queries])
        contrast = info_nce(
            scores, candidates.positives, temperature=losses.sparse_temperature, excluded=candidates.excluded
        )
        parts["sparse"] = losses.sparse * losses.contrast * contrast
        parts |= _distilled("sparse", scores / losses.sparse_temperature, recipe, candidates)
        if losses.sparse_alignment > 0 and full_scores is not None:
            student = scores / losses.sparse_temperature
            alignment = alignment_kl(student, full_scores, excluded=candidates.excluded)
            parts["sparse_alignment"] = losses.sparse_alignment * alignment
    if losses.flops > 0:
        ramp = 1.0 if losses.flops_target else flops_ramp(step, ramp_steps=losses.flops_ramp_steps)
        parts["flops"] = losses.flops * ramp * terms.factor * flops(sparse[:, terms.sample])
    return parts


def _symmetric_sparse_losses(
    queries: Tensor, documents: Tensor, recipe: Recipe, candidates: Candidates, *, step: int
) -> dict[str, Tensor]:
    """Contrast and FLOPS of queries (n, V) against documents (D, V), both weighted by the model."""
    losses = recipe.losses
    scores = similarity(queries, documents)
    temperature, excluded = losses.sparse_temperature, candidates.excluded
    contrast = info_nce(scores, candidates.positives, temperature=temperature, excluded=excluded)
    parts = {"symmetric_sparse": losses.symmetric_sparse * losses.contrast * contrast}
    parts |= _distilled("symmetric_sparse", scores / temperature, recipe, candidates)
    if losses.query_flops > 0:
        ramp = 1.0 if losses.query_flops_target else flops_ramp(step, ramp_steps=losses.flops_ramp_steps)
        parts["query_flops"] = losses.query_flops * ramp * flops(queries)
    return parts


def _given_scores(share: Share, recipe: Recipe, device: torch.device) -> Tensor | None:
    if recipe.losses.distillation <= 0:
        return None
    if share.scores is None:
        raise InvalidInput(
            "losses.distillation is above 0, but a batch's examples have no scores; give data.scores, or examples "
            "with scores in every data set"
        )
    return torch.from_numpy(share.scores).to(device) / recipe.losses.distillation_temperature


def _distilled(branch: str, scores: Tensor, recipe: Recipe, candidates: Candidates) -> dict[str, Tensor]:
    """What a branch's scaled scores (n, D) lack of the given ones, weighted; nothing where none are given."""
    losses = recipe.losses
    if candidates.scores is None:
        return {}
    if losses.distillation_loss == "kl":
        loss = score_kl(scores, candidates.scores)
    else:
        loss = margin_mse(scores, candidates.scores, candidates.positives)
    weight = getattr(losses, branch) * losses.distillation
    return {f"{branch}_distillation": weight * loss}


def by_instruction(instructions: Sequence[str]) -> dict[str, list[int]]:
    """Which queries have each instruction."""
    found: dict[str, list[int]] = {}
    for row, instruction in enumerate(instructions):
        found.setdefault(instruction, []).append(row)
    return found


def framed_queries(retriever: LightRetriever, queries: Sequence[str], instructions: Sequence[str]) -> list[Framed]:
    """Each query behind the prompt of its own instruction, as `frame_queries` frames it."""
    framed: dict[int, Framed] = {}
    for instruction, rows in by_instruction(instructions).items():
        some = retriever.frame_queries([queries[row] for row in rows], instruction=instruction)
        framed.update(zip(rows, some, strict=True))
    return [framed[row] for row in range(len(queries))]


def full_query_states(retriever: LightRetriever, framed: Sequence[Framed], recipe: Recipe) -> tuple[Tensor, Batch]:
    """Framed queries' last hidden states through the whole model, and the batch that they are of.

    They share rows where documents do.
    """
    longest = max(len(ids) for ids, _, _ in framed)
    batch = retriever.batch(framed, length=-(-longest // SHAPE_STEP) * SHAPE_STEP if recipe.model.compile else None)
    packed = _packed_states(retriever, batch, recipe)
    return retriever.states(batch) if packed is None else packed, batch


def sparse_query_matrix(retriever: LightRetriever, queries: Sequence[str]) -> Tensor:
    """(n, V) float32 sparse queries (Eq. 7) on the model's device."""
    policy, weights = retriever.contract.query, retriever.heads.term_weights
    term_ids = query_term_ids(retriever.backbone.tokenizer, policy, queries)
    rows = sparse_queries(
        term_ids,
        policy,
        vocab_size=retriever.backbone.vocab_size,
        term_weights=None if weights is None else weights.cpu().numpy(),
    )
    return torch.from_numpy(rows.to_dense().astype(np.float32)).to(retriever.backbone.device)


@dataclass(frozen=True, slots=True)
class Share:
    """What one process encodes of a batch, and how the gathered whole is laid out.

    Attributes:
        queries: this process's.
        instructions: theirs.
        documents: their positives, then their negatives.
        positives: (n,) int64, each query's positive among the gathered documents.
        excluded: (n, D) bool over the gathered documents.
        scores: (n, D) float32 over the gathered documents, or None.
    """

    queries: tuple[str, ...]
    instructions: tuple[str, ...]
    documents: tuple[Any, ...]
    positives: np.ndarray[Any, np.dtype[np.int64]]
    excluded: np.ndarray[Any, np.dtype[np.bool_]]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None = None


def share_of(batch: DataBatch, *, process: int, processes: int) -> Share:
    """One process's share: consecutive queries with all their documents.

    Raises:
        InvalidInput: the queries don't divide among the processes.
    """
    n = len(batch.queries)
    if n % processes:
        raise InvalidInput(f"a batch of {n} queries does not divide among {processes} processes; change batch_size")
    own, negatives = n // processes, len(batch.documents) // n - 1
    blocks = []
    for number in range(processes):
        first, last = number * own, (number + 1) * own
        blocks.append([*range(first, last), *range(n + first * negatives, n + last * negatives)])
    order = np.asarray([column for block in blocks for column in block], dtype=np.int64)
    positives = np.argsort(order, kind="stable")[:n]
    return Share(
        batch.queries[process * own : (process + 1) * own],
        batch.instructions[process * own : (process + 1) * own],
        tuple(batch.documents[column] for column in blocks[process]),
        positives,
        batch.false_negatives[:, order],
        None if batch.scores is None else batch.scores[:, order],
    )
