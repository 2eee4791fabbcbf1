"""Rows: documents as columns in memory, on their way into a segment, from one, or from several into another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.index.segments import dictionary
from lightir.index.segments.dictionary import Terms
from lightir.index.segments.segment import Segment, SparseBranch
from lightir.vectors import Ragged, SparseVectors, row_entries

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Documents' term counts, or their bags of terms.

    Attributes:
        terms: distinct terms, ascending; the ids in counts are places in it.
        counts: n rows of uint8, or of float32 where a term occurs more than 255 times; of a bag all are 1.
        lengths: (n,) uint32, number of terms, repeats counted; None for bags, which are not weighed by it.
    """

    terms: Terms
    counts: SparseVectors
    lengths: npt.NDArray[np.uint32] | None

    @property
    def total_length(self) -> int:
        """The sum of lengths; 0 for bags."""
        return 0 if self.lengths is None else int(self.lengths.sum(dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Dense rows as they are stored: float16, or int8 with a scale each."""

    rows: npt.NDArray[np.float16] | npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class DocumentRows:
    """n documents without their texts, which the store has.

    Attributes:
        doc_ids: their ids, in any order.
        doc_keys: (n,) int64, their keys in the store; empty until the store has given them.
        pending: (n,) bool, whether a document waits for its vectors; its dense row is zeros, its sparse row empty.
        dense: None where nobody has dense vectors.
        sparse: uint8 impacts; None where nobody has sparse vectors.
        tokens: None in an index without an analyzer.
    """

    doc_ids: Sequence[str]
    doc_keys: npt.NDArray[np.int64]
    pending: npt.NDArray[np.bool_]
    dense: DenseMatrix | None
    sparse: SparseVectors | None
    tokens: TokenRows | None

    def __len__(self) -> int:
        return len(self.doc_ids)

    @property
    def total_length(self) -> int:
        """The number of terms of all documents; 0 without counts."""
        return 0 if self.tokens is None else self.tokens.total_length

    def take(self, places: RowNumbers) -> DocumentRows:
        """Some of the documents, in the order of their places; all in their order are the rows themselves."""
        if np.array_equal(places, np.arange(len(self))):
            return self
        return DocumentRows(
            [self.doc_ids[i] for i in places.tolist()],
            self.doc_keys[places] if len(self.doc_keys) else self.doc_keys,
            self.pending[places],
            None if self.dense is None else _take_dense(self.dense, places),
            None if self.sparse is None else self.sparse.take(places),
            None if self.tokens is None else _take_tokens(self.tokens, places),
        )

    def in_order(self) -> DocumentRows:
        """The documents in ascending order of their ids, as a segment holds them."""
        places = np.array(sorted(range(len(self)), key=self.doc_ids.__getitem__), dtype=np.int64)
        return self.take(places)


def count_terms(terms: Sequence[str], rows: Ragged) -> TokenRows:
    """The counts of texts that were cut into words: the different words, and each text's as places among them."""
    order = sorted(range(len(terms)), key=terms.__getitem__)
    places = np.zeros(len(terms), dtype=np.uint32)
    places[order] = np.arange(len(terms), dtype=np.uint32)
    return _counted([terms[i] for i in order], Ragged(places[rows.term_ids], rows.indptr))


def count_term_ids(rows: Ragged) -> TokenRows:
    """The counts of texts that were cut into the model's term ids."""
    terms, places = np.unique(rows.term_ids, return_inverse=True)
    return _counted(terms.astype(np.uint32), Ragged(places.astype(np.uint32), rows.indptr))


def bags_of_term_ids(rows: Ragged) -> TokenRows:
    """Which terms stand in texts that were cut into the model's term ids (V_BoT)."""
    counted = count_term_ids(rows)
    counts = counted.counts
    return TokenRows(counted.terms, counts.with_weights(np.ones(len(counts.term_ids), dtype=np.uint8)), None)


def _counted(terms: Terms, rows: Ragged) -> TokenRows:
    counts = SparseVectors.count(rows, vocab_size=len(terms))
    return TokenRows(terms, _narrow(counts), rows.lengths.astype(np.uint32))


def _narrow(counts: SparseVectors) -> SparseVectors:
    """Counts in one byte where they fit; float32 holds them exactly up to 2 ** 24."""
    if counts.weights.max(initial=0) <= 255:
        return counts.with_weights(counts.weights.astype(np.uint8))
    return counts.with_weights(counts.weights.astype(np.float32))


def join(parts: Sequence[DocumentRows]) -> DocumentRows:
    """All documents of all parts; a part without vectors gets zeros and empty rows where another has some."""
    if len(parts) == 1:
        return parts[0]
    return DocumentRows(
        [doc_id for part in parts for doc_id in part.doc_ids],
        np.concatenate([part.doc_keys for part in parts]),
        np.concatenate([part.pending for part in parts]),
        _join_dense(parts),
        _join_sparse(parts),
        _join_tokens([part.tokens for part in parts if part.tokens is not None]),
    )


def _join_dense(parts: Sequence[DocumentRows]) -> DenseMatrix | None:
    model = next((part.dense for part in parts if part.dense is not None), None)
    if model is None:
        return None
    width, dtype = model.rows.shape[1], model.rows.dtype
    matrices = [
        part.dense or DenseMatrix(np.zeros((len(part), width), dtype), np.zeros(len(part), np.float32))
        for part in parts
    ]
    scales = [each.scales for each in matrices if each.scales is not None]
    joined = None if model.scales is None else np.concatenate(scales)
    return DenseMatrix(np.concatenate([each.rows for each in matrices]), joined)


def _join_sparse(parts: Sequence[DocumentRows]) -> SparseVectors | None:
    model = next((part.sparse for part in parts if part.sparse is not None), None)
    if model is None:
        return None
    vocab_size = model.vocab_size
    empty = [SparseVectors.empty(len(part), vocab_size=vocab_size, dtype=np.uint8) for part in parts]
    return SparseVectors.concatenate([part.sparse or none for part, none in zip(parts, empty, strict=True)])


def _join_tokens(parts: Sequence[TokenRows]) -> TokenRows | None:
    if not parts:
        return None
    terms, places = dictionary.union([part.terms for part in parts])
    moved = [
        SparseVectors(part.counts.indptr, place[part.counts.term_ids], part.counts.weights, len(terms))
        for part, place in zip(parts, places, strict=True)
    ]
    counts = SparseVectors.concatenate(moved)
    lengths = [part.lengths for part in parts if part.lengths is not None]
    return TokenRows(terms, _narrow(counts), np.concatenate(lengths) if lengths else None)


def _take_dense(dense: DenseMatrix, places: RowNumbers) -> DenseMatrix:
    return DenseMatrix(dense.rows[places], None if dense.scales is None else dense.scales[places])


def _take_tokens(tokens: TokenRows, places: RowNumbers) -> TokenRows:
    counts = tokens.counts.take(places)
    lengths = None if tokens.lengths is None else tokens.lengths[places]
    used = np.zeros(len(tokens.terms), dtype=np.bool_)
    used[counts.term_ids] = True
    if used.all():
        return TokenRows(tokens.terms, counts, lengths)
    return _of_terms(dictionary.select(tokens.terms, used), used, counts, lengths)


def _of_terms(
    terms: Terms, used: npt.NDArray[np.bool_], counts: SparseVectors, lengths: npt.NDArray[np.uint32] | None
) -> TokenRows:
    """Counts over a whole dictionary as counts over those of its terms that are used."""
    new_ids = (np.cumsum(used) - 1).astype(np.uint32)
    counts = SparseVectors(counts.indptr, new_ids[counts.term_ids], counts.weights, len(terms))
    return TokenRows(terms, _narrow(counts), lengths)


def of_segment(segment: Segment, places: RowNumbers) -> DocumentRows:
    """Some documents of a segment; only what belongs to them is read.

    Raises:
        FormatError: names the file that is damaged, where that shows.
    """
    sparse, tokens = segment.sparse, segment.tokens
    with segment.naming_damage():
        return _without_vectors_of_nobody(
            DocumentRows(
                [segment.doc_ids[place] for place in places.tolist()],
                segment.doc_keys[places],
                segment.pending[places],
                None if segment.dense is None else _take_dense(DenseMatrix(*segment.dense), places),
                None if sparse is None else _of_branch(sparse, places, sparse.postings.vocab_size),
                None if tokens is None else _of_tokens(segment, tokens, places),
            )
        )


def _of_branch(branch: SparseBranch, places: RowNumbers, vocab_size: int) -> SparseVectors:
    indptr, entries = row_entries(branch.indptr, places)
    return SparseVectors(indptr, branch.term_ids[entries], branch.weights[entries], vocab_size)


def _of_tokens(segment: Segment, tokens: SparseBranch, places: RowNumbers) -> TokenRows:
    counts = _of_branch(tokens, places, len(segment.terms))
    lengths = None if segment.holds_bags else segment.lengths[places]
    used = np.zeros(len(segment.terms), dtype=np.bool_)
    used[counts.term_ids] = True
    if used.all():
        return TokenRows(segment.terms.terms(), counts, lengths)
    return _of_terms(segment.terms.select(used), used, counts, lengths)


def _without_vectors_of_nobody(rows: DocumentRows) -> DocumentRows:
    if rows.pending.all():
        return DocumentRows(rows.doc_ids, rows.doc_keys, rows.pending, None, None, rows.tokens)
    return rows
