"""Terms of texts in any script: words where blanks separate them, pairs of characters where none do.

A text is cut into runs. A run of an unspaced script (Han, Kana, Hangul, Thai, Lao, Khmer, Burmese) gives its pairs of
adjacent characters, and each Han character alone, because many of them are words. A run of one character is a term.
Every other run of letters, digits and their combining marks is a word. It is normalized (NFKC, lower case, decimal
digits as 0-9), and its first letter tells the script, which tells what is stripped, stemmed and folded:

    Latin        Snowball stem of the collection's language; accents folded where `FOLDED` names the language
    Cyrillic     ё as е, no stress marks; Russian stem
    Greek        Greek stem, no accents
    Arabic       no vowel marks, no tatweel, one form of alef, yeh, kaf and teh marbuta; Arabic stem
    Hebrew       no points; final letters as plain ones
    Devanagari, Tamil, Armenian: the stem of Hindi, Tamil, Armenian
    others       unchanged

A collection may have several languages of the Latin script. Then the stem of a word is stemmed again for each further
language, so a word has one term whatever language it is in. Its main language tells about stop words and accents.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from itertools import pairwise
from typing import TypeAlias

from lightir.words.stems import ENGLISH_STOP_WORDS, stem

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_HANGUL = "\uac00-\ud7a3"
_SOUTHEAST_ASIAN = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u109f\u1780-\u17d3"
UNSPACED = f"\u3005\u3007{HAN}{_KANA}{_HANGUL}{_SOUTHEAST_ASIAN}"
"""Characters of scripts that put no blanks between words, or whose words have many endings, for a regular expression.
"""

Languages: TypeAlias = tuple[str, ...]
"""Snowball's names of the languages of a collection's Latin words, the main one first."""

FOLDED = frozenset(
    """basque catalan dutch english esperanto french german indonesian irish italian polish portuguese romanian
    spanish""".split()  # noqa: SIM905
)
"""Languages whose readers often type letters without their accents. Elsewhere such letters are letters of their own."""

UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")
_HAN_CHARACTER = re.compile(f"[{HAN}]")
_RUN = re.compile(rf"[{UNSPACED}]+|[^\W{UNSPACED}]+")
_ASCII_RUN = re.compile(r"\w+", re.ASCII)
_WITHOUT_ACCENTS = str.maketrans(
    {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"}
)
_ARABIC_LETTERS = str.maketrans({"\u06a9": "\u0643", "\u06cc": "\u064a", "\u0640": None})
_ARABIC_FORMS = str.maketrans(
    {**dict.fromkeys("\u0622\u0623\u0625\u0671", "\u0627"), "\u0649": "\u064a", "\u0629": "\u0647"}
)
_HEBREW_FINALS = str.maketrans("\u05da\u05dd\u05df\u05e3\u05e5", "\u05db\u05de\u05e0\u05e4\u05e6")


@cache
def marks() -> str:
    """Return all combining marks, as a regular expression's ranges."""
    codes = [code for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)) in ("Mn", "Mc")]
    starts = [code for code, before in zip(codes, [-1, *codes], strict=False) if code != before + 1]
    ends = [code for code, after in zip(codes, [*codes[1:], -1], strict=True) if code + 1 != after]
    return "".join(f"{chr(start)}-{chr(end)}" for start, end in zip(starts, ends, strict=True))


def runs(text: str) -> list[str]:
    """Return the runs of a text in order, each of an unspaced script or a word with its combining marks."""
    if text.isascii():
        return _ASCII_RUN.findall(text)
    return (_run_with_marks() if _mark().search(text) is not None else _RUN).findall(text)


def is_unspaced(character: str) -> bool:
    """Whether a character belongs to an unspaced script."""
    return UNSPACED_CHARACTER.match(character) is not None


def word_pattern() -> re.Pattern[str]:
    """Return the pattern of words outside unspaced scripts."""
    return re.compile(rf"(?:[^\W{UNSPACED}]|(?![{UNSPACED}])[{marks()}])+")


def terms_of_run(languages: Languages, run: str) -> tuple[str, ...]:
    """Return the terms of one run in lower case.

    Args:
        languages: languages whose stemmers Latin words get.
        run: one of `runs`.
    """
    return terms_of_word(languages, run) if run.isascii() or not is_unspaced(run[0]) else _unspaced_terms(run)


