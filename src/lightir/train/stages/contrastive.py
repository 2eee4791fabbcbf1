"""The contrastive stage: LightRetriever's, and the second stage of LLM-QL and CSplade."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lightir.contract import Contract, Fusion
from lightir.data import TrainingSet
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood import require_generator
from lightir.text import query_term_ids
from lightir.train.batches.batch_vectors import LIGHT_TOKENS_STEP, full_query_states, sparse_query_matrix
from lightir.train.distill.teacher import Teacher
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe, LossWeights
from lightir.train.run.loop import run_stage
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.contrastive_batch import batch_losses
from lightir.train.stages.development import Development, measured, ndcg_of_fusion, ndcg_of_scores
from lightir.train.stages.head_fitting import fit_heads, fit_scale, refit_bias
from lightir.train.stages.likelihood_loss import joint_loss
from lightir.train.stages.losses import similarity
from lightir.train.stages.sparsity import SparsityControl
from lightir.train.stages.stage_data import StageData
from lightir.train.stages.stage_model import ModelStage, build_model
from lightir.types import Document
from lightir.vectors import Floats

logger = logging.getLogger(__name__)


def train(recipe: ContrastiveRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train a model, write its folder and return its path.

    During training, recipe, log and checkpoints are in `<out>.run`, which is removed when the model is complete. Mined
    negatives are kept in the folder `negatives` beside `out`. Under torchrun, every process calls this function and
    process 0 writes.

    Args:
        recipe: the run's recipe; `lightir.train.stages.registry.read_recipe` reads recipe files.
        out: model folder to write.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: a data set, or a checkpoint to resume from, is missing.
    """
    out = Path(out)
    negatives = out.parent / "negatives"
    return run_stage(
        recipe, out, lambda pinned, device: Contrastive(pinned, negatives, device), resume=resume, device=device
    )


