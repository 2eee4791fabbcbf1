"""The recipe of the contrastive stage: everything that decides a run, saved with the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from lightir.contract import Contract, DenseHead, Fusion, SparseHead
from lightir.errors import InvalidInput
from lightir.train.recipes.likelihood_recipe import CorruptionRecipe
from lightir.train.recipes.run_recipe import QueryRunRecipe
from lightir.train.recipes.settings import (
    UNFITTED_SCALE,
    WANTED,
    DevelopmentEvaluation,
    HeadCalibration,
    check_numbers,
    packed_attention,
)


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the loss's parts; a weight of 0 disables the part and costs nothing.

    Attributes:
        symmetric: contrastive loss of the full query encoder, the teacher (Enc_q in Eq. 5).
        dense: contrastive loss of the light dense query (Eq. 3-4).
        sparse: contrastive loss of the light sparse query (Eq. 7-8).
        symmetric_sparse: contrastive loss of queries through the model's sparse head, as in SPLADE and CSplade.
        dense_alignment: KL from the teacher's scores to the light dense scores (Eq. 5).
        sparse_alignment: KL from the teacher's scores to the light sparse scores.
        flops: FLOPS regulariser of the documents' sparse vectors (Eq. 9).
        query_flops: FLOPS regulariser of the queries' sparse vectors; requires symmetric_sparse.
        flops_ramp_steps: step up to which both FLOPS weights rise quadratically; a weight with a target does not rise.
        flops_target: mean number of non-zero terms of a document to reach: the weight starts at `flops` and is adjusted
            after every step. 0 keeps the weight fixed.
        query_flops_target: mean number of non-zero terms of a query to reach, by adjusting `query_flops`; 0 keeps the
            weight fixed.
        sparse_terms: number of random terms, drawn for every batch, that documents are projected on in training beside
            the terms of the batch's queries. The contrastive loss reads the latter only; FLOPS is estimated from the
            former without bias. A small model's step is a third cheaper. 0 projects on the whole vocabulary.
        temperature: temperature of the dense scores.
        sparse_temperature: temperature of the sparse scores, which are inner products.
        dims: Matryoshka widths below the full width. The dense contrastive losses, their alignment with the teacher's
            full-width scores, and distillation are summed over all widths, the full one included.
        contrast: factor of all contrastive losses; 0 ignores the labels where teacher scores are given.
        distillation: factor of the loss between each trained branch's scores and the scores given with the data.
        distillation_loss: "kl" between softmaxes over a query's scored candidates, or "margin_mse" between their
            distances to the positive.
        distillation_temperature: temperature of the given scores; a branch's own temperature applies to its scores.
    """

    symmetric: float = 1.0
    dense: float = 1.0
    sparse: float = 1.0
    symmetric_sparse: float = 0.0
    dense_alignment: float = 1.0
    sparse_alignment: float = 0.0
    flops: float = 0.001
    query_flops: float = 0.0
    flops_ramp_steps: int = 4000
    flops_target: int = 0
    query_flops_target: int = 0
    sparse_terms: int = 0
    temperature: float = 0.02
    sparse_temperature: float = 1.0
    dims: tuple[int, ...] = ()
    contrast: float = 1.0
    distillation: float = 0.0
    distillation_loss: Literal["kl", "margin_mse"] = "kl"
    distillation_temperature: float = 1.0

    def __post_init__(self) -> None:
        weights = ("symmetric", "dense", "sparse", "symmetric_sparse", "dense_alignment", "sparse_alignment")
        check_numbers(
            self,
            "losses.",
            above=("temperature", "sparse_temperature", "distillation_temperature"),
            least=(*weights, "flops", "query_flops", "flops_ramp_steps", "sparse_terms"),
        )
        if any(dim < 1 for dim in self.dims) or len(set(self.dims)) < len(self.dims):
            raise InvalidInput(f"losses.dims is {list(self.dims)}; expected distinct widths of at least 1")
        if self.symmetric_sparse > 0 and self.sparse_terms:
            raise InvalidInput("losses.symmetric_sparse compares all terms: losses.sparse_terms must be 0")
        for name in ("flops", "query_flops"):
            target = getattr(self, f"{name}_target")
            if target < 0 or (target and getattr(self, name) <= 0):
                raise InvalidInput(
                    f"losses.{name}_target is {target}: expected 0 or more, and losses.{name} to begin with"
                )


@dataclass(frozen=True, slots=True)
class TeacherRecipe:
    """Another bi-encoder whose scores of the batch's documents the full query encoder learns from.

    Attributes:
        address: sentence-transformers folder or name (also `pypi:PACKAGE`), or a lightir model folder; "" for none. It
            reads as many tokens of a document as training does.
        weight: weight of the KL from the teacher's scores to the full encoder's.
        temperature: temperature of the teacher's scores, which are cosines.
    """

    address: str = ""
    weight: float = 1.0
    temperature: float = 0.05


