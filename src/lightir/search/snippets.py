"""The part of a document's text that shows why it was found."""

from __future__ import annotations

import re

from lightir.analysis import Analyzer

SNIPPET_CHARACTERS = 240
_LEAD = 40  # characters in front of the first match
_WORD = re.compile(r"\w+")


def snippet(text: str, query: str, analyzer: Analyzer, *, length: int = SNIPPET_CHARACTERS) -> str:
    """The passage of about `length` characters with the most different query terms; the earliest one among equals.

    White space is made single blanks; "…" stands where text was left out. Without a match: the beginning.
    """
    text = " ".join(text.split())
    if len(text) <= length:
        return text
    wanted = set(analyzer.terms([query])[0])
    matches = _matches(text, wanted, analyzer)
    start = max(0, _best_start(matches, length - _LEAD) - _LEAD)
    start = text.rfind(" ", 0, start) + 1 if start else 0
    start = max(start, 0)
    end = min(len(text), start + length)
    if end < len(text):
        blank = text.rfind(" ", start, end + 1)
        end = blank if blank > start + length // 2 else end
    return ("…" if start else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def _matches(text: str, wanted: set[str], analyzer: Analyzer) -> list[tuple[int, frozenset[str]]]:
    words = list(_WORD.finditer(text))
    distinct = list({word.group() for word in words})
    terms_of = dict(zip(distinct, analyzer.terms(distinct), strict=True))
    found = {word: frozenset(wanted.intersection(terms)) for word, terms in terms_of.items()}
    return [(word.start(), found[word.group()]) for word in words if found[word.group()]]


def _best_start(matches: list[tuple[int, frozenset[str]]], length: int) -> int:
    best, start = 0, 0
    for i, (position, _) in enumerate(matches):
        within: set[str] = set()
        for other, terms in matches[i:]:
            if other >= position + length:
                break
            within |= terms
        if len(within) > best:
            best, start = len(within), position
    return start
