"""The recipes of the stages on packed rows of unlabelled text: adaptation and masked next-token prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lightir.contract import Contract, DenseHead, SparseHead
from lightir.errors import InvalidInput
from lightir.train.recipes.run_recipe import PackedTextRecipe
from lightir.train.recipes.settings import Optimisation, check_numbers


@dataclass(frozen=True, slots=True)
class AdaptationRecipe(PackedTextRecipe):
    """One adaptation run: L = CE(z, next) + relu_weight x CE(ln(1 + ReLU(z)), next) on packed text.

    Attributes:
        optimisation: steps, rows and learning rate.
        length: tokens in a packed row.
        relu_weight: weight λ of the second term.
        stage: the stage.
    """

    optimisation: Optimisation = field(default_factory=lambda: Optimisation(steps=10_000, warmup_steps=1000))
    length: int = 2048
    relu_weight: float = 1.0
    stage: Literal["adaptation"] = "adaptation"

    def __post_init__(self) -> None:
        PackedTextRecipe.__post_init__(self)
        if self.model.attention != "causal":
            raise InvalidInput(
                f"adaptation predicts the next token, so model.attention must be causal, not "
                f"{self.model.attention}; the contrastive stage after it may use another"
            )
        check_numbers(self, "", least=("relu_weight",))

    @property
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record."""
        return self.contract_of("csplade", sparse=SparseHead())


@dataclass(frozen=True, slots=True)
class MaskedRecipe(PackedTextRecipe):
    """One run of masked next-token prediction: a masked token is predicted from the state in front of it.

    The backbone is a causal model, trained with `attention: bidirectional`.

    Attributes:
        optimisation: steps, rows and learning rate.
        ratio: probability that a token is predicted.
        mask: text that replaces a masked token; must be one token.
        random: share of the predicted tokens that a random token replaces instead (0.1 in BERT).
        kept: share of the predicted tokens that stay unchanged (0.1 in BERT).
        stage: the stage.
    """

    optimisation: Optimisation = field(default_factory=lambda: Optimisation(learning_rate=5e-5, warmup_steps=0))
    ratio: float = 0.2
    mask: str = "_"
    random: float = 0.1
    kept: float = 0.1
    stage: Literal["masked_next_token"] = "masked_next_token"

    def __post_init__(self) -> None:
        PackedTextRecipe.__post_init__(self)
        if self.model.attention != "bidirectional":
            raise InvalidInput(f"model.attention is {self.model.attention}; this stage requires bidirectional")
        if not 0 < self.ratio <= 1 or min(self.random, self.kept) < 0 or self.random + self.kept > 1:
            raise InvalidInput("ratio must be above 0 and at most 1; random and kept at least 0, their sum at most 1")

    @property
    def contract(self) -> Contract:
        """The contract of the shipped model, with an empty backbone record."""
        return self.contract_of("dense", dense=DenseHead("mean"))
