"""Matching of a query's words with other words of the index: typos, beginnings of words, compounds and synonyms.

A query keeps its terms, and gets groups of alternatives. All words of a group share the idf of its most frequent one,
times a factor of each, so that a rare misspelling in a document does not count more than the word that was meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from lightir.analysis import Analyzer
from lightir.index import View
from lightir.index.token_queries import Alternatives, TokenQueries
from lightir.search.compound_matching import with_compounds
from lightir.words.compounds import LINKS
from lightir.words.stems import QUESTION_WORDS
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

AnalyzedWords: TypeAlias = Sequence[tuple[str, Sequence[str]]]
"""The words of a query in lower case, each with its terms."""

_LAST_WORD = re.compile(r"[^\W\d_]\w*$")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")


@dataclass(frozen=True, slots=True)
class WordMatching:
    """Ways in which a query's words match other words of the index.

    Attributes:
        typos: match words within a small edit distance of a word that no document has.
        as_you_type: take the last word for the beginning of a word, unless a blank follows it.
        synonyms: synonyms as terms of the index's analyzer; None for none.
        compounds: match compounds with their parts, in languages that write them as one word.
        question_words: count words such as "what", which a query of other words too is searched without otherwise.
    """

    typos: bool = True
    as_you_type: bool = False
    synonyms: SynonymTable | None = None
    compounds: bool = True
    question_words: bool = False

    def known_queries(self, view: View, texts: Sequence[str]) -> TokenQueries | None:
        """Return the queries of texts by the kernel; None if a word may get alternatives.

        They are what `ViewWords.queries` makes of `expand`.
        """
        if not self.typos or self.as_you_type or self.synonyms is not None:
            return None
        if self.compounds and view.analyzer is not None and view.analyzer.language in LINKS:
            return None
        return view.words.known_queries(
            texts, lambda term: bool(_corrections(view, term, term)), asking=self.question_words
        )

    def expand(self, view: View, text: str) -> tuple[list[str], list[Alternatives], list[str]]:
        """Return a query's terms, the alternatives to its words, and the terms of all of its words."""
        analyzer = view.analyzer
        assert analyzer is not None  # the tokens branch is there
        words = analyzer.words(text)
        own = row = [term for _, terms in words for term in terms]
        asking: frozenset[str] = frozenset()
        if not self.question_words and not _question_terms(analyzer).isdisjoint(row):
            asking = _question_terms_of(text, words)
        corrects = self.typos and not all(map(view.words.frequency, row))
        splits = self.compounds and analyzer.language in LINKS
        if not (self.as_you_type or self.synonyms is not None or corrects or splits or asking):
            return row, [], own
        groups: list[Alternatives] = []
        if self.synonyms is not None:
            row, groups = _with_synonyms(row, self.synonyms)
        completed = _completions(view, text) if self.as_you_type else None
        if completed is not None:
            groups.append(completed)
        others = [term for term in row if term not in asking]
        row = others if others or groups else row
        for word, term in _words_of_one_term(words, row, completed) if splits or corrects else ():
            compounds = with_compounds(view, word, term) if splits else []
            groups += compounds
            if corrects and not compounds:
                groups += _corrections(view, word, term)
        return row, groups, own


EXACT_WORDS = WordMatching(typos=False, compounds=False, question_words=True)
"""Words match themselves alone."""


def typos_allowed(word: str) -> int:
    """Return the edit distance within which a word matches others: 0 for short words and for those with digits."""
    if len(word) < LETTERS_OF_ONE_TYPO or len(word) > MAX_LETTERS or not word.isalpha():
        return 0
    return 1 if len(word) < LETTERS_OF_TWO_TYPOS else 2


def _question_terms_of(text: str, words: AnalyzedWords) -> frozenset[str]:
    """Return the terms of a query that stand for question words alone.

    A word in capitals counts, such as WHO, unless all words of the query are in capitals.
    """
    asking = {word for word, _ in words if word in QUESTION_WORDS}
    if asking and not text.isupper():
        asking.difference_update(map(str.lower, _CAPITALS.findall(text)))
    if not asking:
        return frozenset()
    others = {term for word, terms in words if word not in asking for term in terms}
    return frozenset(term for word, terms in words if word in asking for term in terms) - others


@cache
def _question_terms(analyzer: Analyzer) -> frozenset[str]:
    """Return the terms of all question words; none if Latin words are not taken for English."""
    if analyzer.language != "english":
        return frozenset()
    return frozenset(term for terms in analyzer.terms(sorted(QUESTION_WORDS)) for term in terms)


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
    vocabulary = view.words.vocabulary
    longer = [term for term in vocabulary.completions(word, MAX_COMPLETIONS) if term not in own]
    if not longer and not any(vocabulary.frequency(term) for term in (word, *own)):
        begun = (word[:n] for n in range(len(word) - 1, LEAST_BEGINNING - 1, -1))
        longer = [term for term in begun if vocabulary.frequency(term)][:1]
    return Alternatives(last[0], tuple(longer), (COMPLETION_FACTOR,) * len(longer)) if longer else None


def _words_of_one_term(
    words: AnalyzedWords, row: Sequence[str], completed: Alternatives | None
) -> Iterator[tuple[str, str]]:
    """Yield the words of a query with one term each, which synonyms do not replace, and which are not still typed."""
    for word, terms in words:
        if len(terms) == 1 and terms[0] in row and (completed is None or completed.word.lower() != word):
            yield word, terms[0]


def _corrections(view: View, word: str, term: str) -> list[Alternatives]:
    """Return the near words of a word of a query; [] if a document has it."""
    if not typos_allowed(term) or view.words.frequency(term):
        return []
    distances = view.words.vocabulary.near(term, distance=typos_allowed(term))
    frequencies = {near: view.words.frequency(near) for near in distances if near.isalpha()}
    living = [near for near, frequency in frequencies.items() if frequency]  # deleted documents' terms stay a while
    best = sorted(living, key=lambda near: (distances[near], -frequencies[near], near))[:MAX_NEAR]
    factors = tuple(FACTOR_OF_DISTANCE[distances[near]] for near in best)
    return [Alternatives(word, tuple(best), factors)] if best else []
