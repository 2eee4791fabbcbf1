"""Late search (SiDR's late parametric search): a first stage without a model, whose best documents a model orders.

    f(q, D_m) = <V(q), V(d)>  for the m best documents d of the first stage,

encoded while the query waits, unless they have been before. SiDR's first stage is beta search over bags of tokens, or
BM25, and its second stage a bi-encoder, `lightir.search.second_stage`. Any mode can be the first stage, and a
cross-encoder or query likelihood the second one, `lightir.search.pair_stage`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lightir.errors import InvalidInput
from lightir.index.passages.naming import first_of_documents
from lightir.search.search_options import DEFAULT_OPTIONS, Mode, SearchOptions
from lightir.search.searcher import Searcher
from lightir.types import BranchScore, Hit, Part, Query, Ranking, Run


@dataclass(frozen=True, slots=True)
class LateOptions:
    """Number of documents that late search orders, and its time limit.

    Attributes:
        m: number of the query's best documents that the second stage encodes and orders.
        budget_ms: time limit in milliseconds, from the start of the first stage to the last commit; None for no limit,
            as in the paper. A document that would exceed it, judged by the documents before, is not encoded; the first
            one ever is always encoded.
    """

    m: int = 20
    budget_ms: float | None = None

    def __post_init__(self) -> None:
        """Refuse fewer than one document and a limit that is not positive."""
        if self.m < 1 or (self.budget_ms is not None and not self.budget_ms > 0):
            raise InvalidInput(f"m is {self.m} and budget_ms {self.budget_ms}; both must be above 0")


@dataclass(frozen=True, slots=True)
class LateReport:
    """Work of the second stage for one query.

    Attributes:
        encoded: ids of the documents that were encoded for the query; those of the index's own model were committed.
        read: number of documents that a model read together with the query.
        parked: ids of encoded documents whose vectors wait for the writer's lock; the query is ranked without them.
        failed: error message for the id of each document that could not be encoded.
        left: number of documents among the m best that keep their place in the first stage, because they were not
            encoded or read in time, or are claimed by a worker.
        encoding_seconds: time in which the model encoded or read documents.
        seconds: time of both stages, with encoding and commit.
    """

    encoded: tuple[str, ...] = ()
    read: int = 0
    parked: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    left: int = 0
    encoding_seconds: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SecondScores:
    """Scores of documents by the second stage.

    Attributes:
        scores: score by doc_id; documents that were not scored are missing.
        branches: parts of each score by doc_id.
        report: which documents were encoded.
    """

    scores: Mapping[str, float]
    branches: Mapping[str, Mapping[Part, BranchScore]]
    report: LateReport


class SecondStage(Protocol):
    """A model that scores given documents for a query."""

    def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
        """Score documents; a bi-encoder encodes those without vectors first.

        Args:
            query: text of the query.
            doc_ids: documents of the index, best first.
            seconds: time limit; None for none.
        """
        ...


class LateSearcher:
    """Searches in two stages: the m best documents of the first one are put in the order of the second one.

    A document that the second stage could not score keeps its place, and has the score of the document before it. The
    documents after the m best follow in the first stage's order, below the last of them.
    """

    def __init__(
        self,
        searcher: Searcher,
        second: SecondStage,
        late: LateOptions | None = None,
        *,
        first_mode: Mode | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Combine both stages.

        Args:
            searcher: searcher of the first stage.
            second: second stage over the same index.
            late: number of documents, and the time limit; None for the defaults.
            first_mode: mode of the first stage for searches whose options name none; None for beta search over bags of
                tokens, otherwise BM25.
            clock: function that returns the time in seconds.
        """
        self.searcher = searcher
        self.late = late or LateOptions()
        self.first_mode: Mode = first_mode or ("beta" if searcher.index.holds_bags else "tokens")
        self._second = second
        self._clock = clock

    def search(
        self, queries: Iterable[Query | str], k: int = 10, options: SearchOptions = DEFAULT_OPTIONS
    ) -> tuple[Run, dict[str, LateReport]]:
        """Return the k best documents of each query, and each query's report, by query_id.

        Args:
            queries: queries, or texts, whose query_id is their position.
            k: number of documents; fewer are returned if fewer match.
            options: options of the first stage; mode None is `first_mode`.

        Raises:
            InvalidInput, WriteFailed: as `hits`.
        """
        named = [Query(str(i), query) if isinstance(query, str) else query for i, query in enumerate(queries)]
        run: Run = {}
        reports = {}
        for query in named:
            start = self._clock()
            first = self.searcher.search([query], max(k, self.late.m), self._first(options))[query.query_id]
            second = self._score(self._words(query.text, options), first.doc_ids, start)
            doc_ids, scores = joined(first.doc_ids, first.scores.tolist(), second.scores, m=self.late.m)
            shown = self._shown(doc_ids, options)[:k]
            named_ids = [self._document_of(doc_ids[at], options) for at in shown]
            ranked = np.array([scores[at] for at in shown], dtype=np.float64)
            run[query.query_id] = Ranking(query.query_id, named_ids, ranked)
            reports[query.query_id] = second.report
        return run, reports

    def hits(
        self, query: str, k: int = 10, options: SearchOptions = DEFAULT_OPTIONS, *, explain: bool = False
    ) -> tuple[list[Hit], LateReport]:
        """Return the k best documents, and what was encoded for the query.

        A hit that the second stage scored has that score and its parts; the parts of the first stage have the weight 0.

        Args:
            query: text of the query.
            k: number of documents; fewer are returned if fewer match.
            options: options of the first stage; mode None is `first_mode`.
            explain: list the matched terms of the first stage.

        Raises:
            InvalidInput: as `Searcher.hits`.
            WriteFailed: the index cannot be written.
        """
        start = self._clock()
        first = self.searcher.hits(query, max(k, self.late.m), self._first(options), explain=explain)
        hits = {hit.doc_id: hit for hit in first}
        second = self._score(self._words(query, options), list(hits), start)
        ranked = joined(list(hits), [hit.score for hit in first], second.scores, m=self.late.m)
        doc_ids, scores = ranked
        shown: list[Hit] = []
        report = second.report
        for at in self._shown(doc_ids, options)[:k]:
            doc_id = doc_ids[at]
            hit = _rescored(hits[doc_id], scores[at], second.branches.get(doc_id), late=doc_id in report.encoded)
            shown.append(dataclasses.replace(hit, doc_id=self._document_of(doc_id, options)))
        return shown, report

    def _first(self, options: SearchOptions) -> SearchOptions:
        """Return the options of the first stage, which gives passages to the second one."""
        mode = self.first_mode if options.mode is None else options.mode
        return dataclasses.replace(options, mode=mode, passages=True)

    def _words(self, query: str, options: SearchOptions) -> str:
        """Return the text of a query that the second stage encodes."""
        return self.searcher.prepare(self._first(options)).read(query)[1]

    def _shown(self, doc_ids: Sequence[str], options: SearchOptions) -> list[int]:
        """Return the positions of the hits: those of each document's best passage, unless all passages are wanted."""
        by_document = self.searcher.index.view.has_passages and not options.passages
        return first_of_documents(doc_ids).tolist() if by_document else list(range(len(doc_ids)))

    def _document_of(self, doc_id: str, options: SearchOptions) -> str:
        return doc_id if options.passages else self.searcher.index.view.document_of(doc_id)

    def _score(self, query: str, doc_ids: Sequence[str], start: float) -> SecondScores:
        """Return the second stage's scores of the m best, with the time of both stages in the report."""
        limit_ms = self.late.budget_ms
        left_s = None if limit_ms is None else start + limit_ms / 1000 - self._clock()
        ordered = doc_ids[: self.late.m] if query.strip() else ()  # there are no words to order a listing by
        second = self._second.score(query, list(ordered), seconds=left_s)
        report = dataclasses.replace(second.report, seconds=self._clock() - start)
        return dataclasses.replace(second, report=report)


