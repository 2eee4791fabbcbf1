"""Passages of texts with the most different terms of a query, found by the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from lightir.kernel import _native

WORD, BLANK, HAN = 1, 2, 4
"""Bits of a character's class: part of a word, white space, Han character."""

BLOCK_CHARACTERS = 256

Passage: TypeAlias = tuple[str, tuple[tuple[int, int], ...]]
"""A passage, with "…" where text is cut, and the start and end of each match in it."""


class PassageFinder:
    """Finds passages. The terms of each word that it meets are asked for once and kept (up to about 250,000 words)."""

    def __init__(
        self,
        terms: Callable[[Sequence[str]], list[list[str]]],
        classes: Callable[[int], bytes],
        *,
        han_terms: bool,
        same_beginnings: bool,
    ) -> None:
        """Start without words.

        Args:
            terms: function from words to the terms of each.
            classes: function from the number of a block of 256 characters to their 256 classes.
            han_terms: whether Han characters and pairs of them are terms, and other words may have one character;
                otherwise words have two characters or more.
            same_beginnings: whether an ASCII word has at most one term, which begins with the word's first three
                characters in lower case (two if it has less than four), except that i may stand for y, or which is its
                first character. Then most words are passed over.
        """
        self._terms, self._classes = terms, classes
        self._native = _native.PassageFinder(han_terms, same_beginnings)

    def find(self, texts: Sequence[str], wanted: Sequence[str], *, length: int, lead: int) -> list[Passage | None]:
        """Return each text's passage with the most different wanted terms; None for a text that is not valid UTF-8.

        Args:
            texts: texts; runs of white space count as single blanks.
            wanted: distinct terms.
            length: maximum number of characters.
            lead: number of characters in front of the first match.
        """
        wanted = list(wanted)
        passages, blocks, words = self._native.find(texts, wanted, length, lead)
        while blocks or words:
            for block in blocks:
                self._native.learn_block(block, self._classes(block))
            if words:
                self._native.learn_words(words, self._terms(words))
            more, blocks, words = self._native.find(texts[len(passages) :], wanted, length, lead)
            passages += more
        return passages
