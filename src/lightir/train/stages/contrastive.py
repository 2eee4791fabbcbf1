"""LightRetriever's contrastive stage: from a recipe to a model folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.data import TrainingSet
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.own_weights import all_weights
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import LIGHT_TOKENS_STEP, full_query_states, sparse_query_matrix
from lightir.train.distill.teacher import Teacher
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, LossWeights
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import autocast
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.development import Development, fuse, measured, ndcg
from lightir.train.stages.losses import similarity
from lightir.train.stages.sparsity import SparsityControl
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import build_model, fit_heads, prepare_layers, refit_bias, save_shipped
from lightir.types import Document
from lightir.vectors import Floats

logger = logging.getLogger(__name__)


def train(recipe: ContrastiveRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train a model and write its folder; the path comes back.

    While it runs, recipe, log and checkpoints are in `<out>.run` beside it; that folder goes when the model is whole.
    Mined negatives stay in the folder `negatives` beside it. Started by torchrun, every process calls this and the
    first one writes.

    Args:
        recipe: see `lightir.train.stages.registry` for recipe files.
        out: the model folder to be.
        resume: go on from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" takes a GPU where there is one.

    Raises:
        AlreadyExists: `out` is there, or an unfinished run is and resume is off.
        NotFound: a data set, or a checkpoint to resume from is missing.
    """
    out = Path(out)
    return run_stage(
        recipe, out, lambda device: Contrastive(recipe, out.parent / "negatives", device), resume=resume, device=device
    )


class Contrastive:
    """The stage: its training sets, its model, its loss and its development measures."""

    def __init__(self, recipe: ContrastiveRecipe, negatives: Path, device: str) -> None:
        """Open and clean the data, mine what is to be mined into `negatives`, build the model and fit its heads."""
        self.recipe, self.device = recipe, device
        self.data = StageData(recipe, negatives=negatives)
        if recipe.losses.distillation > 0:
            require_scores(self.data.sets)
        self.retriever = build_model(recipe, device=device)
        require_reachable(recipe.losses, self.retriever.backbone.vocab_size)
        fit_heads(self.retriever, recipe, self.data.sets)
        prepare_layers(self.retriever, recipe.model)
        self.trunk = self.retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        taught = recipe.teacher.address
        max_tokens = self.retriever.contract.document.max_tokens
        self.teacher = Teacher.load(taught, max_tokens=max_tokens, device=device) if taught else None
        self.controls = sparsity_controls(recipe)
        self.parameters = {n: p for n, p in all_weights(self.retriever.backbone).items() if p.requires_grad}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The head arrays, and the state of what sets the FLOPS weights."""
        heads = {f.name: getattr(self.retriever.heads, f.name) for f in dataclasses.fields(self.retriever.heads)}
        states = {f"control of {name}": control.state for name, control in self.controls.items()}
        return states | {name: tensor for name, tensor in heads.items() if tensor is not None}

    @property
    def texts_per_step(self) -> int:
        """Positives and negatives of all queries."""
        settings = self.recipe.optimisation
        return settings.batch_size * (1 + settings.negatives) * settings.accumulation

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Take a checkpoint's head arrays and states."""
        for name, control in self.controls.items():
            control.restore(fixed[f"control of {name}"])
        heads = {name: tensor for name, tensor in fixed.items() if not name.startswith("control of ")}
        self.retriever.heads = dataclasses.replace(self.retriever.heads, **heads)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Of the mixture's batch."""
        batch = self.data.mixture.batch(number)
        weights: dict[str, Any] = {name: control.weight for name, control in self.controls.items()}
        recipe = dataclasses.replace(self.recipe, losses=dataclasses.replace(self.recipe.losses, **weights))
        with autocast(self.device, self.retriever.backbone.model.dtype):
            parts, monitored = batch_losses(self.retriever, batch, recipe, step=step, teacher=self.teacher)
        for name, control in self.controls.items():
            control.observe(monitored["nonzeros" if name == "flops" else "query_nonzeros"])
            if (number + 1) % self.recipe.optimisation.accumulation == 0:
                control.adjust()
        if monitored.get("dead") == 1.0:
            logger.warning(
                "step %d: no document has a term above zero, so the sparse head has no gradient left: start from a "
                "model that the stage adaptation made ready, or with heads.calibrate, or lower FLOPS weights or the "
                "learning rate",
                step,
            )
        return parts, {**monitored, **{f"{n}_weight": w for n, w in weights.items()}, "dataset": batch.dataset}

    def evaluate(self) -> DevelopmentResult | None:
        """nDCG@10 on every development set, and the mean; the recipe says which branch decides."""
        if not self.data.development:
            return None
        heads = self.retriever.heads
        refit_bias(self.retriever, self.recipe, self.data.sets)  # what is shipped is refitted, so that is measured
        with autocast(self.device, self.retriever.backbone.model.dtype):
            per_set = {each.name: measure(self.retriever, each, self.recipe) for each in self.data.development}
        self.retriever.heads = heads
        return measured(per_set, by=self.recipe.evaluation.by)

    def save(self, folder: Path) -> None:
        """Write the model under the contract that the recipe describes."""
        refit_bias(self.retriever, self.recipe, self.data.sets)
        save_shipped(self.retriever, self.recipe, folder)

    def records(self) -> dict[str, object]:
        """What was trained on, and what was left out of it."""
        return self.data.records()


