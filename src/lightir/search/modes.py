"""Which branches a search uses and what they weigh."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypeAlias, cast

from lightir.contract import Contract, Fusion
from lightir.errors import InvalidInput
from lightir.types import BRANCHES, Branch

Mode: TypeAlias = str | tuple[Branch, ...] | None
"""A branch, "hybrid", several joined by "+", or a tuple of branches; None for hybrid where it can be."""

DEFAULT_WEIGHTS: Mapping[Branch, float] = {"dense": 0.5, "sparse": 0.2, "tokens": 0.3}
"""For sets of branches that the contract's fusion has no weights for; they are divided by their sum."""


NORMALIZATIONS = ("max", "min-max", "z-score", "none")

DEPTH = 200
"""Documents that a branch gives to a fusion that longer lists hardly change."""

WHOLE_DEPTH = 1000
"""Documents that a branch gives to a fusion that measures scores by the list's end or spread."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search does.

    Attributes:
        branches: in fixed order.
        fusion: how they are joined; one alone keeps its raw scores.
        estimates: whether documents that wait for their vectors are ranked by estimates, see
            lightir.search.progressive; a search of named vector branches alone does not find them.
    """

    branches: tuple[Branch, ...]
    fusion: Fusion
    estimates: bool = False

    @property
    def depth(self) -> int:
        """Documents that each branch gives to the fusion where nobody says how many; estimates go by lists' spread."""
        return WHOLE_DEPTH if self.estimates else default_depth(self.fusion)


def plan(
    available: tuple[Branch, ...],
    contract: Contract | None,
    *,
    mode: Mode = None,
    fusion: str | None = None,
    weights: Mapping[str, float] | None = None,
) -> Plan:
    """The plan for a mode.

    "hybrid" means the branches that `weights` names; without weights those of the contract's fusion that the index
    has, joined by the tokens branch where that leaves one. With a mode of named branches, weights must name the same.
    While no document of a model's index has its vectors, hybrid is the tokens branch alone, whatever the weights.

    Raises:
        InvalidInput: unknown mode, fusion or branch, a branch that the index lacks, or bad weights.
    """
    parts = _parts(available, contract, mode)
    default = Fusion() if contract is None else contract.fusion
    method = default if fusion is None else parse_fusion(fusion)
    checked = None if weights is None else _checked_weights(weights)
    if _waits(available, contract) and "hybrid" in parts and {*parts} <= {"hybrid", "tokens"}:
        return Plan(available, Fusion("linear", {"tokens": 1.0}, "none"))
    branches = _branches(parts, available, default, checked)
    lacking = [branch for branch in branches if branch not in available]
    if lacking:
        raise InvalidInput(f"the index has no {lacking[0]} branch; it has {', '.join(available)}")
    if checked is not None and set(checked) != set(branches):
        raise InvalidInput(f"weights name {sorted(checked)}, but the mode searches {sorted(branches)}")
    if len(branches) == 1:
        return Plan(branches, Fusion("linear", {branches[0]: 1.0}, "none"))
    chosen = checked or _default_weights(branches, default)
    joined = dataclasses.replace(method, weights={branch: chosen[branch] for branch in branches})
    return Plan(branches, joined, "tokens" in available and ("hybrid" in parts or "tokens" in branches))


def parse_fusion(text: str) -> Fusion:
    """The fusion, without weights, that "linear", "linear:z-score", "rrf", "rrf:20" or "dbsf" names.

    "linear" alone is max; "linear:min-max" and "linear:none" are the others. "rrf" alone has the constant 60.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"fusion is {type(text).__name__}; expected its name, as in 'rrf'")
    method, colon, detail = text.partition(":")
    if not colon and method in ("linear", "rrf", "dbsf"):
        return Fusion(cast(Literal["linear", "rrf", "dbsf"], method), {})
    if method == "linear" and detail in NORMALIZATIONS:
        return Fusion("linear", {}, cast(Literal["max", "min-max", "z-score", "none"], detail))
    try:
        rrf_k = float(detail)
    except ValueError:
        rrf_k = math.nan
    if method == "rrf" and math.isfinite(rrf_k) and rrf_k >= 0:
        return Fusion("rrf", {}, rrf_k=rrf_k)
    raise InvalidInput(
        f"fusion {text!r} is unknown; expected linear, linear:min-max, linear:z-score, linear:none, rrf, rrf:K with a "
        "K of 0 or more, or dbsf"
    )


def fusion_text(fusion: Fusion) -> str:
    """The fusion's method as parse_fusion reads it."""
    if fusion.method == "linear":
        return "linear" if fusion.normalization == "max" else f"linear:{fusion.normalization}"
    return "dbsf" if fusion.method == "dbsf" else f"rrf:{fusion.rrf_k:g}"


