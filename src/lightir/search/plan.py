"""The plan of a search: its branches and their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from lightir.contract import Contract, Fusion
from lightir.errors import InvalidInput
from lightir.index.bm25 import K1
from lightir.search.search_options import DEFAULT_OPTIONS, Mode, SearchOptions, mode_parts, parse_fusion
from lightir.types import BRANCHES, Branch

DEFAULT_WEIGHTS: Mapping[Branch, float] = {"dense": 0.5, "sparse": 0.2, "tokens": 0.3}
"""Weights of branches for which the contract's fusion has none; they are divided by their sum."""

SHARE_WEIGHTS: Mapping[Branch, float] = {"dense": 0.4, "sparse": 0.2, "tokens": 0.4}
"""The same for "absolute", whose normalized scores are of other sizes."""

REMEASURED: Mapping[str, tuple[Sequence[Fusion], Fusion]] = {
    "b4277076f9b30b48": (  # minilm
        (
            Fusion("linear", {"dense": 0.65, "tokens": 0.35}),
            Fusion("absolute", {"dense": 0.5, "tokens": 0.5}, spans={"dense": (0.1, 0.8)}),
        ),
        Fusion("absolute", {"dense": 0.45, "tokens": 0.55}, spans={"dense": (0.1, 0.8)}),
    ),
}
"""By document fingerprint the former default fusions of a model, and the one that has taken their place."""

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
    default = default_fusion(contract)
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
    method = _method(branches, contract, default, options)
    chosen = weights or _default_weights(branches, default, method)
    joined = dataclasses.replace(method, weights={branch: chosen[branch] for branch in branches}, spans=default.spans)
    return Plan(branches, joined, "tokens" in available and ("hybrid" in parts or "tokens" in branches))


def span(fusion: Fusion, contract: Contract | None, branch: Branch, *, of_counts: bool = True) -> tuple[float, float]:
    """Return the scores that "absolute" counts as 0 and as 1, those of terms per unit of the query's weight.

    Without a span in the fusion: cosines of 0 and 1, impacts of weights 0 and 2, and for BM25
    the weight of a word that a document of mean length has once. A bag of tokens has each of its terms with weight 1.

    Args:
        fusion: method and spans.
        contract: record of the index's model.
        branch: the branch.
        of_counts: whether the tokens branch counts terms.
    """
    if branch in fusion.spans:
        low, high = fusion.spans[branch]
        return low, high
    if branch == "tokens":
        return 0.0, 1 / (1 + K1) if of_counts else 1.0
    scale = 1.0 if branch == "dense" or contract is None or contract.sparse is None else 2 * contract.sparse.scale
    return 0.0, scale


def default_fusion(contract: Contract | None) -> Fusion:
    """Return the default fusion of a model: the contract's, or what has taken its place since the index was built."""
    if contract is None:
        return Fusion()
    former, present = REMEASURED.get(contract.document_fingerprint, ((), contract.fusion))
    return present if contract.fusion in former else contract.fusion


def has_spans(contract: Contract | None, options: SearchOptions = DEFAULT_OPTIONS) -> bool:
    """Return whether "absolute" can be searched: all branches have scores that count as 0 and as 1."""
    return not _without_span(contract, default_fusion(contract), options)


def default_depth(fusion: Fusion) -> int:
    """Return the default candidate depth of a fusion."""
    by_list = fusion.method == "dbsf" or (fusion.method == "linear" and fusion.normalization in ("min-max", "z-score"))
    return WHOLE_DEPTH if by_list else DEPTH


def _without_span(contract: Contract | None, default: Fusion, options: SearchOptions) -> str:
    """Return which scores have no maximum that is known before a search; "" if all have one."""
    if options.smoothing is not None:
        return f"the log likelihoods of {options.smoothing.method}"
    dense = None if contract is None else contract.dense
    if dense is not None and dense.similarity == "dot" and "dense" not in default.spans:
        return "dot products"
    return ""


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


def _method(branches: tuple[Branch, ...], contract: Contract | None, default: Fusion, options: SearchOptions) -> Fusion:
    """Return the method of a fusion; its weights do not count.

    In place of a default "absolute" it is "linear" where a branch has no span, and where no words are counted.
    """
    if options.fusion is None and default.method != "absolute":
        return default
    asked = default if options.fusion is None else parse_fusion(options.fusion)
    if asked.method != "absolute":
        return asked
    without = _without_span(contract, default, options)
    if without and options.fusion is not None:
        raise InvalidInput(
            f"fusion 'absolute' requires scores whose maximum is known, and {without} have none; use linear"
        )
    return Fusion("linear") if without or (options.fusion is None and "tokens" not in branches) else asked


def _default_weights(branches: tuple[Branch, ...], default: Fusion, method: Fusion) -> Mapping[Branch, float]:
    weighted = {branch for branch, weight in default.weights.items() if weight > 0}
    # Weights that were measured for "absolute" are for its scores alone.
    if weighted == set(branches) and (default.method != "absolute" or method.method == "absolute"):
        return {branch: default.weights[branch] for branch in branches}
    usual = SHARE_WEIGHTS if method.method == "absolute" else DEFAULT_WEIGHTS
    total = sum(usual[branch] for branch in branches)
    return {branch: usual[branch] / total for branch in branches}
