"""Second stages of late search: the index's own model, whose vectors the index keeps, or another bi-encoder."""

from __future__ import annotations

import dataclasses
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from lightir.contract import Contract
from lightir.errors import InvalidInput, WriteFailed
from lightir.index import View
from lightir.index.connections import BUSY_S, is_busy
from lightir.kernel import DocOrds
from lightir.kernel.candidates import Candidates
from lightir.pending import Encoded, Queue, deliver, encode_documents, keys_of_pending, require_fit
from lightir.search.late import LateReport, SecondScores
from lightir.search.search_options import Mode, SearchOptions
from lightir.search.searcher import Searcher
from lightir.shards import DocumentEncoder, Shard
from lightir.types import Branch, BranchScore, Document, Part, Query
from lightir.vectors import QueryEncoder, QueryVectors

CHARACTERS_PER_TOKEN = 6
"""Upper estimate of a token's length. Text beyond this many characters per token of the model's limit is cut."""

DECAY = 0.9
"""Factor by which each new measurement of the encoder's speed lowers the weight of earlier ones."""

DOCUMENTS_KEPT = 16_384
"""Default number of documents whose vectors a second stage by another model keeps in memory."""


class ReadingSpeed:
    """Measures how long a model takes to read documents, and expects the time of further ones."""

    def __init__(self, max_tokens: int) -> None:
        """Start without measurements of a model that reads up to `max_tokens` tokens of a document."""
        self._max_characters = CHARACTERS_PER_TOKEN * max_tokens
        self._seconds = self._characters = 0.0

    def expected_s(self, documents: Iterable[Document]) -> float:
        """Return the seconds that documents are expected to take; 0 before the first measurement."""
        return self._n_characters(documents) * self._seconds / self._characters if self._characters else 0.0

    def record(self, documents: Iterable[Document], seconds: float) -> None:
        """Add the measured time of some documents."""
        self._seconds = DECAY * self._seconds + seconds
        self._characters = DECAY * self._characters + self._n_characters(documents)

    def _n_characters(self, documents: Iterable[Document]) -> int:
        return sum(min(1 + len(document.title) + len(document.text), self._max_characters) for document in documents)


class TimedEncoding:
    """Encodes documents within a time limit, judged by the encoder's speed so far."""

    def __init__(self, contract: Contract, clock: Callable[[], float]) -> None:
        """Start without measurements of a model's encoder."""
        self._clock = clock
        self._speed = ReadingSpeed(contract.document.max_tokens)

    def encode(self, encoder: DocumentEncoder, documents: Mapping[int, Document]) -> tuple[Encoded, float]:
        """Encode documents together; return them and the seconds that it took."""
        start = self._clock()
        encoded = encode_documents(encoder, documents)
        took_s = self._clock() - start
        self._speed.record(documents.values(), took_s)
        return encoded, took_s

    def encode_until(
        self, encoder: DocumentEncoder, documents: Mapping[int, Document], deadline: float | None
    ) -> tuple[Encoded, float]:
        """Encode documents one by one as long as they are expected to be done by a deadline; all at once for None."""
        if deadline is None:
            return self.encode(encoder, documents) if documents else (Encoded(), 0.0)
        encoded, total_s = Encoded(), 0.0
        for key, document in documents.items():
            if self._clock() + self._speed.expected_s([document]) > deadline:
                break
            one, took_s = self.encode(encoder, {key: document})
            encoded.extend(one)
            total_s += took_s
        return encoded, total_s


