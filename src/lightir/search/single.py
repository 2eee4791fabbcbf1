"""One query in one call of the kernel, from text or vectors to its best documents, where the kernel can do it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lightir.index import View
from lightir.index.segments.columns import Mask
from lightir.kernel.hybrid import BoundBranch, Found, HybridSearch, text_search
from lightir.kernel.segments import Allowed, DenseSegments, SparseSegments
from lightir.query import CachedQueryEncoder
from lightir.search.branches import BranchSearch, EncodedQueries, has_graphs
from lightir.search.fusion import BranchColumn, Fused
from lightir.search.language_model import Smoothing
from lightir.search.plan import Plan
from lightir.types import Branch, Ranking
from lightir.vectors import QueryEncoder

OfTexts = Callable[[str, str, int, int, int], Ranking]


class SingleSearch:
    """A view and a plan, bound once for any number of single queries; it borrows the view's arrays, but keeps no view.

    Rankings, scores and columns are to the bit those of `BranchSearch.top` and `fuse_best`, which batches take, since
    their queries share the reading of rows.
    """

    def __init__(self, view: View, chosen: Plan) -> None:
        """Bind them; see `single_search` for what can be searched so."""
        self.branches = chosen.branches
        self._walks = "dense" in chosen.branches and has_graphs(view)
        self.weights = [float(chosen.fusion.weights[branch]) for branch in chosen.branches]
        searched = BranchSearch(view, EncodedQueries(0, None, None, None))
        complete = searched.complete(chosen.branches)
        parts = [
            BoundBranch(_documents(view, branch), weight, branch in complete, searched.allowed(branch))
            for branch, weight in zip(chosen.branches, self.weights, strict=True)
        ]
        fusion = chosen.fusion
        self._kernel = HybridSearch(
            parts,
            scale=fusion.normalization if fusion.method == "linear" else fusion.method,
            rrf_k=fusion.rrf_k,
            ids=None if view.ids_ascend else view.ids,
        )

    def ranked(
        self, searched: BranchSearch, *, allowed: Sequence[Allowed] | None, k: int, depth: int, columns: bool
    ) -> Fused:
        """The k best documents of a batch of one query.

        Args:
            searched: the query, with the filter where graphs are walked.
            allowed: see `allowed`.
            k: number wanted.
            depth: documents that each branch gives to the fusion; one branch alone gives k.
            columns: whether to say what the branches say of the k.
        """
        queries = [searched.query(branch, 0) for branch in self.branches]
        given = None
        if self._walks:
            (walked,) = searched.top("dense", k if len(self.branches) == 1 else depth)
            given = [(walked.doc_ords, walked.scores) if branch == "dense" else None for branch in self.branches]
        found = self._kernel.search(
            queries, k=k, depth=depth, threads=searched.threads, allowed=allowed, given=given, columns=columns
        )
        return self._fused(found)

    def allowed(self, view: View, matching: Sequence[Mask] | None) -> list[Allowed] | None:
        """The documents of the view that each branch may return where a filter matches some; None without a filter."""
        if matching is None:
            return None
        searched = BranchSearch(view, EncodedQueries(0, None, None, None), matching=matching)
        return [searched.allowed(branch) for branch in self.branches]

    def _fused(self, found: Found) -> Fused:
        doc_ords, scores, columns = found
        made = zip(self.branches, columns, self.weights, strict=False)  # there may be no columns
        return Fused(doc_ords, scores, {branch: BranchColumn(*column, weight) for branch, column, weight in made})

    def of_texts(self, view: View, encoder: QueryEncoder | None, task: str | None) -> OfTexts | None:
        """From query_id, text, k, depth and threads to a ranking, as `ranked` gives it for the text's vectors.

        None where graphs are walked, or vectors are made by more than the kernel: for words, bigrams or expansions, by
        an encoder of another kind, or in another width than the index's.

        Raises:
            NotFound: the encoder has no table for the task.
        """
        if self._walks or "tokens" in self.branches or not isinstance(encoder, CachedQueryEncoder):
            return None
        of_texts = encoder.text_encoder(task)
        if of_texts is None or ("sparse" in self.branches and not of_texts.counts_terms):
            return None
        if "dense" in self.branches and (of_texts.dim is None or of_texts.dim != view.dense_dim):
            return None
        return text_search(self._kernel, of_texts, unknown=encoder.tokenizer.unknown_id, ids=view.ids, record=Ranking)


def single_search(view: View, chosen: Plan, smoothing: Smoothing | None) -> SingleSearch | None:
    """What searches for single queries, or None where that takes more than the kernel.

    Pending documents are estimated and a language model is computed outside it; graphs are walked before its call.
    """
    if chosen.estimates or (smoothing is not None and "tokens" in chosen.branches):
        return None
    return SingleSearch(view, chosen)


def _documents(view: View, branch: Branch) -> DenseSegments | SparseSegments:
    if branch == "dense":
        return view.dense_rows
    return view.sparse_rows if branch == "sparse" else view.token_rows
