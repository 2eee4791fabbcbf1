"""From the lists of a plan's branches to one ranking a query, in total order; pending documents are estimated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lightir.index import View
from lightir.kernel import DocOrds
from lightir.search.branches import BranchSearch
from lightir.search.fusion import NO_DOCUMENTS, BranchList, Fused, PairScores, alone, fuse, fuse_best
from lightir.search.plan import Plan
from lightir.search.progressive import with_estimates
from lightir.types import Branch
from lightir.vectors import Floats


def ranked(searched: BranchSearch, chosen: Plan, k: int, depth: int, banned: Sequence[set[str]]) -> Iterator[Fused]:
    """Each query's k best documents, in the order of the queries.

    Args:
        searched: the queries.
        chosen: the branches, and how they are joined.
        k: number wanted.
        depth: documents that each branch gives to the fusion.
        banned: for each query the doc_ids to leave out.
    """
    deep = k if len(chosen.branches) == 1 else max(k, depth)
    n_banned = [len(each) for each in banned]
    for doc_ids, fused in zip(banned, joined(searched, chosen, deep, k, more=n_banned), strict=True):
        yield without(fused, searched.view, doc_ids).take(slice(0, k))


def joined(
    searched: BranchSearch, chosen: Plan, depth: int, k: int, *, more: Sequence[int] | None = None
) -> Iterator[Fused]:
    """Each query's k best candidates, or more of them, out of `depth` of each branch; in the order of the queries.

    One branch alone keeps its scores; a plan with estimates, or with a language model, is joined in numpy, which knows
    every candidate; all others in one call of the kernel, which keeps the best.

    Args:
        searched: the queries.
        chosen: the branches, and how they are joined.
        depth: documents that each branch gives to the fusion.
        k: number wanted.
        more: by how many documents a query goes deeper, both in its branches' lists and in the result; None for none.
            A query is ranked by its own depth, whatever the others of the batch ask for.
    """
    further = [0] * searched.queries.n if more is None else more
    deepest = depth + max(further, default=0)
    lists = {branch: searched.top(branch, deepest) for branch in chosen.branches}
    tokens = guide(lists, searched, chosen, deepest)
    ties = not searched.view.ids_ascend
    for i, n_more in enumerate(further):
        deep = depth + n_more
        found = {branch: each[i].first(deep) for branch, each in lists.items()}
        if tokens is not None:
            yield candidates(found, tokens[i].first(deep), searched, i, chosen, deep)
        elif len(found) == 1:
            yield alone(chosen.branches[0], found[chosen.branches[0]])
        elif "tokens" in found and searched.queries.smoothing is not None:
            yield candidates(found, None, searched, i, chosen, deep)
        else:
            queries = {branch: searched.query(branch, i) for branch in found}
            complete = searched.complete(chosen.branches)
            best = fuse_best(found, queries, fusion=chosen.fusion, k=k + n_more, ties=ties, complete=complete)
            yield _in_order(best, searched.view)


def guide(
    lists: Mapping[Branch, list[BranchList]], searched: BranchSearch, chosen: Plan, depth: int
) -> list[BranchList] | None:
    """Each query's tokens list, which pending documents are found in; None where they are not estimated."""
    if not chosen.estimates:
        return None
    return lists["tokens"] if "tokens" in lists else searched.top("tokens", depth)


def candidates(
    lists: Mapping[Branch, BranchList],
    tokens: BranchList | None,
    searched: BranchSearch,
    i: int,
    chosen: Plan,
    depth: int,
    *,
    also: DocOrds = NO_DOCUMENTS,
) -> Fused:
    """All candidates of one query, best first.

    Args:
        lists: the branches' lists.
        tokens: the tokens branch's list, if pending documents are estimated from it; else None.
        searched: the batch.
        i: the query's position in it.
        chosen: how branches are joined.
        depth: documents that each branch gives to the fusion.
        also: documents to score even if no branch lists them.
    """

    def pair_scores(branch: Branch, doc_ords: DocOrds) -> Floats:
        return searched.pair_scores(branch, doc_ords, i)

    said: PairScores = pair_scores
    if tokens is not None:
        lists, said = with_estimates(
            lists,
            tokens,
            pair_scores,
            pending=searched.view.waits.__getitem__,
            best=lambda found, estimates: searched.merged([found, estimates], depth),
        )
    return _in_order(fuse(lists, said, fusion=chosen.fusion, also=also), searched.view)


def _in_order(fused: Fused, view: View) -> Fused:
    if view.ids_ascend:
        return fused
    return fused.take(view.break_ties(fused.doc_ords, fused.scores))


def without(fused: Fused, view: View, doc_ids: set[str]) -> Fused:
    """The candidates without some documents."""
    ords = [doc_ord for doc_id in doc_ids if (doc_ord := view.doc_ord(doc_id)) is not None]
    if not ords:
        return fused
    return fused.take(np.flatnonzero(~np.isin(fused.doc_ords, np.array(ords, dtype=np.uint32))))
