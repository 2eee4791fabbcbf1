"""Hits made by the kernel from rows of documents, passages and branches' columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from lightir.kernel import _native
from lightir.kernel.candidates import Candidates
from lightir.kernel.passages import Passage
from lightir.types import BranchScore, Hit

ShownDocument: TypeAlias = tuple[str, str, dict[str, Any]]
"""The id, the title and the metadata of a document."""

_MAKER = _native.HitMaker(Hit, BranchScore)


def make_hits(
    documents: Sequence[ShownDocument],
    passages: Sequence[Passage],
    candidates: Candidates,
    *,
    pending: list[bool] | None = None,
    named: list[bool] | None = None,
) -> list[Hit]:
    """Return candidates as hits without terms; the twin is `make_hit` in lightir.search.explain.

    Args:
        documents: n documents.
        passages: the passage of each.
        candidates: n candidates, in the same order.
        pending: whether each document has no vectors yet; None for none.
        named: whether the query names each document; None for none.
    """
    columns = [
        (name, column.weight, column.scores, column.normalized, column.ranks)
        for name, column in candidates.columns.items()
    ]
    return _MAKER.make(list(documents), list(passages), candidates.scores, columns, pending, named)
