"""Rows of listed queries, names and phrases, which consist of several terms, from the teacher's vectors of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import torch

from lightir.errors import InvalidInput
from lightir.query import CachedGate
from lightir.query.bigrams import LONGER, Bigrams
from lightir.train.distill.fitted_rows import FittedRows, entry_weights
from lightir.train.distill.start import StartTable
from lightir.train.distill.table_fit import with_bigrams
from lightir.vectors import Floats, IntArray, Ragged

MAX_TERMS = 16
"""Maximum number of terms of a phrase; longer ones get no row."""

_Run = tuple[int, ...]


def with_phrases(start: StartTable, phrases: Ragged, vectors: Floats) -> StartTable:
    """Return the table with a row for each phrase, which turns the phrase's own vector into the teacher's.

    Let S be the sum of all rows of phrase p alone, and u the teacher's unit vector of p. |S| u - S, divided by the
    weight of p's row in the gate, is added to that row, which is 0 if it is new: the phrase has the teacher's
    direction, and weighs in a query what it weighed before. Shorter phrases come first, since they may be part of
    longer ones. The first terms of a phrase get rows too, of zeros. A phrase of one term changes nothing.

    Args:
        start: table of terms, and of pairs and longer runs if it has some.
        phrases: terms of n phrases.
        vectors: (n, dim) float32, the teacher's vectors, L2-normalized.
    """
    if len(phrases) != len(vectors):
        raise InvalidInput(f"{len(phrases)} phrases but {len(vectors)} teacher vectors")
    n_terms = len(start.rows.rows) - (0 if start.bigrams is None else len(start.bigrams))
    runs = [tuple(phrases.row(i).tolist()) for i in range(len(phrases))]
    known = [] if start.bigrams is None else _runs_of(start.bigrams)
    wanted = {run: i for i, run in reversed(list(enumerate(runs))) if 2 <= len(run) <= MAX_TERMS}
    numbers, bigrams = _numbered([*known, *wanted])
    kept = np.array([numbers[run] for run in known], dtype=np.int64)
    rows = _spread(start.rows, kept, len(bigrams), n_terms, {numbers[run]: run for run in numbers})
    by_length = itertools.groupby(sorted(wanted, key=len), key=len)
    for _, group in by_length:
        chosen = list(group)
        leaves = np.array([numbers[run] for run in chosen], dtype=np.int64) + n_terms
        goals = vectors[[wanted[run] for run in chosen]]
        _turn(rows, start, bigrams, Ragged.from_lists([list(run) for run in chosen]), leaves, goals)
    return StartTable(start.address, rows, bigrams, ridged=start.ridged)


def _runs_of(bigrams: Bigrams) -> list[_Run]:
    """Return the terms of each pair and longer run."""
    runs: list[_Run] = []
    for first, last in bigrams.pairs.tolist():
        runs.append((*runs[first - LONGER], last) if first >= LONGER else (first, last))
    return runs


def _numbered(runs: Iterable[_Run]) -> tuple[dict[_Run, int], Bigrams]:
    """Return the row numbers of runs and of their beginnings, and the bigrams that have them."""
    every = {run[:length] for run in runs for length in range(2, len(run) + 1)}
    numbers: dict[_Run, int] = {}
    pairs: list[tuple[int, int]] = []
    for _, group in itertools.groupby(sorted(every, key=len), key=len):
        level = [((run[0] if len(run) == 2 else LONGER + numbers[run[:-1]], run[-1]), run) for run in group]
        for pair, run in sorted(level):
            numbers[run] = len(pairs)
            pairs.append(pair)
    return numbers, Bigrams(np.array(pairs, dtype=np.uint32).reshape(-1, 2))


def _spread(start: FittedRows, kept: IntArray, n: int, n_terms: int, runs: dict[int, _Run]) -> FittedRows:
    """Return the start's rows with those of its runs at their new numbers, and zeros at the others.

    In the gate, the key and value of a new run are the means of its terms'.
    """
    rows = np.zeros((n_terms + n, start.rows.shape[1]), dtype=np.float32)
    rows[:n_terms], rows[n_terms + kept] = start.rows[:n_terms], start.rows[n_terms:]
    if start.gate is None:
        return FittedRows(rows)
    terms = Ragged.from_lists([list(runs[number]) for number in range(n)])
    columns = []
    for before in (start.gate.keys, start.gate.values):
        own = torch.from_numpy(before[:n_terms].astype(np.float32))
        ids, offsets = torch.from_numpy(terms.term_ids.astype(np.int64)), torch.from_numpy(terms.indptr[:-1])
        means = torch.nn.functional.embedding_bag(ids, own, offsets, mode="mean").numpy()
        means[kept] = before[n_terms:]
        columns.append(np.concatenate([own.numpy(), means]))
    return FittedRows(rows, CachedGate(*columns))


def _turn(
    rows: FittedRows, start: StartTable, bigrams: Bigrams, phrases: Ragged, leaves: IntArray, goals: Floats
) -> None:
    """Change the rows of phrases of one length, whose numbers are `leaves`."""
    n_terms = len(rows.rows) - len(bigrams)
    before = phrases if start.bigrams is None else with_bigrams(phrases, start.bigrams, vocab_size=n_terms)
    lengths = np.linalg.norm(start.rows.sums(before), axis=1, keepdims=True)
    bags = with_bigrams(phrases, bigrams, vocab_size=n_terms)
    change = lengths * goals - rows.sums(bags)
    if rows.gate is not None:
        own = bags.term_ids == np.repeat(leaves, bags.lengths)
        change /= entry_weights(rows.gate, bags)[own][:, None]
    rows.rows[leaves] += change