def require_scores(sets: Sequence[TrainingSet]) -> None:
    """Each set has a teacher's scores, of some of its examples at least.

    Raises:
        InvalidInput: one has none; its batches, however late they come, would teach nothing.
    """
    for each in sets:
        if not any(example.scores for example in each.examples):
            raise InvalidInput(
                f"losses.distillation is above 0, but no example of training set {each.name!r} has scores; "
                "give data.scores, or examples with scores"
            )


def require_reachable(losses: LossWeights, vocab_size: int) -> None:
    """Targets of non-zeros that a vector over the vocabulary can have.

    Raises:
        InvalidInput: one is beyond the vocabulary.
    """
    for name in ("flops_target", "query_flops_target"):
        if (target := getattr(losses, name)) > vocab_size:
            raise InvalidInput(f"losses.{name} is {target}, but the vocabulary has {vocab_size} terms")


def sparsity_controls(recipe: ContrastiveRecipe) -> dict[str, SparsityControl]:
    """What sets the FLOPS weights that have a target, by the weight's name in the recipe."""
    losses = recipe.losses
    wanted = {"flops": losses.flops_target, "query_flops": losses.query_flops_target}
    return {name: SparsityControl(getattr(losses, name), target) for name, target in wanted.items() if target}


def measure(retriever: LightRetriever, development: Development, recipe: ContrastiveRecipe) -> dict[str, float]:
    """nDCG@10 of every branch that the model has, on a development set in memory, by name."""
    contract, by_model = retriever.contract, recipe.losses.symmetric_sparse > 0
    texts = [query.text for query in development.queries]
    terms = sparse_query_matrix(retriever, texts)
    read = None if by_model else terms.any(0).nonzero()[:, 0]
    dense, sparse = _documents(retriever, development.documents, recipe, read)
    wanted = dense is not None or by_model
    chunks = _chunks(texts, recipe.optimisation.batch_size, recipe.model.compile) if wanted else []
    queries = [full_query_states(retriever, retriever.frame_queries(chunk), recipe) for chunk in chunks]
    scores = {}
    if dense is not None:
        full = torch.cat([retriever.dense_from(*each) for each in queries])[: len(texts)]
        scores["symmetric"] = similarity(F.normalize(full, dim=-1), dense)
        if contract.has_light_queries and (contract.attention == "causal" or recipe.losses.dense > 0):
            term_ids = query_term_ids(retriever.backbone.tokenizer, contract.query, texts)
            light = retriever.light_queries(term_ids, pad_to=LIGHT_TOKENS_STEP if recipe.model.compile else 1)
            scores["dense"] = similarity(F.normalize(light, dim=-1), dense)
    if sparse is not None:
        scores["sparse"] = similarity(terms if read is None else terms[:, read], sparse)
        if by_model:
            full = torch.cat([retriever.sparse_from(*each) for each in queries])[: len(texts)]
            scores["symmetric_sparse"] = similarity(full, sparse)
    arrays = _with_hybrids({name: value.float().cpu().numpy() for name, value in scores.items()}, recipe)
    return {name: ndcg(value, development.grades) for name, value in arrays.items()}


def _documents(
    retriever: LightRetriever, documents: Sequence[Document], recipe: ContrastiveRecipe, terms: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Normalised dense (D, H) and sparse (D, V or terms) vectors, as far as the model has the branches."""
    contract, settings = retriever.contract, recipe.optimisation
    length = contract.document.max_tokens if recipe.model.compile else None
    rows: tuple[list[Tensor], list[Tensor]] = [], []
    for chunk in _chunks(documents, settings.batch_size * (1 + settings.negatives), recipe.model.compile):
        batch = retriever.batch(retriever.frame_documents(chunk), length=length)
        dense, sparse = retriever.document_vectors(
            batch, dense=contract.dense is not None, sparse=contract.sparse is not None
        )
        if dense is not None:
            rows[0].append(F.normalize(dense, dim=-1))
        if sparse is not None:
            rows[1].append(sparse if terms is None else sparse[:, terms])
    found = [torch.cat(each)[: len(documents)] if each else None for each in rows]
    return found[0], found[1]


def _with_hybrids(arrays: dict[str, Floats], recipe: ContrastiveRecipe) -> dict[str, Floats]:
    """The branches' scores, and those of light and of full queries' branches fused."""
    arrays = dict(arrays)
    if "dense" in arrays and "sparse" in arrays:
        arrays["hybrid"] = fuse({name: arrays[name] for name in ("dense", "sparse")}, recipe.fusion.weights)
    if "symmetric" in arrays and "sparse" in arrays:
        arrays["symmetric_hybrid"] = fuse(
            {"dense": arrays["symmetric"], "sparse": arrays["sparse"]}, recipe.fusion.weights
        )
    return arrays


def _chunks(values: Sequence[Any], size: int, full: bool) -> Iterator[list[Any]]:
    """Consecutive pieces; with `full` the last is filled up with repeats, so that every piece has one shape."""
    for start in range(0, len(values), size):
        piece = list(values[start : start + size])
        yield piece + [piece[0]] * (size - len(piece)) if full else piece
