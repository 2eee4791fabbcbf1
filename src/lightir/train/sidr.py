"""SiDR: a parametric vocabulary vector on both sides, trained against bag-of-tokens vectors as well.

Each step searches a fixed bag-of-tokens index of the training corpora with the queries as they are encoded now, and
draws one hard negative a query from what it finds: nothing is ever indexed again.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightir.contract import BackboneRecord, Contract, Fusion, SparseHead
from lightir.data import Batch as DataBatch
from lightir.errors import InvalidInput
from lightir.models.bags import token_means
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.heads import top_k_weights
from lightir.models.losses import gather, rank, similarity, two_way_loss, world_size
from lightir.models.own_weights import all_weights
from lightir.models.pooling import at_least_fp32
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.batch import LIGHT_TOKENS_STEP, SHAPE_STEP, share_of
from lightir.train.development import Development, measured, ndcg
from lightir.train.gradient_cache import Vectors, in_pieces
from lightir.train.loop import run_stage
from lightir.train.preparation import fit_heads, load_trainable, prepare_layers, save_shipped, training_policies
from lightir.train.processes import autocast
from lightir.train.retrieval import BagOfTokens, Retrieval
from lightir.train.settings import WANTED, DataRecipe, DevSet, Documents, ModelRecipe, Optimisation
from lightir.train.stage import Measured
from lightir.train.stage_data import StageData

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SidrHead:
    """V_θ: how logits become a vector over the vocabulary.

    Attributes:
        calibrate: fit a per-term bias so that this share of calibration documents stays below zero there; 0 for none.
        calibration_documents: drawn from the training corpora.
        top_k: strongest terms kept of a document, and of a query unless query.top_k says otherwise.
        own_terms: a text's own terms are kept beside them, of documents and of queries.
        scale: the impact quantiser's.
        projection: states meet the model's own LM or masked-LM "head", or its input "embeddings", as in SiDR's released
            code; the latter is for models without a head too.
    """

    calibrate: float = 0.0
    calibration_documents: int = 128
    top_k: int = 768
    own_terms: bool = False
    scale: float = 32.0
    projection: Literal["head", "embeddings"] = "head"


@dataclass(frozen=True, slots=True)
class SidrLosses:
    """Weights of the loss's parts.

    Attributes:
        parametric: L(V_θ(q), V_θ(d)).
        semi_parametric: L(V_θ(q), V_BoT(d)) and L(V_BoT(q), V_θ(d)), each; 0 is the paper's ablation.
        light: L(light(q), V_BoT(d)) and L(light(q), V_θ(d)), each, where light(q) is the mean of the query's tokens'
            own vectors: what a query without any model is searched with. Beyond the paper.
        temperature: of the inner products.
        light_temperature: of those with light queries, which are means and so far smaller; 0 for `temperature`.
    """

    parametric: float = 1.0
    semi_parametric: float = 0.5
    light: float = 0.0
    temperature: float = 1.0
    light_temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SidrEvaluation:
    """What is measured during training.

    Attributes:
        sets: development sets; none means that the last state is kept.
        every: optimizer steps between two evaluations; 0 evaluates at the end alone.
        by: "full", "beta", "light_full" or "light_beta": nDCG@10, mean over the sets, of the state that is kept.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0
    by: Literal["full", "beta", "light_full", "light_beta"] = "full"


