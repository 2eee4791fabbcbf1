"""Stems of words by Snowball's algorithms."""

from __future__ import annotations

from functools import cache, lru_cache

import Stemmer

# Lucene's English stop set.
ENGLISH_STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they
    this to was will with""".split()  # noqa: SIM905
)

# Words by which people ask, and which say nothing of what they ask for. "can", "may" and the like are left out where
# they have another meaning that a query may want.
QUESTION_WORDS = frozenset(
    """about am been being can could did do does doing had has have having he her hers him his how i its me my our ours
    shall she should so some than them those us we were what when where which who whom whose why would you your
    yours""".split()  # noqa: SIM905
)
"""English words that a query with other words does not count (`lightir.search.word_matching`). Documents have them."""


def languages() -> list[str]:
    """Return the names of the languages that have a stemmer."""
    return list(Stemmer.algorithms())


@lru_cache(maxsize=2**18)
def stem(language: str, word: str) -> str:
    """Return the stem of a word in lower case."""
    stemmed: str = _stemmer(language).stemWord(word)
    return stemmed


@cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(language, 0)  # 0 disables its own cache, which costs more than it saves
