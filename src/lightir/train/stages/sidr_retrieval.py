"""In-training retrieval: hard negatives out of a bag-of-tokens index that is built once and never again (SiDR)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lightir.data import TrainingBatch, TrainingExample, TrainingSet
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.train.mining.answers import holds_answer
from lightir.train.mining.bag_search import BagSearch, DeviceSearch, KernelSearch, corpus_bags
from lightir.types import Document


@dataclass(frozen=True, slots=True)
class RetrievalRecipe:
    """Negatives that the model finds for itself in training.

    Attributes:
        top_m: of the bag-of-tokens index, one of which is drawn; 0 retrieves none.
        skip_answers: leave out documents that hold one of the query's answers, where the data set names them.
        query_terms: strongest terms of a query that are searched with; 0 for as many as the head keeps.
    """

    top_m: int = 20
    skip_answers: bool = True
    query_terms: int = 0


class BagOfTokens:
    """The fixed index of a training set's corpus: which terms stand in each document, as the model reads it."""

    def __init__(self, training: TrainingSet, retriever: LightRetriever, *, on_device: bool | None = None) -> None:
        """Tokenise the corpus once.

        `on_device`: it is searched by a sparse product on the model's device, not by the kernel; None does so on a GPU.
        """
        self.doc_ids = sorted(training.documents)
        self._documents = training.documents
        self._examples: dict[str, TrainingExample] = {each.query_id: each for each in training.examples}
        bags = corpus_bags([training.documents[doc_id] for doc_id in self.doc_ids], retriever)
        device = retriever.backbone.device
        on_device = device.type == "cuda" if on_device is None else on_device
        self._bags: BagSearch = DeviceSearch(bags, device) if on_device else KernelSearch(bags)

    def search(self, weights: Tensor, *, m: int) -> list[list[str]]:
        """Beta search: each query's m best documents by <V_θ(q), V_BoT(d)>, from rows of weights (n, V) >= 0."""
        found, doc_ords, _ = self._bags.top(weights, k=m)
        return [[self.doc_ids[doc_ord] for doc_ord in doc_ords[a:b]] for a, b in itertools.pairwise(found)]

    def draw(
        self, batch: TrainingBatch, weights: Tensor, retrieval: RetrievalRecipe, generator: np.random.Generator
    ) -> tuple[list[Document], int]:
        """One negative for each query, and for how many queries the search gave one.

        Drawn evenly from the top m without relevant documents, their copies, and documents that hold an answer; where
        nothing is left, from the whole corpus.
        """
        drawn, found = [], 0
        for row, doc_ids in enumerate(self.search(weights, m=retrieval.top_m)):
            example = self._examples[batch.query_ids[row]]
            answers = example.answers if retrieval.skip_answers else ()
            wrong = [
                doc_id
                for doc_id in doc_ids
                if not self._relevant(doc_id, example, batch.documents[row])
                and not holds_answer(self._documents[doc_id].full_text(), answers)
            ]
            found += bool(wrong)
            chosen = wrong[generator.integers(len(wrong))] if wrong else self._any(example, generator)
            drawn.append(self._documents[chosen])
        return drawn, found

    def extended(self, batch: TrainingBatch, retrieved: Sequence[Document]) -> TrainingBatch:
        """The batch with one negative more for each query, behind its others."""
        n = len(batch.queries)
        negatives = len(batch.documents) // n - 1
        columns = list(range(n))
        for row in range(n):
            columns += [*range(n + row * negatives, n + (row + 1) * negatives), len(batch.documents) + row]
        new = np.zeros((n, n), dtype=np.bool_)
        for row, query_id in enumerate(batch.query_ids):
            example, positive = self._examples[query_id], batch.documents[row]
            new[row] = [self._relevant(document.doc_id, example, positive) for document in retrieved]
        documents = [*batch.documents, *retrieved]
        return dataclasses.replace(
            batch,
            documents=tuple(documents[column] for column in columns),
            false_negatives=np.concatenate([batch.false_negatives, new], axis=1)[:, columns],
            scores=None,  # no loss of this stage reads them
        )

    def _relevant(self, doc_id: str, example: TrainingExample, positive: Document) -> bool:
        """Whether a document is judged relevant to a query, or a copy of the positive at hand."""
        document = self._documents[doc_id]
        return doc_id in example.positive_ids or (document.title, document.text) == (positive.title, positive.text)

    def _any(self, example: TrainingExample, generator: np.random.Generator) -> str:
        for _ in range(100):
            doc_id = self.doc_ids[generator.integers(len(self.doc_ids))]
            if doc_id not in example.positive_ids:
                return doc_id
        raise InvalidInput(f"query {example.query_id!r} of {example.dataset!r} leaves no document to be a negative")