@dataclass(frozen=True, slots=True)
class JointLikelihood:
    """LLM-QL's query likelihood as a further part of the contrastive loss, for training in one stage (section 4.2).

    Attributes:
        weight: weight of -Σ log p(query token | passage through [E]), averaged over the batch's pairs (Eq. 10); 0 for
            none. The paper gives no value.
        attention_stop: queries attend to the passage through [E] only.
        corruption: masking of the passage.
        learn_end: also predict the end token behind the query.
    """

    weight: float = 0.0
    attention_stop: bool = True
    corruption: CorruptionRecipe = field(default_factory=CorruptionRecipe)
    learn_end: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, "likelihood.", least=("weight",))
        check_numbers(self.corruption, "likelihood.corruption.", shares=("ratio",))


@dataclass(frozen=True, slots=True)
class HeadRecipe(HeadCalibration):
    """Pooling and heads that turn hidden states into dense and sparse vectors, and their fit before the first step.

    Attributes:
        pooling: pooling of documents, full queries and single tokens: "eos", "last" or "mean".
        dense: the model has a dense branch.
        similarity: similarity of dense vectors, in training and in the model: "cosine", or the "dot" product of vectors
            that are not normalized, which light queries and Matryoshka widths do not support.
        standardize: fit a fixed mean and deviation to the pooled states of calibration documents.
        sparse: the model has a sparse branch, trained or not.
        recalibrate: fit the term bias again after training, which changes the distribution it was fitted to.
        activation: activation of the sparse head.
        straight_through: use GELU's gradient for the sparse head's ReLU in training, so that terms at zero can recover.
        top_k: number of strongest terms kept of an encoded document; 0 keeps all.
        scale: scale of the impact quantizer, which clips weights above 255 / scale; 0 fits it to the trained model's
            weights of calibration documents, of which at most 0.01 % are clipped.
    """

    pooling: Literal["eos", "last", "mean"] = "eos"
    dense: bool = True
    similarity: Literal["cosine", "dot"] = "cosine"
    standardize: bool = False
    sparse: bool = True
    recalibrate: bool = False
    activation: Literal["log1p_relu", "elu1p"] = "log1p_relu"
    straight_through: bool = False
    top_k: int = 512
    scale: float = 64.0


@dataclass(frozen=True, slots=True)
class BranchEvaluation(DevelopmentEvaluation):
    """Evaluation of the model's branches during training.

    Attributes:
        by: measure that selects the saved state, nDCG@10 averaged over the sets: "symmetric", "dense", "sparse",
            "symmetric_sparse" or "hybrid".
    """

    by: Literal["symmetric", "dense", "sparse", "symmetric_sparse", "hybrid"] = "hybrid"


