"""CSplade's adaptation stage (arXiv 2504.10816, section 3.2): unlabelled text prepares a causal model for ReLU."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.heads import LMHead, activate
from lightir.models.lm_losses import next_token_losses
from lightir.models.projection import projection_max
from lightir.train.batches.packing import PackedBatch
from lightir.train.recipes.packed_text_recipes import AdaptationRecipe
from lightir.train.run.loop import COLLAPSED, run_stage
from lightir.train.run.processes import maximum, mean_over_processes
from lightir.train.stages.losses import mean_pairwise_cosine
from lightir.train.stages.packed_text import PackedTextStage
from lightir.train.stages.stage_model import build_model

logger = logging.getLogger(__name__)

MONITORED_PIECES = 8
"""Number of pieces of a batch whose sparse vectors are monitored in every step."""

DYING = 0.99
"""Share of dead terms above which a warning is logged."""


def train(recipe: AdaptationRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Adapt a model, write its folder, from which the contrastive stage can start, and return its path.

    Args:
        recipe: the run's recipe.
        out: model folder to write.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: a corpus, or a checkpoint to resume from, is missing.
        InvalidInput: the backbone is no causal model with a plain head, or the text is shorter than one row.
    """
    return run_stage(recipe, Path(out), Adaptation, resume=resume, device=device)


class Adaptation(PackedTextStage[AdaptationRecipe]):
    """The adaptation stage: packed text, model and loss."""

    def __init__(self, recipe: AdaptationRecipe, device: str) -> None:
        """Build the model, read and tokenize the text."""
        super().__init__(recipe, build_model(recipe, device=device, require=require_plain_head), device)
        assert self.retriever.backbone.head is not None  # require_plain_head
        self.head: LMHead = self.retriever.backbone.head
        self.relu_weight = recipe.relu_weight
        self.likeness = 0.0  # the last step's mean pairwise cosine of sparse vectors

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return both cross entropies, means over the batch's predicted tokens on all processes."""
        batch = self.own_rows(number).to(self.device)
        states = self.states(batch)
        losses = next_token_losses(
            states[batch.predicting],
            self.head.weight,
            batch.targets,
            bias=self.head.bias,
            relu_weight=self.relu_weight,
        )
        n = len(batch.targets)
        total, relu = (mean_over_processes(loss, n) for loss in (losses.total, losses.relu.detach()))
        # One backward pass serves both terms, so the first part carries the gradient of the sum.
        weighted = self.relu_weight * relu
        return {"causal": total - weighted, "relu": weighted}, self._monitored(losses.maxima, states, batch, step)

    @torch.no_grad()
    def _monitored(self, maxima: Tensor, states: Tensor, batch: PackedBatch, step: int) -> dict[str, float]:
        """Return the share of terms without weight at any position, and non-zeros and cosine of some pieces."""
        dead = float((maximum(maxima) <= 0).float().mean())
        if dead > DYING:
            logger.warning(
                "step %d: %.1f %% of the terms have no weight in this batch: the head is dying", step, 100 * dead
            )
        n = min(MONITORED_PIECES, int(batch.pieces[0, -1]) + 1)
        masks = batch.pieces[0] == torch.arange(n, device=states.device)[:, None]
        rows = states[:1].expand(n, -1, -1)
        head = self.head
        maxima, _ = projection_max(rows, head.weight, mask=masks, bias=head.bias, kernel=head.kernel)
        weights = activate(maxima)
        nonzeros = float((weights > 0).sum(1).float().mean())
        self.likeness = mean_pairwise_cosine(weights)
        return {"dead": dead, "nonzeros": nonzeros, "sparse_cosine": self.likeness}

    def save(self, folder: Path) -> None:
        """Write the model; warn if the head still gives all texts nearly the same terms, as an untrained one does."""
        if self.likeness > COLLAPSED:
            logger.warning(
                "the texts' sparse vectors have a mean pairwise cosine of %.3f at the end: the head still gives all "
                "texts nearly the same terms; train longer or at a higher rate, or calibrate a bias (heads.calibrate) "
                "in the contrastive stage",
                self.likeness,
            )
        super().save(folder)


def require_plain_head(backbone: Backbone) -> None:
    """Check that adaptation can train the backbone.

    Raises:
        InvalidInput: the backbone is no causal model with a language-modelling head, or caps its logits.
    """
    if backbone.kind != "causal" or backbone.head is None:
        raise InvalidInput(
            f"{backbone.address}: adaptation needs a causal model with a language-modelling head; an encoder's "
            "masked-LM head needs no adaptation before the contrastive stage"
        )
    if getattr(backbone.model.config, "final_logit_softcapping", None):
        raise InvalidInput(
            f"{backbone.address} caps its logits, which this stage's losses do not support: it cannot be adapted"
        )
