"""The contrastive loss of a batch: dense and sparse branches, full and light queries, over all processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.models.encoder import LightRetriever
from lightir.train.batches.batch_vectors import (
    ProjectedTerms,
    batch_terms,
    document_vectors,
    full_query_vectors,
    light_query_vectors,
    sparse_query_matrix,
)
from lightir.train.batches.share import ProcessShare, share_of
from lightir.train.distill.teacher import Teacher
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, LossWeights
from lightir.train.run.processes import gather, rank, world_size
from lightir.train.stages.losses import (
    alignment_kl,
    flops,
    flops_ramp,
    info_nce,
    margin_mse,
    matryoshka,
    mean_pairwise_cosine,
    score_kl,
    similarity,
)

COSINE_SAMPLE = 64
"""Number of sparse document vectors in the logged mean cosine, if there are no dense ones: they are wide."""


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """Inputs of the parts of a batch's loss.

    Attributes:
        retriever: the model.
        recipe: the run's recipe.
        batch: the whole batch.
        share: this process's share of it.
        step: number of optimizer steps done.
    """

    retriever: LightRetriever
    recipe: ContrastiveRecipe
    batch: TrainingBatch
    share: ProcessShare
    step: int


@dataclass(frozen=True, slots=True)
class BatchDocuments:
    """The D documents of the whole batch, which each of its n queries scores.

    Attributes:
        dense: (D, H) pooled vectors, not normalized; None without a dense branch.
        positives: (n,) int64, each query's own positive.
        excluded: (n, D) bool, documents left out of a query's softmax.
        scores: (n, D) teacher scores that came with the data, divided by their temperature, NaN if missing; None if
            the recipe does not learn from them.
    """

    dense: Tensor | None
    positives: Tensor
    excluded: Tensor
    scores: Tensor | None = None


def batch_losses(
    retriever: LightRetriever,
    batch: TrainingBatch,
    recipe: ContrastiveRecipe,
    *,
    step: int,
    teacher: Teacher | None = None,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return the weighted parts of a batch's loss by name, and values for the log.

    Each process encodes its share of the queries with their documents; the vectors are gathered with their gradients,
    so that every process computes the loss of the whole batch.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process; its queries must divide among the processes.
        recipe: the run's recipe.
        step: number of optimizer steps done, for the FLOPS ramp and the sample of terms.
        teacher: model whose scores the full encoder learns from.
    """
    losses, device = recipe.losses, retriever.backbone.device
    share = share_of(batch, process=rank(), processes=world_size())
    inputs = BatchInputs(retriever, recipe, batch, share, step)
    terms = None
    if max(losses.sparse, losses.symmetric_sparse, losses.flops) > 0:
        terms = batch_terms(retriever, batch, recipe, step=step)
    dense, sparse = document_vectors(retriever, share.documents, recipe, terms)
    candidates = BatchDocuments(
        None if dense is None else gather(dense),
        torch.from_numpy(share.positives).to(device),
        torch.from_numpy(share.excluded).to(device),
        _given_scores(inputs),
    )
    full_dense, full_sparse = full_query_vectors(retriever, share, recipe)
    parts, full_scores = _dense_losses(inputs, candidates, full_dense)
    if teacher is not None and full_scores is not None:
        parts["teacher"] = recipe.teacher.weight * _teacher_kl(teacher, inputs, candidates, full_scores)
    monitored = {} if candidates.dense is None else {"cosine": mean_pairwise_cosine(candidates.dense)}
    if sparse is not None and terms is not None:
        sparse = gather(sparse)
        parts |= _sparse_losses(inputs, sparse, terms, candidates, full_scores)
        monitored["nonzeros"] = nonzeros(sparse[:, terms.sample]) * terms.factor
        monitored["dead"] = dead_share(sparse[:, terms.sample])
        if full_sparse is not None:
            full_sparse = gather(full_sparse)
            parts |= _symmetric_sparse_losses(inputs, full_sparse, sparse, candidates)
            monitored["query_nonzeros"] = nonzeros(full_sparse)
        if candidates.dense is None:
            monitored["cosine"] = mean_pairwise_cosine(sparse[:COSINE_SAMPLE])
    return parts, monitored


def nonzeros(weights: Tensor) -> float:
    """Return the mean number of terms above zero in a row."""
    return float((weights.detach() > 0).sum(1).float().mean())


def dead_share(weights: Tensor) -> float:
    """Return the share of terms without weight in any row; at 1 no gradient is left (CSplade's dying ReLU)."""
    return float((weights.detach() <= 0).all(0).float().mean())


