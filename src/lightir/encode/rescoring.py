"""A run in another order: each of its documents is scored for its query by whatever reads the two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from tqdm import tqdm

from lightir.errors import InvalidInput, NotFound
from lightir.eval.runs import rank_by_score
from lightir.types import Document, Query, Run

WINDOW = 1024
"""Documents that are read together: enough to fill batches with equal lengths, few enough to keep."""

Scorer = Callable[[Sequence[Document], Sequence[tuple[int, str]]], Iterator[tuple[list[int], list[float]]]]
"""Documents, and pairs of a document's place among them and a query's id; numbers of pairs come back with scores."""


def check_sizes(batch_tokens: int, depth: int | None) -> None:
    """Refuse a size below 1."""
    if batch_tokens < 1 or (depth is not None and depth < 1):
        raise InvalidInput(f"batch_tokens is {batch_tokens} and depth {depth}; both must be at least 1")


def asked_queries(run: Run, queries: Iterable[Query]) -> list[Query]:
    """The run's queries with their texts; others are left aside.

    Raises:
        NotFound: a query of the run is not there.
    """
    wanted = [query for query in queries if query.query_id in run]
    if missing := sorted(set(run) - {query.query_id for query in wanted}):
        raise NotFound(f"the run names {len(missing)} queries that the queries don't hold, {missing[0]!r} for one")
    return wanted


@torch.no_grad()
def rescored(run: Run, documents: Iterable[Document], score: Scorer, *, depth: int | None) -> Run:
    """The run with every score replaced, best first, ties by document id.

    Args:
        run: what some first stage found.
        documents: a corpus that holds the run's documents; each is asked for once, with all queries that found it.
        score: what reads them.
        depth: how many of each ranking's best are scored; the rest is left out. None scores all.

    Raises:
        NotFound: a document of the run is not there.
    """
    askers: dict[str, list[str]] = {}
    for query_id, ranking in run.items():
        for doc_id in list(ranking.doc_ids)[:depth]:
            askers.setdefault(doc_id, []).append(query_id)
    found: dict[str, dict[str, float]] = {query_id: {} for query_id in run}
    with tqdm(total=sum(map(len, askers.values())), desc="rerank", unit="pair", disable=None, smoothing=0.05) as bar:
        for window in _windows(_asked(documents, set(askers))):
            pairs = [(row, asker) for row, each in enumerate(window) for asker in askers[each.doc_id]]
            for numbers, scores in score(window, pairs):
                for number, value in zip(numbers, scores, strict=True):
                    row, query_id = pairs[number]
                    found[query_id][window[row].doc_id] = value
                bar.update(len(numbers))
    return {query_id: rank_by_score(query_id, scores) for query_id, scores in found.items()}


def _asked(documents: Iterable[Document], wanted: set[str]) -> Iterator[Document]:
    """The wanted documents, each once, in the corpus's order; at the end none may be missing."""
    for document in documents if wanted else ():
        if document.doc_id in wanted:
            wanted.remove(document.doc_id)
            yield document
        if not wanted:
            return
    if wanted:
        raise NotFound(f"the run names {len(wanted)} documents that the corpus does not hold, {min(wanted)!r} for one")


def _windows(documents: Iterator[Document]) -> Iterator[list[Document]]:
    window: list[Document] = []
    for document in documents:
        window.append(document)
        if len(window) == WINDOW:
            yield window
            window = []
    if window:
        yield window
