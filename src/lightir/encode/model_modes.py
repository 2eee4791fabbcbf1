"""Search modes for the evaluation of a model: those of an index, and modes with the full query encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from lightir.contract import Contract
from lightir.encode.full_queries import SparseForm
from lightir.errors import InvalidInput
from lightir.search.index_evaluation import all_modes
from lightir.search.plan import plan
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.types import BRANCHES, Branch

FULL = "full"
"""Part of a mode: the dense branch with the full query encoder, as in "full" and "full+tokens"."""

FULL_SPARSE = "full-sparse"
"""Part of a mode: the sparse branch with the full query encoder, as in "full-sparse" and "full+full-sparse"."""

BETA = "beta"
"""SiDR's beta search: sparse queries of the full query encoder over bags of tokens, <V(q), V_BoT(d)>."""

LIGHT_BETA = "light-beta"
"""Beta search with the model-free query encoder."""

BETA_FORMS: Mapping[str, SparseForm] = {BETA: "weights", "beta-lex": "lex", "beta-bin": "bin", "overlap": "bag"}
"""Modes that search bags of tokens, by the form of their queries."""

DOCUMENT_FORMS: Mapping[str, Literal["lex", "bin"]] = {"full-lex": "lex", "full-bin": "bin"}
"""Modes with FULL_SPARSE's queries, by the form of the documents."""


def default_modes(contract: Contract) -> list[str]:
    """Return the modes that `evaluate_model` measures by default.

    They are `all_modes` of the branches, FULL with a dense branch, FULL_SPARSE for CSplade and SiDR, and for SiDR beta,
    light beta if light queries have weights, and late search.
    """
    method, branches = contract.method, _branches(contract)
    modes = [*all_modes(branches), *([FULL] if "dense" in branches else [])]
    if "dense" in branches and not has_light_dense(contract):
        modes = ["tokens", *(["sparse"] if "sparse" in branches else []), FULL, f"{FULL}+tokens"]
    modes += [FULL_SPARSE] if method in ("csplade", "sidr") else []
    light_beta = [LIGHT_BETA] if contract.query.weights_terms else []
    return modes + ([BETA, *light_beta, f"{BETA}:20:{FULL_SPARSE}"] if method == "sidr" else [])


def has_light_dense(contract: Contract) -> bool:
    """Return whether the model has light dense queries.

    A plain bi-encoder has none, and neither has a model whose query frame is more than a prompt and one end token.
    """
    return contract.dense is not None and contract.method != "dense" and contract.has_light_queries


def check_modes(
    contract: Contract,
    modes: Sequence[str],
    options: SearchOptions = DEFAULT_OPTIONS,
) -> None:
    """Refuse modes that a model of the contract does not support, before a corpus is encoded for hours.

    Args:
        contract: contract of the model.
        modes: modes to check.
        options: search options of the modes that join branches.

    Raises:
        InvalidInput: an unknown mode, fusion or branch, a branch that the model lacks, or weights of other branches.
    """
    for mode in modes:
        if ":" in mode:
            first, _, second = stages(mode)
            check_modes(contract, [first])
            check_modes(contract, [second], options)
        elif mode in (LIGHT_BETA, *BETA_FORMS, *DOCUMENT_FORMS):
            if contract.sparse is None:
                raise InvalidInput(f"mode {mode!r}: this model has no sparse branch")
            if mode == LIGHT_BETA and not contract.query.weights_terms:
                raise InvalidInput(
                    f"mode {mode!r}: this model's light queries have no learned term weights, so they would rank bags "
                    "by plain token overlap; the mode for that is 'overlap'"
                )
        else:
            _check_joined(contract, mode, options)


def _check_joined(contract: Contract, mode: str, options: SearchOptions) -> None:
    parts = mode.split("+")
    needs_light_dense = not {FULL, FULL_SPARSE} & {*parts} and {"dense", "hybrid"} & {*parts}
    if needs_light_dense and contract.dense is not None and not has_light_dense(contract):
        raise InvalidInput(f"mode {mode!r}: this model has no light dense queries; its dense mode is {FULL!r}")
    weights = options.weights if mode == "hybrid" or len(parts) > 1 else None
    try:
        searched = dataclasses.replace(options, mode=searched_mode(mode), weights=weights)
        plan(_branches(contract), contract, searched)
    except InvalidInput as error:
        raise InvalidInput(f"mode {mode!r}: {error}") from error


def searched_mode(mode: str) -> str:
    """Return the index's name of a mode: FULL is its dense and FULL_SPARSE its sparse branch."""
    return "+".join({FULL: "dense", FULL_SPARSE: "sparse"}.get(part, part) for part in mode.split("+"))


def stages(mode: str) -> tuple[str, int, str]:
    """Parse a mode of the form FIRST:M:SECOND.

    Raises:
        InvalidInput: the mode has another form, or M is 0.
    """
    parts = mode.split(":")
    if len(parts) != 3 or not parts[1].isdecimal():
        raise InvalidInput(f"mode {mode!r}: expected FIRST:M:SECOND, as in beta:20:full-sparse")
    if int(parts[1]) < 1:
        raise InvalidInput(f"mode {mode!r} orders {parts[1]} documents; expected at least 1")
    return parts[0], int(parts[1]), parts[2]


def _branches(contract: Contract) -> tuple[Branch, ...]:
    """Return the branches of an index of the model's vectors, which always includes tokens."""
    has = {"dense": contract.dense is not None, "sparse": contract.sparse is not None, "tokens": True}
    return tuple(branch for branch in BRANCHES if has[branch])
