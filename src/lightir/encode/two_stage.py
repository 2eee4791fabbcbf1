"""Late parametric search, measured: a first search whose best documents are put in the order of another (SiDR)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.index import Index
from lightir.kernel import DocOrds
from lightir.search import Searcher
from lightir.search.branches import BranchSearch
from lightir.search.fusion import BranchList, fuse
from lightir.search.options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.plan import Plan
from lightir.search.searcher import BATCH_QUERIES
from lightir.types import Branch, Query, Ranking, Run
from lightir.vectors import QueryEncoder


class TwoStageSearcher(Searcher):
    """Searches like another searcher, then orders the m best by a mode of its own index.

    The index holds all documents' vectors, where a served one would encode the m documents when they are asked for: the
    ranking is the same.
    """

    def __init__(
        self,
        index: Index,
        query_encoder: QueryEncoder | None,
        *,
        first: Searcher,
        first_mode: str,
        m: int,
        task: str | None = None,
        threads: int = 1,
    ) -> None:
        """Put both stages together.

        Args:
            index: of the second stage; it holds the documents of the first one's.
            query_encoder: of the second stage.
            first: the first stage.
            first_mode: its mode.
            m: how many of its documents are put in order.
            task: as Searcher takes it, for the second stage.
            threads: as Searcher takes it, for the second stage.
        """
        super().__init__(index, query_encoder, task=task, threads=threads)
        if m < 1:
            raise InvalidInput(f"the second stage orders {m} documents; at least 1 is needed")
        self._first, self._first_mode, self._m = first, first_mode, m

    def search(
        self,
        queries: Iterable[Query | str],
        k: int = 10,
        options: SearchOptions = DEFAULT_OPTIONS,
    ) -> Run:
        """As Searcher.search: `mode` orders the m best, all else is for the first stage.

        The m best have the scores of the mode's branch, or of its branches' fusion over these documents alone, with the
        mode's own method and weights; the others follow in the first stage's order, one below the last of them and then
        by the first stage's differences.

        Raises:
            InvalidInput: as Searcher.search.
        """
        named = [Query(str(i), query) if isinstance(query, str) else query for i, query in enumerate(queries)]
        how = self._prepared(self.index.view, SearchOptions(mode=options.mode))
        before = dataclasses.replace(options, mode=self._first_mode)
        found = self._first.search(named, max(k, self._m), before)
        run: Run = {}
        view = self.index.view
        for start in range(0, len(named), BATCH_QUERIES):
            batch = named[start : start + BATCH_QUERIES]
            searched = BranchSearch(view, self._encode(view, batch, how), threads=self.threads)
            for i, query in enumerate(batch):
                run[query.query_id] = self._ordered(found[query.query_id], searched, how.plan, i, k)
        return run

    def _ordered(self, first: Ranking, searched: BranchSearch, chosen: Plan, query: int, k: int) -> Ranking:
        head = list(first.doc_ids[: self._m])
        ords = [searched.view.doc_ord(doc_id) for doc_id in head]
        if None in ords:
            raise InvalidInput(f"document {head[ords.index(None)]!r} of the first stage is not in {self.index.folder}")
        scores = _scores(searched, chosen, np.array(ords, dtype=np.uint32), query)
        order = sorted(range(len(head)), key=lambda place: (-scores[place], head[place]))
        tail = first.doc_ids[self._m :]
        doc_ids = [*(head[place] for place in order), *tail]
        return Ranking(first.query_id, doc_ids[:k], _joined(scores[order], first.scores[self._m :])[:k])


def _scores(searched: BranchSearch, chosen: Plan, doc_ords: DocOrds, query: int) -> npt.NDArray[np.float64]:
    """What a mode says of some documents, as if there were no others."""

    def branch_scores(branch: Branch, asked: DocOrds) -> npt.NDArray[np.float32]:
        return searched.pair_scores(branch, asked, query)

    said = {branch: branch_scores(branch, doc_ords) for branch in chosen.branches}
    if len(said) == 1:
        return said[chosen.branches[0]].astype(np.float64)
    lists = {}
    for branch, scores in said.items():
        order = np.lexsort((doc_ords, -scores))
        lists[branch] = BranchList(doc_ords[order], scores[order])
    fused = fuse(lists, branch_scores, fusion=chosen.fusion)
    places = np.argsort(fused.doc_ords)
    ordered: npt.NDArray[np.float64] = fused.scores[places][np.searchsorted(fused.doc_ords[places], doc_ords)]
    return ordered


def _joined(head: npt.NDArray[np.float64], tail: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The head's scores, and the tail's moved below them."""
    if not len(tail):
        return head
    return np.concatenate([head, head[-1] - 1 + (tail - tail[0])])
