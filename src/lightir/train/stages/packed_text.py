"""Stages on rows of packed, unlabelled text: what of them is not their loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from torch import Tensor

from lightir.contract import DocumentPolicy
from lightir.data import read_documents
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.own_weights import all_weights
from lightir.train.batches.packing import PackedBatch, PackedTexts, packed_states
from lightir.train.recipes.data_names import data_folder
from lightir.train.recipes.settings import CorpusRecipe, ModelRecipe, Optimisation, check_numbers, packed_attention
from lightir.train.run.processes import autocast, rank, world_size
from lightir.train.run.stage import DevelopmentResult
from lightir.train.stages.stage_model import prepare_layers

FRAMED_AT_ONCE = 1024


class PackedTextRecipe(Protocol):
    """What a stage on packed text reads of its recipe."""

    @property
    def model(self) -> ModelRecipe:
        """The backbone."""

    @property
    def data(self) -> tuple[CorpusRecipe, ...]:
        """The text."""

    @property
    def optimisation(self) -> Optimisation:
        """Steps, rows, seed."""

    @property
    def documents(self) -> DocumentPolicy:
        """How documents are framed and cut."""

    @property
    def length(self) -> int:
        """Tokens in a row."""


def check_packed_text(recipe: PackedTextRecipe) -> None:
    """What every stage on rows of packed text asks of its recipe.

    Raises:
        InvalidInput: no corpus, settings of stages that have queries, or documents longer than a row.
    """
    optimisation, documents, model = recipe.optimisation, recipe.documents, recipe.model
    if not recipe.data:
        raise InvalidInput("a recipe needs at least one corpus under `data`")
    check_numbers(recipe, "", least=("checkpoint_every",))
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
    if documents.max_tokens > recipe.length:
        raise InvalidInput(f"documents.max_tokens is {documents.max_tokens}, but a row has {recipe.length} tokens")


def framed_corpora(retriever: LightRetriever, data: Sequence[CorpusRecipe]) -> Iterator[list[int]]:
    """Every document's token ids in its frame; those without text are left out."""
    for corpus in data:
        source = Path(corpus.name) if Path(corpus.name).is_file() else data_folder(corpus.name)
        documents = islice(read_documents(source), corpus.documents or None)
        while chunk := list(islice(documents, FRAMED_AT_ONCE)):
            yield from (ids for ids, start, stop in retriever.frame_documents(chunk) if stop > start)


class PackedTextStage:
    """A stage on packed text but for its loss; see train/run/stage.py's Stage."""

    def __init__(self, recipe: PackedTextRecipe, retriever: LightRetriever, device: str) -> None:
        """Read and tokenise the text for a model; every process holds all of it."""
        self.settings, self.data, self.length, self.device = recipe.optimisation, recipe.data, recipe.length, device
        self.retriever = retriever
        framed = framed_corpora(retriever, recipe.data)
        self.texts = PackedTexts(framed, length=recipe.length, seed=recipe.optimisation.seed)
        prepare_layers(retriever, recipe.model)
        self.attention = packed_attention(recipe.optimisation, recipe.model)
        self.trunk = retriever.trunk
        self.trunk.train(recipe.model.lora_dropout > 0 or recipe.model.gradient_checkpointing)
        self.parameters = {n: p for n, p in all_weights(retriever.backbone).items() if p.requires_grad}

    @property
    def fixed(self) -> dict[str, Tensor]:
        """Nothing beside the parameters."""
        return {}

    @property
    def texts_per_step(self) -> int:
        """About: documents as long as they are on average."""
        tokens = self.settings.batch_size * self.settings.accumulation * self.length
        return max(1, round(tokens * len(self.texts) / len(self.texts.tokens)))

    def restore(self, fixed: Mapping[str, Tensor]) -> None:
        """Nothing to take."""

    def own_rows(self, number: int) -> PackedBatch:
        """This process's rows of batch `number`, on the CPU."""
        return self.texts.batch(number, rows=self.settings.batch_size, process=rank(), processes=world_size())

    def states(self, batch: PackedBatch) -> Tensor:
        """(B, T, H) last hidden states, each piece by itself."""
        with autocast(self.device, self.retriever.backbone.model.dtype):
            return packed_states(self.retriever.backbone, batch, attention=self.attention)

    def evaluate(self) -> DevelopmentResult | None:
        """There is no development set."""
        return None

    def save(self, folder: Path) -> None:
        """Write the model."""
        self.retriever.save(folder)

    def records(self) -> dict[str, object]:
        """What it was trained on."""
        facts = {
            "corpora": [each.name for each in self.data],
            "documents": len(self.texts),
            "tokens": len(self.texts.tokens),
            "rows_per_epoch": self.texts.rows_per_epoch,
            "fingerprint": self.texts.fingerprint,
        }
        return {"data": facts}