class OwnStage:
    """Second stage by the index's own model: pending documents are encoded, committed, and scored like all others.

    So a full index grows while late search serves. If another writer has the lock, the vectors are parked, and the next
    process that delivers commits them.
    """

    def __init__(
        self,
        searcher: Searcher,
        encoder: DocumentEncoder,
        *,
        mode: Mode = "full",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Combine a searcher and a document encoder.

        Args:
            searcher: searcher of the second stage; its index must be writable.
            encoder: document encoder of the index's model.
            mode: mode whose scores order the documents: "full" is <V(q), V(d)> with queries through the model. Several
                branches are fused over these documents alone.
            clock: function that returns the time in seconds.

        Raises:
            InvalidInput: the index has no contract.
            ContractMismatch: the encoder is of another model; each differing field with both values.
        """
        require_fit(searcher.index.view, encoder.contract)
        self.searcher = searcher
        self.encoder = encoder
        self._options = SearchOptions(mode=mode)
        self._clock = clock
        self._timed = TimedEncoding(encoder.contract, clock)
        self._commit_s = 0.0

    def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
        """Encode and commit the pending ones of the documents, refresh the index, and score those with vectors.

        Raises:
            WriteFailed: the index cannot be written.
            InvalidInput: as `Searcher.search`.
        """
        report = self.encode(doc_ids, seconds=seconds)
        if not len(_encoded_ords(self.searcher.index.view, doc_ids)):
            return SecondScores({}, {}, report)
        prepared = self.searcher.prepare(self._options)
        encoded = _encoded_ords(prepared.view, doc_ids)
        (candidates,) = prepared.rank_given(prepared.encode([Query("", query)]), [encoded])
        ranked = prepared.view.doc_ids(candidates.doc_ords)
        parts = {doc_id: _parts_of(candidates, i) for i, doc_id in enumerate(ranked)}
        return SecondScores(dict(zip(ranked, candidates.scores.tolist(), strict=True)), parts, report)

    def encode(self, doc_ids: Sequence[str], *, seconds: float | None = None) -> LateReport:
        """Encode and commit the pending ones of some documents, and refresh the index.

        Args:
            doc_ids: documents, the first ones first.
            seconds: time limit; None for none.

        Raises:
            WriteFailed: the index cannot be written.
        """
        start, index = self._clock(), self.searcher.index
        if not index.view.n_pending:
            return LateReport()
        keys: list[int] = keys_of_pending(index.view, _doc_ords(index.view, doc_ids)).tolist()
        if not keys:
            return LateReport()
        try:
            busy_s = BUSY_S if seconds is None else min(max(seconds, 0.0), BUSY_S)
            with Queue.open(index.folder, busy_s=busy_s) as queue:
                report = self._encode_and_deliver(queue, keys, None if seconds is None else start + seconds)
        except WriteFailed as error:
            if not is_busy(error):
                raise
            report = LateReport(left=len(keys))
        index.refresh()
        return dataclasses.replace(report, seconds=self._clock() - start)

    def _encode_and_deliver(self, queue: Queue, keys: Sequence[int], deadline: float | None) -> LateReport:
        claim = queue.claim(self.searcher.index, len(keys), only=keys)
        documents = claim.view.store.documents.of(claim.keys)
        ordered = {key: documents[key] for key in claim.keys}
        last = None if deadline is None else deadline - self._commit_s
        encoded, encoding_s = self._timed.encode_until(self.encoder, ordered, last)
        tried = {*encoded.keys, *encoded.errors}
        queue.release([key for key in claim.keys if key not in tried])
        if not tried:
            return LateReport(left=len(keys))
        start = self._clock()
        delivery = deliver(self.searcher.index.folder, queue, self.encoder.contract, encoded, wait_s=0.0)
        self._commit_s = self._clock() - start
        return LateReport(
            encoded=tuple(doc_id for doc_id in encoded.doc_ids if doc_id in delivery.committed),
            parked=tuple(delivery.parked),
            failed={documents[key].doc_id: error for key, error in encoded.errors.items()},
            left=len(keys) - len(tried),
            encoding_seconds=encoding_s,
        )


class OtherStage:
    """Second stage by another model than the index's, dense or sparse; its vectors are kept in memory alone.

    A score is the inner product of the query's vector with the document's stored vector: of the dense ones (their
    cosine), or, for a model without, of the query's weights with the document's impacts.
    """

    def __init__(
        self,
        searcher: Searcher,
        documents: DocumentEncoder,
        queries: QueryEncoder,
        *,
        kept: int = DOCUMENTS_KEPT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Combine a model's two encoders.

        Args:
            searcher: searcher of the first stage, whose index has the texts.
            documents: document encoder of the model.
            queries: query encoder of the same model.
            kept: maximum number of documents whose vectors are kept, the last used ones.
            clock: function that returns the time in seconds.

        Raises:
            InvalidInput: the encoders belong to different models, or `kept` is negative.
        """
        if documents.contract.document_fingerprint != queries.document_fingerprint:
            raise InvalidInput("the encoders of documents and queries of the second stage belong to different models")
        if kept < 0:
            raise InvalidInput(f"kept is {kept}; expected 0 or more")
        self.searcher = searcher
        self.documents = documents
        self.queries = queries
        self._kept = kept
        self._vectors: OrderedDict[tuple[str, str, str], Shard] = OrderedDict()
        self._timed = TimedEncoding(documents.contract, clock)
        self._clock = clock

    @property
    def branch(self) -> Branch:
        """The branch of the model's vectors."""
        return "sparse" if self.documents.contract.dense is None else "dense"

    def score(self, query: str, doc_ids: Sequence[str], *, seconds: float | None) -> SecondScores:
        """Encode the documents whose vectors are not kept, and score those with vectors."""
        deadline = None if seconds is None else self._clock() + seconds
        view = self.searcher.index.view
        texts = view.documents([doc_id for doc_id in doc_ids if view.doc_ord(doc_id) is not None])
        unknown = {i: text for i, text in enumerate(texts) if _key(text) not in self._vectors}
        encoded, encoding_s = self._timed.encode_until(self.documents, unknown, deadline)
        alone = [shard.take(np.array([i])) for shard in encoded.shards for i in range(len(shard.documents))]
        self._vectors |= {_key(shard.documents[0]): shard for shard in alone}
        vectors = self.queries.encode([query])
        rows = {text.doc_id: self._vectors[_key(text)] for text in texts if _key(text) in self._vectors}
        scores = {doc_id: self._product(vectors, row) for doc_id, row in rows.items()}
        for row in rows.values():
            self._vectors.move_to_end(_key(row.documents[0]))
        while len(self._vectors) > self._kept:
            self._vectors.popitem(last=False)
        report = LateReport(
            encoded=tuple(encoded.doc_ids),
            failed={texts[i].doc_id: error for i, error in encoded.errors.items()},
            left=len(texts) - len(rows) - len(encoded.errors),
            encoding_seconds=encoding_s,
        )
        return SecondScores(scores, self._parts(scores), report)

    def _product(self, query: QueryVectors, document: Shard) -> float:
        if self.branch == "dense":
            assert query.dense is not None
            assert document.dense is not None
            row = document.dense[0].astype(np.float32)
            return float(np.dot(query.dense[0][: len(row)], row))
        assert query.sparse is not None
        assert document.sparse is not None
        (wanted, weights), (terms, impacts) = query.sparse.row(0), document.sparse.row(0)
        _, i, j = np.intersect1d(wanted, terms, assume_unique=True, return_indices=True)
        return float(np.dot(weights[i].astype(np.float64), impacts[j].astype(np.float64)))

    def _parts(self, scores: Mapping[str, float]) -> dict[str, dict[Part, BranchScore]]:
        ranked = sorted(scores, key=lambda doc_id: (-scores[doc_id], doc_id))
        return {
            doc_id: {self.branch: BranchScore(scores[doc_id], scores[doc_id], rank, 1.0)}
            for rank, doc_id in enumerate(ranked, 1)
        }


def _doc_ords(view: View, doc_ids: Sequence[str]) -> DocOrds:
    """Return the doc_ords of documents in a view, without those that were deleted after the first stage."""
    doc_ords = [doc_ord for doc_id in doc_ids if (doc_ord := view.doc_ord(doc_id)) is not None]
    return np.array(doc_ords, dtype=np.uint32)


def _encoded_ords(view: View, doc_ids: Sequence[str]) -> DocOrds:
    """Return the doc_ords of those documents that have vectors in a view."""
    doc_ords = _doc_ords(view, doc_ids)
    encoded: DocOrds = doc_ords[~view.waits[doc_ords]]
    return encoded


def _parts_of(candidates: Candidates, position: int) -> dict[Part, BranchScore]:
    """Return the parts of one candidate's score by branch."""
    return {
        cast(Branch, branch): BranchScore(
            float(column.scores[position]),
            float(column.normalized[position]),
            int(column.ranks[position]) or None,
            column.weight,
        )
        for branch, column in candidates.columns.items()
    }


def _key(document: Document) -> tuple[str, str, str]:
    return document.doc_id, document.title, document.text