class Contrastive(ModelStage[ContrastiveRecipe]):
    """The contrastive stage: training sets, model, loss and development measures."""

    def __init__(self, recipe: ContrastiveRecipe, negatives: Path, device: str) -> None:
        """Open and clean the data, mine negatives into the folder `negatives`, build the model and fit its heads."""
        self.data = StageData(recipe, negatives=negatives)
        if recipe.losses.distillation > 0:
            require_scores(self.data.sets)
        generator = require_generator if recipe.likelihood.weight > 0 else None
        retriever = build_model(recipe, device=device, require=generator)
        require_reachable(recipe.losses, retriever.backbone.vocab_size)
        with retriever.reading_queries():
            pass  # refuses more layers than the model has, before the first step
        retriever.contract = with_widths(retriever.contract, recipe.losses.dims)
        fit_heads(retriever, recipe, self.data.sets)
        super().__init__(recipe, retriever, device)
        taught, max_tokens = recipe.teacher.address, retriever.contract.document.max_tokens
        self.teacher = Teacher.load(taught, max_tokens=max_tokens, device=device) if taught else None
        self.controls = sparsity_controls(recipe)

    @property
    def fixed(self) -> dict[str, Tensor]:
        """The head arrays, and the state of the controllers of the FLOPS weights."""
        heads = {f.name: getattr(self.retriever.heads, f.name) for f in dataclasses.fields(self.retriever.heads)}
        states = {f"control of {name}": control.state for name, control in self.controls.items()}
        return states | {name: tensor for name, tensor in heads.items() if tensor is not None}

    @property
    def texts_per_step(self) -> int:
        """Number of positives and negatives of all queries of a step."""
        settings = self.recipe.optimisation
        return settings.batch_size * (1 + settings.negatives) * settings.accumulation

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Restore a checkpoint's head arrays and controllers."""
        for name, control in self.controls.items():
            control.restore(fixed[f"control of {name}"])
        heads = {name: tensor for name, tensor in fixed.items() if not name.startswith("control of ")}
        self.retriever.heads = dataclasses.replace(self.retriever.heads, **heads)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the loss of batch `number` of the mixture."""
        batch = self.data.mixture.batch(number)
        weights: dict[str, Any] = {name: control.weight for name, control in self.controls.items()}
        recipe = dataclasses.replace(self.recipe, losses=dataclasses.replace(self.recipe.losses, **weights))
        with self.autocast():
            parts, monitored = batch_losses(self.retriever, batch, recipe, step=step, teacher=self.teacher)
            if recipe.likelihood.weight > 0:
                parts["likelihood"], further = joint_loss(self.retriever, batch, recipe, number=number)
                monitored |= further
        for name, control in self.controls.items():
            control.observe(monitored["nonzeros" if name == "flops" else "query_nonzeros"])
            if (number + 1) % self.recipe.optimisation.accumulation == 0:
                control.adjust()
        if monitored.get("dead") == 1.0:
            logger.warning(
                "step %d: no document has a term above zero, so the sparse head has no gradient left: start from a "
                "model trained by the stage adaptation, or with heads.calibrate, or lower FLOPS weights or the "
                "learning rate",
                step,
            )
        return parts, {**monitored, **{f"{n}_weight": w for n, w in weights.items()}, "dataset": batch.dataset}

    def evaluate(self) -> DevelopmentResult | None:
        """Return nDCG@10 on every development set, and the mean; the recipe selects the deciding branch."""
        if not self.data.development:
            return None
        heads = self.retriever.heads
        refit_bias(self.retriever, self.recipe, self.data.sets)  # the shipped model is refitted, so measure that
        with self.autocast():
            per_set = {
                development.name: measure(self.retriever, development, self.recipe)
                for development in self.data.development
            }
        self.retriever.heads = heads
        return measured(per_set, by=self.recipe.evaluation.by)

    def complete(self) -> None:
        """Refit the term bias, if the recipe says so; sharded layers run on all processes."""
        refit_bias(self.retriever, self.recipe, self.data.sets)

    def fit_shipped(self) -> None:
        """Fit the quantizer's scale if the recipe says so."""
        fit_scale(self.retriever, self.recipe, self.data.sets)

    def records(self) -> dict[str, object]:
        """Return facts about the training data and its decontamination."""
        return self.data.records()


def require_scores(sets: Sequence[TrainingSet]) -> None:
    """Check that each set has teacher scores, at least of some of its examples.

    Raises:
        InvalidInput: a set has none, so its batches would teach nothing.
    """
    for training in sets:
        if not any(example.scores for example in training.examples):
            raise InvalidInput(
                f"losses.distillation is above 0, but no example of training set {training.name!r} has scores; "
                "give data.scores, or examples with scores"
            )


def require_reachable(losses: LossWeights, vocab_size: int) -> None:
    """Check that a vector over the vocabulary can have as many non-zeros as the targets say.

    Raises:
        InvalidInput: a target exceeds the vocabulary.
    """
    for name in ("flops_target", "query_flops_target"):
        if (target := getattr(losses, name)) > vocab_size:
            raise InvalidInput(f"losses.{name} is {target}, but the vocabulary has {vocab_size} terms")


def with_widths(contract: Contract, dims: Sequence[int]) -> Contract:
    """Return the contract with the trained Matryoshka widths, widest first; unchanged without any.

    Raises:
        InvalidInput: a width that is not below the vectors', or no dense branch.
    """
    if not dims:
        return contract
    full = contract.backbone.hidden_size
    if contract.dense is None or max(dims) >= full:
        raise InvalidInput(
            f"losses.dims is {list(dims)}; expected widths of a dense branch below the full width, {full}"
        )
    widths = (full, *sorted(dims, reverse=True))
    return dataclasses.replace(contract, dense=dataclasses.replace(contract.dense, dims=widths))


def sparsity_controls(recipe: ContrastiveRecipe) -> dict[str, SparsityControl]:
    """Return a controller for each FLOPS weight with a target, by the weight's name in the recipe."""
    losses = recipe.losses
    targets = {"flops": losses.flops_target, "query_flops": losses.query_flops_target}
    return {name: SparsityControl(getattr(losses, name), target) for name, target in targets.items() if target}


