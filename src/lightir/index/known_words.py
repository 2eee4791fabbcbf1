"""Queries of the tokens branch by the kernel, for the words whose terms and weights a view knows already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from lightir.analysis import Analyzer
from lightir.index.token_queries import TokenQueries
from lightir.kernel.word_queries import KnownTerm, WordKind, WordReader
from lightir.vectors import SparseVectors
from lightir.words.stems import QUESTION_WORDS

TermFacts: TypeAlias = tuple[int, tuple[int, ...], float]
"""A term's document frequency, its position in the dictionary of each segment or -1, and its idf."""

WORDS_KEPT = 2**17
"""Maximum number of words that are kept."""


class KnownWords:
    """Reads queries of ASCII words. Each word is analyzed and looked up once; the kernel splits texts and counts terms.

    The twin is `WordMatching.expand` (lightir.search) with `ViewWords.queries`, which reads all queries.
    """

    def __init__(self, analyzer: Analyzer, n_segments: int) -> None:
        """Start without words.

        Args:
            analyzer: analyzer of words, which splits ASCII texts as the kernel does.
            n_segments: number of segments.
        """
        self._analyzer, self._n_segments = analyzer, n_segments
        self._asking = QUESTION_WORDS if analyzer.language == "english" else frozenset()
        self._reader = WordReader(n_segments)
        self._n_words = 0

    def queries(
        self, texts: Sequence[str], facts: Callable[[str], TermFacts], corrects: Callable[[str], bool], *, asking: bool
    ) -> TokenQueries | None:
        """Return the queries of texts; None if a text has a word that gets alternatives, or is not ASCII.

        Args:
            texts: texts of n queries.
            facts: function from a term to its facts; always the same one.
            corrects: function that tells whether a term that no document has gets alternatives; always the same one.
            asking: whether words such as "what" count beside other words.
        """
        read, unknown = self._reader.read(texts, counts_asking=asking)
        if unknown:
            self._learn(list(dict.fromkeys(unknown)), facts, corrects)
            read, _ = self._reader.read(texts, counts_asking=asking)
        if read is None:
            return None
        vectors = SparseVectors.unchecked(read.indptr, read.positions, read.weights, vocab_size=len(read.terms))
        return TokenQueries(read.terms, vectors, read.places, {}, read.absent, read.words)

    def _learn(self, words: list[str], facts: Callable[[str], TermFacts], corrects: Callable[[str], bool]) -> None:
        if self._n_words + len(words) > WORDS_KEPT:
            self._reader, self._n_words = WordReader(self._n_segments), 0
        self._n_words += len(words)
        known: list[KnownTerm | WordKind] = []
        for word in words:
            terms = [term for _, of_word in self._analyzer.words(word) for term in of_word]
            df, places, idf = facts(terms[0]) if terms else (0, (), 0.0)
            if not terms:
                known.append(WordKind.no_term)
            elif len(terms) > 1 or (not df and corrects(terms[0])):
                known.append(WordKind.other)
            else:
                known.append((terms[0], idf, places, not df))
        self._reader.learn(words, known, [word in self._asking for word in words])
