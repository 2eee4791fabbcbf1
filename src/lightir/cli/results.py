"""Found documents as people and as programs read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightir.cli.terminal import BOLD, CYAN, DIM, YELLOW, duration, highlight, paint, shorten, visible, width, wrap
from lightir.types import Branch, BranchScore, Hit, TermScore

if TYPE_CHECKING:
    from lightir.search import LateReport
    from lightir.search.explain import Explanation

INDENT = "    "
TERMS_SHOWN = 8


def hit_json(hit: Hit, *, explain: bool) -> dict[str, Any]:
    """A hit in the shape that `search --json` promises."""
    branches = {name: _branch_json(branch, explain=explain) for name, branch in hit.branches.items()}
    shown = {
        "doc_id": hit.doc_id,
        "score": hit.score,
        "estimated": hit.estimated,
        "title": hit.title,
        "snippet": hit.snippet,
        "metadata": dict(hit.metadata),
        "branches": branches,
    }
    if hit.late:
        shown["late"] = True
    if explain:
        shown["terms"] = _terms_json(hit.terms)
    return shown


def result_json(
    query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool, late: LateReport | None = None
) -> dict[str, Any]:
    """One query's answer in the shape that `search --json` promises; with late re-ranking also what it did."""
    listed = [hit_json(hit, explain=explain) for hit in hits]
    found = {"query": query, "mode": mode, "took_ms": round(took_s * 1000, 3), "hits": listed}
    if late is None:
        return found
    done = dataclasses.asdict(late)
    took_ms = round(done.pop("seconds") * 1000, 3)
    return {**found, "late": {**done, "took_ms": took_ms}}


def late_line(late: LateReport) -> str:
    """What late re-ranking did for a query, for people."""
    parts = [f"{len(late.encoded)} documents encoded in {duration(late.seconds)}"]
    if late.parked:
        parts.append(f"{len(late.parked)} more wait for another writer and are ranked without their vectors")
    if late.failed:
        parts.append(f"{len(late.failed)} failed")
    return ", ".join([*parts, f"{late.left} of the best still pending"])


def print_result(query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool) -> None:
    """One query's answer for people: rank, title, score, branches, snippet, and terms where they are asked for.

    A score that is estimated has a ~ before it.
    """
    counted = f"{len(hits)} {mode} hit{'' if len(hits) == 1 else 's'} in {duration(took_s)}"
    print(f"{paint(shorten(query, width()), BOLD)}  {paint(counted, DIM)}")
    for rank, hit in enumerate(hits, 1):
        print(f"\n{rank:>3} {_head(hit)}")
        if hit.snippet:
            print(highlight(wrap(hit.snippet, indent=INDENT), _words(hit), BOLD, YELLOW))
        if explain:
            print(paint(f"{INDENT}= {sum_line(hit.branches)}", DIM))
        if explain and hit.terms:
            print(INDENT + paint(shorten(terms_line(_terms_json(hit.terms)), width() - len(INDENT)), DIM))


def print_explanation(query: str, found: Explanation) -> None:
    """Why a document has its score, for people: its place, each branch's part, each branch's terms."""
    place = f"#{found.rank} of {found.n_candidates:,} candidates"
    if found.rank is None:
        place = f"not found: none of the {found.n_candidates:,} candidates"
    print(f"{paint(shorten(query, width()), BOLD)}  {paint(f'{found.fusion}, {place}', DIM)}")
    print(f"{paint(visible(found.doc_id), BOLD, CYAN)}  {found.score:.4f} = {sum_line(found.branches)}")
    for name, branch in found.branches.items():
        listed = "not in its list" if branch.rank is None else f"#{branch.rank}"
        listed += ", estimated: the document waits for its vectors" if branch.estimated else ""
        terms = terms_line(_terms_json(found.terms.get(name, ())))
        print(INDENT + shorten(f"{name} {branch.score:.4g} {listed}  {terms}", width() - len(INDENT)))


def explanation_json(query: str, found: Explanation) -> dict[str, Any]:
    """Why a document has its score, for programs."""
    branches = {
        name: {**_branch_json(branch, explain=True), "terms": _terms_json(found.terms.get(name, ()))}
        for name, branch in found.branches.items()
    }
    return {
        "query": query,
        "doc_id": found.doc_id,
        "score": found.score,
        "estimated": found.estimated,
        "rank": found.rank,
        "candidates": found.n_candidates,
        "fusion": found.fusion,
        "branches": branches,
    }


def sum_line(branches: Mapping[Branch, BranchScore]) -> str:
    """The sum that makes a score."""
    return " + ".join(f"{each.weight:g} x {each.normalized:.4f} {name}" for name, each in branches.items())


def terms_line(terms: Sequence[Mapping[str, Any]]) -> str:
    """The matched terms as `search --json` lists them, each with its part of its branch's score."""
    return "  ".join(f"{term['word'] or term['term'].strip()} {term['score']:.3g}" for term in terms[:TERMS_SHOWN])


def _head(hit: Hit) -> str:
    name = shorten(hit.title or hit.doc_id, 60)
    if hit.title and not hit.title.startswith(hit.doc_id):
        name = f"{name}  [{visible(hit.doc_id)}]"
    parts = [
        f"{branch} {'~' if score.estimated else ''}{score.score:.3g}{_rank(score.rank)}"
        for branch, score in hit.branches.items()
    ]
    parts += ["late"] * hit.late
    return f"{paint(name, BOLD, CYAN)}  {hit.score:.4f}  {paint(' · '.join(parts), DIM)}"


def _rank(rank: int | None) -> str:
    return f" #{rank}" if rank is not None else ""


def _words(hit: Hit) -> set[str]:
    """The snippet's words that match the query."""
    return {hit.snippet[start:end] for start, end in hit.highlights}


def _branch_json(branch: BranchScore, *, explain: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"score": branch.score, "rank": branch.rank}
    return {**shown, "normalized": branch.normalized, "weight": branch.weight} if explain else shown


def _terms_json(terms: Sequence[TermScore]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(term) for term in terms]
