"""Hits as JSON objects, as the command line and the service show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lightir.types import BranchScore, Hit, TermScore


def hit_json(hit: Hit, *, explain: bool) -> dict[str, Any]:
    """Return a hit as an object, with the parts of its score if explained."""
    branches = {
        name: branch_json(branch) if explain else {"score": branch.score, "rank": branch.rank}
        for name, branch in hit.branches.items()
    }
    shown: dict[str, Any] = {
        "doc_id": hit.doc_id,
        "score": hit.score,
        "pending": hit.pending,
        "title": hit.title,
        "snippet": hit.snippet,
        "highlights": hit.highlights,
        "metadata": hit.metadata,
        "branches": branches,
    }
    if hit.late:
        shown["late"] = True
    if hit.named:
        shown["named"] = True
    if hit.passage is not None:
        shown["passage"] = dataclasses.asdict(hit.passage)
    if explain:
        shown["terms"] = terms_json(hit.terms)
    return shown


def branch_json(branch: BranchScore) -> dict[str, Any]:
    """Return a branch's part of a hit's score: raw score and rank, and what fusion made of it."""
    return {"score": branch.score, "rank": branch.rank, "normalized": branch.normalized, "weight": branch.weight}


def terms_json(terms: Sequence[TermScore]) -> list[dict[str, Any]]:
    """Return matched terms with their contributions."""
    return [dataclasses.asdict(term) for term in terms]