def measure(retriever: LightRetriever, development: Development, recipe: ContrastiveRecipe) -> dict[str, float]:
    """Return nDCG@10 of each of the model's branches on a development set in memory, by name."""
    contract, by_model = retriever.contract, recipe.losses.symmetric_sparse > 0
    texts = [query.text for query in development.queries]
    terms = sparse_query_matrix(retriever, texts)
    read = None if by_model else terms.any(0).nonzero()[:, 0]
    dense, sparse = _documents(retriever, development.documents, recipe, read)
    needs_states = dense is not None or by_model
    chunks = _chunks(texts, recipe.optimisation.batch_size, recipe.model.compile) if needs_states else []
    queries = [full_query_states(retriever, retriever.frame_queries(chunk), recipe) for chunk in chunks]
    scores = {}
    if dense is not None:
        full = torch.cat([retriever.dense_from(*states) for states in queries])[: len(texts)]
        scores["symmetric"] = similarity(retriever.comparable(full), dense)
        if contract.has_light_queries and (contract.attention == "causal" or recipe.losses.dense > 0):
            term_ids = query_term_ids(retriever.backbone.tokenizer, contract.query, texts)
            light = retriever.light_queries(term_ids, pad_to=LIGHT_TOKENS_STEP if recipe.model.compile else 1)
            scores["dense"] = similarity(F.normalize(light, dim=-1), dense)
    if sparse is not None:
        scores["sparse"] = similarity(terms if read is None else terms[:, read], sparse)
        if by_model:
            full = torch.cat([retriever.sparse_from(*states) for states in queries])[: len(texts)]
            scores["symmetric_sparse"] = similarity(full, sparse)
    arrays = {name: value.float().cpu().numpy() for name, value in scores.items()}
    return {
        **{name: ndcg_of_scores(value, development.grades) for name, value in arrays.items()},
        **_hybrid_measures(arrays, development.grades, contract.fusion),
    }


def _documents(
    retriever: LightRetriever, documents: Sequence[Document], recipe: ContrastiveRecipe, terms: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return comparable dense (D, H) and sparse (D, V or terms) vectors; None for a branch that the model lacks."""
    contract, settings = retriever.contract, recipe.optimisation
    length = contract.document.max_tokens if recipe.model.compile else None
    rows: tuple[list[Tensor], list[Tensor]] = [], []
    for chunk in _chunks(documents, settings.batch_size * (1 + settings.negatives), recipe.model.compile):
        batch = retriever.batch(retriever.frame_documents(chunk), length=length)
        dense, sparse = retriever.document_vectors(
            batch, dense=contract.dense is not None, sparse=contract.sparse is not None
        )
        if dense is not None:
            rows[0].append(retriever.comparable(dense))
        if sparse is not None:
            rows[1].append(sparse if terms is None else sparse[:, terms])
    dense_rows, sparse_rows = (torch.cat(blocks)[: len(documents)] if blocks else None for blocks in rows)
    return dense_rows, sparse_rows


def _hybrid_measures(arrays: Mapping[str, Floats], grades: Floats, fusion: Fusion) -> dict[str, float]:
    """Return nDCG@10 of the dense and sparse branches joined as the model's searches join them."""
    hybrids = {"hybrid": "dense", "symmetric_hybrid": "symmetric"}
    return {
        name: ndcg_of_fusion({"dense": arrays[dense], "sparse": arrays["sparse"]}, grades, fusion)
        for name, dense in hybrids.items()
        if dense in arrays and "sparse" in arrays
    }


def _chunks(values: Sequence[Any], size: int, full: bool) -> Iterator[list[Any]]:
    """Yield consecutive pieces; with `full`, repeats fill up the last, so that all pieces have one shape."""
    for start in range(0, len(values), size):
        piece = list(values[start : start + size])
        yield piece + [piece[0]] * (size - len(piece)) if full else piece
