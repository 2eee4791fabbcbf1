"""Late re-ranking (SiDR): the best of the documents that lack vectors are encoded while their query waits, once."""

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
from lightir.search.options import DEFAULT_OPTIONS, Mode, SearchOptions
from lightir.search.searcher import Searcher
from lightir.shards import DocumentEncoder
from lightir.types import Document, Hit

CHARACTERS_A_TOKEN = 6
"""Characters of a document beyond this many for each token of the model's longest input are cut, and cost nothing."""

MEMORY = 0.9
"""How much each further document leaves of what was measured of the encoder's speed before."""


@dataclass(frozen=True, slots=True)
class LateReport:
    """What was done for one query.

    Attributes:
        encoded: ids of the documents that were encoded and committed; the query is ranked with their vectors.
        parked: ids of those whose vectors wait for the writer's lock; the query is ranked without them.
        failed: doc_id -> error of those that were set aside.
        left: how many of the m best are pending still: no time, or another worker has them.
        seconds: for finding, encoding and committing them.
    """

    encoded: tuple[str, ...] = ()
    parked: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    left: int = 0
    seconds: float = 0.0

    def marked(self, hits: Sequence[Hit]) -> list[Hit]:
        """The hits, those late that were encoded for the query."""
        return [dataclasses.replace(hit, late=hit.doc_id in self.encoded) for hit in hits]


class LateSearcher:
    """A searcher that first encodes what is pending among a query's best documents, within a budget of time.

    The first stage, the tokens branch by default, finds the m best documents. Those that are pending are encoded and
    committed, so that every later search has their vectors; where another writer has the lock they are parked, and
    whoever commits next commits them. The last stage ranks the index as any search does.
    """

    def __init__(
        self,
        searcher: Searcher,
        encoder: DocumentEncoder,
        *,
        m: int = 20,
        budget_ms: float = 500.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Put a searcher and a document encoder together.

        Args:
            searcher: whose index can be written.
            encoder: of the index's model.
            m: how many of a query's best documents are looked at.
            budget_ms: from the start of the first search to the last commit. No document is begun that would take
                longer, judged by those before; only the very first one is begun on trust.
            clock: seconds.

        Raises:
            InvalidInput: m is below 1, the budget not above 0, or the index has no contract.
            ContractMismatch: the encoder is of another model; each differing field with both values.
        """
        if m < 1 or not budget_ms > 0:
            raise InvalidInput(f"m is {m} and budget_ms {budget_ms:g}; at least one document and some time are needed")
        require_fit(searcher.index.view, encoder.contract)
        self.searcher = searcher
        self.encoder = encoder
        self.m = m
        self.budget_s = budget_ms / 1000
        self._clock = clock
        self._longest = CHARACTERS_A_TOKEN * encoder.contract.document.max_tokens
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
        """The k best documents, after the pending ones among the m best were encoded, and what was done for it.

        Args:
            query: its text.
            k: see `Searcher.hits`, as is all that is not said here.
            options: options of the last stage; the first stage has their filter and exclusions.
            first: the mode whose m best documents are looked at.
            explain: see `Searcher.hits`.
        """
        report = self.encode_for(query, options, first=first)
        return report.marked(self.searcher.hits(query, k, options, explain=explain)), report

    def encode_for(self, query: str, options: SearchOptions = DEFAULT_OPTIONS, *, first: Mode = "tokens") -> LateReport:
        """Encode and commit the pending ones among a query's m best documents, and move the index to its newest state.

        Raises:
            WriteFailed: the index cannot be written.
            InvalidInput: as `Searcher.search`.
        """
        start, index = self._clock(), self.searcher.index
        if not index.view.n_pending:
            return LateReport()
        limits = SearchOptions(mode=first, filter=options.filter, exclude=options.excluded(""))
        found = self.searcher.search([query], self.m, limits)
        view = index.view  # perhaps newer than the one that was searched, where threads share the index
        numbers = [view.doc_ord(doc_id) for doc_id in found["0"].doc_ids]
        there = [number for number in numbers if number is not None]
        wanted = keys_of_pending(view, np.array(there, dtype=np.uint32)).tolist()
        if not wanted:
            return LateReport(seconds=self._clock() - start)
        try:
            with Queue.open(index.folder, busy_s=min(self.budget_s, BUSY_S)) as queue:
                report = self._encode(queue, wanted, start + self.budget_s)
        except WriteFailed as error:
            if not is_busy(error):
                raise
            report = LateReport(left=len(wanted))
        index.refresh()
        return dataclasses.replace(report, seconds=self._clock() - start)

    def _encode(self, queue: Queue, wanted: list[int], deadline: float) -> LateReport:
        index = self.searcher.index
        claim = queue.claim(index, len(wanted), only=wanted)
        documents = claim.view.store.documents_of(claim.keys)
        encoded = Encoded()
        for key in claim.keys:
            if self._clock() + self._expected_s(documents[key]) + self._commit_s > deadline:
                break
            encoded.extend(self._timed(key, documents[key]))
        tried = {*encoded.keys, *encoded.errors}
        queue.release([key for key in claim.keys if key not in tried])
        if not tried:
            return LateReport(left=len(wanted))
        begun = self._clock()
        delivery = deliver(index.folder, queue, self.encoder.contract, encoded, wait_s=0.0)
        self._commit_s = self._clock() - begun
        ids = {key: document.doc_id for key, document in documents.items()}
        return LateReport(
            encoded=tuple(doc_id for doc_id in encoded.doc_ids if doc_id in delivery.committed),
            parked=tuple(delivery.parked),
            failed={ids[key]: error for key, error in encoded.errors.items()},
            left=len(wanted) - len(tried),
        )

    def _timed(self, key: int, document: Document) -> Encoded:
        begun = self._clock()
        found = encode_documents(self.encoder, {key: document})
        self._seconds = MEMORY * self._seconds + self._clock() - begun
        self._characters = MEMORY * self._characters + self._length(document)
        return found

    def _expected_s(self, document: Document) -> float:
        return self._length(document) * self._seconds / self._characters if self._characters else 0.0

    def _length(self, document: Document) -> int:
        return min(1 + len(document.title) + len(document.text), self._longest)
