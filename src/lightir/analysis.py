"""Analyzers: the terms of texts that BM25 counts, for indexing and searching."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.errors import FormatError, InvalidInput
from lightir.kernel import passages
from lightir.text import check_text
from lightir.vectors import Ragged
from lightir.words import scripts
from lightir.words.languages import FUNCTION_WORDS
from lightir.words.scripts import HAN
from lightir.words.stems import ENGLISH_STOP_WORDS, languages, stem

ANALYSIS_VERSION = 1
"""Version of the analysis code, increased when any analyzer changes its terms. An index requires its version."""

MODEL = "model"
"""Name of the analyzer whose terms are the model's term ids."""

BAG = "bag"
"""Name of the analyzer whose terms are the set of the model's term ids in a document (SiDR's V_BoT)."""

OF_A_MODEL = (MODEL, BAG)
"""Names of the analyzers that require a model's tokenizer."""

AUTO = "auto"
"""Name of the analyzer that treats each script by its own rules. An index of it detects the languages of its Latin
words when it is built, and stores the name with them: "auto-german", or "auto-german+english", the main language first.
"""

_AUTO_OF_A_LANGUAGE = f"{AUTO}-"

WORDS_KEPT = 2**18
"""Maximum number of words whose terms are kept for phrases."""

OTHER_TERM = 2**32 - 1
"""Number of a term that is not wanted."""

_STOP_WORD = 2**32 - 2

