"""From text to the words that BM25 counts: the same code for indexing and for searching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import Stemmer

from lightir import kernel
from lightir.errors import FormatError, InvalidInput
from lightir.text import check_text
from lightir.vectors import Ragged

ANALYSIS_VERSION = 1
"""Raised when any analyzer would give other terms; an index is searched by the version that built it."""

MODEL = "model"
"""The analyzer whose terms are the model's own term ids."""

BAG = "bag"
"""The analyzer that keeps which of the model's term ids stand in a document, and nothing else (SiDR's V_BoT)."""

OF_A_MODEL = (MODEL, BAG)
"""The analyzers whose terms a model's tokenizer makes."""

# Lucene's English stop set.
ENGLISH_STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they
    this to was will with""".split()  # noqa: SIM905
)

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
# Words of two characters and more, as scikit-learn and bm25s cut them: this reproduces the field's BM25 figures.
_WORD = re.compile(r"\b\w\w+\b")
_HAN_OR_WORD = re.compile(rf"([{_HAN}]+)|[^\W{_HAN}]+")
_WORD_BESIDE_HAN = re.compile(rf"[^\W{_HAN}]+")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A place of a text that gives terms: from start to before end."""

    start: int
    end: int
    terms: frozenset[str]


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A named way to cut text into terms.

    Attributes:
        name: "english" (stop words, Snowball stems), "words" (neither), another Snowball language by its name (stems,
            no stop words), "chinese" (single characters and pairs of neighbours in a run of Han characters, words
            elsewhere), "model" (the model's own term ids; the index's query encoder cuts the text), or "bag" (the
            same ids as documents are cut, without counts, for queries whose terms the encoder weights).
        version: of the analysis code.
    """

    name: str = "english"
    version: int = ANALYSIS_VERSION

    def __post_init__(self) -> None:
        if self.name not in analyzer_names():
            raise InvalidInput(f"analyzer {self.name!r} is unknown; choose one of {', '.join(analyzer_names())}")
        if self.version != ANALYSIS_VERSION:
            raise FormatError(
                f"the tokens were cut by analysis version {self.version}; this release has {ANALYSIS_VERSION}; "
                "build the index again"
            )

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        """Each text's terms in order, repeated as often as they occur; none for a text without words.

        Raises:
            InvalidInput: a text is no str, or the analyzer is "model" or "bag", which need a model's tokenizer.
        """
        if self.name in OF_A_MODEL:
            raise InvalidInput(f"the {self.name!r} analyzer's terms come from the query encoder, not from text alone")
        return [self._terms(check_text(text, f"text {i}").lower()) for i, text in enumerate(texts)]

    def distinct_terms(self, texts: Sequence[str]) -> tuple[list[str], Ragged]:
        """`terms` for many texts: the different terms in no certain order, and each text's as places among them.

        ASCII texts are cut by the kernel, and a word is stemmed once a batch.

        Raises:
            InvalidInput: as `terms`.
        """
        if self.name in (*OF_A_MODEL, "chinese"):
            return _numbered({}, self.terms(texts))
        words, ids, indptr, refused = kernel.split_words(texts)
        terms, of_word = self._of_words(words)
        places = of_word[ids]
        kept_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(places >= 0)])
        ascii_rows = Ragged(places[places >= 0].astype(np.uint32), kept_before[indptr])
        if not refused:
            return list(terms), ascii_rows
        others = [self._terms(check_text(texts[i], f"text {i}").lower()) for i in refused]
        distinct, other_rows = _numbered(terms, others)
        return distinct, _woven(ascii_rows, other_rows, np.array(refused, dtype=np.int64))

    def _of_words(self, words: Sequence[str]) -> tuple[dict[str, int], npt.NDArray[np.int64]]:
        """The terms of words, with their places, and each word's place among them; -1 for a stop word."""
        terms: dict[str, int] = {}
        stops = ENGLISH_STOP_WORDS if self.name == "english" else frozenset()
        cut = words if self.name == "words" else [_stem(self.name, word) for word in words]
        pairs = zip(words, cut, strict=True)
        places = [-1 if word in stops else terms.setdefault(term, len(terms)) for word, term in pairs]
        return terms, np.array(places, dtype=np.int64)

    def occurrences(self, text: str, wanted: frozenset[str]) -> list[Occurrence]:
        """Where a text gives any of the wanted terms, from its beginning on, without overlap.

        A run of Han characters is cut into the wanted pairs and single characters, pairs first.
        """
        words = _WORD_BESIDE_HAN if self.name == "chinese" else _WORD
        distinct = list(set(words.findall(text)))
        matched = zip(distinct, self.terms(distinct), strict=True)
        given = {word: found for word, terms in matched if (found := frozenset(wanted.intersection(terms)))}
        places = [(m.start(), m.end(), given[m.group()]) for m in words.finditer(text) if m.group() in given]
        han = sorted((term for term in wanted if not _WORD_BESIDE_HAN.match(term)), key=len, reverse=True)
        if self.name == "chinese" and han:
            found_han = re.finditer("|".join(map(re.escape, han)), text)
            places += [(m.start(), m.end(), frozenset(wanted.intersection(_chinese_terms(m[0])))) for m in found_han]
        return [Occurrence(*place) for place in sorted(places, key=lambda place: place[0])]

    def _terms(self, text: str) -> list[str]:
        if self.name == "chinese":
            return _chinese_terms(text)
        words = _WORD.findall(text)
        if self.name == "words":
            return words
        if self.name == "english":
            words = [word for word in words if word not in ENGLISH_STOP_WORDS]
        return [_stem(self.name, word) for word in words]


def _numbered(terms: dict[str, int], rows: Sequence[Sequence[str]]) -> tuple[list[str], Ragged]:
    """All terms, those of `terms` at their places, and the rows as places among them."""
    numbered = Ragged.from_lists([[terms.setdefault(term, len(terms)) for term in row] for row in rows])
    return list(terms), numbered


def _woven(rows: Ragged, others: Ragged, at: npt.NDArray[np.int64]) -> Ragged:
    """The rows with the others in place of those, empty ones, at the given positions."""
    lengths = rows.lengths
    lengths[at] = others.lengths
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    term_ids = np.empty(int(indptr[-1]), np.uint32)
    for begins, each in ((indptr[:-1], rows), (indptr[at], others)):
        term_ids[np.arange(len(each.term_ids)) + np.repeat(begins - each.indptr[:-1], each.lengths)] = each.term_ids
    return Ragged(term_ids, indptr)


def analyzer_names() -> tuple[str, ...]:
    """The names that Analyzer takes."""
    return ("english", "words", "chinese", *OF_A_MODEL, *sorted(set(Stemmer.algorithms()) - {"english"}))


def _chinese_terms(text: str) -> list[str]:
    terms: list[str] = []
    for match in _HAN_OR_WORD.finditer(text):
        run = match.group()
        terms.extend([*run, *map("".join, pairwise(run))] if match.group(1) else [run])
    return terms


@lru_cache(maxsize=2**18)
def _stem(language: str, word: str) -> str:
    stem: str = _stemmer(language).stemWord(word)
    return stem


@cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(language, 0)  # its own cache of words costs more than it saves
