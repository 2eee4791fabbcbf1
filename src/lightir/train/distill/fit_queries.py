"""Queries that a table is fitted to: labelled ones, spans and titles, none of them too close to a held-out query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.data import (
    Dataset,
    DecontaminationReport,
    TrainingSet,
    decontaminate,
    read_queries,
    span_pairs,
    title_pairs,
)
from lightir.types import Document, Query


@dataclass(frozen=True, slots=True)
class FitQuery:
    """One query that the table is fitted to.

    Attributes:
        query: its id and text.
        source: the query set or corpus that it came from.
        positive_ids: relevant documents in the corpus of the same name; empty for spans.
    """

    query: Query
    source: str
    positive_ids: tuple[str, ...] = ()


def labelled_queries(paths: Iterable[Path | str]) -> list[FitQuery]:
    """Queries of files, which have no labels, and of BEIR folders, with the positives of their train split."""
    found: list[FitQuery] = []
    for path in paths:
        name = set_name(path)
        if Path(path).is_dir():
            examples = TrainingSet.open(path, instructions=("",)).examples
            found += [FitQuery(Query(e.query_id, e.query), name, e.positive_ids) for e in examples]
        else:
            found += [FitQuery(query, name) for query in read_queries(path)]
    return found


def pseudo_queries(documents: dict[str, list[Document]], wanted: int, seed: int) -> list[FitQuery]:
    """Spans and titles of each corpus, at most `wanted` of it, drawn from the seed."""
    found: list[FitQuery] = []
    rng = np.random.default_rng(seed)
    for name, corpus in documents.items():
        if not wanted or not corpus:
            continue
        per_document = -(-wanted // len(corpus))
        pairs = [*span_pairs(corpus, rng, per_document=per_document), *title_pairs(corpus)]
        chosen = np.sort(rng.permutation(len(pairs))[:wanted])
        found += [FitQuery(pairs[i].query, name) for i in chosen]
    return found


def without_held_out(
    queries: list[FitQuery], test: Sequence[Path | str]
) -> tuple[list[FitQuery], DecontaminationReport | None]:
    """The queries that are not too close to those of test sets (all splits but train), and the report; None without."""
    if not test:
        return queries, None
    held_out: dict[str, list[Query]] = {}
    for path in test:
        dataset = Dataset.open(path)
        splits = [split for split in dataset.splits if split != "train"]
        held_out[dataset.name] = [query for split in splits for query in dataset.queries(split)]
    groups: dict[str, list[FitQuery]] = {}
    for each in queries:
        groups.setdefault(f"{each.source} {'labelled' if each.positive_ids else 'unlabelled'}", []).append(each)
    # Ids of queries and of spans may meet, so each goes in under its place.
    numbered = {
        name: [Query(str(place), each.query.text) for place, each in enumerate(group)] for name, group in groups.items()
    }
    kept, report = decontaminate(numbered, held_out)
    return [groups[name][int(query.query_id)] for name, clean in kept.items() for query in clean], report


def set_name(path: Path | str) -> str:
    """The name of a data set: its folder's or file's."""
    return Path(path).resolve().name
