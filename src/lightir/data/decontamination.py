"""Training queries that are too close to development or test queries, found and left out, with a report."""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.data.dataset import Dataset
from lightir.data.training import TrainingSet
from lightir.errors import InvalidInput
from lightir.types import Document, Qrels, Query

Rule: TypeAlias = Literal["exact", "simhash", "jaccard", "shared_document"]
RULES: tuple[Rule, ...] = ("exact", "simhash", "jaccard", "shared_document")

JACCARD = 0.5
HAMMING = 3
"""Manku, Jain & Das Sarma, WWW 2007: near-duplicates among 64-bit SimHashes differ in at most 3 bits."""

DOCUMENT_JACCARD = 0.8
"""Of the content tokens of two documents: those that agree so far are versions of one text."""

N_SAMPLES = 5
SIMHASH_BITS = 64

_STOP_WORDS = """
    a about after all also am an and any are as at be because been before being between both but by can could did do
    does doing down during each few for from further had has have having he her here hers him his how i if in into is it
    its itself just many may me more most much must my no nor not of off on once only or other our out over own s same
    she should so some such t than that the their them then there these they this those through to too under until up us
    very was we were what when where which while who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English function and question words: two questions are not alike because both ask "what is the"."""

_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]+"
)
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")


def content_tokens(text: str) -> list[str]:
    """The text's words in order, casefolded, without STOP_WORDS; Han and kana runs as overlapping bigrams."""
    tokens: list[str] = []
    for run in _TOKEN.findall(text.casefold()):
        if _CJK.match(run):
            tokens += [run[i : i + 2] for i in range(len(run) - 1)] or [run]
        elif run not in STOP_WORDS:
            tokens.append(run)
    return tokens


