"""Quality of a fitted table on queries that the fit did not see, beside its start and the teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.kl_fit import fit_table
from lightir.train.distill.own_words import OwnWords
from lightir.train.distill.start import StartTable
from lightir.train.distill.table_fit import select_rows
from lightir.vectors import Floats, Ragged

DEPTH = 10
SHARE, MAX_HELD_OUT, MIN_HELD_OUT = 0.05, 1000, 25
"""Share and maximum number of the queries that a fit does not see; with fewer than the minimum it sees all."""

MIXTURES, SPAN_MIXTURES = (1.0, 0.75, 0.5, 0.25), (0.5, 0.25)
"""Parts that a fit may have in a table whose rest is the fitted start's; with titles and spans alone the second ones.

A fit to spans comes nearer to the teacher for spans, and may go away from it for questions: held-out spans do not see
that (docs/distill.md).
"""


@dataclass(frozen=True, slots=True)
class FitData:
    """Queries, teacher vectors and documents that a table is fitted to.

    Attributes:
        queries: terms of n queries.
        targets: (n, dim) float32, the teacher's query vectors, L2-normalized.
        documents: (N, dim) float32 document vectors, L2-normalized.
        positives: positions of each query's relevant documents; an empty row means no labels.
    """

    queries: Ragged
    targets: Floats
    documents: Floats
    positives: Ragged

    def take(self, rows: npt.NDArray[np.int64]) -> FitData:
        """Return the queries in `rows`, with all documents."""
        return FitData(
            select_rows(self.queries, rows), self.targets[rows], self.documents, select_rows(self.positives, rows)
        )


@dataclass(frozen=True, slots=True)
class HeldOutReport:
    """Share of the teacher's ten best documents that a table finds among its own ten best, in the mean over queries.

    The teacher ranks the documents' vectors as they were encoded, a table what an index searches: its own rows with
    documents' own words, if their weight is above 0.

    Attributes:
        queries: number of held-out queries.
        start: share of the table that the fit started from; None if its rows have another width than the vectors.
        fitted: share of the best of the tables that the fit gave: the fitted one and its mixtures with a fitted start.
        kept: the table that was kept: "fitted" for that best one, or "start" if it is a fitted table and better.
        mixture: part of the fit in the best one's rows, 1 for the fitted table itself; the start has the rest.
        word_weight: weight of documents' own words in the rows that the tables rank.
    """

    queries: int
    start: float | None
    fitted: float
    kept: str
    mixture: float = 1.0
    word_weight: float = 0.0


def fit_and_compare(
    start: StartTable,
    data: FitData,
    config: FitConfig,
    *,
    mixtures: Sequence[float] | None,
    unseen: npt.NDArray[np.int64],
    words: OwnWords | None = None,
) -> tuple[FittedRows, HeldOutReport | None]:
    """Fit a table to all queries but the held-out ones, and return the best mixture of it and a fitted start.

    Args:
        start: start of the table.
        data: queries, teacher vectors and documents.
        config: settings of the fit.
        mixtures: parts, descending, that the fit may have in the table, whose rest is the fitted start's; the start is
            kept if none improves it. None for a start that is no fitted table.
        unseen: positions of the held-out queries, ascending.
        words: own words of the documents that the tables are compared over; None compares them over the vectors of all.

    Returns:
        The table, and the report. With too few held-out queries the table is the first mixture, and the report None.
    """
    fitted_start = mixtures is not None
    parts = mixtures or (1.0,)
    if len(unseen) < MIN_HELD_OUT or not len(data.documents):
        return _mixed(start, _fitted(start, data, config, fitted_start), parts[0]), None
    seen = np.setdiff1d(np.arange(len(data.queries)), unseen)
    fitted, held_out = _fitted(start, data.take(seen), config, fitted_start), data.take(unseen)
    best, mixture, share = fitted, 0.0, -1.0
    for part in parts:
        table = _mixed(start, fitted, part)
        candidate = shared_best(table, held_out, words)
        if candidate >= share:  # of equals the one nearest to the start
            best, mixture, share = table, part, candidate
    same_width = start.rows.rows.shape[1] == held_out.targets.shape[1]
    before = shared_best(start.rows, held_out, words) if same_width else None
    keeps_start = fitted_start and before is not None and share < before
    weight = 0.0 if words is None else words.weight
    report = HeldOutReport(len(unseen), before, share, "start" if keeps_start else "fitted", mixture, weight)
    return start.rows if keeps_start else best, report


def _mixed(start: StartTable, fitted: FittedRows, part: float) -> FittedRows:
    return fitted if part == 1 else start.rows.mixed(fitted, part)


def held_out_rows(queries: Ragged, seed: int) -> npt.NDArray[np.int64]:
    """Return the positions of the held-out queries among those with terms, ascending."""
    full = np.flatnonzero(queries.lengths > 0)
    n = min(MAX_HELD_OUT, int(SHARE * len(full)))
    return np.sort(np.random.default_rng(seed).permutation(full)[:n])


def shared_best(table: FittedRows, data: FitData, words: OwnWords | None = None) -> float:
    """Return the mean share of the teacher's DEPTH best documents that are among a table's DEPTH best.

    The teacher ranks the encoded vectors, the table those with own words. Ties go to the documents that come first.
    """
    encoded = data.documents if words is None else data.documents[words.documents]
    searched = encoded if words is None else words.searched(table, data.documents)
    depth = min(DEPTH, len(encoded))
    shared = 0
    for first in range(0, len(data.queries), 256):
        rows = range(first, min(first + 256, len(data.queries)))
        sums = table.sums(select_rows(data.queries, np.arange(rows.start, rows.stop)))  # their length changes no order
        own, teachers = _best(sums, searched, depth), _best(data.targets[rows], encoded, depth)
        shared += sum(len(np.intersect1d(a, b)) for a, b in zip(own, teachers, strict=True))
    return shared / (depth * len(data.queries))


def _best(queries: Floats, documents: Floats, depth: int) -> npt.NDArray[np.int64]:
    """Return the positions of each query's best documents, (n, depth)."""
    return np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :depth]


def _fitted(start: StartTable, data: FitData, config: FitConfig, fitted_start: bool) -> FittedRows:
    return fit_table(
        start.rows,
        data.queries,
        data.targets,
        data.documents,
        config,
        positives=data.positives,
        fitted_start=fitted_start,
        ridged=start.ridged,
    )
