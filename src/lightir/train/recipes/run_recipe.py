"""The run record: settings that the recipes of all stages share, and the contract that a recipe describes."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, Fusion, SparseHead
from lightir.data import DuplicateRules
from lightir.errors import InvalidInput
from lightir.text import QueryPolicy
from lightir.train.recipes.settings import (
    CorpusRecipe,
    DataRecipe,
    DevelopmentEvaluation,
    DocumentRecipe,
    ModelRecipe,
    Optimisation,
    check_numbers,
    packed_attention,
)

REASONS = ("deviations", "chosen")
"""Fields of a recipe that explain its other settings; training ignores them."""


@dataclass(frozen=True, slots=True)
class RunRecipe(ABC):
    """Settings that every training stage has.

    Attributes:
        model: the backbone, and which of its weights are trained.
        data: training data.
        optimisation: steps, batches and learning rate.
        query: query policy of the model's contract.
        documents: document policy of the model's contract.
        checkpoint_every: optimizer steps between two checkpoints; 0 writes none. A killed run repeats the steps after
            its last checkpoint. Ctrl-C and SIGTERM write one at once, whatever this is.
        deviations: reasons of settings that differ from the paper's, by key, such as heads.top_k; an empty reason
            removes one that a base lists. Training ignores them; a test compares them with recipes/papers.
        chosen: reasons of settings that the paper does not give, by key. Training ignores them.
    """

    model: ModelRecipe
    data: tuple[Any, ...]
    optimisation: Optimisation = field(default_factory=Optimisation)
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: Any = field(default_factory=DocumentPolicy)
    checkpoint_every: int = 200
    deviations: Mapping[str, str] = field(default_factory=dict)
    chosen: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set or corpus under `data`")
        check_numbers(self, "", least=("checkpoint_every",))

    @property
    @abstractmethod
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record."""

    @property
    def training_contract(self) -> Contract:
        """The contract during training."""
        return self.contract

    @property
    def evaluate_every(self) -> int:
        """Optimizer steps between two evaluations; 0 evaluates once, at the end."""
        return 0

    def contract_of(
        self,
        method: str,
        *,
        dense: DenseHead | None = None,
        sparse: SparseHead | None = None,
        fusion: Fusion | None = None,
    ) -> Contract:
        """Return a contract under this recipe's policies, with an empty backbone record."""
        documents = self.documents
        return Contract(
            method=method,
            backbone=BackboneRecord(self.model.address, "causal", "", "", "", 0, 0),
            query=self.query,
            document=documents.policy if isinstance(documents, DocumentRecipe) else documents,
            dense=dense,
            sparse=sparse,
            attention=self.model.attention,
            fusion=fusion or Fusion(),
        )


@dataclass(frozen=True, slots=True)
class QueryRunRecipe(RunRecipe):
    """Settings of the stages that train on queries with relevant documents.

    Attributes:
        data: training sets.
        documents: how documents become model input.
        use_instructions: train with instructions; false trains every set without one, whatever it lists, with an empty
            query.instruction.
        held_out: data sets whose development and test queries must not be trained on: training queries that nearly
            equal one of them are dropped.
        held_out_documents: also drop training queries with a positive that is, or nearly is, a document relevant to one
            of the held-out queries.
        decontamination: similarity to a held-out query from which a training query is dropped.
        evaluation: evaluation during training.
    """

    data: tuple[DataRecipe, ...]
    documents: DocumentRecipe = field(default_factory=DocumentRecipe)
    use_instructions: bool = True
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    decontamination: DuplicateRules = field(default_factory=DuplicateRules)
    evaluation: DevelopmentEvaluation = field(default_factory=DevelopmentEvaluation)

    def __post_init__(self) -> None:
        RunRecipe.__post_init__(self)
        if self.query.instruction and not self.use_instructions:
            raise InvalidInput(
                f"use_instructions is false, but query.instruction is {self.query.instruction!r}; set it to ''"
            )

    @property
    def training_contract(self) -> Contract:
        """The shipped contract with queries and documents cut to their lengths in training."""
        contract = self.contract
        document, query = contract.document, contract.query
        document = dataclasses.replace(document, max_tokens=self.documents.train_tokens or document.max_tokens)
        query = dataclasses.replace(query, max_tokens=self.optimisation.query_tokens or query.max_tokens)
        return dataclasses.replace(contract, document=document, query=query)

    @property
    def evaluate_every(self) -> int:
        """Optimizer steps between two evaluations; 0 evaluates once, at the end."""
        return self.evaluation.every


@dataclass(frozen=True, slots=True)
class PackedTextRecipe(RunRecipe):
    """Settings of the stages that train on packed rows of unlabelled text; there is no evaluation.

    Attributes:
        data: corpora; their documents are shuffled together.
        optimisation: steps, rows and learning rate; batch_size counts packed rows over all processes. negatives and
            query_tokens must be 0.
        documents: document policy of the model's contract; training frames and cuts documents by it, too.
        length: tokens in a packed row.
    """

    data: tuple[CorpusRecipe, ...]
    documents: DocumentPolicy = field(default_factory=DocumentPolicy)
    length: int = 512

    def __post_init__(self) -> None:
        RunRecipe.__post_init__(self)
        optimisation, documents = self.optimisation, self.documents
        refuse_packed_texts(optimisation)
        packed_attention(optimisation, self.model)
        if optimisation.mixed_batches:
            raise InvalidInput(
                "documents of all corpora are shuffled together here: leave optimisation.mixed_batches off"
            )
        if optimisation.gradient_cache:
            raise InvalidInput("packed rows are independent of each other: use accumulation instead of gradient_cache")
        if optimisation.negatives or optimisation.query_tokens:
            raise InvalidInput("this stage has no queries: leave optimisation.negatives and query_tokens at 0")
        if documents.max_tokens > self.length:
            raise InvalidInput(f"documents.max_tokens is {documents.max_tokens}, but a row has {self.length} tokens")


def refuse_packed_texts(optimisation: Optimisation) -> None:
    """Refuse `packed_tokens`, which only the stage contrastive supports."""
    if optimisation.packed_tokens:
        raise InvalidInput("optimisation.packed_tokens is supported by the stage contrastive only")
