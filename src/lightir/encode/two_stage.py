"""Late parametric search, measured: a first search whose best documents are put in the order of another (SiDR)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.index import Index
from lightir.kernel import DocOrds
from lightir.kernel.candidates import Candidates
from lightir.search import DEFAULT_OPTIONS, PreparedSearch, Searcher, SearchOptions
from lightir.search.explain import Explanation
from lightir.search.searcher import BATCH_QUERIES
from lightir.types import Query, Ranking, Run


class TwoStageSearcher:
    """Two searchers, of which the second orders the m best documents of the first.

    The second searcher's index holds all documents' vectors, where a served one would encode the m documents when they
    are asked for: the ranking is the same.
    """

    def __init__(self, first: Searcher, second: Searcher, *, first_mode: str, m: int) -> None:
        """Put both stages together.

        Args:
            first: the searcher of the first stage.
            second: the searcher of the second stage; its index holds the documents of the first one's.
            first_mode: mode of the first stage.
            m: number of the first stage's documents that the second stage orders.

        Raises:
            InvalidInput: m is below 1.
        """
        if m < 1:
            raise InvalidInput(f"the second stage orders {m} documents; at least 1 is needed")
        self._first, self._second = first, second
        self._first_mode, self._m = first_mode, m

    @property
    def index(self) -> Index:
        """The index of the second stage."""
        return self._second.index

    def search(self, queries: Iterable[Query | str], k: int = 10, options: SearchOptions = DEFAULT_OPTIONS) -> Run:
        """Return the k best documents of each query.

        The m best have the scores of the second stage's branch, or of its branches' fusion over these documents alone,
        by the contract's method and weights. The others follow in the first stage's order, one below the last of them
        and then by the first stage's differences.

        Args:
            queries: queries, or texts, whose query_id is their position.
            k: number of documents.
            options: the mode is that of the second stage; all other options are those of the first.

        Raises:
            InvalidInput: see Searcher.search.
        """
        named = [Query(str(i), query) if isinstance(query, str) else query for i, query in enumerate(queries)]
        prepared = self._second.prepare(SearchOptions(mode=options.mode))
        rankings = self._first.search(named, max(k, self._m), dataclasses.replace(options, mode=self._first_mode))
        run: Run = {}
        for start in range(0, len(named), BATCH_QUERIES):
            batch = named[start : start + BATCH_QUERIES]
            heads = [self._head(prepared, rankings[query.query_id]) for query in batch]
            for query, head in zip(batch, prepared.rank_given(prepared.encode(batch), heads), strict=True):
                run[query.query_id] = self._joined(prepared, head, rankings[query.query_id], k)
        return run

    def explain(self, query: str, doc_id: str, options: SearchOptions = DEFAULT_OPTIONS) -> Explanation:
        """Explain one document's score in the second stage, see Searcher.explain."""
        return self._second.explain(query, doc_id, options)

    def _head(self, prepared: PreparedSearch, first: Ranking) -> DocOrds:
        doc_ids = list(first.doc_ids[: self._m])
        doc_ords = [prepared.view.doc_ord(doc_id) for doc_id in doc_ids]
        if None in doc_ords:
            missing = doc_ids[doc_ords.index(None)]
            raise InvalidInput(f"document {missing!r} of the first stage is not in {self.index.folder}")
        return np.array(doc_ords, dtype=np.uint32)

    def _joined(self, prepared: PreparedSearch, head: Candidates, first: Ranking, k: int) -> Ranking:
        doc_ids = [*prepared.view.doc_ids(head.doc_ords), *first.doc_ids[self._m :]]
        return Ranking(first.query_id, doc_ids[:k], _joined_scores(head.scores, first.scores[self._m :])[:k])


def _joined_scores(head: npt.NDArray[np.float64], tail: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The head's scores, and the tail's moved below them."""
    if not len(tail):
        return head
    return np.concatenate([head, head[-1] - 1 + (tail - tail[0])])