def default_depth(fusion: Fusion) -> int:
    """Documents that each branch gives to the fusion where nobody says how many."""
    by_list = fusion.method == "dbsf" or (fusion.method == "linear" and fusion.normalization in ("min-max", "z-score"))
    return WHOLE_DEPTH if by_list else DEPTH


def weights_text(fusion: Fusion) -> str:
    """The fusion's weights as the command line reads them."""
    return ",".join(f"{branch}={weight:g}" for branch, weight in fusion.weights.items())


def _waits(available: tuple[Branch, ...], contract: Contract | None) -> bool:
    """Whether no document of a model's index has its vectors."""
    return contract is not None and available == ("tokens",)


def _parts(available: tuple[Branch, ...], contract: Contract | None, mode: Mode) -> Sequence[str]:
    if mode is None:
        mode = "hybrid" if len(available) > 1 or _waits(available, contract) else available
    if not isinstance(mode, str | Iterable):
        raise InvalidInput(f"mode is {mode!r}; expected hybrid, {', '.join(BRANCHES)}, joined by '+'")
    parts = mode.split("+") if isinstance(mode, str) else list(mode)
    if unknown := [part for part in parts if part not in (*BRANCHES, "hybrid")]:
        raise InvalidInput(f"mode {unknown[0]!r} is unknown; expected hybrid, {', '.join(BRANCHES)}, joined by '+'")
    if repeated := [part for i, part in enumerate(parts) if part in parts[:i]]:
        raise InvalidInput(f"mode {'+'.join(parts)!r} names {repeated[0]} twice; name each branch once")
    return parts


def _branches(
    parts: Sequence[str], available: tuple[Branch, ...], default: Fusion, weights: Mapping[Branch, float] | None
) -> tuple[Branch, ...]:
    wanted = {part for part in parts if part != "hybrid"}
    if "hybrid" in parts:
        wanted |= set(weights) if weights is not None else _hybrid(available, default)
    if not wanted:
        raise InvalidInput("the mode names no branch")
    return tuple(branch for branch in BRANCHES if branch in wanted)


def _hybrid(available: tuple[Branch, ...], default: Fusion) -> set[Branch]:
    branches: set[Branch] = {branch for branch in available if default.weights.get(branch, 0.0) > 0}
    if len(branches) < 2:
        branches |= {branch for branch in available if branch == "tokens"}
    if len(branches) < 2:
        raise InvalidInput(f"hybrid search needs two branches; the index has {', '.join(available)}")
    return branches


def _default_weights(branches: tuple[Branch, ...], default: Fusion) -> Mapping[Branch, float]:
    said = {branch for branch, weight in default.weights.items() if weight > 0}
    if said == set(branches):
        return {branch: default.weights[branch] for branch in branches}
    total = sum(DEFAULT_WEIGHTS[branch] for branch in branches)
    return {branch: DEFAULT_WEIGHTS[branch] / total for branch in branches}


def _checked_weights(weights: Mapping[str, Any]) -> Mapping[Branch, float]:
    if not isinstance(weights, Mapping):
        raise InvalidInput(f"weights is {type(weights).__name__}; expected a dict of branch -> weight")
    for branch, weight in weights.items():
        if branch not in BRANCHES:
            raise InvalidInput(f"weights name {branch!r}; the branches are {', '.join(BRANCHES)}")
        if not isinstance(weight, Real) or not math.isfinite(weight) or weight < 0:
            raise InvalidInput(f"the weight of {branch} is {weight!r}; it must be a finite number and not negative")
    if not any(weights.values()):
        raise InvalidInput("all weights are 0")
    return cast(Mapping[Branch, float], dict(weights))
