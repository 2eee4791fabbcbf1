"""Search results as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightir.cli.terminal import BOLD, CYAN, DIM, YELLOW, highlight, output_width, paint, printable, shorten, wrap
from lightir.quantities import counted, format_duration
from lightir.search.hit_json import branch_json, hit_json, terms_json
from lightir.types import BranchScore, Hit

if TYPE_CHECKING:
    from lightir.search import LateReport
    from lightir.search.explain import Explanation

INDENT = "    "
TERMS_SHOWN = 8
NAMED = ", raised because the query names the document"


def result_json(
    query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool, late: LateReport | None = None
) -> dict[str, Any]:
    """Return one query's answer in the shape of `search --json`, with the report of late search if there is one."""
    listed = [hit_json(hit, explain=explain) for hit in hits]
    answer = {"query": query, "mode": mode, "took_ms": round(took_s * 1000, 3), "hits": listed}
    if late is None:
        return answer
    report = dataclasses.asdict(late)
    times = {"encoding_ms": report.pop("encoding_seconds"), "took_ms": report.pop("seconds")}
    return {**answer, "late": {**report, **{name: round(seconds * 1000, 3) for name, seconds in times.items()}}}


def late_line(late: LateReport) -> str:
    """Describe in one line what late search did for a query."""
    documents = counted(late.read or len(late.encoded), "document")
    done = f"reranked: {documents} read" if late.read else f"late: {documents} encoded"
    parts = [f"{done} in {format_duration(late.encoding_seconds)}"]
    if late.parked:
        parts.append(f"{len(late.parked)} more will be stored after another writer finishes")
    if late.failed:
        parts.append(f"{len(late.failed)} failed")
    if late.left:
        parts.append(f"{late.left} not {'read' if late.read else 'encoded'} in time")
    if late.parked or late.failed or late.left:
        parts.append("documents that were not scored keep their first-stage rank")
    return "; ".join([*parts, f"{format_duration(late.seconds)} in all"])


def print_result(
    query: str, mode: str, took_s: float, hits: Sequence[Hit], *, explain: bool, fields: Sequence[str] = ()
) -> None:
    """Print one query's hits: rank, title, score, branches, snippet, and with `explain` the matched terms.

    A pending document shows "pending" in place of the scores that it does not have. `fields` are shown of each hit.
    """
    summary = f"{counted(len(hits), 'hit')}, mode {mode}, {format_duration(took_s)}"
    print(f"{paint(shorten(query.strip() or '(no query)', output_width()), BOLD)}  {paint(summary, DIM)}")
    for rank, hit in enumerate(hits, 1):
        print(f"\n{rank:>3} {_head(hit, fields)}")
        if hit.snippet:
            print(highlight(wrap(hit.snippet, indent=INDENT), _words(hit), BOLD, YELLOW))
        if explain and hit.branches:
            print(paint(f"{INDENT}= {score_line(hit.branches)}{NAMED * hit.named}", DIM))
        if explain and hit.terms:
            print(INDENT + paint(shorten(terms_line(terms_json(hit.terms)), output_width() - len(INDENT)), DIM))


def print_explanation(query: str, explanation: Explanation) -> None:
    """Print why a document has its score: its rank, each branch's contribution and matched terms."""
    position = f"rank {explanation.rank} of {counted(explanation.n_candidates, 'candidate')}"
    if explanation.rank is None:
        position = f"not among the {counted(explanation.n_candidates, 'candidate')}"
    print(f"{paint(shorten(query, output_width()), BOLD)}  {paint(f'{explanation.fusion}, {position}', DIM)}")
    doc_id = paint(printable(explanation.doc_id), BOLD, CYAN)
    reason = score_line(explanation.branches) + NAMED * explanation.named
    print(f"{doc_id}  {_score(explanation.score, explanation.branches)} = {reason}")
    for name, branch in explanation.branches.items():
        if branch.score is None:
            print(f"{INDENT}{name} has no score: the document is pending")
            continue
        listed = "not in the branch's list" if branch.rank is None else f"#{branch.rank}"
        terms = terms_line(terms_json(explanation.terms.get(name, ())))
        print(INDENT + shorten(f"{name} {branch.score:.4g} {listed}  {terms}", output_width() - len(INDENT)))


def explanation_json(query: str, explanation: Explanation) -> dict[str, Any]:
    """Return the JSON that explains a document's score."""
    branches = {
        name: {**branch_json(branch), "terms": terms_json(explanation.terms.get(name, ()))}
        for name, branch in explanation.branches.items()
    }
    return {
        "query": query,
        "doc_id": explanation.doc_id,
        "score": explanation.score,
        "pending": explanation.pending,
        "named": explanation.named,
        "rank": explanation.rank,
        "candidates": explanation.n_candidates,
        "fusion": explanation.fusion,
        "branches": branches,
    }


def score_line(branches: Mapping[Any, BranchScore]) -> str:
    """Return the sum that makes up a score, or what gives a pending document its place."""
    sums = [f"{part.weight:g} x {part.normalized:.4f} {name}" for name, part in branches.items() if _is_known(part)]
    if len(sums) == len(branches):
        return " + ".join(sums)
    rank = branches["tokens"].rank if "tokens" in branches else None
    return "not ranked: it has no vectors" if rank is None else f"its place in the tokens branch, {rank}"


def terms_line(terms: Sequence[Mapping[str, Any]]) -> str:
    """Return the matched terms of `search --json`, each with its contribution to the branch's score."""
    return "  ".join(f"{term['word'] or term['term'].strip()} {term['score']:.3g}" for term in terms[:TERMS_SHOWN])


def _head(hit: Hit, fields: Sequence[str]) -> str:
    name = shorten(hit.title or hit.doc_id, 60)
    if hit.title and not hit.title.startswith(hit.doc_id):
        name = f"{name}  [{printable(hit.doc_id)}]"
    scored = {name: part for name, part in hit.branches.items() if part.score is not None}
    parts = [f"{branch} {part.score:.3g}{_rank(part.rank)}" for branch, part in scored.items()]
    parts += (
        ["named"] * hit.named + ["late"] * hit.late + ["pending"] * (hit.pending and len(scored) == len(hit.branches))
    )
    values = ((field, value_at(hit.metadata, field)) for field in fields)
    shown = [f"{printable(field)} {printable(value_text(value))}" for field, value in values if value is not None]
    if hit.passage is not None:
        numbers = {"page": hit.passage.page, "line": hit.passage.line}
        shown = [f"{name} {number:,}" for name, number in numbers.items() if number is not None] + shown
    if hit.branches:
        shown += [_score(hit.score, hit.branches), paint(" · ".join(parts), DIM)]
    return "  ".join([paint(name, BOLD, CYAN), *shown])


def value_at(metadata: Any, field: str) -> Any:
    """Return the value of a field, such as "author.name"; None if it is missing."""
    for key in field.split("."):
        if not isinstance(metadata, Mapping):
            return None
        metadata = metadata.get(key)
    return metadata


def value_text(value: Any) -> str:
    """Return a metadata value as text: a string as it is, another value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _score(score: float, branches: Mapping[Any, BranchScore]) -> str:
    """Return a score as text; "pending" if it only says the place of a pending document."""
    return f"{score:.4f}" if all(map(_is_known, branches.values())) else "pending"


def _is_known(part: BranchScore) -> bool:
    return part.normalized is not None


def _rank(rank: int | None) -> str:
    return f" #{rank}" if rank is not None else ""


def _words(hit: Hit) -> set[str]:
    """Return the words of the snippet that match the query."""
    return {hit.snippet[start:end] for start, end in hit.highlights}
