"""Snippets: the passage of a document that matches a query best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from lightir.analysis import Analyzer, Occurrence
from lightir.kernel.passages import Passage, PassageFinder

SNIPPET_CHARACTERS = 240
SEARCHED_CHARACTERS = 1_000_000
"""Number of characters of a document that are searched, so that huge documents cost little."""

_LEAD = 40  # characters in front of the first match


@dataclass(frozen=True, slots=True)
class Snippet:
    """A passage of a text.

    Attributes:
        text: the passage; runs of white space become single blanks, and "…" marks omitted text.
        highlights: start and end of each match in the passage, ascending, without overlap.
    """

    text: str
    highlights: tuple[tuple[int, int], ...]


def snippet(text: str, query: str, analyzer: Analyzer, *, length: int = SNIPPET_CHARACTERS) -> Snippet:
    """Return the snippet of one text; see `snippets`."""
    return snippets([text], query, analyzer, length=length)[0]


def snippets(
    texts: Sequence[str],
    query: str,
    analyzer: Analyzer,
    *,
    length: int = SNIPPET_CHARACTERS,
    also: Iterable[str] = (),
) -> list[Snippet]:
    """Return the best passage of each text: about `length` characters with the most different query terms.

    Ties go to the earliest passage. Terms match as they do in the index: stems match stems, and Chinese matches by
    characters and pairs. Without a match in the first SEARCHED_CHARACTERS the passage is the beginning of the text. The
    kernel scans the text, and each word is analyzed once in a process.

    Args:
        texts: texts of documents.
        query: text of the query.
        analyzer: analyzer of the index.
        length: maximum number of characters of a snippet.
        also: terms that match too, such as those that a misspelled word stands for.
    """
    wanted = list(dict.fromkeys([*analyzer.terms([query])[0], *also]))
    return [Snippet(*passage) for passage in best_passages(texts, wanted, analyzer, length=length)]


def best_passages(
    texts: Sequence[str], wanted: Sequence[str], analyzer: Analyzer, *, length: int = SNIPPET_CHARACTERS
) -> list[Passage]:
    """Return text and highlights of the texts' `snippets` for distinct terms."""
    searched = [text if len(text) <= SEARCHED_CHARACTERS else text[:SEARCHED_CHARACTERS] for text in texts]
    pairs = zip(texts, _finder(analyzer).find(searched, wanted, length=length, lead=_LEAD), strict=True)
    return [passage or _slow_passage(text, wanted, analyzer, length) for text, passage in pairs]


def _slow_passage(text: str, wanted: Sequence[str], analyzer: Analyzer, length: int) -> Passage:
    shown = slow_snippet(text, frozenset(wanted), analyzer, length=length)
    return shown.text, shown.highlights


def full_texts(texts: Sequence[str], query: str, analyzer: Analyzer, *, also: Iterable[str] = ()) -> list[Snippet]:
    """Return whole texts, unchanged, with the matches of a query; terms match as in `snippets`."""
    wanted = frozenset([*analyzer.terms([query])[0], *also])
    shown = []
    for text in texts:
        matches = analyzer.occurrences(text, wanted) if wanted else []
        shown.append(Snippet(text, tuple((match.start, match.end) for match in matches)))
    return shown


@cache
def _finder(analyzer: Analyzer) -> PassageFinder:
    return PassageFinder(
        analyzer.terms,
        analyzer.character_classes,
        han_terms=analyzer.cuts_pairs,
        same_beginnings=analyzer.keeps_beginnings,
    )


def slow_snippet(text: str, wanted: frozenset[str], analyzer: Analyzer, *, length: int) -> Snippet:
    """Return the same as `snippets`: the readable twin, which also takes texts that are not valid UTF-8."""
    text = " ".join(text[:SEARCHED_CHARACTERS].split())
    matches = analyzer.occurrences(text, wanted)
    start, end = (0, len(text)) if len(text) <= length else _passage(text, matches, length)
    before, after = "…" if start else "", "…" if end < len(text) else ""
    shift = len(before) - start
    inside = tuple(
        (match.start + shift, match.end + shift) for match in matches if start <= match.start and match.end <= end
    )
    return Snippet(f"{before}{text[start:end]}{after}", inside)


def _passage(text: str, matches: Sequence[Occurrence], length: int) -> tuple[int, int]:
    """Return the start and end of the passage, between words if blanks are near."""
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
    """Return the start of the first window of `length` characters with the most different terms; 0 without matches."""
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
