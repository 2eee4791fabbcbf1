"""A process's share of a batch, and the positions of its texts in the gathered batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lightir.data import TrainingBatch
from lightir.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """The texts that one process encodes, and the layout of the gathered batch.

    Attributes:
        queries: this process's queries.
        instructions: the queries' instructions.
        documents: the queries' positives, then their negatives.
        positives: (n,) int64, position of each query's positive among the gathered documents.
        excluded: (n, D) bool, pairs of queries and gathered documents left out of the loss.
        scores: (n, D) float32 teacher scores of the gathered documents, or None.
    """

    queries: tuple[str, ...]
    instructions: tuple[str, ...]
    documents: tuple[Any, ...]
    positives: np.ndarray[Any, np.dtype[np.int64]]
    excluded: np.ndarray[Any, np.dtype[np.bool_]]
    scores: np.ndarray[Any, np.dtype[np.float32]] | None = None


def share_of(batch: TrainingBatch, *, process: int, processes: int) -> ProcessShare:
    """Return one process's share: consecutive queries with all their documents.

    Raises:
        InvalidInput: the queries don't divide among the processes.
    """
    n = len(batch.queries)
    if n % processes:
        raise InvalidInput(f"a batch of {n} queries does not divide among {processes} processes; change batch_size")
    own, negatives = n // processes, len(batch.documents) // n - 1
    blocks = []
    for number in range(processes):
        first, last = number * own, (number + 1) * own
        blocks.append([*range(first, last), *range(n + first * negatives, n + last * negatives)])
    order = np.asarray([column for block in blocks for column in block], dtype=np.int64)
    positives = np.argsort(order, kind="stable")[:n]
    return ProcessShare(
        batch.queries[process * own : (process + 1) * own],
        batch.instructions[process * own : (process + 1) * own],
        tuple(batch.documents[column] for column in blocks[process]),
        positives,
        batch.false_negatives[:, order],
        None if batch.scores is None else batch.scores[:, order],
    )
