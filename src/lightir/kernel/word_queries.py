"""Queries of BM25 from words whose terms and weights are known, read by the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.kernel import _native

WordKind = _native.WordKind
"""Kinds of words without a term: `no_term`, such as a stop word, and `other`, whose texts the kernel does not read."""

KnownTerm: TypeAlias = tuple[str, float, tuple[int, ...], bool]
"""A term, its idf, its id in each segment or -1, and whether no document has it."""


class WordQueries(NamedTuple):
    """n queries over their distinct terms.

    Attributes:
        terms: the distinct terms that documents have, ascending.
        indptr: (n + 1,) int64; query i has the entries indptr[i] to indptr[i + 1].
        positions: (total,) uint32 positions in `terms`, ascending within a query.
        weights: (total,) float32, count x idf.
        places: (n_segments, n_terms) int64 id of each term in each segment, -1 where it is missing.
        absent: (n,) float64, each query's weight of terms that no document has.
        words: the terms of all words of each query, in the order of the text.
    """

    terms: list[str]
    indptr: npt.NDArray[np.int64]
    positions: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]
    places: npt.NDArray[np.int64]
    absent: npt.NDArray[np.float64]
    words: list[list[str]]


class WordReader:
    """Reads ASCII texts as queries. It must be told about each word once. The GIL guards it."""

    def __init__(self, n_segments: int) -> None:
        """Start without words."""
        self._native = _native.KnownWords(n_segments)

    def learn(self, words: list[str], terms: list[KnownTerm | WordKind], asking: list[bool]) -> None:
        """Keep words.

        Args:
            words: n distinct words in lower case, as `read` returns unknown ones.
            terms: the term of each, or its kind if it has none.
            asking: whether each word asks, such as "what". Such a word does not count beside others unless another word
                has its term. In capitals it does not ask, because it may be an abbreviation, unless the whole text is
                in capitals.
        """
        self._native.learn(words, terms, asking)

    def read(self, texts: Sequence[str], *, counts_asking: bool) -> tuple[WordQueries | None, list[str]]:
        """Return the queries of texts.

        Args:
            texts: n texts.
            counts_asking: whether words that ask count like others.

        Returns:
            The queries and []; or None and the words to learn first; or None and [] if a text is not ASCII, or has a
            word of the kind `other`.
        """
        read, unknown = self._native.read(texts, counts_asking)
        return None if read is None else WordQueries(*read), unknown
