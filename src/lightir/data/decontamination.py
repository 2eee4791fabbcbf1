"""Decontamination: drop training queries that are too close to development or test queries, and report them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lightir.data.dataset import Dataset
from lightir.data.near_duplicates import RULES, DuplicateRules, Match, NearDuplicates
from lightir.data.training_set import TrainingSet
from lightir.types import Document, Qrels, Query

N_SAMPLES = 5
"""Maximum number of matches in a report, per training set and rule."""


@dataclass(frozen=True, slots=True)
class RelevantDocuments:
    """The documents that are relevant to the queries of some sets.

    Attributes:
        qrels: qrels by set name; grades of 1 or more count as relevant.
        documents: documents by set name and id; empty if texts are not compared.
    """

    qrels: Mapping[str, Qrels] = field(default_factory=dict)
    documents: Mapping[str, Mapping[str, Document]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A match with both texts.

    Attributes:
        query_id: id of the training query.
        query: text of the training query.
        test_set: name of the test set.
        test_query_id: id of the test query.
        test_query: text of the test query.
        value: similarity or distance; see `Match`.
    """

    query_id: str
    query: str
    test_set: str
    test_query_id: str
    test_query: str
    value: float


@dataclass(frozen=True, slots=True)
class SetReport:
    """The result for one training set.

    Attributes:
        queries: number of queries before.
        dropped: number of queries that any rule matched.
        by_rule: number of queries that each rule matched; several rules may match one query.
        only_by_rule: number of queries that only this rule matched.
        by_test_set: number of queries that match a query of each test set.
        test_queries_touched: number of queries of each test set that match a training query.
        samples: up to N_SAMPLES matches per rule.
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
    """The result for all training sets.

    Attributes:
        rules: thresholds of near-duplicates.
        test_sets: number of queries of each test set.
        sets: report of each training set.
    """

    rules: DuplicateRules
    test_sets: Mapping[str, int]
    sets: Mapping[str, SetReport]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return asdict(self)

    def to_markdown(self) -> str:
        """Return a table with one row per training set: queries, matches of each rule, dropped, kept."""
        rows = [["set", "queries", *RULES, "dropped", "kept"]]
        rows.append(["---"] + ["---:"] * (len(rows[0]) - 1))
        for name, report in self.sets.items():
            matched = (report.by_rule[rule] for rule in RULES)
            rows.append([name, *map(str, (report.queries, *matched, report.dropped, report.queries - report.dropped))])
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def decontaminate(
    train: Mapping[str, Sequence[Query]],
    test: Mapping[str, Sequence[Query]],
    *,
    rules: DuplicateRules | None = None,
    train_relevant: RelevantDocuments | None = None,
    test_relevant: RelevantDocuments | None = None,
) -> tuple[dict[str, list[Query]], DecontaminationReport]:
    """Drop the training queries that are too close to a test query.

    A query is dropped if, compared with any query of any test set, its words are equal (ignoring case and punctuation),
    their SimHashes differ in few bits, or the Jaccard similarity of their content words is high.

    With relevant documents of both sides, a query is also dropped if one of its documents is relevant to a test query:
    the same id in sets of the same name, or the same text in any sets (equal words, a close SimHash, or a Jaccard
    similarity of at least `rules.min_document_jaccard`).

    Args:
        train: training queries by set name.
        test: development and test queries by set name.
        rules: similarity from which a query is dropped; by default DuplicateRules().
        train_relevant: relevant documents of the training queries; None to compare queries only.
        test_relevant: relevant documents of the test queries.

    Returns:
        The kept queries by set name, in their order, and the report.
    """
    rules = rules or DuplicateRules()
    train_relevant = train_relevant or RelevantDocuments()
    test_queries = [(name, query) for name, queries in test.items() for query in queries]
    near = NearDuplicates([query for _, query in test_queries], rules)
    sharing = _SharedDocuments(test_queries, test_relevant or RelevantDocuments(), rules)
    kept: dict[str, list[Query]] = {}
    reports: dict[str, SetReport] = {}
    for name, queries in train.items():
        tally = _Tally(test_queries)
        qrels = train_relevant.qrels.get(name, {})
        documents = train_relevant.documents.get(name, {})
        kept[name] = []
        for query in queries:
            shared = sharing.matches(name, qrels.get(query.query_id, {}), documents)
            matches = [*near.matches(query.text), *shared]
            tally.add(query, matches)
            if not matches:
                kept[name].append(query)
        reports[name] = tally.report(len(queries))
    test_sizes = {name: len(queries) for name, queries in test.items()}
    return kept, DecontaminationReport(rules, test_sizes, reports)


def decontaminate_sets(
    sets: Sequence[TrainingSet],
    test: Sequence[Dataset],
    *,
    rules: DuplicateRules | None = None,
    shared_documents: bool = False,
) -> tuple[list[TrainingSet], DecontaminationReport]:
    """Decontaminate training sets against all queries of the test sets' splits except "train".

    Args:
        sets: training sets. A set that loses all its queries is returned empty.
        test: test sets.
        rules: similarity from which a query is dropped; by default DuplicateRules().
        shared_documents: also drop training queries that share a relevant document with a test query.
    """
    queries: dict[str, list[Query]] = {}
    qrels: dict[str, Qrels] = {}
    documents: dict[str, dict[str, Document]] = {}
    for dataset in test:
        judged = qrels[dataset.name] = _held_out_qrels(dataset)
        queries[dataset.name] = [query for query in dataset.queries() if query.query_id in judged]
        if shared_documents:
            relevant = {doc_id for grades in judged.values() for doc_id, grade in grades.items() if grade >= 1}
            documents[dataset.name] = {d.doc_id: d for d in dataset.corpus() if d.doc_id in relevant}
    train_queries = {training.name: list(training.queries()) for training in sets}
    train_relevant = test_relevant = None
    if shared_documents:
        positives = {training.name: _positives_as_qrels(training) for training in sets}
        train_relevant = RelevantDocuments(positives, {training.name: training.documents for training in sets})
        test_relevant = RelevantDocuments(qrels, documents)
    kept, report = decontaminate(
        train_queries,
        queries,
        rules=rules,
        train_relevant=train_relevant,
        test_relevant=test_relevant,
    )
    clean = []
    for training in sets:
        kept_ids = {query.query_id for query in kept[training.name]}
        dropped = [query.query_id for query in train_queries[training.name] if query.query_id not in kept_ids]
        clean.append(training.without(dropped))
    return clean, report


def _positives_as_qrels(training: TrainingSet) -> Qrels:
    return {example.query_id: dict.fromkeys(example.positive_ids, 1) for example in training.examples}


def _held_out_qrels(dataset: Dataset) -> Qrels:
    """Return the qrels of all splits except "train"."""
    judged: Qrels = {}
    for split in dataset.splits:
        if split != "train":
            for query_id, grades in dataset.qrels(split).items():
                judged.setdefault(query_id, {}).update(grades)
    return judged


class _SharedDocuments:
    """Finds the test queries that a training query shares a relevant document with, by id or by text."""

    def __init__(
        self, test_queries: Sequence[tuple[str, Query]], relevant: RelevantDocuments, rules: DuplicateRules
    ) -> None:
        self._by_document: dict[tuple[str, str], list[int]] = defaultdict(list)
        for position, (name, query) in enumerate(test_queries):
            for doc_id, grade in relevant.qrels.get(name, {}).get(query.query_id, {}).items():
                if grade >= 1:
                    self._by_document[name, doc_id].append(position)
        documents = relevant.documents
        self._with_text = [key for key in self._by_document if key[1] in documents.get(key[0], {})]
        texts = [Query(doc_id, documents[name][doc_id].full_text()) for name, doc_id in self._with_text]
        self._texts = NearDuplicates(texts, replace(rules, min_jaccard=rules.min_document_jaccard))
        self._known: dict[tuple[str, str], frozenset[int]] = {}

    def matches(self, name: str, grades: Mapping[str, int], documents: Mapping[str, Document]) -> list[Match]:
        """Return the matches of a training query with these grades, in the set `name`."""
        relevant = [doc_id for doc_id, grade in grades.items() if grade >= 1]
        positions = {position for doc_id in relevant for position in self._positions(name, doc_id, documents)}
        return [Match(position, "shared_document", 0.0) for position in sorted(positions)]

    def _positions(self, name: str, doc_id: str, documents: Mapping[str, Document]) -> frozenset[int]:
        if (name, doc_id) not in self._known:
            positions = set(self._by_document.get((name, doc_id), ()))
            if self._with_text and (document := documents.get(doc_id)) is not None:
                for match in self._texts.matches(document.full_text()):
                    positions.update(self._by_document[self._with_text[match.position]])
            self._known[name, doc_id] = frozenset(positions)
        return self._known[name, doc_id]


class _Tally:
    """Counts the matches of one training set."""

    def __init__(self, test_queries: Sequence[tuple[str, Query]]) -> None:
        self._test_queries = test_queries
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
        self._by_test_set.update({self._test_queries[match.position][0] for match in matches})
        self._touched.update(match.position for match in matches)
        for rule in rules:
            if len(self._samples[rule]) < N_SAMPLES:
                first = next(match for match in matches if match.rule == rule)
                name, test_query = self._test_queries[first.position]
                sample = Sample(query.query_id, query.text, name, test_query.query_id, test_query.text, first.value)
                self._samples[rule].append(sample)

    def report(self, n_queries: int) -> SetReport:
        names = dict.fromkeys(name for name, _ in self._test_queries)
        touched = Counter(self._test_queries[position][0] for position in self._touched)
        return SetReport(
            queries=n_queries,
            dropped=self._dropped,
            by_rule={rule: self._by_rule[rule] for rule in RULES},
            only_by_rule={rule: self._only_by_rule[rule] for rule in RULES},
            by_test_set={name: self._by_test_set[name] for name in names},
            test_queries_touched={name: touched[name] for name in names},
            samples={rule: tuple(samples) for rule, samples in self._samples.items()},
        )
