"""LLM-QL's first stage: [E] learns to hold what a passage can be asked.

Each passage is corrupted and framed as `<bos> I1 d I2 [E]`; its query's tokens are predicted through [E] alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightir.contract import BackboneRecord, Contract, DenseHead, Fusion
from lightir.data import TrainingBatch
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.likelihood import (
    PASSAGE_PROMPT,
    PASSAGE_SUFFIX,
    QUERY_INSTRUCTION,
    QUERY_SUFFIX,
    corrupt_tokens,
    corrupt_words,
    join,
    log_likelihood,
    require_generator,
    sequence_states,
)
from lightir.models.own_weights import all_weights
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.batches.batch_vectors import SHAPE_STEP, framed_queries
from lightir.train.recipes.settings import DataRecipe, DevSet, DocumentRecipe, ModelRecipe, Optimisation, check_numbers
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import autocast, mean_over_processes, rank, world_size
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.development import Development
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import load_trainable, prepare_layers, save_shipped, training_policies

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CorruptionRecipe:
    """What is hidden of the text in front of [E], drawn anew each time that it is read; prompts and [E] never are.

    Attributes:
        ratio: the probability with which a unit is replaced by the mask; the paper's sweep has its best at 0.6.
        unit: "word", white-space words as the authors' code takes them, the title's too; or "token".
        mask: the text that stands for a hidden unit; one token where the unit is the token.
    """

    ratio: float = 0.6
    unit: Literal["word", "token"] = "word"
    mask: str = "_"


@dataclass(frozen=True, slots=True)
class LikelihoodEvaluation:
    """What is measured during training: the log likelihood of queries' tokens after a relevant document.

    Attributes:
        sets: development sets; none means that the last state is kept.
        every: optimizer steps between two evaluations; 0 evaluates at the end alone.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0


@dataclass(frozen=True, slots=True)
class LikelihoodRecipe:
    """One run of query-likelihood learning.

    Attributes:
        model: the backbone, causal and with a language-modelling head; lora_rank 0 trains all of its weights.
        data: training sets; their judged pairs, without negatives.
        held_out: sets whose development and test queries must not be trained on.
        held_out_documents: nor their relevant documents.
        optimisation: steps, batches and the learning rate.
        attention_stop: queries see the passage through [E] alone; off for the ablation.
        corruption: of the text in front of [E].
        direction: what is predicted from what: the query from the passage, the passage from the query behind the query
            policy's prompt and suffix, or both, whose losses are added.
        passage_lm_weight: weight of the loss on the corrupted text's own tokens, which the authors' code has (1) and
            Eq. 10 has not (0).
        learn_end: the end token behind the query is learned too, so that generated queries know where to stop.
        query: the query policy; what is left out of it has the policy's own defaults, not the paper's prompts.
        documents: the document policy, with the same caution. `ends: 4` is the paper's [E] four times, `new_ends: true`
            with it four new tokens.
        evaluation: during training.
        checkpoint_every: optimizer steps between two checkpoints; a killed run repeats what came after its last.
            Ctrl-C and SIGTERM write one at once. 0 writes no others.
        stage: which stage the recipe is of.
    """

    model: ModelRecipe
    data: tuple[DataRecipe, ...]
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    optimisation: Optimisation = field(default_factory=Optimisation)
    attention_stop: bool = True
    corruption: CorruptionRecipe = field(default_factory=CorruptionRecipe)
    direction: Literal["passage_to_query", "query_to_passage", "both"] = "passage_to_query"
    passage_lm_weight: float = 0.0
    learn_end: bool = False
    query: QueryPolicy = field(
        default_factory=lambda: QueryPolicy(
            QUERY_INSTRUCTION, lower_case=False, leading_blank=False, max_tokens=200, suffix=QUERY_SUFFIX
        )
    )
    documents: DocumentRecipe = field(
        default_factory=lambda: DocumentRecipe(PASSAGE_PROMPT, lower_case=False, max_tokens=232, suffix=PASSAGE_SUFFIX)
    )
    evaluation: LikelihoodEvaluation = field(default_factory=LikelihoodEvaluation)
    checkpoint_every: int = 200
    stage: Literal["query_likelihood"] = "query_likelihood"

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set under `data`")
        if self.optimisation.packed_tokens:
            raise InvalidInput("optimisation.packed_tokens is for the stage contrastive")
        if self.optimisation.gradient_cache:
            raise InvalidInput("pairs are independent of each other: accumulation does what gradient_cache would")
        if self.optimisation.negatives or any(each.negatives for each in self.data):
            raise InvalidInput("query likelihood takes no negatives: leave them out")
        check_numbers(self, "", least=("checkpoint_every", "passage_lm_weight"))
        check_numbers(self.evaluation, "evaluation.", least=("every",))
        check_numbers(self.corruption, "corruption.", shares=("ratio",))
        if not self.documents.eos:
            raise InvalidInput("documents.eos must be true: [E] is what the query is predicted from")
        if self.model.attention != "causal":
            raise InvalidInput("model.attention must be causal: what both ways have seen cannot be predicted")


