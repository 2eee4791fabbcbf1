"""SiDR's vectors and one batch's loss: parametric vectors against each other and against bags of tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lightir.data import TrainingBatch
from lightir.models.bags import mixed, token_means
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.heads import top_k_weights
from lightir.models.pooling import at_least_fp32
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import LIGHT_TOKENS_STEP, SHAPE_STEP
from lightir.train.batches.gradient_cache import EncodedVectors, in_pieces
from lightir.train.batches.share import share_of
from lightir.train.recipes.sidr_recipe import SidrHeadRecipe, SidrRecipe
from lightir.train.run.processes import gather, rank, world_size
from lightir.train.stages.losses import similarity, two_way_loss
from lightir.train.stages.sidr_retrieval import BagOfTokens


def parametric(retriever: LightRetriever, framed: Sequence[Framed], *, pad_to: int = 1) -> Tensor:
    """V_θ before top-k: (n, V) float32, above 0 everywhere but for a text without tokens, which is 0.

    `pad_to`: the length is padded up to a multiple, so that compiled layers meet few shapes.
    """
    longest = max((len(ids) for ids, _, _ in framed), default=1)
    batch = retriever.batch(framed, length=-(-max(longest, 1) // pad_to) * pad_to)
    return retriever.sparse_from(retriever.states(batch), batch)


def bag_of_tokens(framed: Sequence[Framed], *, vocab_size: int, device: torch.device) -> Tensor:
    """V_BoT: (n, V) float32, 1 where a term stands in the text's own tokens (no frame), else 0."""
    own = [ids[start:stop] for ids, start, stop in framed]
    rows = torch.arange(len(own)).repeat_interleave(torch.tensor([len(ids) for ids in own], dtype=torch.int64))
    terms = torch.tensor([term for ids in own for term in ids], dtype=torch.int64)
    bags = torch.zeros(len(framed), vocab_size, device=device)
    bags[rows.to(device), terms.to(device)] = 1.0  # at once: a copy to a GPU for every row would be waited for
    return bags


def pruned(weights: Tensor, bags: Tensor, heads: SidrHeadRecipe, *, k: int = 0) -> Tensor:
    """The top-k of V_θ, and the text's own terms where the recipe keeps them; k = 0 takes the recipe's."""
    return top_k_weights(weights, k or heads.top_k, own=bags > 0 if heads.own_terms else None)


def light_queries(
    retriever: LightRetriever,
    queries: Sequence[str],
    *,
    instruction: str | None = None,
    pad_to: int = 1,
) -> Tensor:
    """(n, V) float32: the mean over each query's tokens t of t's and the strongest terms of V_θ(Inst; t); 0 without.

    The tokens' rows depend on the token alone, so they can be cached: LightRetriever's idea on SiDR's query side.
    """
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    unique, mixing = token_means(term_ids)
    places, weights = retriever.token_expansions(unique, instruction=instruction, pad_to=pad_to)
    weights = weights.to(at_least_fp32(weights.dtype))
    empty = torch.zeros(len(unique), retriever.backbone.vocab_size, dtype=weights.dtype, device=weights.device)
    return mixed(mixing, empty.scatter(1, places, weights))


