"""Queries that a table is fitted to: labeled ones, spans, titles and questions, none close to a held-out query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.data import (
    Dataset,
    DecontaminationReport,
    DuplicateRules,
    TrainingSet,
    decontaminate,
    read_queries,
    span_pairs,
    title_pairs,
)
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.train.distill.pseudo_questions import questions
from lightir.types import Document, Query


@dataclass(frozen=True, slots=True)
class FitQuery:
    """One query that the table is fitted to.

    Attributes:
        query: id and text.
        source: name of the query set or corpus that it comes from.
        positive_ids: relevant documents in the corpus of the same name; empty for spans.
    """

    query: Query
    source: str
    positive_ids: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """ "title", "span", "question" for one made from a document, or "query" for one that was given."""
        kind = self.query.query_id.partition(":")[0]
        return kind if kind in ("title", "span", "question") and not self.positive_ids else "query"


def read_phrases(path: Path | str) -> list[str]:
    """Return the distinct lines of a text file in UTF-8, without blanks around them and without empty ones.

    Raises:
        NotFound: there is no such file.
        FormatError: it is not in UTF-8.
        InvalidInput: all lines are empty.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a file with a word or phrase on each line")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is not UTF-8 text: {error}") from error
    phrases = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not phrases:
        raise InvalidInput(f"{path} holds no phrase; expected a word or phrase on each line")
    return phrases


def labelled_queries(paths: Iterable[Path | str]) -> list[FitQuery]:
    """Read queries of files, without labels, and of BEIR folders, with the positives of their train split."""
    queries: list[FitQuery] = []
    for path in paths:
        name = set_name(path)
        if Path(path).is_dir():
            examples = TrainingSet.open(path, instructions=("",)).examples
            queries += [FitQuery(Query(e.query_id, e.query), name, e.positive_ids) for e in examples]
        else:
            queries += [FitQuery(query, name) for query in read_queries(path)]
    return queries


def pseudo_queries(
    documents: dict[str, list[Document]], per_corpus: int, seed: int, *, n_questions: int = 0
) -> list[FitQuery]:
    """Draw titles and spans of each corpus, and make questions about its documents, from the seed.

    Args:
        documents: documents by the name of the corpus.
        per_corpus: maximum number of titles, spans and questions of a corpus in all.
        seed: seed of the draw.
        n_questions: number of them that are questions, if as many can be made; titles and spans take the others' place.
    """
    queries: list[FitQuery] = []
    rng = np.random.default_rng(seed)
    for name, corpus in documents.items():
        if not per_corpus or not corpus:
            continue
        asked = questions(corpus, rng, n=n_questions) if n_questions else []
        n_drawn = per_corpus - len(asked)
        pairs = [*span_pairs(corpus, rng, per_document=max(1, -(-n_drawn // len(corpus)))), *title_pairs(corpus)]
        chosen = np.sort(rng.permutation(len(pairs))[:n_drawn])
        queries += [FitQuery(query, name) for query in [*(pairs[i].query for i in chosen), *asked]]
    return queries


def without_held_out(
    queries: list[FitQuery], held_out_sets: Sequence[Path | str], rules: DuplicateRules
) -> tuple[list[FitQuery], DecontaminationReport | None]:
    """Drop queries close to those of held-out sets (all splits but train); return the rest, and the report if any."""
    if not held_out_sets:
        return queries, None
    held_out: dict[str, list[Query]] = {}
    for path in held_out_sets:
        dataset = Dataset.open(path)
        splits = [split for split in dataset.splits if split != "train"]
        held_out[dataset.name] = [query for split in splits for query in dataset.queries(split)]
    groups: dict[str, list[FitQuery]] = {}
    for fit_query in queries:
        kind = "labeled" if fit_query.positive_ids else "unlabelled"
        groups.setdefault(f"{fit_query.source} {kind}", []).append(fit_query)
    # A query and a span may have the same id, so a position in the group replaces it.
    numbered = {
        name: [Query(str(position), fit_query.query.text) for position, fit_query in enumerate(group)]
        for name, group in groups.items()
    }
    kept, report = decontaminate(numbered, held_out, rules=rules)
    return [groups[name][int(query.query_id)] for name, clean in kept.items() for query in clean], report


def set_name(path: Path | str) -> str:
    """Return the name of a data set: that of its folder or file."""
    return Path(path).resolve().name