def joined(
    doc_ids: Sequence[str], first_scores: Sequence[float], scores: Mapping[str, float], *, m: int
) -> tuple[list[str], list[float]]:
    """Return the documents in their final order, and their scores, which do not ascend.

    Args:
        doc_ids: ranking of the first stage.
        first_scores: its scores, which do not ascend.
        scores: scores of the second stage, of some of the m best.
        m: number of documents that the second stage may move.
    """
    if not scores:
        return list(doc_ids), list(first_scores)
    ordered = iter(sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id)))
    head = [next(ordered) if doc_id in scores else doc_id for doc_id in doc_ids[:m]]
    last = max(scores.values())
    head_scores = [last := scores.get(doc_id, last) for doc_id in head]
    tail = [last - 1 + (score - first_scores[m]) for score in first_scores[m:]]
    return [*head, *doc_ids[m:]], [*head_scores, *tail]


def _rescored(hit: Hit, score: float, branches: Mapping[Part, BranchScore] | None, *, late: bool) -> Hit:
    """Return a hit with its final score; `branches` are the parts of the second stage, None if it gave no score."""
    if branches is None:
        return dataclasses.replace(hit, score=score, late=late)
    parts = {name: dataclasses.replace(part, weight=0.0) for name, part in hit.branches.items()}
    return dataclasses.replace(hit, score=score, branches={**parts, **branches}, late=late, pending=False)
