"""Answers to search requests as objects, from a searcher of one index or of its shards."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from lightir.search import Page, PageOptions, SearchOptions
from lightir.search.hit_json import hit_json
from lightir.serve.schemas import RankingBody, SearchRequest
from lightir.types import Hit, Query, Run


class Searches(Protocol):
    """A searcher: `Searcher` or `ShardedSearcher`."""

    @property
    def default_mode(self) -> str:
        """The mode of searches that name none."""
        ...

    def search(self, queries: Iterable[Query | str], k: int, options: SearchOptions) -> Run:
        """Return the k best documents of each query."""
        ...

    def hits(
        self, query: str, k: int, options: SearchOptions, *, explain: bool = False, full_text: bool = False
    ) -> list[Hit]:
        """Return the k best documents of one query with what is shown of them."""
        ...

    def page(
        self, query: str, page: PageOptions, options: SearchOptions, *, explain: bool = False, full_text: bool = False
    ) -> Page:
        """Return a page of the results of one query."""
        ...


def search_answer(searcher: Searches, asked: SearchRequest) -> dict[str, Any]:
    """Return the answer to a request: an object per query, in "results" for a list of queries.

    Raises:
        InvalidInput: bad arguments, a branch that the index lacks, or a malformed filter.
        ShardsMissing: a shard does not answer, and the searcher does not allow that.
    """
    options = search_options(asked)
    if isinstance(asked.query, str):
        return _result(searcher, asked.query, asked, options)
    if asked.ids_only and not asked.pages:
        return {"results": _rankings(searcher, asked.query, asked.k, options)}
    return {"results": [_result(searcher, query, asked, options) for query in asked.query]}


def _rankings(searcher: Searches, queries: Sequence[str], k: int, options: SearchOptions) -> list[dict[str, Any]]:
    started = time.perf_counter()
    rankings = searcher.search(list(queries), k, options).values()
    took_ms = _milliseconds(started)
    return [
        {
            "query": query,
            "mode": options.mode or searcher.default_mode,
            "took_ms": took_ms,
            "hits": [
                {"doc_id": doc_id, "score": score}
                for doc_id, score in zip(ranking.doc_ids, ranking.scores.tolist(), strict=True)
            ],
        }
        for query, ranking in zip(queries, rankings, strict=True)
    ]


def _result(searcher: Searches, query: str, asked: SearchRequest, options: SearchOptions) -> dict[str, Any]:
    if asked.ids_only and not asked.pages:
        return _rankings(searcher, [query], asked.k, options)[0]
    started = time.perf_counter()
    mode = options.mode or searcher.default_mode
    answer: dict[str, Any] = {"query": query, "mode": mode, "took_ms": 0.0}
    hits: list[Hit]
    if asked.pages or not query.strip():
        page = PageOptions(asked.offset, asked.k, asked.facet_counts, asked.sort, asked.group)
        result_page = searcher.page(query, page, options, explain=asked.explain, full_text=asked.full_text)
        hits = result_page.hits
        answer["total"] = result_page.total
        counted = result_page.facets.items()
        answer["facets"] = {name: [asdict(count) for count in counts] for name, counts in counted}
    else:
        hits = searcher.hits(query, asked.k, options, explain=asked.explain, full_text=asked.full_text)
    answer["hits"] = [_shown(hit, asked) for hit in hits]
    answer["took_ms"] = _milliseconds(started)
    return answer


def search_options(asked: SearchRequest) -> SearchOptions:
    """Return the library's options of a request.

    Raises:
        InvalidInput: a malformed option.
    """
    if asked.model_fields_set.isdisjoint(_OPTIONS):
        return _DEFAULTS
    return ranking_options(asked, exclude=asked.exclude, min_score=asked.min_score)


def ranking_options(
    asked: RankingBody, *, exclude: Sequence[str] = (), min_score: float | None = None
) -> SearchOptions:
    """Return the library's options of how documents are ranked.

    Args:
        asked: body of the request.
        exclude: ids of documents to leave out.
        min_score: score below which hits are left out.

    Raises:
        InvalidInput: a malformed option.
    """
    return SearchOptions(
        mode=asked.mode,
        fusion=asked.fusion,
        weights=asked.weights,
        depth=asked.depth,
        filter=asked.filter,
        exclude=exclude,
        typos=asked.typos,
        as_you_type=asked.as_you_type,
        min_score=min_score,
        passages=asked.passages,
        syntax=asked.syntax,
    )


_OPTIONS = frozenset({*RankingBody.model_fields, "exclude", "min_score"})
"""Members of a request that are options of the library."""

_DEFAULTS = ranking_options(RankingBody.model_validate({}))
"""Options of requests that name none: one object, for which a view keeps what it has prepared."""


def _shown(hit: Hit, asked: SearchRequest) -> dict[str, Any]:
    if asked.ids_only:
        return {"doc_id": hit.doc_id, "score": hit.score}
    shown = hit_json(hit, explain=asked.explain)
    if not asked.highlights:
        del shown["highlights"]
    if asked.fields is not None:
        shown["metadata"] = {name: hit.metadata[name] for name in asked.fields if name in hit.metadata}
    return shown


def _milliseconds(started: float) -> float:
    return round((time.perf_counter() - started) * 1000, 3)