def batch_losses(
    retriever: LightRetriever,
    batch: TrainingBatch,
    recipe: SidrRecipe,
    *,
    index: BagOfTokens | None = None,
    generator: np.random.Generator,
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """L_final = L(V_θ(q), V_θ(d)) + ½ L(V_θ(q), V_BoT(d)) + ½ L(V_BoT(q), V_θ(d)), each part weighted and two-way.

    In the first part top-k is taken of one side at a time, and the mean of both is the part. Queries and documents are
    shared out among the processes and their vectors gathered with their gradients.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process.
        recipe: losses, heads and retrieval are read.
        index: where each query finds one negative more; None for none.
        generator: draws it; in the same state on every process.

    Returns:
        The parts of the loss, and what the log shows: the share of queries that the search gave a negative, and the
        seconds that searching and drawing took.
    """
    device, vocab_size = retriever.backbone.device, retriever.backbone.vocab_size
    own, instruction = share_of(batch, process=rank(), processes=world_size()).queries, batch.instructions[0]
    framed = retriever.frame_queries(own, instruction=instruction)
    pad_to, tokens = (SHAPE_STEP, LIGHT_TOKENS_STEP) if recipe.model.compile else (1, 1)
    queries = gather(_encoded(retriever, framed, recipe, pad_to=pad_to))
    query_bags = gather(bag_of_tokens(framed, vocab_size=vocab_size, device=device))
    monitored = {"retrieved": 0.0, "retrieval_seconds": 0.0}
    if index is not None:
        batch, monitored = _with_retrieved(index, batch, queries.detach(), query_bags, recipe, generator)
    share = share_of(batch, process=rank(), processes=world_size())
    framed = retriever.frame_documents(share.documents)
    documents = gather(_encoded(retriever, framed, recipe, pad_to=pad_to))
    bags = gather(bag_of_tokens(framed, vocab_size=vocab_size, device=device))
    positives = torch.from_numpy(share.positives).to(device)
    excluded = torch.from_numpy(share.excluded).to(device)

    def loss(a: Tensor, b: Tensor, *, temperature: float = recipe.losses.temperature) -> Tensor:
        return two_way_loss(similarity(a, b) / temperature, positives, excluded=excluded)

    parts: dict[str, Tensor] = {}
    few_queries, few = pruned(queries, query_bags, recipe.heads), pruned(documents, bags, recipe.heads)
    if recipe.losses.parametric > 0:
        parts["parametric"] = recipe.losses.parametric * (loss(few_queries, documents) + loss(queries, few)) / 2
    if recipe.losses.semi_parametric > 0:
        parts["bag_documents"] = recipe.losses.semi_parametric * loss(queries, bags)
        parts["bag_queries"] = recipe.losses.semi_parametric * loss(query_bags, documents)
    if recipe.losses.light > 0:
        light = gather(_encoded_light(retriever, own, instruction, recipe, pad_to=tokens))
        temperature = recipe.losses.light_temperature or recipe.losses.temperature
        parts["light_bags"] = recipe.losses.light * loss(light, bags, temperature=temperature)
        parts["light_documents"] = recipe.losses.light * loss(light, few, temperature=temperature)
    return parts, monitored


def _with_retrieved(
    index: BagOfTokens,
    batch: TrainingBatch,
    queries: Tensor,
    query_bags: Tensor,
    recipe: SidrRecipe,
    generator: np.random.Generator,
) -> tuple[TrainingBatch, dict[str, float]]:
    """The batch with a negative more for each query, found by its V_θ (n, V), and what the log shows of that."""
    start = _now(queries.device)
    weights = pruned(queries, query_bags, recipe.heads, k=recipe.retrieval.query_terms)
    retrieved, found = index.draw(batch, weights, recipe.retrieval, generator)
    batch = index.extended(batch, retrieved)
    return batch, {"retrieved": found / len(batch.queries), "retrieval_seconds": _now(queries.device) - start}


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given: what is timed is not what came before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _encoded(retriever: LightRetriever, framed: Sequence[Framed], recipe: SidrRecipe, *, pad_to: int) -> Tensor:
    """V_θ as `parametric` has it, by the pieces that the recipe asks for."""

    def encode(some: Sequence[Framed]) -> EncodedVectors:
        return (parametric(retriever, some, pad_to=pad_to),)

    (weights,) = in_pieces(encode, framed, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # parametric gives a tensor
    return weights


def _encoded_light(
    retriever: LightRetriever, queries: Sequence[str], instruction: str, recipe: SidrRecipe, *, pad_to: int
) -> Tensor:
    """As `light_queries`, by the pieces that the recipe asks for."""

    def encode(some: Sequence[str]) -> EncodedVectors:
        return (light_queries(retriever, some, instruction=instruction, pad_to=pad_to),)

    (weights,) = in_pieces(encode, queries, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # light_queries gives a tensor
    return weights