def _dense_losses(
    inputs: BatchInputs, candidates: BatchDocuments, full: Tensor | None
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return symmetric, light and alignment losses, and the full encoder's scaled scores (n, D); None without it.

    Each loss is summed over the Matryoshka widths; with the similarity "dot" there is one, of inner products. The
    alignment's teacher is the full encoder at its full width.
    """
    losses, dense = inputs.recipe.losses, candidates.dense
    if dense is None:
        return {}, None
    by_dot = inputs.recipe.heads.similarity == "dot"
    dims = (dense.shape[1], *losses.dims)
    parts: dict[str, Tensor] = {}
    full_scores: Tensor | None = None

    def scaled(queries: Tensor, documents: Tensor) -> Tensor:
        return similarity(queries, documents) / losses.temperature

    def contrast(queries: Tensor, documents: Tensor) -> Tensor:
        scores = scaled(queries, documents)
        return info_nce(scores, candidates.positives, temperature=1.0, excluded=candidates.excluded)

    def alignment(queries: Tensor, documents: Tensor) -> Tensor:
        assert full_scores is not None  # called with them only
        return alignment_kl(scaled(queries, documents), full_scores, excluded=candidates.excluded)

    def summed(loss: Callable[[Tensor, Tensor], Tensor], queries: Tensor) -> Tensor:
        return loss(queries, dense) if by_dot else matryoshka(loss, queries, dense, dims=dims)

    def learned(queries: Tensor, weight: float, branch: str) -> dict[str, Tensor]:
        own = {branch: weight * losses.contrast * summed(contrast, queries)}
        if candidates.scores is not None:
            given = summed(lambda q, d: _distillation(scaled(q, d), losses, candidates), queries)
            own[f"{branch}_distillation"] = weight * losses.distillation * given
        return own

    if full is not None:
        full = gather(full)
        parts |= learned(full, losses.symmetric, "symmetric")
        full_scores = scaled(inputs.retriever.comparable(full), inputs.retriever.comparable(dense))
    if losses.dense > 0:
        light = gather(light_query_vectors(inputs.retriever, inputs.share, inputs.recipe))
        parts |= learned(light, losses.dense, "dense")
        if losses.dense_alignment > 0 and full_scores is not None:
            parts["dense_alignment"] = losses.dense_alignment * summed(alignment, light)
    return parts, full_scores


def _teacher_kl(teacher: Teacher, inputs: BatchInputs, candidates: BatchDocuments, full_scores: Tensor) -> Tensor:
    """Return the KL from the teacher's scores to the full encoder's scaled scores (n, D)."""
    share = inputs.share
    scores = similarity(gather(teacher.queries(share.queries)), gather(teacher.documents(share.documents)))
    return alignment_kl(full_scores, scores / inputs.recipe.teacher.temperature, excluded=candidates.excluded)


def _sparse_losses(
    inputs: BatchInputs,
    sparse: Tensor,
    terms: ProjectedTerms,
    candidates: BatchDocuments,
    full_scores: Tensor | None,
) -> dict[str, Tensor]:
    """Return contrast, alignment and FLOPS of the documents' weights (D, m) of the batch's terms."""
    recipe, losses = inputs.recipe, inputs.recipe.losses
    parts: dict[str, Tensor] = {}
    if losses.sparse > 0:
        queries = sparse_query_matrix(inputs.retriever, inputs.batch.queries)
        used = terms.queries if terms.ids is None else terms.ids[terms.queries]
        scores = similarity(queries[:, used].to(sparse.dtype), sparse[:, terms.queries])
        contrast = info_nce(
            scores, candidates.positives, temperature=losses.sparse_temperature, excluded=candidates.excluded
        )
        student = scores / losses.sparse_temperature
        parts["sparse"] = losses.sparse * losses.contrast * contrast
        parts |= _distilled("sparse", student, recipe, candidates)
        if losses.sparse_alignment > 0 and full_scores is not None:
            alignment = alignment_kl(student, full_scores, excluded=candidates.excluded)
            parts["sparse_alignment"] = losses.sparse_alignment * alignment
    if losses.flops > 0:
        ramp = 1.0 if losses.flops_target else flops_ramp(inputs.step, ramp_steps=losses.flops_ramp_steps)
        parts["flops"] = losses.flops * ramp * terms.factor * flops(sparse[:, terms.sample])
    return parts


def _symmetric_sparse_losses(
    inputs: BatchInputs, queries: Tensor, documents: Tensor, candidates: BatchDocuments
) -> dict[str, Tensor]:
    """Return contrast and FLOPS of queries (n, V) against documents (D, V), both weighted by the model."""
    recipe, losses = inputs.recipe, inputs.recipe.losses
    scores = similarity(queries, documents)
    temperature, excluded = losses.sparse_temperature, candidates.excluded
    contrast = info_nce(scores, candidates.positives, temperature=temperature, excluded=excluded)
    parts = {"symmetric_sparse": losses.symmetric_sparse * losses.contrast * contrast}
    parts |= _distilled("symmetric_sparse", scores / temperature, recipe, candidates)
    if losses.query_flops > 0:
        ramp = 1.0 if losses.query_flops_target else flops_ramp(inputs.step, ramp_steps=losses.flops_ramp_steps)
        parts["query_flops"] = losses.query_flops * ramp * flops(queries)
    return parts


def _given_scores(inputs: BatchInputs) -> Tensor | None:
    """Return `BatchDocuments.scores`; all NaN, which teaches nothing, if no example of the batch has scores."""
    share, losses, device = inputs.share, inputs.recipe.losses, inputs.retriever.backbone.device
    if losses.distillation <= 0:
        return None
    if share.scores is None:
        return torch.full(share.excluded.shape, torch.nan, device=device)
    return torch.from_numpy(share.scores).to(device) / losses.distillation_temperature


def _distilled(branch: str, scores: Tensor, recipe: ContrastiveRecipe, candidates: BatchDocuments) -> dict[str, Tensor]:
    """Return the weighted loss of a branch's scaled scores (n, D) against the given ones; empty without given ones."""
    losses = recipe.losses
    if candidates.scores is None:
        return {}
    weight = getattr(losses, branch) * losses.distillation
    return {f"{branch}_distillation": weight * _distillation(scores, losses, candidates)}


def _distillation(scores: Tensor, losses: LossWeights, candidates: BatchDocuments) -> Tensor:
    """Return the loss of scaled scores (n, D) against the given ones."""
    assert candidates.scores is not None  # callers check
    if losses.distillation_loss == "kl":
        return score_kl(scores, candidates.scores)
    return margin_mse(scores, candidates.scores, candidates.positives)