@dataclass(frozen=True, slots=True)
class ContrastiveRecipe(QueryRunRecipe):
    """One contrastive training run.

    Attributes:
        losses: weights of the loss's parts.
        likelihood: query likelihood learned in the same stage.
        teacher: another retriever to learn from, beside the labels.
        heads: pooling, standardization, sparse head.
        evaluation: evaluation during training.
        fusion: default fusion of the model.
        query_layers: number of the backbone's first layers that read full queries, in training and in the model; 0 for
            all. Requires a causal backbone and losses.dense 0, because light queries pass all layers.
        stage: the stage.
        method: method in the contract: "lightretriever", "llm-ql" (LLM-QL's second stage), "csplade", or "dense" for
            others without light queries.
    """

    losses: LossWeights = field(default_factory=LossWeights)
    likelihood: JointLikelihood = field(default_factory=JointLikelihood)
    teacher: TeacherRecipe = field(default_factory=TeacherRecipe)
    heads: HeadRecipe = field(default_factory=HeadRecipe)
    evaluation: BranchEvaluation = field(default_factory=BranchEvaluation)
    fusion: Fusion = field(default_factory=Fusion)
    query_layers: int = 0
    stage: Literal["contrastive"] = "contrastive"
    method: Literal["lightretriever", "llm-ql", "csplade", "dense"] = "lightretriever"

    def __post_init__(self) -> None:
        QueryRunRecipe.__post_init__(self)
        if any(data.ratio <= 0 for data in self.data):
            raise InvalidInput("a training set's ratio must be above 0; leave out the set instead")
        self._check_batches()
        self._check_branches()
        self._check_likelihood()
        self._check_teachers()
        if self.evaluation.sets and self.evaluation.by not in self.measures:
            raise InvalidInput(
                f"evaluation.by is {self.evaluation.by!r}, which this recipe's model does not have; "
                f"expected one of {', '.join(self.measures)}"
            )

    @property
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record."""
        heads = self.heads
        dense = DenseHead(heads.pooling, WANTED if heads.standardize else "", similarity=heads.similarity)
        sparse = SparseHead(
            heads.activation, WANTED if heads.calibrate else "", heads.top_k, heads.scale or UNFITTED_SCALE
        )
        contract = self.contract_of(
            self.method,
            dense=dense if heads.dense else None,
            sparse=sparse if heads.sparse else None,
            fusion=self.fusion,
        )
        return dataclasses.replace(contract, query_layers=self.query_layers)

    @property
    def measures(self) -> tuple[str, ...]:
        """The valid values of `evaluation.by`: the branches that an evaluation measures."""
        heads, documents = self.heads, self.documents
        alone = not (self.query_layers or self.query.suffix or documents.new_ends) and documents.ends == 1
        light = heads.dense and alone and (self.model.attention == "causal" or self.losses.dense > 0)
        measured = {
            "symmetric": heads.dense,
            "dense": light,
            "sparse": heads.sparse,
            "symmetric_sparse": heads.sparse and self.losses.symmetric_sparse > 0,
            "hybrid": light and heads.sparse,
        }
        return tuple(name for name, is_measured in measured.items() if is_measured)

    def _check_batches(self) -> None:
        """Refuse batch settings that cannot be combined."""
        settings = self.optimisation
        if settings.sharding == "layers" and (settings.gradient_cache or settings.mixed_batches):
            raise InvalidInput(
                "optimisation.sharding: split layers are gathered by all processes at once, but with gradient_cache or "
                "mixed_batches these may run them a different number of times; leave those two out, or sharding at none"
            )
        packed = settings.packed_tokens
        if packed < 0 or (packed and (self.model.compile or self.documents.light)):
            raise InvalidInput(
                f"optimisation.packed_tokens is {packed}: expected 0 or more, and 0 with model.compile, whose layers "
                "need fixed shapes, and with documents.light, which has no texts to pack"
            )
        packed_attention(settings, self.model)

    def _check_branches(self) -> None:
        """Refuse a run without a trained branch, and losses of heads that the model lacks."""
        heads, losses = self.heads, self.losses
        if max(losses.symmetric, losses.dense, losses.sparse, losses.symmetric_sparse) <= 0:
            raise InvalidInput("losses: one of symmetric, dense, sparse and symmetric_sparse must be above 0")
        if not heads.sparse and max(losses.sparse, losses.flops, losses.symmetric_sparse) > 0:
            raise InvalidInput("heads.sparse is false, so losses.sparse, symmetric_sparse and flops must be 0")
        if not heads.dense and (losses.symmetric > 0 or losses.dense > 0 or heads.standardize):
            raise InvalidInput(
                "heads.dense is false, so losses.symmetric and losses.dense must be 0 and heads.standardize false"
            )
        if self.query_layers < 0 or (self.query_layers and losses.dense > 0):
            raise InvalidInput(
                f"query_layers is {self.query_layers}: expected 0 or more, and 0 with losses.dense, whose light "
                "queries pass all layers"
            )
        if heads.similarity == "dot" and (losses.dense > 0 or losses.dims or self.documents.light):
            raise InvalidInput(
                "heads.similarity is dot, but light queries and Matryoshka widths are compared by cosine: losses.dense "
                "must be 0, losses.dims empty and documents.light false"
            )
        if heads.straight_through and heads.activation != "log1p_relu":
            raise InvalidInput("heads.straight_through requires the activation log1p_relu")
        if self.documents.light and max(losses.sparse, losses.flops) > 0:
            raise InvalidInput("documents.light: counts have nothing to learn, so losses.sparse and flops must be 0")
        if self.method == "csplade" and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "method csplade sends queries through the sparse head: losses.symmetric_sparse must be > 0"
            )
        if losses.query_flops > 0 and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "losses.query_flops requires losses.symmetric_sparse: no other queries have a sparse vector"
            )

    def _check_likelihood(self) -> None:
        """Refuse query likelihood of a model that cannot predict a query after its passage."""
        if self.likelihood.weight > 0 and (self.model.attention != "causal" or not self.documents.eos):
            raise InvalidInput(
                "likelihood.weight is above 0: model.attention must be causal and documents.eos true, because queries "
                "are predicted through the end token"
            )
        if self.likelihood.weight > 0 and self.documents.light:
            raise InvalidInput("likelihood.weight is above 0: documents.light must be false, to have passages to read")

    def _check_teachers(self) -> None:
        """Refuse a teacher of or by an untrained encoder, and a run that learns from nothing."""
        losses, taught = self.losses, self.teacher
        if taught.address and min(losses.symmetric, taught.weight, taught.temperature) <= 0:
            raise InvalidInput(
                "a teacher teaches the full encoder: losses.symmetric, teacher.weight and teacher.temperature must be "
                "above 0"
            )
        aligned = min(losses.dense, losses.dense_alignment) > 0 or min(losses.sparse, losses.sparse_alignment) > 0
        if losses.symmetric <= 0 and aligned:
            raise InvalidInput(
                "losses.symmetric is 0, so there is no trained full encoder to align with: set losses.dense_alignment "
                "and losses.sparse_alignment to 0, or losses.symmetric above 0"
            )
        if min(losses.contrast, losses.distillation) < 0 or losses.contrast + losses.distillation <= 0:
            raise InvalidInput("losses: contrast and distillation must be 0 or more, and one of them above 0")
