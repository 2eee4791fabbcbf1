"""Masked next-token prediction (LLM2Vec, arXiv 2404.05961): a causal model learns bidirectional attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood import token_log_probs
from lightir.train.batches.packing import PackedBatch
from lightir.train.recipes.packed_text_recipes import MaskedRecipe
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import mean_over_processes, rank, world_size
from lightir.train.stages.packed_text import PackedTextStage
from lightir.train.stages.stage_model import build_model


def train(recipe: MaskedRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train a model, write its folder, from which the contrastive stage can start, and return its path.

    Args:
        recipe: the run's recipe.
        out: model folder to write.
        resume: continue from the last checkpoint in `<out>.run`.
        device: "cpu", "cuda", …; "auto" uses a GPU if there is one.

    Raises:
        AlreadyExists: `out` exists, or an unfinished run exists and resume is off.
        NotFound: a corpus, or a checkpoint to resume from, is missing.
        InvalidInput: the backbone is no causal model with a head, or the text is shorter than one row.
    """
    return run_stage(recipe, Path(out), MaskedNextToken, resume=resume, device=device)


class MaskedNextToken(PackedTextStage[MaskedRecipe]):
    """The masked next-token stage: packed text, model and loss."""

    def __init__(self, recipe: MaskedRecipe, device: str) -> None:
        """Build the model, read and tokenize the text."""
        retriever = build_model(recipe, device=device, require=require_causal_head)
        self.mask_id = _mask_id(retriever, recipe.mask)
        super().__init__(recipe, retriever, device)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the mean of -log p(token | rest of its piece) over the batch's masked tokens on all processes."""
        del step
        batch, predicted, targets = self._masked(number)
        states = self.states(batch)
        rows, columns = predicted.nonzero(as_tuple=True)
        log_probs = token_log_probs(self.retriever.backbone, states[rows, columns - 1], targets[rows, columns])
        return {"masked": mean_over_processes(-log_probs.sum(), len(log_probs))}, {}

    def _masked(self, number: int) -> tuple[PackedBatch, Tensor, Tensor]:
        """Return this process's rows with masked tokens, (B, T) bool positions to predict, and (B, T) original ids."""
        recipe, n_rows = self.recipe, self.recipe.optimisation.batch_size
        whole = self.own_rows(number)
        chosen, hidden, drawn = drawn_masks(
            (n_rows, recipe.length), recipe, vocab_size=self.retriever.backbone.vocab_size, number=number
        )
        own = slice(rank() * n_rows // world_size(), (rank() + 1) * n_rows // world_size())
        predicted = chosen[own] & (whole.positions > 0)  # a piece's first token has no state in front of it
        ids = torch.where(predicted & hidden[own], self.mask_id, whole.input_ids)
        ids = torch.where(predicted & (drawn[own] >= 0), drawn[own], ids)
        batch = PackedBatch(ids, whole.pieces, whole.positions)
        return batch.to(self.device), predicted.to(self.device), whole.input_ids.to(self.device)


def drawn_masks(
    shape: tuple[int, int], recipe: MaskedRecipe, *, vocab_size: int, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw a whole batch's masks: (B, T) bool tokens to predict, bool tokens to mask, and int64 random tokens.

    The draw depends on the seed and the batch's number only, so it is the same for any number of processes. -1 means no
    random token; a token that is neither masked nor replaced is still predicted.
    """
    rng = np.random.default_rng([recipe.optimisation.seed, 4, number])
    chosen = rng.random(shape) < recipe.ratio
    fate = rng.random(shape)
    replaced = (fate >= recipe.kept) & (fate < recipe.kept + recipe.random)
    drawn = np.where(replaced, rng.integers(vocab_size, size=shape), -1)
    hidden = fate >= recipe.kept + recipe.random
    return torch.from_numpy(chosen), torch.from_numpy(hidden), torch.from_numpy(drawn)


def _mask_id(retriever: LightRetriever, mask: str) -> int:
    ids: list[int] = retriever.backbone.tokenizer.term_ids([mask]).row(0).tolist()
    if len(ids) != 1:
        raise InvalidInput(f"mask {mask!r} is {len(ids)} tokens; expected one, to mask a token")
    return ids[0]


def require_causal_head(backbone: Backbone) -> None:
    """Check that this stage can train the backbone.

    Raises:
        InvalidInput: the backbone is no causal model with a language-modelling head.
    """
    if backbone.kind != "causal" or backbone.head is None:
        raise InvalidInput(f"{backbone.address}: this stage needs a causal model with a language-modelling head")
