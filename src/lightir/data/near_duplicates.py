"""Near-duplicate detection without comparing all pairs: equal words, SimHash, Jaccard similarity."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from lightir.errors import InvalidInput
from lightir.types import Query

Rule: TypeAlias = Literal["exact", "simhash", "jaccard", "shared_document"]
RULES: tuple[Rule, ...] = ("exact", "simhash", "jaccard", "shared_document")

SIMHASH_BITS = 64

CHARACTERS = 4
"""Length of the runs of characters that SimHash can count in place of words."""


@dataclass(frozen=True, slots=True)
class DuplicateRules:
    """Similarity from which two texts count as near-duplicates; texts of equal words always do.

    The defaults are strict. LightRetriever's authors use SimHash alone: `min_jaccard: 0, max_hamming: 2,
    simhash_features: characters`.

    Attributes:
        min_jaccard: minimum Jaccard similarity of two queries' content words, up to 1; 0 turns the rule off.
        max_hamming: maximum number of differing bits of two 64-bit SimHashes, 0 to 63; -1 turns the rule off. Manku et
            al. (WWW 2007) allow 3.
        simhash_features: features that SimHash counts: content "words", or overlapping runs of 4 "characters", without
            blanks and punctuation, as in LightRetriever.
        min_document_jaccard: minimum Jaccard similarity of two documents' content words at which they are versions of
            one text, up to 1; 0 turns the rule off.
    """

    min_jaccard: float = 0.5
    max_hamming: int = 3
    simhash_features: Literal["words", "characters"] = "words"
    min_document_jaccard: float = 0.8

    def __post_init__(self) -> None:
        for name in ("min_jaccard", "min_document_jaccard"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}; expected 0 (off) to 1")
        if not -1 <= self.max_hamming < SIMHASH_BITS:
            raise InvalidInput(f"max_hamming is {self.max_hamming}; expected -1 (off) to {SIMHASH_BITS - 1}")


LIGHTRETRIEVER_RULES = DuplicateRules(min_jaccard=0.0, max_hamming=2, simhash_features="characters")
"""The rules of LightRetriever (appendix A.3) with the tolerance and features of its authors' script."""

_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being between both but by can could did do
    does doing down during each few for from further had has have having he her here hers him his how i if in into is it
    its itself just many may me more most much must my no nor not of off on once only or other our out over own s same
    she should so some such t than that the their them then there these they this those through to too under until up us
    very was we were what when where which while who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English function and question words, ignored because two questions are not alike for both asking "what is the"."""

_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_LETTERS = re.compile(r"[^\W_]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def content_tokens(text: str) -> list[str]:
    """Return a text's words in order, casefolded, without STOP_WORDS; Han and kana runs as overlapping bigrams."""
    tokens: list[str] = []
    for run in _TOKEN.findall(text.casefold()):
        if _CJK.match(run):
            tokens += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
        elif run not in STOP_WORDS:
            tokens.append(run)
    return tokens


def character_runs(text: str) -> list[str]:
    """Return the overlapping runs of CHARACTERS letters and digits of a lower-cased text; a shorter text is one run."""
    letters = "".join(_LETTERS.findall(text.lower()))
    return [letters[i : i + CHARACTERS] for i in range(max(len(letters) - CHARACTERS + 1, 1))] if letters else []


def simhash(features: Sequence[str], *, md5: bool = False) -> int:
    """Return the 64-bit SimHash of features (Charikar, STOC 2002): each bit is the majority among their hashes.

    Repeated features count repeatedly; a tie gives a 0 bit; no features give 0.

    Args:
        features: words or runs of characters.
        md5: hash by the last 64 bits of MD5, as the package simhash does, in place of BLAKE2b.
    """
    if not features:
        return 0
    digests = [
        hashlib.md5(feature.encode(), usedforsecurity=False).digest()[-SIMHASH_BITS // 8 :]
        if md5
        else hashlib.blake2b(feature.encode(), digest_size=SIMHASH_BITS // 8).digest()
        for feature in features
    ]
    bits = np.unpackbits(np.frombuffer(b"".join(digests), dtype=np.uint8)).reshape(-1, SIMHASH_BITS)
    return int.from_bytes(np.packbits(2 * bits.sum(axis=0, dtype=np.int64) > len(digests)).tobytes(), "big")


class Match(NamedTuple):
    """A near-duplicate that a rule found.

    Attributes:
        position: position of the near-duplicate among the indexed texts.
        rule: name of the rule.
        value: Jaccard similarity or number of differing bits; 0 for the other rules.
    """

    position: int
    rule: Rule
    value: float


class NearDuplicates:
    """An index of texts by their words, bands of their SimHash and content tokens."""

    def __init__(self, texts: Sequence[Query], rules: DuplicateRules) -> None:
        """Index texts, for instance test queries; `rules` say what a near-duplicate is."""
        self._rules = rules
        self._bands = np.array_split(np.arange(SIMHASH_BITS), rules.max_hamming + 1) if rules.max_hamming >= 0 else []
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._by_band: list[dict[int, list[int]]] = [defaultdict(list) for _ in self._bands]
        self._by_token: dict[str, list[int]] = defaultdict(list)
        self._tokens: list[frozenset[str]] = []
        self._hashes: list[int] = []
        for position, query in enumerate(texts):
            self._add(position, query.text)

    def _add(self, position: int, text: str) -> None:
        tokens = content_tokens(text)
        self._exact[_normalized(text)].append(position)
        self._tokens.append(frozenset(tokens))
        for token in self._tokens[-1]:
            self._by_token[token].append(position)
        features, value = self._simhash(text, tokens)
        self._hashes.append(value)
        if features:
            for table, key in zip(self._by_band, self._band_keys(value), strict=True):
                table[key].append(position)

    def _simhash(self, text: str, tokens: Sequence[str]) -> tuple[Sequence[str], int]:
        """Return a text's features under the rules, and their SimHash; without bands nothing is hashed."""
        by_character = self._rules.simhash_features == "characters"
        features = (character_runs(text) if by_character else tokens) if self._bands else []
        return features, simhash(features, md5=by_character)

    def matches(self, text: str) -> Iterator[Match]:
        """Yield every near-duplicate of a text, rule by rule in the order of RULES."""
        tokens = content_tokens(text)
        for position in self._exact.get(_normalized(text), ()):
            yield Match(position, "exact", 0.0)
        features, value = self._simhash(text, tokens)
        if features:
            yield from self._close_hashes(value)
        if tokens and self._rules.min_jaccard > 0:
            yield from self._similar_sets(frozenset(tokens))

    def _band_keys(self, a_hash: int) -> list[int]:
        return [(a_hash >> int(band[0])) & ((1 << len(band)) - 1) for band in self._bands]

    def _close_hashes(self, a_hash: int) -> Iterator[Match]:
        # max_hamming differing bits cannot fall into all of max_hamming + 1 bands: one band of a match is equal.
        keys = zip(self._by_band, self._band_keys(a_hash), strict=True)
        for position in sorted({position for table, key in keys for position in table.get(key, ())}):
            distance = (a_hash ^ self._hashes[position]).bit_count()
            if distance <= self._rules.max_hamming:
                yield Match(position, "simhash", float(distance))

    def _similar_sets(self, tokens: frozenset[str]) -> Iterator[Match]:
        # A match shares at least `needed` tokens, so it has one of any len(tokens) - needed + 1 tokens. The rarest ones
        # are looked up because their lists are short.
        needed = math.ceil(self._rules.min_jaccard * len(tokens) - 1e-9)
        rarest = sorted(tokens, key=lambda token: (len(self._by_token.get(token, ())), token))
        probed = rarest[: len(tokens) - needed + 1]
        for position in sorted({position for token in probed for position in self._by_token.get(token, ())}):
            other = self._tokens[position]
            overlap = len(tokens & other)
            similarity = overlap / (len(tokens) + len(other) - overlap)
            if similarity >= self._rules.min_jaccard:
                yield Match(position, "jaccard", similarity)


def _normalized(text: str) -> str:
    return " ".join(_TOKEN.findall(text.casefold())) or " ".join(text.casefold().split())
