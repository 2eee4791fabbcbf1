"""The recipe of the query-likelihood stage, LLM-QL's first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lightir.contract import Contract, DenseHead, Fusion
from lightir.errors import InvalidInput
from lightir.models.likelihood_prompts import PASSAGE_PROMPT, PASSAGE_SUFFIX, QUERY_INSTRUCTION, QUERY_SUFFIX
from lightir.text import QueryPolicy
from lightir.train.recipes.run_recipe import QueryRunRecipe, refuse_packed_texts
from lightir.train.recipes.settings import DocumentRecipe, check_numbers


@dataclass(frozen=True, slots=True)
class CorruptionRecipe:
    """Random masking of a passage in front of [E], drawn anew in each forward pass; prompts and [E] are never masked.

    Attributes:
        ratio: probability that a unit is replaced by the mask; 0.6 is best in the paper's sweep.
        unit: unit of masking: "word" (separated by white space, as in the authors' code, title included) or "token".
        mask: text that replaces a masked unit; must be one token if the unit is the token.
    """

    ratio: float = 0.6
    unit: Literal["word", "token"] = "word"
    mask: str = "_"


@dataclass(frozen=True, slots=True)
class LikelihoodRecipe(QueryRunRecipe):
    """One run of query-likelihood learning on judged pairs, without negatives.

    The backbone must be causal, with a language-modelling head. Development sets are measured by the log likelihood of
    queries' tokens after a relevant document.

    Attributes:
        query: query policy; fields left out take the policy's own defaults, not the paper's prompts.
        documents: document policy; fields left out take the policy's own defaults, not the paper's prompts. `ends: 4`
            is the paper's [E] four times; with `new_ends: true`, four new tokens.
        attention_stop: queries attend to the passage through [E] only; off for the ablation.
        corruption: masking of a passage in front of [E].
        direction: predicted text: the query from the passage; the passage from the query, which has the query policy's
            prompt and suffix and is not masked; or "both", one of the two drawn for each pair in each forward pass.
        passage_lm_weight: weight of the loss on a corrupted passage's own tokens: 1 in the authors' code, absent (0)
            from Eq. 10.
        learn_end: also predict the end token behind the query, or behind the passage predicted from it, so that
            generated texts end.
        stage: the stage.
    """

    query: QueryPolicy = field(
        default_factory=lambda: QueryPolicy(
            QUERY_INSTRUCTION, lower_case=False, leading_blank=False, max_tokens=200, suffix=QUERY_SUFFIX
        )
    )
    documents: DocumentRecipe = field(
        default_factory=lambda: DocumentRecipe(PASSAGE_PROMPT, lower_case=False, max_tokens=232, suffix=PASSAGE_SUFFIX)
    )
    attention_stop: bool = True
    corruption: CorruptionRecipe = field(default_factory=CorruptionRecipe)
    direction: Literal["passage_to_query", "query_to_passage", "both"] = "passage_to_query"
    passage_lm_weight: float = 0.0
    learn_end: bool = False
    stage: Literal["query_likelihood"] = "query_likelihood"

    def __post_init__(self) -> None:
        QueryRunRecipe.__post_init__(self)
        refuse_packed_texts(self.optimisation)
        if self.optimisation.gradient_cache:
            raise InvalidInput("pairs are independent of each other: use accumulation instead of gradient_cache")
        if self.optimisation.negatives or any(data.negatives for data in self.data):
            raise InvalidInput("query likelihood uses no negatives: leave them out")
        check_numbers(self, "", least=("passage_lm_weight",))
        check_numbers(self.corruption, "corruption.", shares=("ratio",))
        if not self.documents.eos:
            raise InvalidInput("documents.eos must be true: [E] is what the query is predicted from")
        if self.model.attention != "causal":
            raise InvalidInput(
                f"model.attention is {self.model.attention}; expected causal: other attention sees what is predicted"
            )

    @property
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record: dense vectors are the states at [E]."""
        return self.contract_of(
            "llm-ql", dense=DenseHead("eos"), fusion=Fusion(weights={"dense": 0.65, "tokens": 0.35})
        )