def train(recipe: LikelihoodRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train [E] and write a model folder that the contrastive stage can start from; as `contrastive.train`."""
    return run_stage(recipe, Path(out), lambda device: QueryLikelihood(recipe, device), resume=resume, device=device)


class QueryLikelihood:
    """The stage: its data, its model, its loss."""

    def __init__(self, recipe: LikelihoodRecipe, device: str) -> None:
        """Open and clean the data, and build the model."""
        self.recipe, self.device = recipe, device
        self.data = StageData(recipe, negatives=None)
        contract = training_policies(shipped_contract(recipe), recipe)
        self.retriever = load_trainable(recipe.model, contract, seed=recipe.optimisation.seed, device=device)
        require_generator(self.retriever.backbone)
        prepare_layers(self.retriever, recipe.model)
        self.trunk = self.retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        self.parameters = {n: p for n, p in all_weights(self.retriever.backbone).items() if p.requires_grad}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Nothing: there are no fitted heads."""
        return {}

    @property
    def texts_per_step(self) -> int:
        """Passages."""
        return self.recipe.optimisation.batch_size * self.recipe.optimisation.accumulation

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Nothing to take."""

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the mixture's batch; `step` changes nothing, the corruption is drawn for each number."""
        batch = self.data.mixture.batch(number)
        with autocast(self.device, self.retriever.backbone.model.dtype):
            parts, monitored = batch_losses(self.retriever, batch, self.recipe, number=number)
        return parts, {**monitored, "dataset": batch.dataset}

    def evaluate(self) -> DevelopmentResult | None:
        """Mean log likelihood of a query token after a relevant document, uncorrupted, over the development sets."""
        if not self.data.development:
            return None
        with autocast(self.device, self.retriever.backbone.model.dtype):
            found = {each.name: measure(self.retriever, each, self.recipe) for each in self.data.development}
        mean = float(np.mean(list(found.values())))
        logger.info("development: log likelihood of a query token %.4f", mean)
        return DevelopmentResult(mean, {"mean": {"log_likelihood": mean}, **found})

    def save(self, folder: Path) -> None:
        """Write the model under the contract that the recipe describes."""
        save_shipped(self.retriever, self.recipe, folder)

    def records(self) -> dict[str, object]:
        """What was trained on, and what was left out of it."""
        return self.data.records()


def shipped_contract(recipe: LikelihoodRecipe) -> Contract:
    """The contract that the recipe describes, with an empty backbone record: dense vectors are the states at [E]."""
    return Contract(
        method="llm-ql",
        backbone=BackboneRecord(recipe.model.address, "causal", "", "", "", 0, 0),
        query=recipe.query,
        document=recipe.documents.policy,
        dense=DenseHead("eos"),
        sparse=None,
        fusion=Fusion(weights={"dense": 0.65, "tokens": 0.35}),
    )


def batch_losses(
    retriever: LightRetriever, batch: TrainingBatch, recipe: LikelihoodRecipe, *, number: int
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The parts of a batch's loss, by name, means over its pairs of sums over tokens (Eq. 10), and what to watch.

    Each process takes consecutive pairs; the mean of the processes' gradients is the whole batch's.

    Args:
        retriever: the model.
        batch: the whole batch, the same on every process; its queries must divide among the processes.
        recipe: direction, corruption and the rest are read.
        number: the forward pass's; seed and number decide what is hidden, whatever the number of processes.

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
        framed = hidden(retriever, passages, recipe, seeds=seeds)
        targets = query_tokens(retriever, queries, recipe)
        found = _losses(retriever, framed, targets, recipe)
        parts |= {"query": found[0]} | ({"passage_lm": found[1]} if found[1] is not None else {})
        monitored["query_token"] = per_token(found[0], targets)
    if recipe.direction != "passage_to_query":
        instructions = [batch.instructions[i] for i in own]
        framed = hidden(retriever, queries, recipe, seeds=[[*seed, 1] for seed in seeds], instructions=instructions)
        targets = [ids[start:stop] for ids, start, stop in retriever.frame_documents(documents)]
        found = _losses(retriever, framed, targets, recipe)
        parts |= {"passage": found[0]} | ({"query_lm": found[1]} if found[1] is not None else {})
        monitored["passage_token"] = per_token(found[0], targets)
    return {name: mean_over_processes(part * len(own), len(own)) for name, part in parts.items()}, monitored


def per_token(mean: Tensor, targets: Sequence[Sequence[int]]) -> float:
    """A mean over this process's pairs as the mean over all processes' tokens."""
    return float(mean_over_processes(mean.detach() * len(targets), sum(map(len, targets))))


def hidden(
    retriever: LightRetriever,
    texts: Sequence[str],
    recipe: LikelihoodRecipe,
    *,
    seeds: Sequence[Sequence[int]],
    instructions: Sequence[str] | None = None,
) -> list[Framed]:
    """Corrupted texts in their frame: as queries with an instruction each, as documents without.

    Raises:
        InvalidInput: the unit is the token, but the mask is not one token.
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
        corrupt_tokens(each, ratio=ratio, mask_id=mask[0], rng=rng)
        for each, rng in zip(frame(texts), generators, strict=True)
    ]


def query_tokens(retriever: LightRetriever, queries: Sequence[str], recipe: LikelihoodRecipe) -> list[list[int]]:
    """What is predicted of each query: its tokens, and the end token if that is learned."""
    term_ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, queries)
    end = [retriever.backbone.eos_id] if recipe.learn_end else []
    return [[*term_ids.row(row).tolist(), *end] for row in range(len(queries))]


def _losses(
    retriever: LightRetriever, framed: Sequence[Framed], targets: Sequence[Sequence[int]], recipe: LikelihoodRecipe
) -> tuple[Tensor, Tensor | None]:
    """-Σ log p of what follows [E], and the weighted one of the text in front of it (None without a weight)."""
    backbone = retriever.backbone
    pad_to = SHAPE_STEP if recipe.model.compile else 1
    batch = join(framed, targets, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
    states = sequence_states(backbone, batch, stop=recipe.attention_stop)
    after = -log_likelihood(backbone, states, batch.input_ids, batch.query).mean()
    if not recipe.passage_lm_weight:
        return after, None
    first = torch.zeros_like(batch.passage)
    first[:, 0] = True  # predicted by nothing where the frame begins without a prompt
    before = -log_likelihood(backbone, states, batch.input_ids, batch.passage & ~first).mean()
    return after, recipe.passage_lm_weight * before


def measure(retriever: LightRetriever, development: Development, recipe: LikelihoodRecipe) -> float:
    """The mean log likelihood of a query token after the query's most relevant document, nothing hidden."""
    backbone, size = retriever.backbone, recipe.optimisation.batch_size
    documents = [development.documents[int(row.argmax())] for row in development.grades]
    queries = query_tokens(retriever, [query.text for query in development.queries], recipe)
    total = 0.0
    for start in range(0, len(queries), size):
        framed = retriever.frame_documents(documents[start : start + size])
        some = queries[start : start + size]
        pad_to = SHAPE_STEP if recipe.model.compile else 1
        batch = join(framed, some, n_ends=len(retriever.end_ids), device=backbone.device, pad_to=pad_to)
        states = sequence_states(backbone, batch, stop=recipe.attention_stop)
        total += float(log_likelihood(backbone, states, batch.input_ids, batch.query).sum())
    return total / max(1, sum(map(len, queries)))
