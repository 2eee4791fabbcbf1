"""The base of stages on packed rows of unlabelled text: reading and framing the text, hidden states of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from lightir.data import read_documents, read_hub_documents
from lightir.data.hub import PREFIX as HUB_PREFIX
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.batches.packing import PackedBatch, PackedTexts, packed_states
from lightir.train.recipes.data_names import data_folder
from lightir.train.recipes.run_recipe import PackedTextRecipe
from lightir.train.recipes.settings import CorpusRecipe, packed_attention
from lightir.train.run.processes import rank, world_size
from lightir.train.stages.stage_model import ModelStage
from lightir.types import Document

FRAMED_AT_ONCE = 1024

PackedRecipeT = TypeVar("PackedRecipeT", bound=PackedTextRecipe)


def corpus_documents(corpus: CorpusRecipe) -> Iterator[Document]:
    """Iterate over the documents of a corpus, from the first, whatever `documents` says.

    Raises:
        InvalidInput: a split of a corpus that is no Hugging Face data set.
    """
    if corpus.name.startswith(HUB_PREFIX):
        return read_hub_documents(corpus.name, split=corpus.split)
    if corpus.split != "train":
        raise InvalidInput(f"data {corpus.name!r}: split {corpus.split!r} applies to Hugging Face data sets only")
    return read_documents(Path(corpus.name) if Path(corpus.name).is_file() else data_folder(corpus.name))


def framed_corpora(retriever: LightRetriever, data: Sequence[CorpusRecipe]) -> Iterator[list[int]]:
    """Yield every document's token ids in its frame; documents without text are skipped."""
    for corpus in data:
        documents = islice(corpus_documents(corpus), corpus.documents or None)
        while chunk := list(islice(documents, FRAMED_AT_ONCE)):
            yield from (ids for ids, start, stop in retriever.frame_documents(chunk) if stop > start)


class PackedTextStage(ModelStage[PackedRecipeT]):
    """A stage on packed text; a subclass adds the loss."""

    def __init__(self, recipe: PackedRecipeT, retriever: LightRetriever, device: str) -> None:
        """Read and tokenize the text for a model; every process holds all of it."""
        framed = framed_corpora(retriever, recipe.data)
        self.texts = PackedTexts(framed, length=recipe.length, seed=recipe.optimisation.seed)
        super().__init__(recipe, retriever, device)
        self.attention = packed_attention(recipe.optimisation, recipe.model)

    @property
    def texts_per_step(self) -> int:
        """Approximate number of documents in a step, from their mean length."""
        settings = self.recipe.optimisation
        tokens = settings.batch_size * settings.accumulation * self.recipe.length
        return max(1, round(tokens * len(self.texts) / len(self.texts.tokens)))

    def own_rows(self, number: int) -> PackedBatch:
        """Return this process's rows of batch `number`, on the CPU."""
        n_rows = self.recipe.optimisation.batch_size
        return self.texts.batch(number, rows=n_rows, process=rank(), processes=world_size())

    def states(self, batch: PackedBatch) -> Tensor:
        """Return (B, T, H) last hidden states; pieces do not attend to each other."""
        with self.autocast():
            return packed_states(self.retriever.backbone, batch, attention=self.attention)

    def records(self) -> dict[str, object]:
        """Return facts about the training text."""
        facts = {
            "corpora": [corpus.name for corpus in self.recipe.data],
            "documents": len(self.texts),
            "tokens": len(self.texts.tokens),
            "rows_per_epoch": self.texts.rows_per_epoch,
            "fingerprint": self.texts.fingerprint,
        }
        return {"data": facts}