@dataclass(frozen=True, slots=True)
class SidrRecipe:
    """One training run of SiDR.

    Attributes:
        model: the backbone, with a language-modelling or masked-LM head.
        data: training sets.
        held_out: sets whose development and test queries must not be trained on.
        held_out_documents: nor their relevant documents.
        optimisation: steps, batches and the learning rate.
        losses: and their weights.
        heads: the vocabulary vector.
        retrieval: negatives found in training.
        query: the query policy.
        documents: the document policy.
        evaluation: during training.
        checkpoint_every: optimizer steps between two checkpoints; 0 writes none.
        stage: which stage the recipe is of.
    """

    model: ModelRecipe
    data: tuple[DataRecipe, ...]
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    optimisation: Optimisation = field(default_factory=Optimisation)
    losses: SidrLosses = field(default_factory=SidrLosses)
    heads: SidrHead = field(default_factory=SidrHead)
    retrieval: Retrieval = field(default_factory=Retrieval)
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: Documents = field(default_factory=Documents)
    evaluation: SidrEvaluation = field(default_factory=SidrEvaluation)
    checkpoint_every: int = 200
    stage: Literal["sidr"] = "sidr"

    def __post_init__(self) -> None:
        if self.optimisation.packed_tokens:
            raise InvalidInput("optimisation.packed_tokens is for the stage contrastive")
        if self.optimisation.mixed_batches:
            raise InvalidInput("SiDR's negatives come from one corpus a batch: leave optimisation.mixed_batches off")
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set under `data`")
        if max(self.losses.parametric, self.losses.semi_parametric, self.losses.light) <= 0:
            raise InvalidInput("losses: one of parametric, semi_parametric and light must be above 0")
        if min(self.heads.top_k, self.losses.temperature) <= 0:
            raise InvalidInput("heads.top_k and losses.temperature must be above 0")
        if self.losses.light_temperature < 0:
            raise InvalidInput("losses.light_temperature must be above 0, or 0 for losses.temperature")
        if self.losses.light > 0 and self.query.weighting != "expansion":
            raise InvalidInput(
                f"losses.light trains queries that are means of expansions: set query.weighting to 'expansion', "
                f"not {self.query.weighting!r}"
            )
        if min(self.retrieval.top_m, self.retrieval.query_terms) < 0:
            raise InvalidInput(
                f"retrieval.top_m is {self.retrieval.top_m} and query_terms {self.retrieval.query_terms}; "
                "expected 0 (none; heads.top_k) or more"
            )


