"""Masked next-token prediction (LLM2Vec, arXiv 2404.05961): a causal model learns to attend both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightir.contract import Contract, DenseHead, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.likelihood import token_log_probs
from lightir.models.own_weights import train_all
from lightir.text import QueryPolicy
from lightir.train.batches.packing import PackedBatch
from lightir.train.recipes.settings import BranchEvaluation, CorpusRecipe, ModelRecipe, Optimisation
from lightir.train.run.loop import run_stage
from lightir.train.run.processes import mean_over_processes, rank, world_size
from lightir.train.stages.packed_text import PackedTextStage, check_packed_text
from lightir.train.stages.stage_model import trainable_backbone


@dataclass(frozen=True, slots=True)
class MaskedRecipe:
    """One run of masked next-token prediction: hidden tokens are predicted from the state in front of them.

    Attributes:
        model: the backbone, causal by nature, with `attention: bidirectional`.
        data: the text; its documents are shuffled together.
        optimisation: steps, rows and the learning rate: batch_size counts packed rows on all processes together;
            negatives and query_tokens have no meaning here.
        length: tokens in a packed row.
        ratio: the probability with which a token is to be predicted.
        mask: the text that hides a token; one token.
        random: share of the tokens to be predicted that a random one stands for instead (BERT's .1).
        kept: share of them that stay as they are (BERT's .1).
        query: the query policy; it goes into the contract as it is.
        documents: the document policy; it goes into the contract, and documents are framed and cut by it here too.
        checkpoint_every: optimizer steps between two checkpoints; a killed run repeats what came after its last.
            Ctrl-C and SIGTERM write one at once. 0 writes no others.
        stage: which stage the recipe is of.
    """

    model: ModelRecipe
    data: tuple[CorpusRecipe, ...]
    optimisation: Optimisation = field(default_factory=lambda: Optimisation(learning_rate=5e-5, warmup_steps=0))
    length: int = 512
    ratio: float = 0.2
    mask: str = "_"
    random: float = 0.1
    kept: float = 0.1
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: DocumentPolicy = field(default_factory=DocumentPolicy)
    checkpoint_every: int = 200
    stage: Literal["masked_next_token"] = "masked_next_token"

    def __post_init__(self) -> None:
        check_packed_text(self)
        if self.model.attention != "bidirectional":
            raise InvalidInput(f"model.attention is {self.model.attention}; this stage is for bidirectional")
        if not 0 < self.ratio <= 1 or min(self.random, self.kept) < 0 or self.random + self.kept > 1:
            raise InvalidInput("ratio must be above 0, random and kept at least 0, and none of the sums above 1")

    @property
    def evaluation(self) -> BranchEvaluation:
        """None: the last state is kept."""
        return BranchEvaluation()


def train(recipe: MaskedRecipe, out: Path | str, *, resume: bool = False, device: str = "auto") -> Path:
    """Train a model and write its folder, from which the contrastive stage can start; as `adaptation.train`."""
    return run_stage(recipe, Path(out), lambda device: MaskedNextToken(recipe, device), resume=resume, device=device)


class MaskedNextToken(PackedTextStage):
    """The stage: its packed text, its model and its loss."""

    def __init__(self, recipe: MaskedRecipe, device: str) -> None:
        """Build the model, read and tokenise the text."""
        retriever = _build(recipe, device)
        self.recipe, self.mask_id = recipe, _mask_id(retriever, recipe.mask)
        super().__init__(recipe, retriever, device)

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Mean of -log p(token | everything else of its piece) over the batch's hidden tokens on all processes."""
        del step
        batch, wanted, targets = self._hidden(number)
        states = self.states(batch)
        rows, places = wanted.nonzero(as_tuple=True)
        found = token_log_probs(self.retriever.backbone, states[rows, places - 1], targets[rows, places])
        return {"masked": mean_over_processes(-found.sum(), len(found))}, {}

    def _hidden(self, number: int) -> tuple[PackedBatch, Tensor, Tensor]:
        """This process's rows with tokens hidden, (B, T) bool which, and (B, T) what stood there."""
        recipe, n_rows = self.recipe, self.recipe.optimisation.batch_size
        whole = self.own_rows(number)
        chosen, hidden, drawn = drawn_masks(
            (n_rows, recipe.length), recipe, vocab_size=self.retriever.backbone.vocab_size, number=number
        )
        own = slice(rank() * n_rows // world_size(), (rank() + 1) * n_rows // world_size())
        wanted = chosen[own] & (whole.positions > 0)  # nothing stands in front of a piece's first token
        ids = torch.where(wanted & hidden[own], self.mask_id, whole.input_ids)
        ids = torch.where(wanted & (drawn[own] >= 0), drawn[own], ids)
        tensors = (ids, whole.pieces, whole.positions, wanted, whole.input_ids)
        ids, pieces, positions, wanted, targets = (each.to(self.device) for each in tensors)
        return PackedBatch(ids, pieces, positions), wanted, targets


def drawn_masks(
    shape: tuple[int, int], recipe: MaskedRecipe, *, vocab_size: int, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """For a whole batch: (B, T) bool which tokens are to be predicted, which the mask hides, and int64 random ones.

    Drawn from the seed and the batch's number, so every number of processes hides the same. -1 stands where no random
    token does; a token that is neither hidden nor replaced is predicted all the same.
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
        raise InvalidInput(f"mask {mask!r} is {len(ids)} tokens; expected one, to hide a token")
    return ids[0]


def _build(recipe: MaskedRecipe, device: str) -> LightRetriever:
    backbone, record = trainable_backbone(recipe.model, seed=recipe.optimisation.seed, device=device)
    if backbone.kind != "causal" or backbone.head is None:
        raise InvalidInput(f"{recipe.model.address}: this stage needs a causal model with a language-modelling head")
    contract = Contract(
        "dense", record, recipe.query, recipe.documents, dense=DenseHead("mean"), sparse=None, attention="bidirectional"
    )
    retriever = LightRetriever(backbone, contract).to(device)
    if recipe.model.lora_rank == 0:
        retriever.backbone = train_all(retriever.backbone)
    return retriever
