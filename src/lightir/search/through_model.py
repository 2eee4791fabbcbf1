"""Modes whose queries go through the model, and the branches of an index that they search.

    beta          SiDR's semi-parametric search, <V(q), V_BoT(d)>: bags of tokens, whether documents are encoded or not
    full          the model's own vectors, <V(q), V(d)>: the dense branch, or the sparse one of a model without
    full-sparse   the sparse branch with the sparse head's queries

Any of them requires a query encoder that runs the model (`lightir.FullQueryEncoder`). The cached encoder of an index
does not.
"""

from __future__ import annotations

from lightir.errors import InvalidInput
from lightir.index import View
from lightir.query import CachedQueryEncoder
from lightir.search.search_options import MODEL_MODES, Mode, mode_parts
from lightir.types import Branch
from lightir.vectors import QueryEncoder

LATE = "late"
"""Mode of `lightir search`: late parametric search, see `lightir.search.late`."""


def needs_model(mode: Mode) -> bool:
    """Whether a mode of `lightir search` encodes queries by the model."""
    return mode == LATE or (isinstance(mode, str) and not {*MODEL_MODES}.isdisjoint(mode.split("+")))


def branch_mode(mode: Mode, view: View, encoder: QueryEncoder | None) -> Mode:
    """Return the mode with the index's branches in place of "beta", "full" and "full-sparse"; others are unchanged.

    Raises:
        InvalidInput: the encoder does not run the model, the index has no contract or no bags, or nothing is encoded.
    """
    if mode is None or {*MODEL_MODES}.isdisjoint(parts := mode_parts(mode)):
        return mode
    if encoder is None or isinstance(encoder, CachedQueryEncoder):
        raise InvalidInput(
            f"mode {_text(mode)!r} encodes queries by the model, but no model was given: name it with --model (in "
            "Python: Searcher(index, FullQueryEncoder.load(MODEL)))"
        )
    return "+".join(_branch(part, view) if part in MODEL_MODES else part for part in parts)


def vector_branch(view: View) -> Branch:
    """Return the branch of mode "full": dense, or sparse for a model without a dense branch.

    Raises:
        InvalidInput: the index has no contract.
    """
    if view.contract is None:
        raise InvalidInput(
            f"{view.folder} has no model's contract; build it with `lightir index CORPUS --model MODEL --out INDEX`"
        )
    return "dense" if view.contract.dense is not None else "sparse"


def _branch(part: str, view: View) -> Branch:
    if part == "beta":
        if not view.holds_bags:
            analyzer = "no analyzer" if view.analyzer is None else f"the analyzer {view.analyzer.name!r}"
            raise InvalidInput(
                f"mode 'beta' searches bags of the model's tokens, but {view.folder} was built with {analyzer}; build "
                "one with `lightir index CORPUS --analyzer bag --model MODEL --out INDEX`"
            )
        return "tokens"
    branch: Branch = "sparse" if part == "full-sparse" else vector_branch(view)
    if branch not in view.branches:
        lacks = f"none of the {len(view):,} documents of {view.folder} is encoded"
        if view.contract is not None and getattr(view.contract, branch) is None:
            lacks = f"the model of {view.folder} has no {branch} branch"
        raise InvalidInput(
            f"mode {part!r} searches the model's vectors, but {lacks}. Encode documents with `lightir worker`, or "
            "search with the mode late, which encodes the best ones of each query"
        )
    return branch


def _text(mode: Mode) -> str:
    return mode if isinstance(mode, str) else "+".join(mode or ())