# Words of two or more characters, as in scikit-learn and bm25s; this reproduces published BM25 figures.
_WORD = re.compile(r"\b\w\w+\b")
_HAN_OR_WORD = re.compile(rf"([{HAN}]+)|[^\W{HAN}]+")
_WORD_CHARACTER, _HAN_CHARACTER = re.compile(r"\w"), re.compile(f"[{HAN}]")
_WORD_BESIDE_HAN = re.compile(rf"[^\W{HAN}]+")


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A span of a text that has terms.

    Attributes:
        start: index of the first character.
        end: index after the last character.
        terms: terms of the span.
    """

    start: int
    end: int
    terms: frozenset[str]


@dataclass(frozen=True, slots=True)
class Analyzer:
    """A named method of splitting text into terms.

    Attributes:
        name: "auto-german" and the like (`lightir.words.scripts`, with that language's stems for Latin words; English
            has stop words too), "auto-german+english" and the like (stems of several languages, the main one first),
            "auto" ("auto-english"; building an index of it detects the languages), "english" (stop words, Snowball
            stems), "words" (neither), the name of another Snowball language (stems, no stop words), "chinese" (single
            Han characters and pairs of adjacent ones, words elsewhere), "model" (term ids of the index's query
            encoder), or "bag" (the set of these ids, for queries whose terms the query encoder weights).
        version: version of the analysis code.
    """

    name: str = "english"
    version: int = ANALYSIS_VERSION

    def __post_init__(self) -> None:
        if not is_analyzer(self.name):
            raise InvalidInput(
                f"unknown analyzer {self.name!r}; expected one of {', '.join(analyzer_names())}, or several languages "
                f"as in {AUTO}-german+english"
            )
        if self.version != ANALYSIS_VERSION:
            raise FormatError(
                f"the index has terms of analysis version {self.version}; this release has {ANALYSIS_VERSION}. "
                "Rebuild the index"
            )

    def terms(self, texts: Sequence[str]) -> list[list[str]]:
        """Return each text's terms in order, repeats included; [] for a text without words.

        Raises:
            InvalidInput: a text is not a str, or the analyzer is "model" or "bag", which require a model's tokenizer.
        """
        if self.name in OF_A_MODEL:
            raise InvalidInput(f"the {self.name!r} analyzer requires the query encoder's tokenizer")
        return [self._terms(check_text(text, f"text {i}").lower()) for i, text in enumerate(texts)]

    def words(self, text: str) -> list[tuple[str, Sequence[str]]]:
        """Return the words of a text in order, each in lower case with its terms; together they are `terms` of it.

        A run of Han characters, or of another unspaced script, is one word with several terms. A stop word has none.

        Raises:
            InvalidInput: the text is not a str, or the analyzer is "model" or "bag".
        """
        if self.name in OF_A_MODEL:
            raise InvalidInput(f"the {self.name!r} analyzer has term ids of the model, not words")
        text = check_text(text, "the text").lower()
        if self.by_script:
            languages = self.languages
            return [(run, scripts.terms_of_run(languages, run)) for run in scripts.runs(text)]
        cut = [m[0] for m in (_HAN_OR_WORD if self.name == "chinese" else _WORD).finditer(text)]
        return [(word, self._terms(word)) for word in cut]

    def units(self, text: str) -> list[str]:
        """Return the units of a text that phrases are compared by, in order.

        They are the terms of its words. A run of Han characters, or of another unspaced script, has its characters.

        Raises:
            InvalidInput: the text is not a str, or the analyzer is "model" or "bag".
        """
        units: list[str] = []
        for word, terms in self.words(text):
            units += word if self.is_unspaced(word[0]) else terms
        return units

    def is_unspaced(self, character: str) -> bool:
        """Whether runs of a character are cut into pairs, because no blanks separate their words."""
        if self.by_script:
            return scripts.is_unspaced(character)
        return self.name == "chinese" and _HAN_CHARACTER.match(character) is not None

    @property
    def by_script(self) -> bool:
        """Whether each script has its own rules: "auto" and the like."""
        return self.name == AUTO or self.name.startswith(_AUTO_OF_A_LANGUAGE)

    @property
    def languages(self) -> scripts.Languages:
        """The languages whose stems Latin words have, the main one first; the name of an analyzer that stems none."""
        return _languages_of(self.name)

    @property
    def language(self) -> str:
        """The main one of the languages."""
        return self.languages[0]

    def plain(self, word: str) -> str:
        """Return a word in the form in which its stem begins: in lower case, normalized, without accents if folded."""
        return scripts.plain(self.languages, word.lower()) if self.by_script else word.lower()

    def distinct_terms(self, texts: Sequence[str]) -> tuple[list[str], Ragged]:
        """Return the distinct terms of a batch, in no particular order, and each text's terms as indices into them.

        The kernel splits ASCII texts, and each word is stemmed once per batch.

        Raises:
            InvalidInput: a text is not a str, or the analyzer is "model" or "bag".
        """
        if self.name in (*OF_A_MODEL, "chinese"):
            return _numbered({}, self.terms(texts))
        words, ids, indptr, refused = kernel.split_words(texts)
        terms, of_word = self._of_words(words)
        indices = of_word[ids]
        kept_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(indices >= 0)])
        ascii_rows = Ragged(indices[indices >= 0].astype(np.uint32), kept_before[indptr])
        if not refused:
            return list(terms), ascii_rows
        others = [self._terms(check_text(texts[i], f"text {i}").lower()) for i in refused]
        distinct, other_rows = _numbered(terms, others)
        return distinct, _merge_rows(ascii_rows, other_rows, np.array(refused, dtype=np.int64))

    def term_positions(self, texts: Sequence[str], wanted: Mapping[str, int]) -> tuple[Ragged, list[int]]:
        """Return the wanted terms among those of ASCII texts, for an analyzer whose ASCII words have one term at most.

        Args:
            texts: n texts.
            wanted: non-negative number of each wanted term.

        Returns:
            n rows with the number of each term of a text in order, or OTHER_TERM; and the positions of texts that are
            not ASCII, which have no terms here.
        """
        words, ids, indptr, refused = kernel.split_words(texts)
        number_of = {**wanted, "": _STOP_WORD}
        terms = map(_terms_of(self).__getitem__, words)
        numbers = np.fromiter((number_of.get(term, OTHER_TERM) for term in terms), np.uint32, len(words))[ids]
        kept = numbers != _STOP_WORD
        kept_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
        return Ragged(numbers[kept], kept_before[indptr]), refused

    def _of_words(self, words: Sequence[str]) -> tuple[dict[str, int], npt.NDArray[np.int64]]:
        """Return the terms of ASCII words with their indices, and each word's index; -1 for a stop word."""
        terms: dict[str, int] = {}
        if self.by_script:  # a word of ASCII letters is one run
            languages = self.languages
            term_lists: list[Sequence[str]] = [scripts.terms_of_word(languages, word) for word in words]
        else:
            term_lists = [self._terms(word) for word in words]
        indices = [terms.setdefault(of_word[0], len(terms)) if of_word else -1 for of_word in term_lists]
        return terms, np.array(indices, dtype=np.int64)

    def occurrences(self, text: str, wanted: frozenset[str]) -> list[Occurrence]:
        """Return the spans of a text that have any of the wanted terms, in text order, without overlap.

        In a run of Han characters, or of an unspaced script, wanted pairs take precedence over single characters.
        """
        words = _word_pattern(self.cuts_pairs, self.by_script)
        distinct = list(set(words.findall(text)))
        matched = zip(distinct, self.terms(distinct), strict=True)
        terms_of = {word: common for word, terms in matched if (common := frozenset(wanted.intersection(terms)))}
        spans = [(m.start(), m.end(), terms_of[m.group()]) for m in words.finditer(text) if m.group() in terms_of]
        han = sorted((term for term in wanted if not words.match(term)), key=len, reverse=True)
        if self.cuts_pairs and han:
            han_matches = re.finditer("|".join(map(re.escape, han)), text)
            spans += [(m.start(), m.end(), frozenset(wanted.intersection((m[0], *m[0])))) for m in han_matches]
        return [Occurrence(*span) for span in sorted(spans, key=lambda span: span[0])]

    @property
    def cuts_pairs(self) -> bool:
        """Whether pairs of adjacent characters are terms where no blanks separate words."""
        return self.name == "chinese" or self.by_script

    @property
    def keeps_beginnings(self) -> bool:
        """Whether the terms of ASCII words begin as the words do.

        A term has the first three characters of its word in lower case, or two if it has less than four. English stems
        may have i for y there (dying: die), or be the first letter alone.
        """
        return self.name == "words" or self.languages == ("english",)

    def character_classes(self, block: int) -> bytes:
        """Return the classes (`lightir.kernel.passages`) of the 256 characters from 256 * block on."""
        characters = [chr(256 * block + i) for i in range(256)]
        word = _word_pattern(True, True) if self.by_script else _WORD_CHARACTER
        pair = scripts.UNSPACED_CHARACTER if self.by_script else _HAN_CHARACTER
        return bytes(
            passages.WORD * bool(word.match(character))
            | passages.BLANK * character.isspace()
            | passages.HAN * bool(pair.match(character))
            for character in characters
        )

    def _terms(self, text: str) -> list[str]:
        if self.by_script:
            languages = self.languages
            return [term for run in scripts.runs(text) for term in scripts.terms_of_run(languages, run)]
        if self.name == "chinese":
            return _chinese_terms(text)
        words = _WORD.findall(text)
        if self.name == "words":
            return words
        if self.name == "english":
            words = [word for word in words if word not in ENGLISH_STOP_WORDS]
        return [stem(self.name, word) for word in words]


