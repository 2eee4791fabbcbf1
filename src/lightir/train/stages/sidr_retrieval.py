"""Hard negatives retrieved during training from a fixed bag-of-tokens index (SiDR)."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from lightir.data import TrainingBatch, TrainingExample, TrainingSet
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.mining.answers import holds_answer
from lightir.train.mining.bag_search import BagSearch, DeviceSearch, KernelSearch, corpus_bags
from lightir.train.recipes.sidr_recipe import RetrievalRecipe
from lightir.types import Document


class BagOfTokens:
    """A fixed index of a training set's corpus, or of another one: each document's terms, as the model reads it."""

    def __init__(
        self,
        training: TrainingSet,
        retriever: LightRetriever,
        *,
        corpus: Mapping[str, Document] | None = None,
        sample: int = 0,
        seed: int = 0,
        on_device: bool | None = None,
    ) -> None:
        """Tokenize the corpus.

        Args:
            training: training set with the queries.
            retriever: model whose tokenizer and frame are used.
            corpus: documents to search by id; None for the training set's own.
            sample: number of documents to index, drawn at random; 0 indexes all.
            seed: seed of the sample.
            on_device: search by a sparse product on the model's device instead of the kernel; None does so on a GPU.
        """
        self._own = corpus is None
        self._documents = training.documents if corpus is None else corpus
        self.doc_ids = sorted(self._documents)
        if 0 < sample < len(self.doc_ids):
            self.doc_ids = sorted(random.Random(seed).sample(self.doc_ids, sample))
        self._positives = training.documents
        self._examples: dict[str, TrainingExample] = {example.query_id: example for example in training.examples}
        bags = corpus_bags([self._documents[doc_id] for doc_id in self.doc_ids], retriever)
        device = retriever.backbone.device
        on_device = device.type == "cuda" if on_device is None else on_device
        self._bags: BagSearch = DeviceSearch(bags, device) if on_device else KernelSearch(bags)

    def search(self, weights: Tensor, *, m: int) -> list[list[str]]:
        """Return each query's m best documents by <V_θ(q), V_BoT(d)> (beta search), from weights (n, V) >= 0."""
        bounds, doc_ords, _ = self._bags.top(weights, k=m)
        return [[self.doc_ids[doc_ord] for doc_ord in doc_ords[a:b]] for a, b in itertools.pairwise(bounds)]

    def draw(
        self, batch: TrainingBatch, weights: Tensor, retrieval: RetrievalRecipe, generator: np.random.Generator
    ) -> tuple[list[Document], int]:
        """Draw one negative for each query; return them, and the number of queries with a retrieved one.

        The draw is uniform over the top m without relevant documents, their copies, and documents that contain an
        answer; if none is left, over the whole corpus.
        """
        drawn, n_retrieved = [], 0
        for row, doc_ids in enumerate(self.search(weights, m=retrieval.top_m)):
            example = self._examples[batch.query_ids[row]]
            answers = example.answers if retrieval.skip_answers else ()
            wrong = [
                doc_id
                for doc_id in doc_ids
                if not self._relevant(self._documents[doc_id], example, batch.documents[row])
                and not holds_answer(self._documents[doc_id].full_text(), answers)
            ]
            n_retrieved += bool(wrong)
            chosen = wrong[generator.integers(len(wrong))] if wrong else self._any(example, generator)
            drawn.append(self._documents[chosen])
        return drawn, n_retrieved

    def extended(self, batch: TrainingBatch, retrieved: Sequence[Document]) -> TrainingBatch:
        """Return the batch with one more negative for each query, behind its others."""
        n = len(batch.queries)
        negatives = len(batch.documents) // n - 1
        columns = list(range(n))
        for row in range(n):
            columns += [*range(n + row * negatives, n + (row + 1) * negatives), len(batch.documents) + row]
        new = np.zeros((n, n), dtype=np.bool_)
        for row, query_id in enumerate(batch.query_ids):
            example, positive = self._examples[query_id], batch.documents[row]
            new[row] = [self._relevant(document, example, positive) for document in retrieved]
        documents = [*batch.documents, *retrieved]
        return dataclasses.replace(
            batch,
            documents=tuple(documents[column] for column in columns),
            false_negatives=np.concatenate([batch.false_negatives, new], axis=1)[:, columns],
            scores=None,  # this stage's losses read no scores
        )

    def _relevant(self, document: Document, example: TrainingExample, positive: Document) -> bool:
        """Return whether a document is relevant to a query, or a copy of the batch's positive.

        Ids of another corpus mean nothing here: its documents are compared by title and text with all positives.
        """
        if self._own and document.doc_id in example.positive_ids:
            return True
        known = [positive] if self._own else [positive, *(self._positives[i] for i in example.positive_ids)]
        return any((document.title, document.text) == (other.title, other.text) for other in known)

    def _any(self, example: TrainingExample, generator: np.random.Generator) -> str:
        for _ in range(100):
            doc_id = self.doc_ids[generator.integers(len(self.doc_ids))]
            if not (self._own and doc_id in example.positive_ids):
                return doc_id
        raise InvalidInput(f"query {example.query_id!r} of {example.dataset!r} has no document left to be a negative")
