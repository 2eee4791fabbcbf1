"""The recipe of the SiDR stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lightir.contract import Contract, Fusion, SparseHead
from lightir.errors import InvalidInput
from lightir.train.recipes.run_recipe import QueryRunRecipe, refuse_packed_texts
from lightir.train.recipes.settings import UNFITTED_SCALE, WANTED, DevelopmentEvaluation, HeadCalibration, check_numbers


@dataclass(frozen=True, slots=True)
class RetrievalRecipe:
    """Hard negatives that the model retrieves in each training step.

    Attributes:
        top_m: depth of the search in the bag-of-tokens index; one result is drawn as negative, in addition to the mined
            `optimisation.negatives`. 0 retrieves none.
        skip_answers: skip documents that contain one of the query's answers, if the data set has answers.
        query_terms: number of strongest query terms to search with; 0 uses as many as the head keeps.
        corpus: other corpus to retrieve from, in any form that `lightir encode` reads, or a name inside the folder that
            LIGHTIR_DATA names; "" uses each training set's own. Documents with the text of a relevant one are skipped.
        documents: number of documents in the index, drawn at random from the corpus; 0 uses all.
    """

    top_m: int = 20
    skip_answers: bool = True
    query_terms: int = 0
    corpus: str = ""
    documents: int = 0


@dataclass(frozen=True, slots=True)
class SidrHeadRecipe(HeadCalibration):
    """V_θ: how logits become a vector over the vocabulary.

    Attributes:
        top_k: number of strongest terms kept of a document, and of a query unless query.top_k is set.
        own_terms: also keep a text's own terms, of documents and of queries.
        scale: scale of the impact quantizer, which clips weights above 255 / scale; 0 fits it to the trained model's
            weights of calibration documents, of which at most 0.01 % are clipped.
        projection: matrix that hidden states are multiplied by: the model's own LM or masked-LM "head", or its input
            "embeddings" as in SiDR's released code, which also serves models without a head.
        layer_norm: put a LayerNorm with trained weight and bias in front of the projection, as in SiDR's released code;
            requires projection "embeddings".
        first_term: first term of the vocabulary that vectors have, also those of bags; 999 in SiDR's released code,
            which leaves out BERT's special and unused tokens. 0 has all.
        lexical_documents: replace V_θ(d) by V_lex(d), which keeps a document's own terms only, in training and in the
            shipped model ("w/o expand at doc, training" in the paper's Table 7).
    """

    top_k: int = 768
    own_terms: bool = False
    scale: float = 32.0
    projection: Literal["head", "embeddings"] = "head"
    layer_norm: bool = False
    first_term: int = 0
    lexical_documents: bool = False


@dataclass(frozen=True, slots=True)
class SidrLossWeights:
    """Weights of the loss's parts.

    Attributes:
        parametric: weight of L(V_θ(q), V_θ(d)).
        semi_parametric: weight of each of L(V_θ(q), V_BoT(d)) and L(V_BoT(q), V_θ(d)); 0 is the paper's ablation.
        light: weight of each of L(light(q), V_BoT(d)) and L(light(q), V_θ(d)), where light(q), the query vector that
            needs no model, is the mean of the vectors of the query's tokens. Not in the paper.
        temperature: temperature of the inner products.
        light_temperature: temperature of inner products with light queries, which are means and so far smaller; 0 uses
            `temperature`.
    """

    parametric: float = 1.0
    semi_parametric: float = 0.5
    light: float = 0.0
    temperature: float = 1.0
    light_temperature: float = 0.0


@dataclass(frozen=True, slots=True)
class SidrEvaluation(DevelopmentEvaluation):
    """Evaluation of SiDR's searches during training.

    Attributes:
        by: measure that selects the saved state, nDCG@10 averaged over the sets: "full", "beta", "light_full" or
            "light_beta".
    """

    by: Literal["full", "beta", "light_full", "light_beta"] = "full"


@dataclass(frozen=True, slots=True)
class SidrRecipe(QueryRunRecipe):
    """One training run of SiDR; the backbone needs a language-modelling or masked-LM head, or heads.projection.

    Attributes:
        losses: weights of the loss's parts.
        heads: the vector over the vocabulary.
        retrieval: negatives retrieved in training.
        evaluation: evaluation during training.
        stage: the stage.
    """

    losses: SidrLossWeights = field(default_factory=SidrLossWeights)
    heads: SidrHeadRecipe = field(default_factory=SidrHeadRecipe)
    retrieval: RetrievalRecipe = field(default_factory=RetrievalRecipe)
    evaluation: SidrEvaluation = field(default_factory=SidrEvaluation)
    stage: Literal["sidr"] = "sidr"

    def __post_init__(self) -> None:
        QueryRunRecipe.__post_init__(self)
        refuse_packed_texts(self.optimisation)
        if self.optimisation.mixed_batches:
            raise InvalidInput("SiDR's negatives come from one corpus per batch: leave optimisation.mixed_batches off")
        check_numbers(self.losses, "losses.", least=("parametric", "semi_parametric", "light"))
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
        if self.heads.layer_norm and self.heads.projection != "embeddings":
            raise InvalidInput(
                f"heads.layer_norm requires heads.projection embeddings, not {self.heads.projection}: a model's own "
                "head has its own layers"
            )
        check_numbers(self.heads, "heads.", least=("first_term",))
        check_numbers(self.retrieval, "retrieval.", least=("top_m", "query_terms", "documents"))
        if (self.retrieval.corpus or self.retrieval.documents) and not self.retrieval.top_m:
            raise InvalidInput("retrieval.corpus and documents describe an index to retrieve from: set retrieval.top_m")

    @property
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record."""
        heads = self.heads
        sparse = SparseHead(
            "elu1p",
            bias_hash=WANTED if heads.calibrate else "",
            top_k=heads.top_k,
            scale=heads.scale or UNFITTED_SCALE,
            projection=heads.projection,
            own_terms=heads.own_terms,
            norm_hash=WANTED if heads.layer_norm else "",
            first_term=heads.first_term,
            lexical=heads.lexical_documents,
        )
        return self.contract_of("sidr", sparse=sparse, fusion=Fusion(weights={"sparse": 0.5, "tokens": 0.5}))
