"""CSplade's adaptation stage (arXiv 2504.10816, section 3.2): a causal model made ready for ReLU on unlabelled text."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from lightir.contract import Contract, DocumentPolicy, SparseHead
from lightir.data import read_documents
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.heads import LMHead, activate
from lightir.models.lm_losses import next_token_losses
from lightir.models.losses import mean_pairwise_cosine, rank, world_size
from lightir.models.projection import projection_max
from lightir.text import QueryPolicy
from lightir.train.data_names import data_folder
from lightir.train.loop import Measured, autocast, run_stage
from lightir.train.packing import PackedBatch, PackedTexts, packed_states
from lightir.train.preparation import prepare_layers, trainable_backbone
from lightir.train.settings import Evaluation, ModelRecipe, Optimisation, packed_attention

logger = logging.getLogger(__name__)

WATCHED = 8
"""Pieces of a batch whose sparse vectors are looked at in every step."""

DYING = 0.99
"""Share of dead terms above which a warning is logged."""

FRAMED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """Unlabelled text.

    Attributes:
        name: a corpus in any form that `lightir encode` reads: a BEIR folder, a JSON-lines, CSV or Parquet file, a
            folder of text files; or a name inside the folder that LIGHTIR_DATA names.
        documents: the first so many; 0 takes all.
    """

    name: str
    documents: int = 0


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
        checkpoint_every: optimizer steps between two checkpoints; 0 writes none.
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
        check_packed_text(self.data, self.optimisation, self.documents, self.model, self.length)
        if self.model.attention != "causal":
            raise InvalidInput(
                f"adaptation predicts the next token, so model.attention must be causal, not "
                f"{self.model.attention}; the contrastive stage after it may be of another"
            )
        if self.relu_weight < 0:
            raise InvalidInput(f"relu_weight is {self.relu_weight}; expected 0 or more")

    @property
    def evaluation(self) -> Evaluation:
        """None: the last state is kept."""
        return Evaluation()


def check_packed_text(
    data: Sequence[CorpusRecipe],
    optimisation: Optimisation,
    documents: DocumentPolicy,
    model: ModelRecipe,
    length: int,
) -> None:
    """What every stage on rows of packed text asks of its recipe; a row has `length` tokens.

    Raises:
        InvalidInput: no corpus, settings of stages that have queries, or documents longer than a row.
    """
    if not data:
        raise InvalidInput("a recipe needs at least one corpus under `data`")
    if optimisation.packed_tokens:
        raise InvalidInput("optimisation.packed_tokens is for the stage contrastive")
    packed_attention(optimisation, model)
    if optimisation.mixed_batches:
        raise InvalidInput("documents of all corpora are shuffled together here: leave optimisation.mixed_batches off")
    if optimisation.gradient_cache:
        raise InvalidInput(
            "packed rows are independent of each other here: accumulation does what gradient_cache would"
        )
    if optimisation.negatives or optimisation.query_tokens:
        raise InvalidInput("this stage has no queries: leave optimisation.negatives and query_tokens at 0")
    if documents.max_tokens > length:
        raise InvalidInput(f"documents.max_tokens is {documents.max_tokens}, but a row has {length} tokens")
    if model.lora_rank < 1:
        raise InvalidInput(f"model.lora_rank is {model.lora_rank}; at least 1 is needed")


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


class Adaptation:
    """The stage: its packed text, its model and its loss."""

    def __init__(self, recipe: AdaptationRecipe, device: str) -> None:
        """Build the model, read and tokenise the text; every process holds all of it."""
        self.recipe, self.device = recipe, device
        self.retriever = _build(recipe, device)
        assert self.retriever.backbone.head is not None  # _build saw to it
        self.head: LMHead = self.retriever.backbone.head
        framed = framed_corpora(self.retriever, recipe.data)
        self.texts = PackedTexts(framed, length=recipe.length, seed=recipe.optimisation.seed)
        prepare_layers(self.retriever, recipe.model)
        self.trunk = self.retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        self.parameters = {n: p for n, p in self.trunk.named_parameters() if p.requires_grad}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Nothing beside the parameters."""
        return {}

    @property
    def texts_per_step(self) -> int:
        """About: documents as long as they are on average."""
        settings = self.recipe.optimisation
        tokens = settings.batch_size * settings.accumulation * self.recipe.length
        return max(1, round(tokens * len(self.texts) / len(self.texts.tokens)))

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Nothing to take."""

    def losses(self, number: int, *, step: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Both cross entropies, means over the batch's predicted tokens on all processes."""
        whole = self.texts.batch(
            number, rows=self.recipe.optimisation.batch_size, process=rank(), processes=world_size()
        )
        batch = PackedBatch(*(each.to(self.device) for each in (whole.input_ids, whole.pieces, whole.positions)))
        with autocast(self.device, self.retriever.backbone.model.dtype):
            attention = packed_attention(self.recipe.optimisation, self.recipe.model)
            states = packed_states(self.retriever.backbone, batch, attention=attention)
        found = next_token_losses(
            states[batch.predicting],
            self.head.weight,
            batch.targets,
            bias=self.head.bias,
            relu_weight=self.recipe.relu_weight,
        )
        n = len(batch.targets)
        total, relu = mean_over_processes(found.total, n), mean_over_processes(found.relu.detach(), n)
        # One backward pass serves both terms, so the first part carries the gradient of the sum.
        weighted = self.recipe.relu_weight * relu
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
        return {"dead": dead, "nonzeros": nonzeros, "sparse_cosine": mean_pairwise_cosine(weights)}

    def evaluate(self) -> Measured | None:
        """There is no development set."""
        return None

    def save(self, folder: Path) -> None:
        """Write the model."""
        self.retriever.save(folder)

    def records(self) -> dict[str, object]:
        """What it was trained on."""
        return {"data": corpus_record(self.recipe.data, self.texts)}