def simhash(tokens: Sequence[str]) -> int:
    """The tokens' 64-bit SimHash (Charikar, STOC 2002): each bit is the sign of its sum over the tokens' hashes.

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
    """A test query (by its place) that a training query is too close to, by one rule and how close.

    The value is the Jaccard similarity, the number of differing bits, or 0 for the other two rules.
    """

    place: int
    rule: Rule
    value: float


class QueryIndex:
    """Test queries, findable by equality, SimHash and Jaccard without comparing with each of them."""

    def __init__(self, queries: Sequence[Query], *, min_jaccard: float = JACCARD, max_hamming: int = HAMMING) -> None:
        """Index the queries.

        Args:
            queries: the test queries.
            min_jaccard: of content tokens, in (0, 1]: this similarity or more is a match.
            max_hamming: this many differing SimHash bits or fewer are a match; 0 to 63.
        """
        if not 0 < min_jaccard <= 1 or not 0 <= max_hamming < SIMHASH_BITS:
            raise InvalidInput(f"min_jaccard {min_jaccard} must be in (0, 1], max_hamming {max_hamming} in [0, 63]")
        self._min_jaccard = min_jaccard
        self._max_hamming = max_hamming
        self._bands = np.array_split(np.arange(SIMHASH_BITS), max_hamming + 1)
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._by_band: list[dict[int, list[int]]] = [defaultdict(list) for _ in self._bands]
        self._by_token: dict[str, list[int]] = defaultdict(list)
        self._tokens: list[frozenset[str]] = []
        self._hashes: list[int] = []
        for place, query in enumerate(queries):
            self._add(place, query.text)

    def _add(self, place: int, text: str) -> None:
        tokens = content_tokens(text)
        self._exact[_normalized(text)].append(place)
        self._tokens.append(frozenset(tokens))
        self._hashes.append(simhash(tokens))
        for token in self._tokens[-1]:
            self._by_token[token].append(place)
        if tokens:
            for table, key in zip(self._by_band, self._band_keys(self._hashes[-1]), strict=True):
                table[key].append(place)

    def matches(self, text: str) -> Iterator[Match]:
        """All matches, rule by rule in the order of RULES, test queries in order."""
        tokens = content_tokens(text)
        for place in self._exact.get(_normalized(text), ()):
            yield Match(place, "exact", 0.0)
        if tokens:
            yield from self._close_hashes(simhash(tokens))
            yield from self._similar_sets(frozenset(tokens))

    def _band_keys(self, a_hash: int) -> list[int]:
        return [(a_hash >> int(band[0])) & ((1 << len(band)) - 1) for band in self._bands]

    def _close_hashes(self, a_hash: int) -> Iterator[Match]:
        # max_hamming differing bits cannot touch all of max_hamming + 1 bands: a match agrees in a whole one.
        keys = zip(self._by_band, self._band_keys(a_hash), strict=True)
        for place in sorted({place for table, key in keys for place in table.get(key, ())}):
            distance = (a_hash ^ self._hashes[place]).bit_count()
            if distance <= self._max_hamming:
                yield Match(place, "simhash", float(distance))

    def _similar_sets(self, tokens: frozenset[str]) -> Iterator[Match]:
        # The overlap of a match is at least min_jaccard * len(tokens), so it shares one of any
        # len(tokens) - that + 1 tokens: the rarest ones, whose lists are short, are looked up.
        needed = math.ceil(self._min_jaccard * len(tokens) - 1e-9)
        rarest = sorted(tokens, key=lambda token: (len(self._by_token.get(token, ())), token))
        probed = rarest[: len(tokens) - needed + 1]
        for place in sorted({place for token in probed for place in self._by_token.get(token, ())}):
            other = self._tokens[place]
            overlap = len(tokens & other)
            similarity = overlap / (len(tokens) + len(other) - overlap)
            if similarity >= self._min_jaccard:
                yield Match(place, "jaccard", similarity)


def _normalized(text: str) -> str:
    return " ".join(_TOKEN.findall(text.casefold())) or " ".join(text.casefold().split())


@dataclass(frozen=True, slots=True)
class Sample:
    """One match, spelled out."""

    query_id: str
    query: str
    test_set: str
    test_query_id: str
    test_query: str
    value: float


@dataclass(frozen=True, slots=True)
class SetReport:
    """What happened to one training set.

    Attributes:
        queries: before.
        dropped: queries that any rule found.
        by_rule: queries that each rule found; one query may be found by several.
        only_by_rule: queries that this rule found and no other.
        by_test_set: queries that some rule found close to a query of the test set.
        test_queries_touched: of each test set, its queries that some training query was close to.
        samples: up to N_SAMPLES a rule.
    """

    queries: int
    dropped: int
    by_rule: Mapping[str, int]
    only_by_rule: Mapping[str, int]
    by_test_set: Mapping[str, int]
    test_queries_touched: Mapping[str, int]
    samples: Mapping[str, Sequence[Sample]]


@dataclass(frozen=True, slots=True)
class DecontaminationReport:
    """What was dropped, by training set.

    Attributes:
        min_jaccard: threshold.
        max_hamming: threshold.
        test_sets: each test set's number of queries.
        sets: one report a training set.
    """

    min_jaccard: float
    max_hamming: int
    test_sets: Mapping[str, int]
    sets: Mapping[str, SetReport]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    def to_markdown(self) -> str:
        """One row a training set: queries, found by each rule, dropped, kept."""
        rows = [["set", "queries", *RULES, "dropped", "kept"]]
        rows.append(["---"] + ["---:"] * (len(rows[0]) - 1))
        for name, each in self.sets.items():
            numbers = (each.queries, *(each.by_rule[rule] for rule in RULES), each.dropped, each.queries - each.dropped)
            rows.append([name, *map(str, numbers)])
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def decontaminate(
    train: Mapping[str, Sequence[Query]],
    test: Mapping[str, Sequence[Query]],
    *,
    min_jaccard: float = JACCARD,
    max_hamming: int = HAMMING,
    train_qrels: Mapping[str, Qrels] | None = None,
    test_qrels: Mapping[str, Qrels] | None = None,
    train_documents: Mapping[str, Mapping[str, Document]] | None = None,
    test_documents: Mapping[str, Mapping[str, Document]] | None = None,
) -> tuple[dict[str, list[Query]], DecontaminationReport]:
    """The training queries that are far from every test query, and what was dropped and why.

    A query goes when, against any query of any test set, its words are the same (case and punctuation aside), its
    SimHash over content tokens differs in few bits, or the Jaccard similarity of content tokens is high.

    Args:
        train: queries by set name.
        test: development and test queries by set name.
        min_jaccard: this similarity or more is too close.
        max_hamming: this many bits or fewer are too close.
        train_qrels: with test_qrels, a query goes also when a document relevant to it (grade 1 or more) is relevant
            to a test query of the set with the same name; sets named in only one of the two are not looked at.
        test_qrels: see train_qrels.
        train_documents: texts by set and id; with test_documents, a query goes also when the text of a document
            relevant to it is that of one relevant to a test query of any set: the same words, a close SimHash, or a
            Jaccard similarity of DOCUMENT_JACCARD or more.
        test_documents: see train_documents.

    Returns:
        The kept queries by set name in their order, and the report.
    """
    places = [(name, query) for name, queries in test.items() for query in queries]
    index = QueryIndex([query for _, query in places], min_jaccard=min_jaccard, max_hamming=max_hamming)
    sharing = _Sharing(places, test_qrels or {}, test_documents or {}, max_hamming=max_hamming)
    kept: dict[str, list[Query]] = {}
    reports: dict[str, SetReport] = {}
    for name, queries in train.items():
        tally = _Tally(places)
        qrels = (train_qrels or {}).get(name, {})
        texts = (train_documents or {}).get(name, {})
        kept[name] = []
        for query in queries:
            matches = [*index.matches(query.text), *sharing.matches(name, qrels.get(query.query_id, {}), texts)]
            tally.add(query, matches)
            if not matches:
                kept[name].append(query)
        reports[name] = tally.report(len(queries))
    test_sizes = {name: len(queries) for name, queries in test.items()}
    return kept, DecontaminationReport(min_jaccard, max_hamming, test_sizes, reports)


def decontaminate_sets(
    sets: Sequence[TrainingSet],
    test: Sequence[Dataset],
    *,
    min_jaccard: float = JACCARD,
    max_hamming: int = HAMMING,
    shared_documents: bool = False,
) -> tuple[list[TrainingSet], DecontaminationReport]:
    """decontaminate over training sets, against every query of every split but "train" of the test sets.

    With shared_documents also training queries whose positive is relevant to a test query of the same set, or has the
    text of one that is relevant in any set. A set that loses all its queries comes back empty.
    """
    queries: dict[str, list[Query]] = {}
    qrels: dict[str, Qrels] = {}
    documents: dict[str, dict[str, Document]] = {}
    for dataset in test:
        judged: Qrels = {}
        for split in dataset.splits:
            if split != "train":
                for query_id, grades in dataset.qrels(split).items():
                    judged.setdefault(query_id, {}).update(grades)
        qrels[dataset.name] = judged
        queries[dataset.name] = [query for query in dataset.queries() if query.query_id in judged]
        if shared_documents:
            relevant = {doc_id for grades in judged.values() for doc_id, grade in grades.items() if grade >= 1}
            documents[dataset.name] = {each.doc_id: each for each in dataset.corpus() if each.doc_id in relevant}
    train_queries = {each.name: list(each.queries()) for each in sets}
    options: dict[str, Any] = {"min_jaccard": min_jaccard, "max_hamming": max_hamming}
    if shared_documents:
        options["train_qrels"] = {
            each.name: {e.query_id: dict.fromkeys(e.positive_ids, 1) for e in each.examples} for each in sets
        }
        options["train_documents"] = {each.name: each.documents for each in sets}
        options |= {"test_qrels": qrels, "test_documents": documents}
    kept, report = decontaminate(train_queries, queries, **options)
    clean = []
    for each in sets:
        kept_ids = {query.query_id for query in kept[each.name]}
        clean.append(each.without([q.query_id for q in train_queries[each.name] if q.query_id not in kept_ids]))
    return clean, report


class _Sharing:
    """Which test queries a document is relevant to: by set and id, and by its text."""

    def __init__(
        self,
        places: Sequence[tuple[str, Query]],
        qrels: Mapping[str, Qrels],
        documents: Mapping[str, Mapping[str, Document]],
        *,
        max_hamming: int,
    ) -> None:
        self._by_document: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, (name, query) in enumerate(places):
            for doc_id, grade in qrels.get(name, {}).get(query.query_id, {}).items():
                if grade >= 1:
                    self._by_document[name, doc_id].append(place)
        self._read = [key for key in self._by_document if key[1] in documents.get(key[0], {})]
        texts = [Query(doc_id, documents[name][doc_id].full_text()) for name, doc_id in self._read]
        self._texts = QueryIndex(texts, min_jaccard=DOCUMENT_JACCARD, max_hamming=max_hamming)
        self._known: dict[tuple[str, str], frozenset[int]] = {}

    def matches(self, name: str, grades: Mapping[str, int], documents: Mapping[str, Document]) -> list[Match]:
        """The test queries that share a relevant document with these grades of the set."""
        relevant = [doc_id for doc_id, grade in grades.items() if grade >= 1]
        found = {place for doc_id in relevant for place in self._places(name, doc_id, documents)}
        return [Match(place, "shared_document", 0.0) for place in sorted(found)]

    def _places(self, name: str, doc_id: str, documents: Mapping[str, Document]) -> frozenset[int]:
        if (name, doc_id) not in self._known:
            found = set(self._by_document.get((name, doc_id), ()))
            if self._read and (document := documents.get(doc_id)) is not None:
                for match in self._texts.matches(document.full_text()):
                    found.update(self._by_document[self._read[match.place]])
            self._known[name, doc_id] = frozenset(found)
        return self._known[name, doc_id]


class _Tally:
    """Counts the matches of one training set."""

    def __init__(self, places: Sequence[tuple[str, Query]]) -> None:
        self._places = places
        self._dropped = 0
        self._by_rule: Counter[str] = Counter()
        self._only_by_rule: Counter[str] = Counter()
        self._by_test_set: Counter[str] = Counter()
        self._touched: set[int] = set()
        self._samples: dict[str, list[Sample]] = {rule: [] for rule in RULES}

    def add(self, query: Query, matches: Sequence[Match]) -> None:
        if not matches:
            return
        self._dropped += 1
        rules = {match.rule for match in matches}
        self._by_rule.update(rules)
        if len(rules) == 1:
            self._only_by_rule.update(rules)
        self._by_test_set.update({self._places[match.place][0] for match in matches})
        self._touched.update(match.place for match in matches)
        for rule in rules:
            if len(self._samples[rule]) < N_SAMPLES:
                first = next(match for match in matches if match.rule == rule)
                name, test_query = self._places[first.place]
                sample = Sample(query.query_id, query.text, name, test_query.query_id, test_query.text, first.value)
                self._samples[rule].append(sample)

    def report(self, n_queries: int) -> SetReport:
        names = dict.fromkeys(name for name, _ in self._places)
        touched = Counter(self._places[place][0] for place in self._touched)
        return SetReport(
            queries=n_queries,
            dropped=self._dropped,
            by_rule={rule: self._by_rule[rule] for rule in RULES},
            only_by_rule={rule: self._only_by_rule[rule] for rule in RULES},
            by_test_set={name: self._by_test_set[name] for name in names},
            test_queries_touched={name: touched[name] for name in names},
            samples={rule: tuple(samples) for rule, samples in self._samples.items()},
        )
