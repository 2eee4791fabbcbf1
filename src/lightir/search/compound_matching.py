"""Matching of a query's words with compounds that they are a part of, and of compounds with their parts.

"Schrank" also matches "Kühlschrank" and "Schrankwand", and "Gefrierschrank" also matches "Schrank", as far as words of
the index are the other parts (`lightir.words.compounds`). For the languages of LINKS. A document that has the query's
word itself should come first, so compounds weigh little beside a word that documents have.
"""

from __future__ import annotations

from lightir.index import View
from lightir.index.token_queries import Alternatives
from lightir.words.compounds import LINKS, begins_compound, can_be_part, ends_compound, parts

HEAD_FACTOR = 0.7
"""Factor of a compound that ends with the query's word, and of the parts of a compound of the query, divided by their
number."""

MODIFIER_FACTOR = 0.4
"""Factor of a compound that begins with the query's word."""

BESIDE_THE_WORD = 0.1
"""Factor of these two where a document has the word itself (docs/words.md has figures)."""

MAX_COMPOUNDS = 30
"""Maximum number of compounds that a word matches: the most frequent."""

MAX_CANDIDATES = 200
"""Maximum number of longer words that are examined: the most frequent."""

KEPT_WORDS = 4096
"""Number of words whose compounds a view keeps."""


def with_compounds(view: View, word: str, term: str) -> list[Alternatives]:
    """Return the alternatives of a query's word: its compounds, and each of its parts.

    Args:
        view: view of an index that counts words.
        word: word of the query.
        term: its term.
    """
    assert view.analyzer is not None  # the tokens branch is there
    language = view.analyzer.language
    if language not in LINKS:
        return []
    kept = view.words.vocabulary.related
    if term not in kept:
        if len(kept) >= KEPT_WORDS:
            kept.clear()
        split = parts(term, language, lambda other: view.words.frequency(other) > 0)
        kept[term] = _compounds(view, term, language), split
    compounds, split = kept[term]
    groups = [Alternatives(word, tuple(compounds), tuple(compounds.values()), own=term)] if compounds else []
    return groups + [Alternatives(word, (part,), (HEAD_FACTOR / len(split),), own=term) for part in split]


def _compounds(view: View, term: str, language: str) -> dict[str, float]:
    """Return the compounds of two words, one of which is a term, each with its factor; the most frequent first."""
    if not can_be_part(term, language):
        return {}
    beginning, ending = view.words.vocabulary.longer(term)
    frequencies = {longer: view.words.frequency(longer) for longer in beginning | ending if longer.isalpha()}
    living = [longer for longer, frequency in frequencies.items() if frequency]  # deleted documents' terms stay a while
    compounds: dict[str, float] = {}
    factor = BESIDE_THE_WORD if view.words.frequency(term) else 1.0

    def known(other: str) -> bool:
        return view.words.frequency(other) > 0

    for longer in sorted(living, key=lambda longer: (-frequencies[longer], longer))[:MAX_CANDIDATES]:
        if longer in ending and ends_compound(longer, term, language, known):
            compounds[longer] = factor * HEAD_FACTOR
        elif longer in beginning and begins_compound(longer, term, language, known):
            compounds[longer] = factor * MODIFIER_FACTOR
        if len(compounds) == MAX_COMPOUNDS:
            break
    return compounds
