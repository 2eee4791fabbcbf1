"""A whole search of one query in one call of the kernel: branches' lists, their fusion, and the order of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lightir.kernel import DocOrds, Scores, _count, _native, _threads
from lightir.kernel.query import TextEncoder
from lightir.kernel.segments import Allowed, BranchQuery, Column, DenseSegments, DocumentIds, Scale, SparseSegments

R = TypeVar("R")

Found = tuple[DocOrds, npt.NDArray[np.float64], list[Column]]
"""doc_ords (n,) uint32, sums (n,) float64, and each branch's column of n, or no column where none was asked for."""


@dataclass(frozen=True, slots=True)
class BoundBranch:
    """One branch of a search.

    Attributes:
        documents: over all segments.
        weight: its part in a document's sum.
        complete: whether no document outside its list scores more than the list's last, as in `fuse`.
        allowed: the documents that may be found.
    """

    documents: DenseSegments | SparseSegments
    weight: float = 1.0
    complete: bool = True
    allowed: Allowed = None


class HybridSearch:
    """The branches of a view, bound once for any number of queries; any number of threads may ask at a time.

    The twin is `lightir.kernel.reference.search`.
    """

    def __init__(
        self, branches: Sequence[BoundBranch], *, scale: Scale, rrf_k: float = 60.0, ids: DocumentIds | None = None
    ) -> None:
        """Borrow the branches' arrays.

        Args:
            branches: one or more; sums run in their order.
            scale: how scores are normalised, see `fuse`; one branch alone keeps its scores.
            rrf_k: of "rrf".
            ids: puts ties in the order of their ids; None where ids ascend with the doc_ords.
        """
        parts = [(each.documents.native, each.weight, each.complete, each.allowed) for each in branches]
        self.native = _native.HybridSearch(parts, scale, rrf_k, None if ids is None else ids.native)

    def search(
        self,
        queries: Sequence[BranchQuery],
        *,
        k: int,
        depth: int,
        threads: int = 1,
        allowed: Sequence[Allowed] | None = None,
        given: Sequence[tuple[DocOrds, Scores] | None] | None = None,
        columns: bool = True,
    ) -> Found:
        """The k best documents, score down, then id up: `fuse` of the lists of `depth` that the branches' top_k give.

        Args:
            queries: one a branch, see `DenseSegments.query` and `SparseSegments.query`; one of zeros finds nothing.
            k: number wanted.
            depth: length of the branches' lists, which are cut in the order of a ranking; one branch alone gives k.
            threads: at most this many work at the same time.
            allowed: the documents that may be found, a branch, in place of those that were bound.
            given: a branch's list, score down, in place of what it would find; None for none.
            columns: whether to say what each branch says of the k.

        Raises:
            InvalidInput: a query is for other documents, or k or depth is negative.
        """
        how = _count("k", k), _count("depth", depth), _threads(threads)
        bitmaps = None if allowed is None else list(allowed)
        lists = None if given is None else list(given)
        return self.native.search(list(queries), bitmaps, lists, *how, columns)


def text_search(
    search: HybridSearch, encoder: TextEncoder, *, unknown: int | None, ids: DocumentIds, record: type[R]
) -> Callable[[str, str, int, int, int], R]:
    """From a query's id, its text, k, depth and threads to its ranking: what `search` gives for the text's vectors.

    One call of the kernel with few Python objects: behind a scan of more rows than caches hold, each of them costs a
    wait for memory.

    Args:
        search: over branches for which the encoder makes vectors, as wide as the dense rows or narrower.
        encoder: of texts.
        unknown: the tokenizer's unknown term; a text that holds nothing else counts as the empty one.
        ids: of all documents.
        record: a dataclass of a query's id, doc_ids and (n,) float64 scores, which is made without its checks.
    """
    native = _native.TextSearch(search.native, encoder.native, encoder.by_library, unknown, ids.native, record)
    return native.rank
