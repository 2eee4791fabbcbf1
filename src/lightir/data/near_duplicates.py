"""Near-duplicate detection without comparing all pairs: equal words, SimHash, Jaccard similarity."""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.types import Query

Rule: TypeAlias = Literal["exact", "simhash", "jaccard", "shared_document"]
RULES: tuple[Rule, ...] = ("exact", "simhash", "jaccard", "shared_document")

JACCARD = 0.5
"""Minimum Jaccard similarity of content tokens at which two queries are near-duplicates."""

HAMMING = 3
"""Manku, Jain & Das Sarma, WWW 2007: near-duplicates among 64-bit SimHashes differ in at most 3 bits."""

SIMHASH_BITS = 64

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


def simhash(tokens: Sequence[str]) -> int:
    """Return the 64-bit SimHash of tokens (Charikar, STOC 2002): each bit is the sign of its sum over their hashes.

    Repeated tokens count repeatedly; a sum of 0 gives a 0 bit; no tokens give 0.
    """
    sums = np.zeros(SIMHASH_BITS, dtype=np.int64)
    for token in tokens:
        sums += _signs(token)
    return int.from_bytes(np.packbits(sums > 0).tobytes(), "big")


def _signs(token: str) -> npt.NDArray[np.int64]:
    digest = hashlib.blake2b(token.encode(), digest_size=SIMHASH_BITS // 8).digest()
    return 2 * np.unpackbits(np.frombuffer(digest, dtype=np.uint8)).astype(np.int64) - 1


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

    def __init__(self, queries: Sequence[Query], *, min_jaccard: float = JACCARD, max_hamming: int = HAMMING) -> None:
        """Index texts.

        Args:
            queries: texts to find, for instance test queries.
            min_jaccard: minimum Jaccard similarity of content tokens, in (0, 1].
            max_hamming: maximum number of differing SimHash bits, 0 to 63.

        Raises:
            InvalidInput: a threshold is outside its range.
        """
        if not 0 < min_jaccard <= 1 or not 0 <= max_hamming < SIMHASH_BITS:
            raise InvalidInput(f"min_jaccard {min_jaccard}, max_hamming {max_hamming}: expected (0, 1] and 0 to 63")
        self._min_jaccard = min_jaccard
        self._max_hamming = max_hamming
        self._bands = np.array_split(np.arange(SIMHASH_BITS), max_hamming + 1)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._by_band: list[dict[int, list[int]]] = [defaultdict(list) for _ in self._bands]
        self._by_token: dict[str, list[int]] = defaultdict(list)
        self._tokens: list[frozenset[str]] = []
        self._hashes: list[int] = []
        for position, query in enumerate(queries):
            self._add(position, query.text)

    def _add(self, position: int, text: str) -> None:
        tokens = content_tokens(text)
        self._exact[_normalized(text)].append(position)
        self._tokens.append(frozenset(tokens))
        self._hashes.append(simhash(tokens))
        for token in self._tokens[-1]:
            self._by_token[token].append(position)
        if tokens:
            for table, key in zip(self._by_band, self._band_keys(self._hashes[-1]), strict=True):
                table[key].append(position)

    def matches(self, text: str) -> Iterator[Match]:
        """Yield every near-duplicate of a text, rule by rule in the order of RULES."""
        tokens = content_tokens(text)
        for position in self._exact.get(_normalized(text), ()):
            yield Match(position, "exact", 0.0)
        if tokens:
            yield from self._close_hashes(simhash(tokens))
            yield from self._similar_sets(frozenset(tokens))

    def _band_keys(self, a_hash: int) -> list[int]:
        return [(a_hash >> int(band[0])) & ((1 << len(band)) - 1) for band in self._bands]

    def _close_hashes(self, a_hash: int) -> Iterator[Match]:
        # max_hamming differing bits cannot fall into all of max_hamming + 1 bands: one band of a match is equal.
        keys = zip(self._by_band, self._band_keys(a_hash), strict=True)
        for position in sorted({position for table, key in keys for position in table.get(key, ())}):
            distance = (a_hash ^ self._hashes[position]).bit_count()
            if distance <= self._max_hamming:
                yield Match(position, "simhash", float(distance))

    def _similar_sets(self, tokens: frozenset[str]) -> Iterator[Match]:
        # A match shares at least `needed` tokens, so it has one of any len(tokens) - needed + 1 tokens. The rarest ones
        # are looked up because their lists are short.
        needed = math.ceil(self._min_jaccard * len(tokens) - 1e-9)
        rarest = sorted(tokens, key=lambda token: (len(self._by_token.get(token, ())), token))
        probed = rarest[: len(tokens) - needed + 1]
        for position in sorted({position for token in probed for position in self._by_token.get(token, ())}):
            other = self._tokens[position]
            overlap = len(tokens & other)
            similarity = overlap / (len(tokens) + len(other) - overlap)
            if similarity >= self._min_jaccard:
                yield Match(position, "jaccard", similarity)


def _normalized(text: str) -> str:
    return " ".join(_TOKEN.findall(text.casefold())) or " ".join(text.casefold().split())
