"""Late search (SiDR): encode the pending documents among a query's best within a time limit, then rank with them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lightir.errors import InvalidInput, WriteFailed
from lightir.index.connections import BUSY_S
from lightir.pending import Encoded, Queue, deliver, encode_documents, keys_of_pending, require_fit
from lightir.pending.queue_file import is_busy
from lightir.search.search_options import DEFAULT_OPTIONS, Mode, SearchOptions
from lightir.search.searcher import Searcher
from lightir.shards import DocumentEncoder
from lightir.types import Document, Hit

CHARACTERS_PER_TOKEN = 6
"""Upper estimate of a token's length. Text beyond this many characters per token of the model's limit is cut."""

DECAY = 0.9
"""Factor by which each new measurement of the encoder's speed lowers the weight of earlier ones."""


@dataclass(frozen=True, slots=True)
class LateOptions:
    """Number of documents that late search considers, and its time limit.

    Attributes:
        m: number of the query's best documents whose pending ones are encoded.
        budget_ms: time limit in milliseconds, from the start of the first search to the last commit. A document that
            would exceed it, judged by the documents before, is not encoded; the first one ever is always encoded.
    """

    m: int = 20
    budget_ms: float = 500.0

    def __post_init__(self) -> None:
        """Refuse fewer than one document and a limit that is not positive."""
        if self.m < 1 or not self.budget_ms > 0:
            raise InvalidInput(f"m is {self.m} and budget_ms {self.budget_ms:g}; both must be above 0")


@dataclass(frozen=True, slots=True)
class LateReport:
    """Outcome of late encoding for one query.

    Attributes:
        encoded: ids of the documents that were encoded and committed; the query is ranked with their vectors.
        parked: ids of the documents whose vectors wait for the writer's lock; the query is ranked without them.
        failed: error message for the id of each document that could not be encoded.
        left: number of documents among the m best that are still pending for lack of time or claimed by a worker.
        seconds: time of the first search, the encoding and the commit.
    """

    encoded: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    left: int = 0
    seconds: float = 0.0

    def marked(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits with `late` set on those that were encoded for the query."""
        return [dataclasses.replace(hit, late=hit.doc_id in self.encoded) for hit in hits]


class LateSearcher:
    """Searches in two stages, and encodes pending documents between them.

    The first stage, the tokens branch by default, finds the m best documents. The pending ones among them are encoded
    and committed, so every later search has their vectors too. If another writer has the lock, the vectors are parked,
    and the next process that delivers commits them. The last stage is a search of the updated index.
    """

    def __init__(
        self,
        searcher: Searcher,
        encoder: DocumentEncoder,
        late: LateOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Combine a searcher and a document encoder.

        Args:
            searcher: searcher of both stages; its index must be writable.
            encoder: encoder of the index's model.
            late: which documents are encoded, and the time limit; None for the defaults.
            clock: function that returns the time in seconds.

        Raises:
            InvalidInput: the index has no contract.
            ContractMismatch: the encoder is of another model; each differing field with both values.
        """
        require_fit(searcher.index.view, encoder.contract)
        self.searcher = searcher
        self.encoder = encoder
        self.late = late or LateOptions()
        self._clock = clock
        self._max_characters = CHARACTERS_PER_TOKEN * encoder.contract.document.max_tokens
        self._seconds = self._characters = self._commit_s = 0.0

    def hits(
        self,
        query: str,
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
        *,
        first: Mode = "tokens",
        explain: bool = False,
    ) -> tuple[list[Hit], LateReport]:
        """Return the k best documents, and what was encoded for the query.

        Args:
            query: text of the query.
            k: number of documents; fewer are returned if fewer match.
            options: options of the last stage. The first stage has their filter and exclusions.
            first: mode of the first stage.
            explain: list the matched terms of each hit.
        """
        report = self.encode_for(query, options, first=first)
        return report.marked(self.searcher.hits(query, k, options, explain=explain)), report

    def encode_for(self, query: str, options: SearchOptions = DEFAULT_OPTIONS, *, first: Mode = "tokens") -> LateReport:
        """Encode and commit the pending documents among a query's m best, and refresh the index.

        Args:
            query: text of the query.
            options: options whose filter and exclusions hold for the first stage.
            first: mode of the first stage.

        Raises:
            WriteFailed: the index cannot be written.
            InvalidInput: as `Searcher.search`.
        """
        start, index = self._clock(), self.searcher.index
        if not index.view.n_pending:
            return LateReport()
        keys = self._pending_among_best(query, options, first)
        if not keys:
            return LateReport(seconds=self._clock() - start)
        budget_s = self.late.budget_ms / 1000
        try:
            with Queue.open(index.folder, busy_s=min(budget_s, BUSY_S)) as queue:
                report = self._encode_and_deliver(queue, keys, start + budget_s)
        except WriteFailed as error:
            if not is_busy(error):
                raise
            report = LateReport(left=len(keys))
        index.refresh()
        return dataclasses.replace(report, seconds=self._clock() - start)

    def _pending_among_best(self, query: str, options: SearchOptions, first: Mode) -> list[int]:
        """Return the keys of the pending documents among the m best of the first stage, best first."""
        first_stage = SearchOptions(mode=first, filter=options.filter, exclude=options.excluded(""))
        ranking = self.searcher.search([query], self.late.m, first_stage)["0"]
        view = self.searcher.index.view  # may be newer than the one searched, if threads share the index
        doc_ords = [doc_ord for doc_id in ranking.doc_ids if (doc_ord := view.doc_ord(doc_id)) is not None]
        keys: list[int] = keys_of_pending(view, np.array(doc_ords, dtype=np.uint32)).tolist()
        return keys

    def _encode_and_deliver(self, queue: Queue, keys: Sequence[int], deadline: float) -> LateReport:
        claim = queue.claim(self.searcher.index, len(keys), only=keys)
        documents = claim.view.store.documents_of(claim.keys)
        encoded = Encoded()
        for key in claim.keys:
            if self._clock() + self._expected_s(documents[key]) + self._commit_s > deadline:
                break
            encoded.extend(self._encode(key, documents[key]))
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
        )

    def _encode(self, key: int, document: Document) -> Encoded:
        """Encode one document and measure the encoder's speed."""
        start = self._clock()
        encoded = encode_documents(self.encoder, {key: document})
        self._seconds = DECAY * self._seconds + self._clock() - start
        self._characters = DECAY * self._characters + self._n_characters(document)
        return encoded

    def _expected_s(self, document: Document) -> float:
        return self._n_characters(document) * self._seconds / self._characters if self._characters else 0.0

    def _n_characters(self, document: Document) -> int:
        return min(1 + len(document.title) + len(document.text), self._max_characters)