@cache
def _languages_of(name: str) -> scripts.Languages:
    if name != AUTO and not name.startswith(_AUTO_OF_A_LANGUAGE):
        return (name,)
    return tuple((name[len(AUTO) + 1 :] or "english").split("+"))


class _TermOfWord(dict[str, str]):
    """The term of each ASCII word that was asked for; "" for a stop word."""

    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__()
        self._analyzer = analyzer

    def __missing__(self, word: str) -> str:
        """Analyze a word, and keep its term."""
        if len(self) >= WORDS_KEPT:
            self.clear()
        (terms,) = self._analyzer.terms([word])
        term = self[word] = terms[0] if terms else ""
        return term


@lru_cache(maxsize=4)
def _terms_of(analyzer: Analyzer) -> _TermOfWord:
    return _TermOfWord(analyzer)


def _numbered(terms: dict[str, int], rows: Sequence[Sequence[str]]) -> tuple[list[str], Ragged]:
    """Add the terms of rows to `terms`; return all terms and the rows as indices into them."""
    numbered = Ragged.from_lists([[terms.setdefault(term, len(terms)) for term in row] for row in rows])
    return list(terms), numbered


def _merge_rows(rows: Ragged, others: Ragged, at: npt.NDArray[np.int64]) -> Ragged:
    """Return the rows, with the empty ones at the given positions replaced by the others."""
    lengths = rows.lengths
    lengths[at] = others.lengths
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    term_ids = np.empty(int(indptr[-1]), np.uint32)
    for starts, part in ((indptr[:-1], rows), (indptr[at], others)):
        term_ids[np.arange(len(part.term_ids)) + np.repeat(starts - part.indptr[:-1], part.lengths)] = part.term_ids
    return Ragged(term_ids, indptr)


def analyzer_names() -> tuple[str, ...]:
    """Return the names of all analyzers; those of several languages are left out."""
    stemmed = {*languages()}
    automatic = sorted(f"{AUTO}-{language}" for language in stemmed.intersection(FUNCTION_WORDS))
    return (AUTO, *automatic, "english", "words", "chinese", *OF_A_MODEL, *sorted(stemmed - {"english"}))


def is_analyzer(name: str) -> bool:
    """Whether a name is that of an analyzer: one of `analyzer_names`, or "auto-" and different languages of them."""
    several = name.removeprefix(f"{AUTO}-").split("+") if name.startswith(f"{AUTO}-") else []
    one_each = [f"{AUTO}-{language}" for language in several] if len({*several}) == len(several) > 1 else [name]
    return all(one in analyzer_names() for one in one_each)


def _chinese_terms(text: str) -> list[str]:
    terms: list[str] = []
    for match in _HAN_OR_WORD.finditer(text):
        run = match.group()
        terms.extend([*run, *map("".join, pairwise(run))] if match.group(1) else [run])
    return terms


@cache
def _word_pattern(cuts_pairs: bool, by_script: bool) -> re.Pattern[str]:
    if by_script:
        return scripts.word_pattern()
    return _WORD_BESIDE_HAN if cuts_pairs else _WORD