def train(recipe: SidrRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train SiDR and write its model folder; as `lightir.train.contrastive.train`."""
    out = Path(out)
    return run_stage(
        recipe, out, lambda device: Sidr(recipe, out.parent / "negatives", device), resume=resume, device=device
    )


class Sidr:
    """The stage: its data with their bag-of-tokens indexes, its model, its loss."""

    def __init__(self, recipe: SidrRecipe, negatives: Path, device: str) -> None:
        """Open and clean the data, index them, build the model and fit its bias."""
        self.recipe, self.device = recipe, device
        self.data = StageData(recipe, negatives=negatives)
        contract = training_policies(shipped_contract(recipe), recipe)
        self.retriever = load_trainable(recipe.model, contract, seed=recipe.optimisation.seed, device=device)
        fit_heads(self.retriever, recipe, self.data.sets)
        prepare_layers(self.retriever, recipe.model)
        self.trunk = self.retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        self.parameters = {n: p for n, p in all_weights(self.retriever.backbone).items() if p.requires_grad}
        wanted = recipe.retrieval.top_m > 0
        self.indexes = {each.name: BagOfTokens(each, self.retriever) for each in self.data.sets} if wanted else {}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The term bias, where there is one."""
        bias = self.retriever.heads.term_bias
        return {} if bias is None else {"term_bias": bias}

    @property
    def texts_per_step(self) -> int:
        """Positives, mined and retrieved negatives."""
        settings = self.recipe.optimisation
        return settings.batch_size * (1 + settings.negatives + bool(self.indexes)) * settings.accumulation

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Take a checkpoint's bias."""
        self.retriever.heads = dataclasses.replace(self.retriever.heads, **fixed)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """L_final over the mixture's batch and what the queries retrieve."""
        batch = self.data.mixture.batch(number)
        generator = np.random.default_rng([self.recipe.optimisation.seed, 4, number])
        with autocast(self.device, self.retriever.backbone.model.dtype):
            parts, monitored = batch_losses(
                self.retriever, batch, self.recipe, index=self.indexes.get(batch.dataset), generator=generator
            )
        return parts, {**monitored, "dataset": batch.dataset}

    def evaluate(self) -> Measured | None:
        """nDCG@10 of full and beta search on every development set, and the mean."""
        if not self.data.development:
            return None
        with autocast(self.device, self.retriever.backbone.model.dtype):
            per_set = {each.name: measure(self.retriever, each, self.recipe) for each in self.data.development}
        return measured(per_set, by=self.recipe.evaluation.by)

    def save(self, folder: Path) -> None:
        """Write the model under the contract that the recipe describes."""
        save_shipped(self.retriever, self.recipe, folder)

    def records(self) -> dict[str, object]:
        """What was trained on, and what was left out of it."""
        return self.data.records()


def shipped_contract(recipe: SidrRecipe) -> Contract:
    """The contract that the recipe describes, with an empty backbone record."""
    heads = recipe.heads
    return Contract(
        method="sidr",
        backbone=BackboneRecord(recipe.model.address, "causal", "", "", "", 0, 0),
        query=recipe.query,
        document=recipe.documents.policy,
        dense=None,
        sparse=SparseHead(
            "elu1p",
            bias_hash=WANTED if heads.calibrate else "",
            top_k=heads.top_k,
            scale=heads.scale,
            projection=heads.projection,
            own_terms=heads.own_terms,
        ),
        attention=recipe.model.attention,
        fusion=Fusion(weights={"sparse": 0.5, "tokens": 0.5}),
    )


# The vectors.


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


def pruned(weights: Tensor, bags: Tensor, heads: SidrHead, *, k: int = 0) -> Tensor:
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
    return mixing.to(weights) @ empty.scatter(1, places, weights)


# One batch.


def batch_losses(
    retriever: LightRetriever,
    batch: DataBatch,
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
    found, seconds = 0, 0.0
    if index is not None:
        start = _now(device)
        weights = pruned(queries.detach(), query_bags, recipe.heads, k=recipe.retrieval.query_terms)
        retrieved, found = index.draw(batch, weights, recipe.retrieval, generator)
        batch = index.extended(batch, retrieved)
        seconds = _now(device) - start
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
    return parts, {"retrieved": found / len(batch.queries), "retrieval_seconds": seconds}


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given: what is timed is not what came before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


# Measuring.


def _encoded(retriever: LightRetriever, framed: Sequence[Framed], recipe: SidrRecipe, *, pad_to: int) -> Tensor:
    """V_θ as `parametric` has it, by the pieces that the recipe asks for."""

    def encode(some: Sequence[Framed]) -> Vectors:
        return (parametric(retriever, some, pad_to=pad_to),)

    (weights,) = in_pieces(encode, framed, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # parametric gives a tensor
    return weights


def _encoded_light(
    retriever: LightRetriever, queries: Sequence[str], instruction: str, recipe: SidrRecipe, *, pad_to: int
) -> Tensor:
    """As `light_queries`, by the pieces that the recipe asks for."""

    def encode(some: Sequence[str]) -> Vectors:
        return (light_queries(retriever, some, instruction=instruction, pad_to=pad_to),)

    (weights,) = in_pieces(encode, queries, size=recipe.optimisation.gradient_cache)
    assert weights is not None  # light_queries gives a tensor
    return weights


def measure(retriever: LightRetriever, development: Development, recipe: SidrRecipe) -> dict[str, float]:
    """nDCG@10 on a development set in memory: full and beta search, both with light queries, token overlap."""
    vocab_size, device = retriever.backbone.vocab_size, retriever.backbone.device
    size = recipe.optimisation.batch_size

    def encoded(framed: Sequence[Framed], *, k: int = 0) -> tuple[Tensor, Tensor]:
        bags = bag_of_tokens(framed, vocab_size=vocab_size, device=device)
        pad_to = SHAPE_STEP if recipe.model.compile else 1
        chunks = [framed[start : start + size] for start in range(0, len(framed), size)]
        rows = [parametric(retriever, chunk, pad_to=pad_to) for chunk in chunks]
        return pruned(torch.cat(rows), bags, recipe.heads, k=k), bags

    framed = retriever.frame_queries([query.text for query in development.queries])
    queries, query_bags = encoded(framed, k=retriever.contract.query.top_k)
    documents, bags = encoded(retriever.frame_documents(development.documents))
    scores = {"full": queries @ documents.T, "beta": queries @ bags.T, "overlap": query_bags @ bags.T}
    if retriever.contract.has_light_queries:
        texts = [query.text for query in development.queries]
        pad_to = LIGHT_TOKENS_STEP if recipe.model.compile else 1
        light = light_queries(retriever, texts, pad_to=pad_to)
        scores |= {"light_full": light @ documents.T, "light_beta": light @ bags.T}
    return {name: ndcg(value.float().cpu().numpy(), development.grades) for name, value in scores.items()}
