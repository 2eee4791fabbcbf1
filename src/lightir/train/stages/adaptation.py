"""CSplade's adaptation stage (arXiv 2504.10816, section 3.2): a causal model made ready for ReLU on unlabelled text."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from lightir.contract import Contract, DocumentPolicy, SparseHead
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.heads import LMHead, activate
from lightir.models.lm_losses import next_token_losses
from lightir.models.own_weights import train_all
from lightir.models.projection import projection_max
from lightir.text import QueryPolicy
from lightir.train.batches.packing import PackedBatch
from lightir.train.recipes.settings import BranchEvaluation, CorpusRecipe, ModelRecipe, Optimisation
from lightir.train.run.loop import COLLAPSED, run_stage
from lightir.train.run.processes import mean_over_processes, world_size
from lightir.train.stages.losses import mean_pairwise_cosine
from lightir.train.stages.packed_text import PackedTextStage, check_packed_text
from lightir.train.stages.stage_model import trainable_backbone

logger = logging.getLogger(__name__)

WATCHED = 8
"""Pieces of a batch whose sparse vectors are looked at in every step."""

DYING = 0.99
"""Share of dead terms above which a warning is logged."""


@dataclass(frozen=True, slots=True)
class AdaptationRecipe:
    """One adaptation run: L = CE(z, next) + relu_weight x CE(ln(1 + ReLU(z)), next) on packed text.

    Attributes:
        model: the backbone, causal.
        data: the text; its documents are shuffled together.
        optimisation: steps, rows and the learning rate: batch_size counts packed rows on all processes together;
            negatives and query_tokens have no meaning here.
        length: tokens in a packed row.
        relu_weight: λ of the second term.
        query: the query policy; it goes into the contract as it is.
        documents: the document policy; it goes into the contract, and documents are framed and cut by it here too.
        checkpoint_every: optimizer steps between two checkpoints; a killed run repeats what came after its last.
            Ctrl-C and SIGTERM write one at once. 0 writes no others.
        stage: which stage the recipe is of.
    """

    model: ModelRecipe
    data: tuple[CorpusRecipe, ...]
    optimisation: Optimisation = field(default_factory=lambda: Optimisation(steps=10_000, warmup_steps=1000))
    length: int = 2048
    relu_weight: float = 1.0
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: DocumentPolicy = field(default_factory=DocumentPolicy)
    checkpoint_every: int = 200
    stage: Literal["adaptation"] = "adaptation"

    def __post_init__(self) -> None:
        check_packed_text(self)
        if self.model.attention != "causal":
            raise InvalidInput(
                f"adaptation predicts the next token, so model.attention must be causal, not "
                f"{self.model.attention}; the contrastive stage after it may be of another"
            )
        if self.relu_weight < 0:
            raise InvalidInput(f"relu_weight is {self.relu_weight}; expected 0 or more")

    @property
    def evaluation(self) -> BranchEvaluation:
        """None: the last state is kept."""
        return BranchEvaluation()


def train(recipe: AdaptationRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Adapt a model and write its folder, from which the contrastive stage can start; the path comes back.

    Args:
        recipe: what to do.
        out: the model folder to be.
        resume: go on from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" takes a GPU where there is one.

    Raises:
        AlreadyExists: `out` is there, or an unfinished run is and resume is off.
        NotFound: a corpus, or a checkpoint to resume from is missing.
        InvalidInput: the backbone is no causal model with a plain head, or there is less text than one row.
    """
    return run_stage(recipe, Path(out), lambda device: Adaptation(recipe, device), resume=resume, device=device)


class Adaptation(PackedTextStage):
    """The stage: its packed text, its model and its loss."""

    def __init__(self, recipe: AdaptationRecipe, device: str) -> None:
        """Build the model, read and tokenise the text."""
        super().__init__(recipe, _build(recipe, device), device)
        assert self.retriever.backbone.head is not None  # _build saw to it
        self.head: LMHead = self.retriever.backbone.head
        self.relu_weight = recipe.relu_weight
        self.likeness = 0.0  # the last step's mean pairwise cosine of sparse vectors

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Both cross entropies, means over the batch's predicted tokens on all processes."""
        whole = self.own_rows(number)
        batch = PackedBatch(*(each.to(self.device) for each in (whole.input_ids, whole.pieces, whole.positions)))
        states = self.states(batch)
        found = next_token_losses(
            states[batch.predicting],
            self.head.weight,
            batch.targets,
            bias=self.head.bias,
            relu_weight=self.relu_weight,
        )
        n = len(batch.targets)
        total, relu = mean_over_processes(found.total, n), mean_over_processes(found.relu.detach(), n)
        # One backward pass serves both terms, so the first part carries the gradient of the sum.
        weighted = self.relu_weight * relu
        return {"causal": total - weighted, "relu": weighted}, self._monitored(found.maxima, states, batch, step)

    @torch.no_grad()
    def _monitored(self, maxima: Tensor, states: Tensor, batch: PackedBatch, step: int) -> dict[str, float]:
        """Share of terms that no position gives a weight; and non-zeros and cosine of some pieces' sparse vectors."""
        if world_size() > 1:
            dist.all_reduce(maxima, dist.ReduceOp.MAX)
        dead = float((maxima <= 0).float().mean())
        if dead > DYING:
            logger.warning(
                "step %d: %.1f %% of the terms have no weight in this batch: the head is dying", step, 100 * dead
            )
        n = min(WATCHED, int(batch.pieces[0, -1]) + 1)
        masks = batch.pieces[0] == torch.arange(n, device=states.device)[:, None]
        rows = states[:1].expand(n, -1, -1)
        head = self.head
        found, _ = projection_max(rows, head.weight, mask=masks, bias=head.bias, kernel=head.kernel)
        weights = activate(found)
        nonzeros = float((weights > 0).sum(1).float().mean())
        self.likeness = mean_pairwise_cosine(weights)
        return {"dead": dead, "nonzeros": nonzeros, "sparse_cosine": self.likeness}

    def save(self, folder: Path) -> None:
        """Write the model; a head that still says the same of every text is warned of, for it begins like that."""
        if self.likeness > COLLAPSED:
            logger.warning(
                "the texts' sparse vectors have a mean pairwise cosine of %.3f at the end: the head still gives all "
                "texts nearly the same terms; train longer or at a higher rate, or calibrate a bias (heads.calibrate) "
                "in the contrastive stage",
                self.likeness,
            )
        super().save(folder)


def _build(recipe: AdaptationRecipe, device: str) -> LightRetriever:
    backbone, record = trainable_backbone(recipe.model, seed=recipe.optimisation.seed, device=device)
    if backbone.kind != "causal" or backbone.head is None:
        raise InvalidInput(
            f"{recipe.model.address}: adaptation needs a causal model with a language-modelling head; an encoder's "
            "masked-LM head goes into the contrastive stage as it is"
        )
    if getattr(backbone.model.config, "final_logit_softcapping", None):
        raise InvalidInput(
            f"{recipe.model.address} caps its logits, which this stage's losses do not know of: it can't be adapted"
        )
    contract = Contract("csplade", record, recipe.query, recipe.documents, dense=None, sparse=SparseHead())
    retriever = LightRetriever(backbone, contract).to(device)
    if recipe.model.lora_rank == 0:
        retriever.backbone = train_all(retriever.backbone)
    return retriever