def plain(languages: Languages, word: str) -> str:
    """Return a word without marks that its term lacks, but not stemmed."""
    word = _normalized(word)
    if languages[0] in FOLDED or "LATIN" not in unicodedata.name(word[:1] or " "):
        word = _without_accents(_without_marks_alone(word))
    return word.translate(_ARABIC_LETTERS).translate(_ARABIC_FORMS).translate(_HEBREW_FINALS).replace("ё", "е")


def _unspaced_terms(run: str) -> tuple[str, ...]:
    if len(run) == 1:
        return (run,)
    return (*_HAN_CHARACTER.findall(run), *map("".join, pairwise(run)))


@lru_cache(maxsize=2**18)
def terms_of_word(languages: Languages, word: str) -> tuple[str, ...]:
    """Return the terms of a run in lower case that is no run of an unspaced script; one at most if it is ASCII."""
    if len(word) < 2:
        return ()
    if word.isascii():
        return _kept(_latin(languages, word))
    terms: list[str] = []
    for run in runs(_normalized(word)):  # compatibility forms may stand for several words, or for another script
        terms += _unspaced_terms(run) if is_unspaced(run[0]) else _kept(_by_script(languages, run))
    return tuple(terms)


def _normalized(word: str) -> str:
    return "".join(map(_decimal, unicodedata.normalize("NFKC", word).lower()))


def _kept(term: str) -> tuple[str, ...]:
    return (term,) if len(term) >= 2 else ()


def _by_script(languages: Languages, word: str) -> str:
    script = next((unicodedata.name(character, "").split(" ")[0] for character in word if character.isalpha()), "")
    if script == "LATIN":
        return _latin(languages, word)
    return _BY_SCRIPT[script](word) if script in _BY_SCRIPT else word


def _latin(languages: Languages, word: str) -> str:
    """Return the term of a word in Latin letters; "" for a stop word."""
    word = word if word.isascii() else word.replace("i\u0307", "i")  # the lower case of the Turkish capital
    if languages[0] == "english":
        word = _without_accents(word)
        if word in ENGLISH_STOP_WORDS:
            return ""
    for language in languages:
        word = stem(language, word)
    return _without_accents(word) if languages[0] in FOLDED else word


def _without_accents(word: str) -> str:
    return word if word.isascii() else _without_marks(word).translate(_WITHOUT_ACCENTS)


def _without_marks(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return unicodedata.normalize("NFC", "".join(c for c in decomposed if unicodedata.category(c) != "Mn"))


def _cyrillic(word: str) -> str:
    return stem("russian", word.replace("\u0301", "").replace("ё", "е"))


def _greek(word: str) -> str:
    return _without_marks(stem("greek", word))


def _arabic(word: str) -> str:
    return stem("arabic", _without_marks_alone(word).translate(_ARABIC_LETTERS)).translate(_ARABIC_FORMS)


def _hebrew(word: str) -> str:
    return _without_marks_alone(word).translate(_HEBREW_FINALS)


def _without_marks_alone(word: str) -> str:
    """Return a word without the marks that are characters of their own; composed letters are unchanged."""
    return "".join(character for character in word if unicodedata.category(character) != "Mn")


_BY_SCRIPT: dict[str, Callable[[str], str]] = {
    "CYRILLIC": _cyrillic,
    "GREEK": _greek,
    "ARABIC": _arabic,
    "HEBREW": _hebrew,
    "DEVANAGARI": lambda word: stem("hindi", word),
    "TAMIL": lambda word: stem("tamil", word),
    "ARMENIAN": lambda word: stem("armenian", word),
}


def _decimal(character: str) -> str:
    return str(unicodedata.decimal(character)) if not character.isascii() and character.isdecimal() else character


@cache
def _mark() -> re.Pattern[str]:
    return re.compile(rf"(?![{UNSPACED}])[{marks()}]")


@cache
def _run_with_marks() -> re.Pattern[str]:
    return re.compile(rf"[{UNSPACED}]+|{word_pattern().pattern}")
