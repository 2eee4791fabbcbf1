"""Training queries that are too close to development or test queries, found and left out, with a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightir.data.dataset import Dataset
from lightir.data.near_duplicates import HAMMING, JACCARD, RULES, Match, NearDuplicates
from lightir.data.training_set import TrainingSet
from lightir.types import Document, Qrels, Query

DOCUMENT_JACCARD = 0.8
"""Documents whose content tokens agree so far are versions of one text."""

N_SAMPLES = 5
"""Matches that a report spells out, for each training set and rule."""


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
    near = NearDuplicates([query for _, query in places], min_jaccard=min_jaccard, max_hamming=max_hamming)
    sharing = _Sharing(places, test_qrels or {}, test_documents or {}, max_hamming=max_hamming)
    kept: dict[str, list[Query]] = {}
    reports: dict[str, SetReport] = {}
    for name, queries in train.items():
        tally = _Tally(places)
        qrels = (train_qrels or {}).get(name, {})
        texts = (train_documents or {}).get(name, {})
        kept[name] = []
        for query in queries:
            matches = [*near.matches(query.text), *sharing.matches(name, qrels.get(query.query_id, {}), texts)]
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
    """`decontaminate` for training sets, against every query of every split but "train" of the test sets.

    Args:
        sets: the training sets. One that loses all its queries comes back empty.
        test: the test sets.
        min_jaccard: see `decontaminate`.
        max_hamming: see `decontaminate`.
        shared_documents: leave out also training queries whose positive is relevant to a test query of the same set,
            or has the text of a document that is relevant in any of them.
    """
    queries: dict[str, list[Query]] = {}
    qrels: dict[str, Qrels] = {}
    documents: dict[str, dict[str, Document]] = {}
    for dataset in test:
        judged = qrels[dataset.name] = _held_out_qrels(dataset)
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


def _held_out_qrels(dataset: Dataset) -> Qrels:
    """The judgements of every split but "train"."""
    judged: Qrels = {}
    for split in dataset.splits:
        if split != "train":
            for query_id, grades in dataset.qrels(split).items():
                judged.setdefault(query_id, {}).update(grades)
    return judged


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
        self._texts = NearDuplicates(texts, min_jaccard=DOCUMENT_JACCARD, max_hamming=max_hamming)
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
