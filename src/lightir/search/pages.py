"""Pages of results: offset and limit, total number of matches, facet counts, order by a field, one hit per group.

A document matches a query if it passes the filter and contains a word of the query (where the tokens branch is
searched), or is one of the `depth` candidates of another branch. An empty query matches every document that passes the
filter. `Page.total` and the facets count the documents that match, exactly. A document that is stored as passages
matches if one of them does; it counts once, and its best passage is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lightir.errors import InvalidInput
from lightir.index.listing import FacetCount, Listing, Sort
from lightir.index.passages.naming import document_of
from lightir.kernel import DocOrds
from lightir.kernel.candidates import Candidates
from lightir.search.branches import EncodedQueries
from lightir.search.prepared import PreparedSearch
from lightir.search.search_options import MAX_COUNT, is_count
from lightir.types import Hit

FACET_VALUES = 10
"""Default number of values of a facet."""


@dataclass(frozen=True, slots=True)
class PageOptions:
    """The part of the results to show, and what to count. Fields need a type in the index's schema.

    Attributes:
        offset: number of hits to skip.
        limit: maximum number of hits.
        facets: fields whose values are counted over all matches -> maximum number of values, those of most documents.
        sort: field to order by instead of by score, as "price", "price:asc" or "price:desc"; documents without a value
            are last, and ties are in the order of ids. None for the order of scores, or of ids without a query.
        group: field of which each value has one hit, its first in the order; documents without a value are all shown.
            Of a list the least value counts.

    Raises:
        InvalidInput: a negative or fractional number, or a malformed sort.
    """

    offset: int = 0
    limit: int = 10
    facets: Mapping[str, int] = field(default_factory=dict)
    sort: str | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        if self.offset != 0 and not is_count(self.offset):
            raise InvalidInput(f"offset is {self.offset!r}; expected a whole number of at least 0")
        if not is_count(self.limit) or self.offset + self.limit > MAX_COUNT:
            raise InvalidInput(f"limit is {self.limit!r}; expected a whole number of at least 1")
        if not isinstance(self.facets, Mapping):
            raise InvalidInput(f"facets is {type(self.facets).__name__}; expected a dict of field -> number of values")
        if wrong := [name for name, n in self.facets.items() if not is_count(n)]:
            raise InvalidInput(f"the facet {wrong[0]!r} has {self.facets[wrong[0]]!r} values; expected at least 1")
        if self.sort is not None:
            Sort.parse(self.sort)

    @property
    def end(self) -> int:
        """Number of hits up to the end of the page."""
        return self.offset + self.limit


@dataclass(frozen=True, slots=True)
class Page:
    """One page of results.

    Attributes:
        hits: hits of the page, in order. Without a query they have score 0 and no branches.
        total: number of documents that match, whatever the page and the groups.
        facets: field -> values and their numbers of matching documents, largest first.
    """

    hits: list[Hit]
    total: int
    facets: Mapping[str, tuple[FacetCount, ...]]


class PageSearch:
    """The matches of one query, and the part of them that a page shows."""

    def __init__(self, prepared: PreparedSearch, encoded: EncodedQueries | None, page: PageOptions) -> None:
        """Find the matches.

        Args:
            prepared: the search.
            encoded: the query; None for an empty one, which every document that passes the filter matches.
            page: the part to show.

        Raises:
            InvalidInput: the search has a minimum score.
        """
        if prepared.options.min_score is not None:
            raise InvalidInput("a page counts all matches, whatever their scores; search it without min_score")
        self._prepared = prepared
        self._encoded = encoded
        self._page = page
        self._ranking = None if encoded is None else self._ranked(page.end)
        self.matches = matches_of(prepared, encoded, None if self._ranking is None else self._ranking.doc_ords)

    def facets(self) -> dict[str, tuple[FacetCount, ...]]:
        """Return the counts of the page's facets.

        Raises:
            InvalidInput: a field has no type.
        """
        return {name: self.matches.facet(name, n) for name, n in self._page.facets.items()}

    def shown(self) -> Candidates:
        """Return the documents of the page in order, with the branches' scores if there is a query.

        Raises:
            InvalidInput: the field to sort or to group by has no type.
        """
        order = None if self._page.sort is None else Sort.parse(self._page.sort)
        if order is not None:
            doc_ords = self._window(lambda n: self.matches.sorted(order, n))
        elif self._encoded is None:
            doc_ords = self._window(self.matches.first)
        else:
            doc_ords = self._window(self._first_ranked)
        if self._encoded is None:
            return Candidates(doc_ords, np.zeros(len(doc_ords)), {})
        ranking = self._ranking if order is None else self._prepared.rank_with(self._encoded, doc_ords)
        assert ranking is not None  # there is a query
        position_of = {doc_ord: position for position, doc_ord in enumerate(ranking.doc_ords.tolist())}
        return ranking.take(np.array([position_of[doc_ord] for doc_ord in doc_ords.tolist()], dtype=np.int64))

    def _ranked(self, n: int) -> Candidates:
        assert self._encoded is not None
        return self._prepared.rank_all(self._encoded, max(n, self._prepared.depth))

    def _first_ranked(self, n: int) -> DocOrds:
        assert self._ranking is not None
        if n > max(self._page.end, self._prepared.depth):
            self._ranking = self._ranked(n)
        return self._ranking.doc_ords[:n]

    def _window(self, first: Callable[[int], DocOrds]) -> DocOrds:
        """Return the documents of the page, given a function that returns the first n documents."""
        offset, end = self._page.offset, self._page.end
        if self._page.group is None and not self._prepared.by_document:
            return first(end)[offset:]
        n = max(end, self._prepared.depth)
        while True:
            doc_ords = first(n)
            leaders = first_of_groups(self._groups(doc_ords))
            if len(leaders) >= end or len(doc_ords) < n:
                return doc_ords[leaders[offset:end]]
            n = min(4 * n, MAX_COUNT)

    def _groups(self, doc_ords: DocOrds) -> list[object]:
        """Return the group of each document: of those without a value, the passages of a document are a group."""
        group = self._page.group
        groups = [None] * len(doc_ords) if group is None else list(self.matches.groups_of(doc_ords.tolist(), group))
        if not self._prepared.by_document:
            return groups
        doc_ids = self._prepared.view.doc_ids(doc_ords)
        return [
            (None, document_of(doc_id)) if value is None else value
            for value, doc_id in zip(groups, doc_ids, strict=True)
        ]


def matches_of(prepared: PreparedSearch, encoded: EncodedQueries | None, ranked: DocOrds | None) -> Listing:
    """Return the documents that match a query; of the passages of a document one, unless all are asked for.

    Args:
        prepared: the search.
        encoded: the query; None for an empty one, which every document that passes the filter matches.
        ranked: candidates of the query, which match; None without a query.
    """
    masks = prepared.selectable()
    if encoded is not None and ranked is not None:
        plan, view = prepared.plan, prepared.view
        if "tokens" in plan.searched:
            containing = prepared.branches(encoded).containing()
            masks = [mask & contains for mask, contains in zip(masks, containing, strict=True)]
            if plan.ranks_by_tokens:  # the tokens branch finds pending documents alone
                masks = [mask & live.segment.pending for mask, live in zip(masks, view.segments, strict=True)]
        else:
            masks = [np.zeros_like(mask) for mask in masks]
        at, rows = view.locate(ranked)
        for position, mask in enumerate(masks):
            mask[rows[at == position]] = True
    matches = Listing(prepared.view, masks)
    return matches.one_per_document() if prepared.by_document else matches


def first_of_groups(groups: Sequence[object]) -> list[int]:
    """Return the position of the first document of each group, and of each document without one."""
    seen: set[object] = set()
    leaders = []
    for position, group in enumerate(groups):
        if group is None or group not in seen:
            leaders.append(position)
        seen.add(group)
    return leaders
