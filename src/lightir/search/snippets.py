"""The part of a document's text that shows why it was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightir.analysis import Analyzer, Occurrence

SNIPPET_CHARACTERS = 240
SEARCHED_CHARACTERS = 1_000_000
"""How far into a document passages are looked for, so that a page of huge documents is no long wait."""

_LEAD = 40  # characters in front of the first match


@dataclass(frozen=True, slots=True)
class Snippet:
    """A passage of a text.

    Attributes:
        text: white space is made single blanks; "…" stands where text was left out.
        highlights: where in it the query's terms stand: start and end of each, ascending, without overlap.
    """

    text: str
    highlights: tuple[tuple[int, int], ...]


def snippet(text: str, query: str, analyzer: Analyzer, *, length: int = SNIPPET_CHARACTERS) -> Snippet:
    """The passage of about `length` characters with the most different query terms; the earliest one among equals.

    Terms match as they do in the index: stems match stems, and Chinese matches by characters and pairs. Without a
    match, and where the first match is beyond SEARCHED_CHARACTERS: the beginning.
    """
    text = " ".join(text[:SEARCHED_CHARACTERS].split())
    matches = analyzer.occurrences(text, frozenset(analyzer.terms([query])[0]))
    start, end = (0, len(text)) if len(text) <= length else _passage(text, matches, length)
    before, after = "…" if start else "", "…" if end < len(text) else ""
    shift = len(before) - start
    inside = tuple(
        (each.start + shift, each.end + shift) for each in matches if start <= each.start and each.end <= end
    )
    return Snippet(f"{before}{text[start:end]}{after}", inside)


def _passage(text: str, matches: Sequence[Occurrence], length: int) -> tuple[int, int]:
    """Where the passage starts and ends: between words where there are blanks near."""
    first = _best_start(matches, length - _LEAD)
    start = max(0, first - _LEAD)
    if start:
        start = text.find(" ", start - 1, first) + 1 or start
    end = min(len(text), start + length)
    if end < len(text):
        blank = text.rfind(" ", start + length // 2, end + 1)
        end = blank if blank >= 0 else end
    return start, end


def _best_start(matches: Sequence[Occurrence], length: int) -> int:
    """Where the first window of so many characters begins that holds the most different terms; 0 without matches."""
    best, start, last = 0, 0, 0
    within: Counter[str] = Counter()
    for i, first in enumerate(matches):
        while last < len(matches) and (last <= i or matches[last].end <= first.start + length):
            within.update(matches[last].terms)
            last += 1
        if len(within) > best:
            best, start = len(within), first.start
        within -= Counter(first.terms)
    return start
