"""Compounds written as one word, such as "Fahrradbeleuchtung": which words of a collection they consist of.

Only words of the collection itself are parts, so there is no list of words. All words are stems, as BM25 counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeAlias

from lightir.words.languages import FUNCTION_WORDS
from lightir.words.stems import stem

LINKS: dict[str, tuple[str, ...]] = {
    "german": ("", "e", "s", "n", "en", "er", "es", "ns", "ens", "ung", "ungs", "heits", "keits", "igkeits")
}
"""Language -> letters between the stems of two parts: linking elements, and suffixes that stems lack."""

SUFFIXES: dict[str, frozenset[str]] = {
    "german": frozenset(("chen", "heit", "isch", "keit", "lein", "lich", "ling", "schaft", "sion", "tion"))
}
"""Language -> suffixes that some texts have as words, and that are no parts."""

LEAST_PART = 4
"""Least number of letters of a part."""

MAX_COMPOUND = 40
"""Number of letters of a stem beyond which it is not split."""

Known: TypeAlias = Callable[[str], bool]
"""Whether a stem is a word of the collection."""


def can_be_part(part: str, language: str) -> bool:
    """Whether a stem may be a part of compounds: LEAST_PART Latin letters or more, no function word and no suffix.

    The stems of LINKS' languages have no accents.
    """
    letters = len(part) >= LEAST_PART and part.isascii() and part.isalpha()
    return letters and part not in _excluded(language)


def parts(word: str, language: str, known: Known) -> tuple[str, ...]:
    """Return the stems that a compound consists of, in order; () for a word that is none.

    Each part is a known word, and each but the last is followed by one of the LINKS. Of several splits it is the one
    with the fewest parts, then with the longest last part, then with the shortest link before it.

    Args:
        word: stem of the compound.
        language: key of LINKS.
        known: whether a stem is a word of the collection.
    """
    if len(word) > MAX_COMPOUND:
        return ()

    def is_part(part: str) -> bool:
        return can_be_part(part, language) and known(part)

    @cache
    def before(end: int) -> tuple[str, ...]:
        return (word[:end],) if is_part(word[:end]) else split(end)

    def split(end: int) -> tuple[str, ...]:
        splits = (
            (*before(start - link), word[start:end])
            for start in range(LEAST_PART, end - LEAST_PART + 1)
            if is_part(word[start:end])
            for link in _links(word[:start], language)
            if before(start - link)
        )
        return min(splits, key=len, default=())

    return split(len(word))


def ends_compound(word: str, last: str, language: str, known: Known) -> bool:
    """Whether a word that ends with another one is a compound with it as the last part.

    The part before it is a known word, or a compound of known words (`parts`), with one of the LINKS.
    """
    before = word[: len(word) - len(last)]
    return any(_is_word(before[: len(before) - link], language, known) for link in _links(before, language))


def begins_compound(word: str, first: str, language: str, known: Known) -> bool:
    """Whether a word that begins with another one is a compound with it as the first part; as `ends_compound`."""
    after = word[len(first) :]
    return any(_is_word(after[len(link) :], language, known) for link in LINKS[language] if after.startswith(link))


def _is_word(part: str, language: str, known: Known) -> bool:
    return can_be_part(part, language) and (known(part) or bool(parts(part, language, known)))


def _links(text: str, language: str) -> Iterator[int]:
    """Yield the lengths of the links that a text ends with, the shortest first."""
    return (len(link) for link in sorted(LINKS[language], key=len) if text.endswith(link))


@cache
def _excluded(language: str) -> frozenset[str]:
    return SUFFIXES[language].union(stem(language, word) for word in FUNCTION_WORDS[language])
