"""A recipe of SiDR: everything that decides one training run of the stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lightir.errors import InvalidInput
from lightir.text import QueryPolicy
from lightir.train.recipes.settings import DataRecipe, DevSet, DocumentRecipe, ModelRecipe, Optimisation, check_numbers
from lightir.train.stages.sidr_retrieval import RetrievalRecipe


@dataclass(frozen=True, slots=True)
class SidrHeadRecipe:
    """V_θ: how logits become a vector over the vocabulary.

    Attributes:
        calibrate: fit a per-term bias so that this share of calibration documents stays below zero there; 0 for none.
        calibration_documents: drawn from the training corpora.
        top_k: strongest terms kept of a document, and of a query unless query.top_k says otherwise.
        own_terms: a text's own terms are kept beside them, of documents and of queries.
        scale: the impact quantiser's.
        projection: states meet the model's own LM or masked-LM "head", or its input "embeddings", as in SiDR's released
            code; the latter is for models without a head too.
    """

    calibrate: float = 0.0
    calibration_documents: int = 128
    top_k: int = 768
    own_terms: bool = False
    scale: float = 32.0
    projection: Literal["head", "embeddings"] = "head"


@dataclass(frozen=True, slots=True)
class SidrLossWeights:
    """Weights of the loss's parts.

    Attributes:
        parametric: L(V_θ(q), V_θ(d)).
        semi_parametric: L(V_θ(q), V_BoT(d)) and L(V_BoT(q), V_θ(d)), each; 0 is the paper's ablation.
        light: L(light(q), V_BoT(d)) and L(light(q), V_θ(d)), each, where light(q) is the mean of the query's tokens'
            own vectors: what a query without any model is searched with. Beyond the paper.
        temperature: of the inner products.
        light_temperature: of those with light queries, which are means and so far smaller; 0 for `temperature`.
    """

    parametric: float = 1.0
    semi_parametric: float = 0.5
    light: float = 0.0
    temperature: float = 1.0
    light_temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SidrEvaluation:
    """What is measured during training.

    Attributes:
        sets: development sets; none means that the last state is kept.
        every: optimizer steps between two evaluations; 0 evaluates at the end alone.
        by: "full", "beta", "light_full" or "light_beta": nDCG@10, mean over the sets, of the state that is kept.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0
    by: Literal["full", "beta", "light_full", "light_beta"] = "full"


@dataclass(frozen=True, slots=True)
class SidrRecipe:
    """One training run of SiDR.

    Attributes:
        model: the backbone, with a language-modelling or masked-LM head.
        data: training sets.
        held_out: sets whose development and test queries must not be trained on.
        held_out_documents: nor their relevant documents.
        optimisation: steps, batches and the learning rate.
        losses: and their weights.
        heads: the vocabulary vector.
        retrieval: negatives found in training.
        query: the query policy.
        documents: the document policy.
        evaluation: during training.
        checkpoint_every: optimizer steps between two checkpoints; a killed run repeats what came after its last.
            Ctrl-C and SIGTERM write one at once. 0 writes no others.
        stage: which stage the recipe is of.
    """

    model: ModelRecipe
    data: tuple[DataRecipe, ...]
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    optimisation: Optimisation = field(default_factory=Optimisation)
    losses: SidrLossWeights = field(default_factory=SidrLossWeights)
    heads: SidrHeadRecipe = field(default_factory=SidrHeadRecipe)
    retrieval: RetrievalRecipe = field(default_factory=RetrievalRecipe)
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: DocumentRecipe = field(default_factory=DocumentRecipe)
    evaluation: SidrEvaluation = field(default_factory=SidrEvaluation)
    checkpoint_every: int = 200
    stage: Literal["sidr"] = "sidr"

    def __post_init__(self) -> None:
        if self.optimisation.packed_tokens:
            raise InvalidInput("optimisation.packed_tokens is for the stage contrastive")
        if self.optimisation.mixed_batches:
            raise InvalidInput("SiDR's negatives come from one corpus a batch: leave optimisation.mixed_batches off")
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set under `data`")
        check_numbers(self, "", least=("checkpoint_every",))
        check_numbers(self.evaluation, "evaluation.", least=("every",))
        check_numbers(self.losses, "losses.", least=("parametric", "semi_parametric", "light"))
        check_numbers(self.heads, "heads.", above=("calibration_documents",), shares=("calibrate",))
        if max(self.losses.parametric, self.losses.semi_parametric, self.losses.light) <= 0:
            raise InvalidInput("losses: one of parametric, semi_parametric and light must be above 0")
        if min(self.heads.top_k, self.losses.temperature) <= 0:
            raise InvalidInput("heads.top_k and losses.temperature must be above 0")
        if self.losses.light_temperature < 0:
            raise InvalidInput("losses.light_temperature must be above 0, or 0 for losses.temperature")
        if self.losses.light > 0 and self.query.weighting != "expansion":
            raise InvalidInput(
                f"losses.light trains queries that are means of expansions: set query.weighting to 'expansion', "
                f"not {self.query.weighting!r}"
            )
        if min(self.retrieval.top_m, self.retrieval.query_terms) < 0:
            raise InvalidInput(
                f"retrieval.top_m is {self.retrieval.top_m} and query_terms {self.retrieval.query_terms}; "
                "expected 0 (none; heads.top_k) or more"
            )
