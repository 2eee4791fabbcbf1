"""Re-ranking of a run by a scorer of query-document pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from lightir.errors import InvalidInput, NotFound
from lightir.eval.runs import rank_by_score
from lightir.progress import Progress
from lightir.quantities import counted
from lightir.types import Document, Query, Run

WINDOW = 1024
"""Number of documents scored together: enough for batches of similar length, few enough for memory."""

Scorer = Callable[[Sequence[Document], Sequence[tuple[int, str]]], Iterator[tuple[list[int], list[float]]]]
"""Function from documents, and pairs of a row of them and a query id, to batches of pair numbers and scores."""


def check_sizes(batch_tokens: int, depth: int | None) -> None:
    """Refuse a size below 1."""
    if batch_tokens < 1 or (depth is not None and depth < 1):
        raise InvalidInput(f"batch_tokens is {batch_tokens} and depth {depth}; both must be at least 1")


def queries_of_run(run: Run, queries: Iterable[Query]) -> list[Query]:
    """Return the run's queries with their texts; others are ignored.

    Raises:
        NotFound: a query of the run is missing.
    """
    selected = [query for query in queries if query.query_id in run]
    if missing := sorted(set(run) - {query.query_id for query in selected}):
        raise NotFound(f"no text of {counted(len(missing), 'query')} of the run, {missing[0]!r} for one")
    return selected


@torch.no_grad()
def rescore(run: Run, documents: Iterable[Document], score: Scorer, *, depth: int | None) -> Run:
    """Replace every score of a run, best first; ties go to the smaller document id.

    Args:
        run: rankings of a first stage.
        documents: corpus that holds the run's documents. Each is scored once, for all queries that retrieved it.
        score: scorer of documents and pairs.
        depth: number of documents of each ranking that are scored; the others are dropped. None scores all.

    Raises:
        NotFound: a document of the run is missing.
    """
    query_ids: dict[str, list[str]] = {}  # by document
    for query_id, ranking in run.items():
        for doc_id in list(ranking.doc_ids)[:depth]:
            query_ids.setdefault(doc_id, []).append(query_id)
    new_scores: dict[str, dict[str, float]] = {query_id: {} for query_id in run}
    n_pairs = sum(map(len, query_ids.values()))
    with Progress("rerank", unit="pair", total=n_pairs, smooth=True) as bar:
        for window in _windows(_select(documents, set(query_ids))):
            pairs = [(row, query_id) for row, document in enumerate(window) for query_id in query_ids[document.doc_id]]
            for numbers, scores in score(window, pairs):
                for number, value in zip(numbers, scores, strict=True):
                    row, query_id = pairs[number]
                    new_scores[query_id][window[row].doc_id] = value
                bar.update(len(numbers))
    return {query_id: rank_by_score(query_id, scores) for query_id, scores in new_scores.items()}


def _select(documents: Iterable[Document], doc_ids: set[str]) -> Iterator[Document]:
    """Yield the documents with these ids, each once, in the corpus's order.

    Raises:
        NotFound: at the end, if the corpus lacks any of them.
    """
    for document in documents if doc_ids else ():
        if document.doc_id in doc_ids:
            doc_ids.remove(document.doc_id)
            yield document
        if not doc_ids:
            return
    if doc_ids:
        raise NotFound(f"the corpus lacks {counted(len(doc_ids), 'document')} of the run, {min(doc_ids)!r} for one")


def _windows(documents: Iterator[Document]) -> Iterator[list[Document]]:
    window: list[Document] = []
    for document in documents:
        window.append(document)
        if len(window) == WINDOW:
            yield window
            window = []
    if window:
        yield window
