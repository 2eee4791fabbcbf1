"""Vectors of a batch's documents and queries (full and light), computed as the recipe says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.models.bags import mix_rows, token_means
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed, TextBatch
from lightir.models.masks import BLOCKS_PER_ROW
from lightir.text import query_term_ids, sparse_queries
from lightir.train.batches.gradient_cache import EncodedVectors, in_pieces
from lightir.train.batches.packing import states_without_padding
from lightir.train.batches.share import ProcessShare
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.settings import packed_attention
from lightir.types import Document

SHAPE_STEP = 48
"""Compiled layers get query lengths that are multiples of this, because each new shape costs seconds of compilation."""

LIGHT_TOKENS_STEP = 256
"""Compiled layers get numbers of distinct light-query tokens that are multiples of this."""


@dataclass(frozen=True, slots=True)
class ProjectedTerms:
    """The vocabulary terms that a batch's documents are projected on.

    Attributes:
        ids: (m,) int64 term ids, or None for the whole vocabulary in its order.
        queries: positions among these terms of the terms in the batch's queries.
        sample: span of these terms over which FLOPS and non-zeros are counted.
        factor: vocabulary size divided by the size of the sample.
    """

    ids: Tensor | None
    queries: Tensor
    sample: slice
    factor: float


def batch_terms(
    retriever: LightRetriever, batch: TrainingBatch, recipe: ContrastiveRecipe, *, step: int
) -> ProjectedTerms:
    """Return all terms, or the queries' terms and a sample drawn from seed and step, the same on every process."""
    device, vocab_size = retriever.backbone.device, retriever.backbone.vocab_size
    rows = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, batch.queries)
    used = np.unique(rows.term_ids).astype(np.int64)
    n_sampled = recipe.losses.sparse_terms
    if n_sampled == 0 or n_sampled >= vocab_size:
        return ProjectedTerms(None, torch.from_numpy(used).to(device), slice(0, vocab_size), 1.0)
    generator = np.random.default_rng([recipe.optimisation.seed, 3, step])
    drawn = generator.choice(vocab_size, n_sampled, replace=False)
    ids = torch.from_numpy(np.concatenate([used, drawn])).to(device)
    return ProjectedTerms(ids, torch.arange(len(used), device=device), slice(len(used), None), vocab_size / n_sampled)


def document_vectors(
    retriever: LightRetriever, documents: Sequence[Document], recipe: ContrastiveRecipe, terms: ProjectedTerms | None
) -> EncodedVectors:
    """Return dense and sparse vectors of this process's documents; None for a branch that the model lacks."""

    def encode(framed: Sequence[Framed]) -> EncodedVectors:
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


def _packed_states(retriever: LightRetriever, batch: TextBatch, recipe: ContrastiveRecipe) -> Tensor | None:
    """Return the batch's last hidden states, computed in rows that texts share; None if the recipe pads."""
    if not recipe.optimisation.packed_tokens:
        return None
    attention = packed_attention(recipe.optimisation, recipe.model)
    row = recipe.optimisation.packed_tokens
    return states_without_padding(retriever.backbone, batch, length=row, attention=attention)


def full_query_vectors(retriever: LightRetriever, share: ProcessShare, recipe: ContrastiveRecipe) -> EncodedVectors:
    """Return dense and sparse vectors of this process's queries through the whole model; None if no loss reads them."""
    dense, sparse = recipe.losses.symmetric > 0, recipe.losses.symmetric_sparse > 0
    if not (dense or sparse):
        return None, None

    def encode(framed: Sequence[Framed]) -> EncodedVectors:
        states, batch = full_query_states(retriever, framed, recipe)
        soft = recipe.heads.straight_through
        return (
            retriever.dense_from(states, batch) if dense else None,
            retriever.sparse_from(states, batch, straight_through=soft) if sparse else None,
        )

    framed = framed_queries(retriever, share.queries, share.instructions)
    return in_pieces(encode, framed, size=recipe.optimisation.gradient_cache)


def light_query_vectors(retriever: LightRetriever, share: ProcessShare, recipe: ContrastiveRecipe) -> Tensor:
    """Return (n, H) means of token vectors; each distinct token behind an instruction is encoded once."""
    groups = by_instruction(share.instructions)
    blocks = [
        _light_vectors(retriever, [share.queries[row] for row in rows], instruction, recipe)
        for instruction, rows in groups.items()
    ]
    order = torch.tensor([row for rows in groups.values() for row in rows], device=blocks[0].device)
    return torch.cat(blocks)[order.argsort()]


def _light_vectors(
    retriever: LightRetriever, queries: Sequence[str], instruction: str, recipe: ContrastiveRecipe
) -> Tensor:
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    pad_to = LIGHT_TOKENS_STEP if recipe.model.compile else 1
    tokens, mixing = token_means(term_ids)

    def encode(piece: Tensor) -> EncodedVectors:
        return (retriever.token_vectors(piece, instruction=instruction, pad_to=pad_to),)

    (rows,) = in_pieces(encode, tokens, size=recipe.optimisation.gradient_cache * BLOCKS_PER_ROW)
    assert rows is not None  # token_vectors returns a tensor
    return mix_rows(mixing, rows)


def by_instruction(instructions: Sequence[str]) -> dict[str, list[int]]:
    """Return the positions of the queries with each instruction."""
    rows: dict[str, list[int]] = {}
    for row, instruction in enumerate(instructions):
        rows.setdefault(instruction, []).append(row)
    return rows


def framed_queries(retriever: LightRetriever, queries: Sequence[str], instructions: Sequence[str]) -> list[Framed]:
    """Frame each query behind the prompt of its own instruction."""
    framed: dict[int, Framed] = {}
    for instruction, rows in by_instruction(instructions).items():
        group = retriever.frame_queries([queries[row] for row in rows], instruction=instruction)
        framed.update(zip(rows, group, strict=True))
    return [framed[row] for row in range(len(queries))]


def full_query_states(
    retriever: LightRetriever, framed: Sequence[Framed], recipe: ContrastiveRecipe
) -> tuple[Tensor, TextBatch]:
    """Return framed queries' last hidden states through the whole model, and their batch.

    Queries share rows if the recipe packs documents.
    """
    longest = max(len(ids) for ids, _, _ in framed)
    batch = retriever.batch(framed, length=-(-longest // SHAPE_STEP) * SHAPE_STEP if recipe.model.compile else None)
    with retriever.reading_queries():
        packed = _packed_states(retriever, batch, recipe)
        return retriever.states(batch) if packed is None else packed, batch


def sparse_query_matrix(retriever: LightRetriever, queries: Sequence[str]) -> Tensor:
    """Return (n, V) float32 sparse queries (Eq. 7) on the model's device."""
    policy, weights = retriever.contract.query, retriever.heads.term_weights
    term_ids = query_term_ids(retriever.backbone.tokenizer, policy, queries)
    rows = sparse_queries(
        term_ids,
        policy,
        vocab_size=retriever.backbone.vocab_size,
        term_weights=None if weights is None else weights.cpu().numpy(),
    )
    return torch.from_numpy(rows.to_dense().astype(np.float32)).to(retriever.backbone.device)
