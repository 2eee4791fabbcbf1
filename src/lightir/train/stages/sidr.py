"""SiDR: a parametric vocabulary vector on both sides, trained against bag-of-tokens vectors as well.

Each step searches a fixed bag-of-tokens index of the training corpora with the queries as they are encoded now, and
draws one hard negative a query from what it finds: nothing is ever indexed again.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightir.contract import BackboneRecord, Contract, Fusion, SparseHead
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.own_weights import all_weights
from lightir.train.batches.batch_vectors import LIGHT_TOKENS_STEP, SHAPE_STEP
from lightir.train.recipes.settings import WANTED
from lightir.train.recipes.sidr_recipe import SidrRecipe
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import autocast
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.development import Development, measured, ndcg
from lightir.train.stages.losses import similarity
from lightir.train.stages.sidr_batch import bag_of_tokens, batch_losses, light_queries, parametric, pruned
from lightir.train.stages.sidr_retrieval import BagOfTokens
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import fit_heads, load_trainable, prepare_layers, save_shipped, training_policies

logger = logging.getLogger(__name__)


def train(recipe: SidrRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train SiDR and write its model folder; as `lightir.train.stages.contrastive.train`."""
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

    def evaluate(self) -> DevelopmentResult | None:
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
    scores = {
        "full": similarity(queries, documents),
        "beta": similarity(queries, bags),
        "overlap": similarity(query_bags, bags),
    }
    if retriever.contract.has_light_queries:
        texts = [query.text for query in development.queries]
        pad_to = LIGHT_TOKENS_STEP if recipe.model.compile else 1
        light = light_queries(retriever, texts, pad_to=pad_to)
        scores |= {"light_full": similarity(light, documents), "light_beta": similarity(light, bags)}
    return {name: ndcg(value.float().cpu().numpy(), development.grades) for name, value in scores.items()}
