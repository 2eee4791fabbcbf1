"""A recipe: everything that decides one contrastive training run, in one YAML file that is saved with the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lightir.contract import Fusion
from lightir.errors import InvalidInput
from lightir.text import QueryPolicy
from lightir.train.recipes.settings import (
    BranchEvaluation,
    DataRecipe,
    DocumentRecipe,
    ModelRecipe,
    Optimisation,
    check_numbers,
    packed_attention,
)


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the losses' parts; 0 switches a part off and saves its cost.

    Attributes:
        symmetric: contrastive loss of the full query encoder, the teacher (Eq. 5's Enc_q).
        dense: contrastive loss of the light dense query (Eq. 3-4).
        sparse: contrastive loss of the light sparse query (Eq. 7-8).
        symmetric_sparse: contrastive loss of queries that go through the model's sparse head, as SPLADE's and
            CSplade's do.
        dense_alignment: KL from the teacher's scores to the light dense ones (Eq. 5).
        sparse_alignment: the same to the sparse ones.
        flops: FLOPS regulariser of the documents' sparse vectors (Eq. 9).
        query_flops: FLOPS regulariser of the queries' sparse vectors; it wants symmetric_sparse.
        flops_ramp_steps: the weight of both rises quadratically to this step; a weight with a target does not.
        flops_target: the mean number of non-zeros wanted of a document in training: the weight begins at `flops` and is
            then set after every step so that documents come near it; 0 leaves the weight as it is.
        query_flops_target: the same for queries and `query_flops`.
        sparse_terms: 0 projects documents on the whole vocabulary in training; n projects them on the terms of the
            batch's queries, which is all that the contrastive loss reads, and on n terms drawn anew for every batch,
            which FLOPS is estimated from without bias. A small model's step is a third cheaper that way.
        temperature: of the dense scores.
        sparse_temperature: of the sparse scores, which are inner products.
        dims: Matryoshka widths below the full one; the dense losses are averaged over all widths.
        contrast: factor of all contrastive losses; 0 leaves the labels out where scores are given.
        distillation: factor of the loss that has each trained branch follow the data's own scores (a teacher's).
        distillation_loss: "kl" between softmaxes over a query's scored candidates, or "margin_mse" of their distances
            to the positive.
        distillation_temperature: the given scores are divided by it; a branch's own temperature holds for its scores.
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
    """Another bi-encoder, whose scores of the batch's documents the full query encoder learns from.

    Attributes:
        address: a sentence-transformers folder or name (`pypi:PACKAGE` too), or a model folder of ours; "" for none.
            It reads as much of a document as training does.
        weight: of the KL from its scores to the full encoder's, in the loss.
        temperature: of its scores, which are cosines.
    """

    address: str = ""
    weight: float = 1.0
    temperature: float = 0.05


@dataclass(frozen=True, slots=True)
class HeadRecipe:
    """How hidden states become vectors, and what is fitted before the first step.

    Attributes:
        pooling: of documents, full queries and single tokens: "eos", "last" or "mean".
        dense: the model has a dense branch.
        standardize: fit a fixed mean and deviation to the pooled states of calibration documents.
        sparse: the model has a sparse branch, trained or not.
        calibrate: fit the sparse head's per-term bias so that this share of calibration documents stays below it;
            0 leaves the raw head.
        recalibrate: fit the term bias again on the trained model: training moves what it was fitted to.
        calibration_documents: drawn from the training corpora.
        activation: of the sparse head.
        straight_through: in training the sparse head's ReLU has GELU's gradient: a term at zero can come back.
        top_k: strongest terms kept of an encoded document; 0 keeps all.
        scale: the impact quantiser's.
    """

    pooling: Literal["eos", "last", "mean"] = "eos"
    dense: bool = True
    standardize: bool = False
    sparse: bool = True
    calibrate: float = 0.0
    recalibrate: bool = False
    calibration_documents: int = 128
    activation: Literal["log1p_relu", "elu1p"] = "log1p_relu"
    straight_through: bool = False
    top_k: int = 512
    scale: float = 64.0

    def __post_init__(self) -> None:
        check_numbers(self, "heads.", above=("calibration_documents",), shares=("calibrate",))


@dataclass(frozen=True, slots=True)
class ContrastiveRecipe:
    """One training run.

    Attributes:
        model: the backbone.
        data: training sets.
        held_out: sets whose development and test queries must not be trained on: every training query too close to
            one of them is dropped.
        held_out_documents: drop training queries too whose positive is, or nearly is, a document that is relevant to
            one of these queries.
        optimisation: steps, batches and the learning rate.
        losses: and their weights.
        teacher: a retriever to learn from beside the labels.
        heads: pooling, standardisation, sparse head.
        query: the query policy; it goes into the contract as it is.
        documents: the document policy.
        evaluation: during training.
        fusion: the model's default fusion.
        checkpoint_every: optimizer steps between two checkpoints; a killed run repeats what came after its last.
            Ctrl-C and SIGTERM write one at once. 0 writes no others.
        stage: which stage the recipe is of.
        method: the contract's: "llm-ql" for LLM-QL's second stage, "csplade" for CSplade's, "dense" for others that
            have no light queries.
    """

    model: ModelRecipe
    data: tuple[DataRecipe, ...]
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    optimisation: Optimisation = field(default_factory=Optimisation)
    losses: LossWeights = field(default_factory=LossWeights)
    teacher: TeacherRecipe = field(default_factory=TeacherRecipe)
    heads: HeadRecipe = field(default_factory=HeadRecipe)
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: DocumentRecipe = field(default_factory=DocumentRecipe)
    evaluation: BranchEvaluation = field(default_factory=BranchEvaluation)
    fusion: Fusion = field(default_factory=Fusion)
    checkpoint_every: int = 200
    stage: Literal["contrastive"] = "contrastive"
    method: Literal["lightretriever", "llm-ql", "csplade", "dense"] = "lightretriever"

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set under `data`")
        if any(each.ratio <= 0 for each in self.data):
            raise InvalidInput("a training set's ratio must be above 0; leave out the set instead")
        check_numbers(self, "", least=("checkpoint_every",))
        self._check_batches()
        self._check_branches()
        self._check_teachers()
        if self.evaluation.sets and self.evaluation.by not in self.measures:
            raise InvalidInput(
                f"evaluation.by is {self.evaluation.by!r}, which this recipe's model does not have; "
                f"expected one of {', '.join(self.measures)}"
            )

    @property
    def measures(self) -> tuple[str, ...]:
        """What `evaluation.by` may name: the branches that an evaluation measures."""
        heads, documents = self.heads, self.documents
        one_end = not self.query.suffix and documents.ends == 1 and not documents.new_ends
        light = heads.dense and one_end and (self.model.attention == "causal" or self.losses.dense > 0)
        there = {
            "symmetric": heads.dense,
            "dense": light,
            "sparse": heads.sparse,
            "symmetric_sparse": heads.sparse and self.losses.symmetric_sparse > 0,
            "hybrid": light and heads.sparse,
        }
        return tuple(name for name, is_there in there.items() if is_there)

    def _check_batches(self) -> None:
        """What goes into a forward pass together fits together."""
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
                "want fixed shapes, and with documents.light, which have no texts to pack"
            )
        packed_attention(settings, self.model)

    def _check_branches(self) -> None:
        """What is trained is there: some branch, and the heads that its losses read."""
        heads, losses = self.heads, self.losses
        if max(losses.symmetric, losses.dense, losses.sparse, losses.symmetric_sparse) <= 0:
            raise InvalidInput("losses: one of symmetric, dense, sparse and symmetric_sparse must be above 0")
        if not heads.sparse and max(losses.sparse, losses.flops, losses.symmetric_sparse) > 0:
            raise InvalidInput("heads.sparse is false, so losses.sparse, symmetric_sparse and flops must be 0")
        if not heads.dense and (losses.symmetric > 0 or losses.dense > 0 or heads.standardize):
            raise InvalidInput(
                "heads.dense is false, so losses.symmetric and losses.dense must be 0 and heads.standardize false"
            )
        if heads.straight_through and heads.activation != "log1p_relu":
            raise InvalidInput("heads.straight_through is for the activation log1p_relu")
        if self.documents.light and max(losses.sparse, losses.flops) > 0:
            raise InvalidInput("documents.light: counts have nothing to learn, so losses.sparse and flops must be 0")
        if self.method == "csplade" and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "method csplade sends queries through the sparse head: losses.symmetric_sparse must be > 0"
            )
        if losses.query_flops > 0 and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "losses.query_flops wants losses.symmetric_sparse: no other queries have a sparse vector"
            )

    def _check_teachers(self) -> None:
        """The full encoder learns from a teacher, so it is trained; given scores are followed at some weight."""
        losses, taught = self.losses, self.teacher
        if taught.address and min(losses.symmetric, taught.weight, taught.temperature) <= 0:
            raise InvalidInput("a teacher teaches the full encoder: losses.symmetric and the teacher's own must be > 0")
        if min(losses.contrast, losses.distillation) < 0 or losses.contrast + losses.distillation <= 0:
            raise InvalidInput("losses: contrast and distillation must be 0 or more, and one of them above 0")
