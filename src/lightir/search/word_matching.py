"""Matching of a query's words with other words of the index: typos, beginnings of words, and synonyms.

A query keeps its terms, and gets groups of alternatives. All words of a group share the idf of its most frequent one,
times a factor of each, so that a rare misspelling in a document does not count more than the word that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightir.index import View
from lightir.index.token_queries import Alternatives
from lightir.words.synonyms import SynonymTable

LETTERS_OF_ONE_TYPO = 4
LETTERS_OF_TWO_TYPOS = 8
"""Least number of letters of a word that one typo, or two, are allowed in."""

MAX_LETTERS = 64
"""Number of letters of a word beyond which typos are not looked for."""

MAX_NEAR = 10
"""Maximum number of words that stand for a misspelled one: the nearest, then the most frequent."""

MAX_COMPLETIONS = 30
"""Maximum number of words that complete the last one: the most frequent."""

FACTOR_OF_DISTANCE = {1: 0.7, 2: 0.4}
"""Factor of a word by its edit distance from the query's."""

COMPLETION_FACTOR = 0.7
"""Factor of a word that completes the query's last one."""

LEAST_BEGINNING = 3
"""Least number of letters of a stem that a word in the middle of its ending may begin with."""

_LAST_WORD = re.compile(r"[^\W\d_]\w*$")


@dataclass(frozen=True, slots=True)
class WordMatching:
    """Ways in which a query's words match other words of the index.

    Attributes:
        typos: match words within a small edit distance of a word that no document has.
        as_you_type: take the last word for the beginning of a word, unless a blank follows it.
        synonyms: synonyms as terms of the index's analyzer; None for none.
    """

    typos: bool = True
    as_you_type: bool = False
    synonyms: SynonymTable | None = None

    def expand(self, view: View, text: str) -> tuple[list[str], list[Alternatives]]:
        """Return a query's terms, and the alternatives to its words."""
        analyzer = view.analyzer
        assert analyzer is not None  # the tokens branch is there
        row = analyzer.terms([text])[0]
        if not self.as_you_type and self.synonyms is None and (not self.typos or all(map(view.frequency, row))):
            return row, []
        groups: list[Alternatives] = []
        if self.synonyms is not None:
            row, groups = _with_synonyms(row, self.synonyms)
        completed = _completions(view, text) if self.as_you_type else None
        if completed is not None:
            groups.append(completed)
        if self.typos:
            groups += _corrections(view, text, row, completed)
        return row, groups


EXACT_WORDS = WordMatching(typos=False)
"""Words match themselves alone."""


def typos_allowed(word: str) -> int:
    """Return the edit distance within which a word matches others: 0 for short words and for those with digits."""
    if len(word) < LETTERS_OF_ONE_TYPO or len(word) > MAX_LETTERS or not word.isalpha():
        return 0
    return 1 if len(word) < LETTERS_OF_TWO_TYPOS else 2


def _with_synonyms(row: Sequence[str], table: SynonymTable) -> tuple[list[str], list[Alternatives]]:
    """Return the terms that no rule replaces, and the alternatives of the others.

    The sides of one term share a group. Every other side is worth as much as one word: each of its n terms has a group
    of its own with the factor 1 / n.
    """
    kept: list[str] = []
    groups: list[Alternatives] = []
    start = 0
    while start < len(row):
        n, sides = table.find(row, start)
        here = tuple(row[start : start + max(n, 1)])
        start += len(here)
        if not sides:
            kept += here
            continue
        word = " ".join(here)
        single = [side[0] for side in sides if len(side) == 1]
        if single:
            groups.append(Alternatives(word, tuple(single), (1.0,) * len(single)))
        if len(here) > 1 and here in sides:
            kept += here
        for side in sides:
            if len(side) > 1 and side != here:
                groups += [Alternatives(word, (term,), (1 / len(side),)) for term in side]
    return kept, groups


def _completions(view: View, text: str) -> Alternatives | None:
    """Return the words that begin with the last word of a text; None if there are none, or a blank ends the text.

    Where no term begins with it, and its own term is unknown, the word may be in the middle of its ending, which terms
    lack. Then the longest term that it begins with is taken.
    """
    last = _LAST_WORD.search(text)
    assert view.analyzer is not None
    if last is None:
        return None
    word = view.analyzer.plain(last[0])
    own = view.analyzer.terms([last[0]])[0]
    vocabulary = view.vocabulary
    longer = [term for term in vocabulary.completions(word, MAX_COMPLETIONS) if term not in own]
    if not longer and not any(vocabulary.frequency(term) for term in (word, *own)):
        begun = (word[:n] for n in range(len(word) - 1, LEAST_BEGINNING - 1, -1))
        longer = [term for term in begun if vocabulary.frequency(term)][:1]
    return Alternatives(last[0], tuple(longer), (COMPLETION_FACTOR,) * len(longer)) if longer else None


def _corrections(view: View, text: str, row: Sequence[str], completed: Alternatives | None) -> list[Alternatives]:
    """Return the near words of each word of a query that no document has."""
    groups = []
    assert view.analyzer is not None
    for word, terms in view.analyzer.words(text):
        if len(terms) != 1 or terms[0] not in row or not typos_allowed(terms[0]) or view.frequency(terms[0]):
            continue
        if completed is not None and completed.word.lower() == word:
            continue
        distances = view.vocabulary.near(terms[0], distance=typos_allowed(terms[0]))
        frequencies = {term: view.frequency(term) for term in distances if term.isalpha()}
        living = [term for term, frequency in frequencies.items() if frequency]  # deleted documents' terms stay a while
        near = sorted(living, key=lambda term: (distances[term], -frequencies[term], term))[:MAX_NEAR]
        if near:
            groups.append(Alternatives(word, tuple(near), tuple(FACTOR_OF_DISTANCE[distances[term]] for term in near)))
    return groups
