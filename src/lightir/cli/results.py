"""Found documents as people and as programs read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lightir.cli.terminal import BOLD, CYAN, DIM, YELLOW, duration, highlight, paint, shorten, width, wrap
from lightir.types import Hit

INDENT = "    "
TERMS_SHOWN = 8


def hit_json(hit: Hit, *, explain: bool) -> dict[str, Any]:
    """A hit in the shape that `search --json` promises."""
    branches = {name: {"score": branch.score, "rank": branch.rank} for name, branch in hit.branches.items()}
    shown = {
        "doc_id": hit.doc_id,
        "score": hit.score,
        "title": hit.title,
        "snippet": hit.snippet,
        "metadata": dict(hit.metadata),
        "branches": branches,
    }
    if explain:
        shown["terms"] = [dataclasses.asdict(term) for term in hit.terms]
    return shown


def result_json(query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool) -> dict[str, Any]:
    """One query's answer in the shape that `search --json` promises."""
    listed = [hit_json(hit, explain=explain) for hit in hits]
    return {"query": query, "mode": mode, "took_ms": round(took_s * 1000, 3), "hits": listed}


def print_result(query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool) -> None:
    """One query's answer for people: rank, title, score, branches, snippet, and terms where they are asked for."""
    counted = f"{len(hits)} {mode} hit{'' if len(hits) == 1 else 's'} in {duration(took_s)}"
    print(f"{paint(query, BOLD)}  {paint(counted, DIM)}")
    for rank, hit in enumerate(hits, 1):
        print(f"\n{rank:>3} {_head(hit)}")
        if hit.snippet:
            print(highlight(wrap(hit.snippet, indent=INDENT), _words(query, hit), BOLD, YELLOW))
        if explain and hit.terms:
            print(
                INDENT
                + paint(
                    shorten(terms_line([dataclasses.asdict(term) for term in hit.terms]), width() - len(INDENT)), DIM
                )
            )


def terms_line(terms: Sequence[Mapping[str, Any]]) -> str:
    """The matched terms as `search --json` lists them, each with its part of its branch's score."""
    return "  ".join(f"{term['term'].strip()} {term['score']:.3g}" for term in terms[:TERMS_SHOWN])


def _head(hit: Hit) -> str:
    name = shorten(hit.title or hit.doc_id, 60)
    if hit.title and not hit.title.startswith(hit.doc_id):
        name = f"{name}  [{hit.doc_id}]"
    parts = [f"{branch} {score.score:.3g}{_rank(score.rank)}" for branch, score in hit.branches.items()]
    return f"{paint(name, BOLD, CYAN)}  {hit.score:.4f}  {paint(' · '.join(parts), DIM)}"


def _rank(rank: int | None) -> str:
    return f" #{rank}" if rank is not None else ""


def _words(query: str, hit: Hit) -> list[str]:
    """What to highlight: the matched terms where they were explained, else the query's longer words."""
    return [term.term for term in hit.terms] or [word for word in query.split() if len(word) > 3]
