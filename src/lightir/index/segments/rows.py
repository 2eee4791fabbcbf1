"""Rows of documents, in memory on their way into a segment, or memory-mapped from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lightir.index.segments.dictionary import Dictionary, SortedStrings
from lightir.vectors import Ragged, SparseVectors, TermIds

MAX_LENGTH = 2**32 - 1
"""Greatest length of a document that is stored. Only a weight can raise the length of a document above it."""

RowNumbers = npt.NDArray[np.int64]
"""Numbers of documents within a segment or within rows in memory."""


class WeightedTerms(Protocol):
    """Rows of weighted terms in CSR form; term ids ascend within a row."""

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """(n + 1,) start of each row."""
        ...

    @property
    def term_ids(self) -> TermIds:
        """(nnz,) term ids."""
        ...

    @property
    def weights(self) -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
        """(nnz,) weights."""
        ...

    @property
    def vocab_size(self) -> int:
        """Upper bound of the term ids."""
        ...


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Term counts of documents, or their bags of terms.

    Attributes:
        terms: distinct terms, all of which occur; a term id in counts is a position in them.
        counts: n rows of uint8, or of float32 where a term occurs more than 255 times; in a bag every count is 1.
        lengths: (n,) uint32, number of terms including repetitions; None for bags, which have no length.
    """

    terms: Dictionary
    counts: WeightedTerms
    lengths: npt.NDArray[np.uint32] | None

    @property
    def total_length(self) -> int:
        """The sum of the lengths; 0 for bags."""
        return 0 if self.lengths is None else int(self.lengths.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Dense rows in their stored form.

    Attributes:
        rows: (n, dim) float16 or int8.
        scales: (n,) scales of int8 rows; None for float16.
    """

    rows: npt.NDArray[np.float16] | npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class DocumentRows:
    """The rows of n documents. Their texts are in the store.

    Attributes:
        doc_ids: ids of the documents, in any order in memory, ascending in a segment.
        doc_keys: (n,) int64, keys in the store; empty until the store has assigned them.
        pending: (n,) bool, whether a document has no vectors yet; its dense row is zeros, its sparse row empty.
        dense: dense rows; None if no document has any.
        sparse: uint8 impacts; None if no document has any.
        tokens: counted tokens; None in an index without an analyzer.
    """

    doc_ids: Sequence[str] | SortedStrings
    doc_keys: npt.NDArray[np.int64]
    pending: npt.NDArray[np.bool_]
    dense: DenseMatrix | None
    sparse: WeightedTerms | None
    tokens: TokenRows | None

    def __len__(self) -> int:
        return len(self.doc_ids)

    @property
    def total_length(self) -> int:
        """The number of terms of all documents; 0 without counts."""
        return 0 if self.tokens is None else self.tokens.total_length


def count_terms(terms: Sequence[str], rows: Ragged) -> TokenRows:
    """Return the counts of analyzed texts.

    Args:
        terms: distinct words of all texts, in any order; each occurs.
        rows: the words of each text, as positions in `terms`.
    """
    terms, rows = _ascending(terms, rows)
    return _counted(terms, rows)


def count_weighted_terms(terms: Sequence[str], rows: Ragged, weights: Sequence[int]) -> TokenRows:
    """Return the counts of documents of several analyzed fields: sums over the fields of weight x count (BM25F).

    Args:
        terms: distinct words of all fields, in any order; each occurs.
        rows: the words of the first field of all n documents, then those of the second field, and so on, as positions
            in `terms`.
        weights: weight of each field.
    """
    terms, rows = _ascending(terms, rows)
    n, vocab_size = len(rows) // len(weights), max(len(terms), 1)
    lengths = np.array(weights) @ rows.lengths.reshape(len(weights), n)
    row_of = np.repeat(np.tile(np.arange(n, dtype=np.int64), len(weights)), rows.lengths)
    keys, positions = np.unique(row_of * vocab_size + rows.term_ids, return_inverse=True)
    sums = np.bincount(positions, weights=np.repeat(np.repeat(weights, n), rows.lengths), minlength=len(keys))
    indptr = np.searchsorted(keys, np.arange(n + 1, dtype=np.int64) * vocab_size).astype(np.int64)
    counts = SparseVectors(indptr, (keys % vocab_size).astype(np.uint32), sums.astype(np.float32), len(terms))
    return narrowed(terms, counts, np.minimum(lengths, MAX_LENGTH))


def _ascending(terms: Sequence[str], rows: Ragged) -> tuple[list[str], Ragged]:
    """Return the terms in ascending order, and the rows as positions in them."""
    order = sorted(range(len(terms)), key=terms.__getitem__)
    ranks = np.zeros(len(terms), dtype=np.uint32)
    ranks[order] = np.arange(len(terms), dtype=np.uint32)
    return [terms[i] for i in order], Ragged(ranks[rows.term_ids], rows.indptr)


def count_term_ids(rows: Ragged) -> TokenRows:
    """Return the counts of texts that were tokenized into term ids of the model."""
    terms, positions = np.unique(rows.term_ids, return_inverse=True)
    return _counted(terms.astype(np.uint32), Ragged(positions.astype(np.uint32), rows.indptr))


def bags_of_term_ids(rows: Ragged) -> TokenRows:
    """Return which terms occur in texts that were tokenized into term ids of the model (V_BoT)."""
    terms, positions = np.unique(rows.term_ids, return_inverse=True)
    counts = SparseVectors.count(Ragged(positions.astype(np.uint32), rows.indptr), vocab_size=len(terms))
    return TokenRows(terms.astype(np.uint32), counts.with_weights(np.ones(len(counts.term_ids), np.uint8)), None)


def _counted(terms: list[str] | TermIds, rows: Ragged) -> TokenRows:
    return narrowed(terms, SparseVectors.count(rows, vocab_size=len(terms)), rows.lengths)


def narrowed(terms: list[str] | TermIds, counts: SparseVectors, lengths: npt.NDArray[np.int64]) -> TokenRows:
    """Return the rows of float32 counts of ascending terms, in one byte per count where all fit."""
    # float32 is exact up to 2 ** 24.
    if counts.weights.max(initial=0) <= 255:
        counts = counts.with_weights(counts.weights.astype(np.uint8))
    return TokenRows(terms, counts, lengths.astype(np.uint32))