def mean_over_processes(total: Tensor, n: int) -> Tensor:
    """A sum over n positions of this process as the mean over all processes' positions.

    Its gradient is such that the mean of all processes' gradients, which the loop takes, is the whole batch's.
    """
    if world_size() == 1:
        return total / max(n, 1)
    whole = torch.stack([total.detach(), total.new_tensor(float(n))])
    dist.all_reduce(whole)
    mean, own = whole[0] / whole[1].clamp(min=1), total * world_size() / whole[1].clamp(min=1)
    return own + (mean - own.detach())


def _build(recipe: AdaptationRecipe, device: str) -> LightRetriever:
    backbone, record = trainable_backbone(recipe.model, seed=recipe.optimisation.seed, device=device)
    if backbone.kind != "causal" or backbone.head is None:
        raise InvalidInput(f"{recipe.model.address}: adaptation needs a causal model with a language-modelling head")
    if getattr(backbone.model.config, "final_logit_softcapping", None):
        raise InvalidInput(
            f"{recipe.model.address} caps its logits, which the sparse head does not: it can't be adapted"
        )
    contract = Contract("csplade", record, recipe.query, recipe.documents, dense=None, sparse=SparseHead())
    return LightRetriever(backbone, contract).to(device)


def corpus_record(data: Sequence[CorpusRecipe], texts: PackedTexts) -> dict[str, object]:
    """What a run on packed text leaves about its data."""
    return {
        "corpora": [each.name for each in data],
        "documents": len(texts),
        "tokens": len(texts.tokens),
        "rows_per_epoch": texts.rows_per_epoch,
        "fingerprint": texts.fingerprint,
    }


def framed_corpora(retriever: LightRetriever, data: Sequence[CorpusRecipe]) -> Iterator[list[int]]:
    """Every document's token ids in its frame; those without text are left out."""
    for corpus in data:
        source = Path(corpus.name) if Path(corpus.name).is_file() else data_folder(corpus.name)
        documents = islice(read_documents(source), corpus.documents or None)
        while chunk := list(islice(documents, FRAMED_AT_ONCE)):
            yield from (ids for ids, start, stop in retriever.frame_documents(chunk) if stop > start)
