"""Quality of a fitted table on queries that the fit did not see, beside its start and the teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.fitted_rows import FittedRows
from lightir.train.distill.kl_fit import fit_table
from lightir.train.distill.start import StartTable
from lightir.train.distill.table_fit import select_rows
from lightir.vectors import Floats, Ragged

DEPTH = 10
SHARE, MAX_HELD_OUT, MIN_HELD_OUT = 0.05, 1000, 25
"""Share and maximum number of the queries that a fit does not see; with fewer than the minimum it sees all."""


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

    Attributes:
        queries: number of held-out queries.
        start: share of the table that the fit started from; None if its rows have another width than the vectors.
        fitted: share of the fitted table.
        kept: the table that was kept: "fitted", or "start" if it is a fitted table and better.
    """

    queries: int
    start: float | None
    fitted: float
    kept: str


def fit_and_compare(
    start: StartTable,
    data: FitData,
    config: FitConfig,
    *,
    fitted_start: bool,
    unseen: npt.NDArray[np.int64],
) -> tuple[FittedRows, HeldOutReport | None]:
    """Fit a table to all queries but the held-out ones, and return the better one of it and a fitted start.

    Args:
        start: start of the table.
        data: queries, teacher vectors and documents.
        config: settings of the fit.
        fitted_start: whether the start is a fitted table, which is kept if the fit does not improve it.
        unseen: positions of the held-out queries, ascending.

    Returns:
        The table, and the report; None if there are too few queries.
    """
    if len(unseen) < MIN_HELD_OUT or not len(data.documents):
        return _fitted(start, data, config, fitted_start), None
    seen = np.setdiff1d(np.arange(len(data.queries)), unseen)
    table = _fitted(start, data.take(seen), config, fitted_start)
    held_out = data.take(unseen)
    before = shared_best(start.rows, held_out) if start.rows.rows.shape[1] == held_out.targets.shape[1] else None
    after = shared_best(table, held_out)
    keeps_start = fitted_start and before is not None and after < before
    report = HeldOutReport(len(unseen), before, after, "start" if keeps_start else "fitted")
    return start.rows if keeps_start else table, report


def held_out_rows(queries: Ragged, seed: int) -> npt.NDArray[np.int64]:
    """Return the positions of the held-out queries among those with terms, ascending."""
    full = np.flatnonzero(queries.lengths > 0)
    n = min(MAX_HELD_OUT, int(SHARE * len(full)))
    return np.sort(np.random.default_rng(seed).permutation(full)[:n])


def shared_best(table: FittedRows, data: FitData) -> float:
    """Return the mean share of the teacher's DEPTH best documents that are among a table's DEPTH best.

    Ties go to the documents that come first.
    """
    depth = min(DEPTH, len(data.documents))
    shared = 0
    for first in range(0, len(data.queries), 256):
        rows = range(first, min(first + 256, len(data.queries)))
        sums = table.sums(select_rows(data.queries, np.arange(rows.start, rows.stop)))  # their length changes no order
        own, teachers = _best(sums, data.documents, depth), _best(data.targets[rows], data.documents, depth)
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
