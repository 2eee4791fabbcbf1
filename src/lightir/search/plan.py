"""The plan of a search: its branches and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from lightir.contract import Contract, Fusion
from lightir.errors import InvalidInput
from lightir.search.search_options import DEFAULT_OPTIONS, Mode, SearchOptions, mode_parts, parse_fusion
from lightir.types import BRANCHES, Branch

DEFAULT_WEIGHTS: Mapping[Branch, float] = {"dense": 0.5, "sparse": 0.2, "tokens": 0.3}
"""Weights of branches for which the contract's fusion has none; they are divided by their sum."""

DEPTH = 200
"""Candidate depth of a fusion that longer lists hardly change."""

WHOLE_DEPTH = 1000
"""Candidate depth of a fusion that measures scores by the list's end or spread."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The branches of a search, and how they are joined.

    Attributes:
        branches: branches in the order of BRANCHES.
        fusion: method and weights; one branch alone keeps its raw scores.
        finds_pending: whether pending documents keep their places in the tokens branch, see docs/progressive.md; a
            search of named vector branches alone does not find them.
    """

    branches: tuple[Branch, ...]
    fusion: Fusion
    finds_pending: bool = False

    @property
    def searched(self) -> tuple[Branch, ...]:
        """The branches, and the tokens branch last if it only ranks pending documents."""
        return (*self.branches, "tokens") if self.ranks_by_tokens else self.branches

    @property
    def ranks_by_tokens(self) -> bool:
        """Whether the tokens branch is not fused, but ranks pending documents."""
        return self.finds_pending and "tokens" not in self.branches


def plan(available: tuple[Branch, ...], contract: Contract | None, options: SearchOptions = DEFAULT_OPTIONS) -> Plan:
    """Return the plan of a search.

    "hybrid" means the branches that the weights name; without weights those of the contract's fusion that the index
    has, and the tokens branch if that leaves one. With a mode of named branches, weights must name the same.
    While no document of a model's index has its vectors, hybrid is the tokens branch alone, whatever the weights.

    Raises:
        InvalidInput: a branch that the index lacks, or weights that name other branches than the mode.
    """
    parts = _parts(available, contract, options.mode)
    default = Fusion() if contract is None else contract.fusion
    method = default if options.fusion is None else parse_fusion(options.fusion)
    weights = cast(Mapping[Branch, float] | None, options.weights)
    if _all_pending(available, contract) and "hybrid" in parts and {*parts} <= {"hybrid", "tokens"}:
        return Plan(available, Fusion("linear", {"tokens": 1.0}, "none"))
    branches = _branches(parts, available, default, weights)
    lacking = [branch for branch in branches if branch not in available]
    if lacking:
        raise InvalidInput(f"the index has no {lacking[0]} branch; it has {', '.join(available)}")
    if weights is not None and set(weights) != set(branches):
        raise InvalidInput(f"weights name {sorted(weights)}, but the mode searches {sorted(branches)}")
    if len(branches) == 1:
        return Plan(branches, Fusion("linear", {branches[0]: 1.0}, "none"))
    chosen = weights or _default_weights(branches, default)
    joined = dataclasses.replace(method, weights={branch: chosen[branch] for branch in branches})
    return Plan(branches, joined, "tokens" in available and ("hybrid" in parts or "tokens" in branches))


def default_depth(fusion: Fusion) -> int:
    """Return the default candidate depth of a fusion."""
    by_list = fusion.method == "dbsf" or (fusion.method == "linear" and fusion.normalization in ("min-max", "z-score"))
    return WHOLE_DEPTH if by_list else DEPTH


def _all_pending(available: tuple[Branch, ...], contract: Contract | None) -> bool:
    """Whether all documents of a model's index are pending."""
    return contract is not None and available == ("tokens",)


def _parts(available: tuple[Branch, ...], contract: Contract | None, mode: Mode) -> Sequence[str]:
    if mode is not None:
        return mode_parts(mode)
    return ("hybrid",) if len(available) > 1 or _all_pending(available, contract) else available


def _branches(
    parts: Sequence[str], available: tuple[Branch, ...], default: Fusion, weights: Mapping[Branch, float] | None
) -> tuple[Branch, ...]:
    wanted = {part for part in parts if part != "hybrid"}
    if "hybrid" in parts:
        wanted |= set(weights) if weights is not None else _hybrid(available, default)
    return tuple(branch for branch in BRANCHES if branch in wanted)


def _hybrid(available: tuple[Branch, ...], default: Fusion) -> set[Branch]:
    branches: set[Branch] = {branch for branch in available if default.weights.get(branch, 0.0) > 0}
    if len(branches) < 2:
        branches |= {branch for branch in available if branch == "tokens"}
    if len(branches) < 2:
        raise InvalidInput(f"hybrid search needs two branches; the index has {', '.join(available)}")
    return branches


def _default_weights(branches: tuple[Branch, ...], default: Fusion) -> Mapping[Branch, float]:
    weighted = {branch for branch, weight in default.weights.items() if weight > 0}
    if weighted == set(branches):
        return {branch: default.weights[branch] for branch in branches}
    total = sum(DEFAULT_WEIGHTS[branch] for branch in branches)
    return {branch: DEFAULT_WEIGHTS[branch] / total for branch in branches}
