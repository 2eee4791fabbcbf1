"""Second stage by a model that reads a query and a document together: a cross-encoder, or query likelihood."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from lightir.search.late import LateReport, SecondScores
from lightir.search.searcher import Searcher
from lightir.search.second_stage import ReadingSpeed
from lightir.types import BranchScore, Document, Part


class PairScorer(Protocol):
    """A model that scores the relevance of documents to a query."""

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens that the model reads of a document."""
        ...

    def score_documents(self, query: str, documents: Sequence[Document]) -> list[float]:
        """Return one score per document; higher is better."""
        ...


class PairStage:
    """Orders documents by a `PairScorer`. The index needs no vectors, and gets none."""

    def __init__(self, searcher: Searcher, scorer: PairScorer, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Combine a searcher and a scorer.

        Args:
            searcher: searcher of the first stage, whose index has the texts.
            scorer: model that scores pairs.
            clock: function that returns the time in seconds.
        """
        self._index = searcher.index
        self._scorer = scorer
        self._clock = clock
        self._speed = ReadingSpeed(scorer.max_tokens)

    def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
        """Score the documents: together, or one by one as long as they are expected to be done in time."""
        start, view = self._clock(), self._index.view
        documents = list(view.documents([doc_id for doc_id in doc_ids if view.doc_ord(doc_id) is not None]))
        scores: dict[str, float] = {}
        took_s = 0.0
        for batch in [documents] if seconds is None else [[document] for document in documents]:
            begun = self._clock()
            if seconds is not None and begun + self._speed.expected_s(batch) > start + seconds:
                break
            given = self._scorer.score_documents(query, batch)
            self._speed.record(batch, self._clock() - begun)
            took_s += self._clock() - begun
            scores |= {document.doc_id: score for document, score in zip(batch, given, strict=True)}
        ranked = sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))
        parts: dict[str, dict[Part, BranchScore]] = {
            doc_id: {"rerank": BranchScore(scores[doc_id], scores[doc_id], rank, 1.0)}
            for rank, doc_id in enumerate(ranked, 1)
        }
        left = len(documents) - len(scores)
        return SecondScores(scores, parts, LateReport(read=len(scores), left=left, encoding_seconds=took_s))
