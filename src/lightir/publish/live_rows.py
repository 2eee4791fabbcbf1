"""The live documents of a view in the order of their ids, and their rows in the branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.index import View
from lightir.index.segments.segment import Segment
from lightir.vectors import Floats, row_entries


@dataclass(frozen=True, slots=True)
class CountedTerms:
    """The terms of the tokens branch by term.

    Attributes:
        terms: n ascending terms, each in at least one document.
        indptr: (n + 1,) int64, start of each term's documents.
        documents: (nnz,) int64, numbers of the documents with a term, ascending.
        counts: (nnz,) int64, count of the term in each of them, fields times their boosts.
        lengths: (n_docs,) int64, number of terms of each document, counted in the same way.
    """

    terms: list[str]
    indptr: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DenseBytes:
    """Dense rows in one byte a number, and a second one that makes float16 rows nearly exact.

    Row i is scales[i] * (rows[i] + lows[i] / 256).

    Attributes:
        rows: (n, dim) int8.
        lows: (n, dim) int8; None if the index has int8 rows.
        scales: (n,) float32.
    """

    rows: npt.NDArray[np.int8]
    lows: npt.NDArray[np.int8] | None
    scales: Floats

    def values(self) -> Floats:
        """Return (n, dim) float32, from the first byte alone."""
        return self.rows * self.scales[:, None]


class LiveRows:
    """The live documents of a view, numbered in the order of their ids.

    Attributes:
        view: the view.
        doc_ids: id of each document or passage, ascending.
        doc_ords: (n,) their doc_ords in the view.
    """

    def __init__(self, view: View) -> None:
        """Sort the documents of a view."""
        self.view = view
        places = [live.first_ord + live.places for live in view.segments]
        doc_ords = np.concatenate([np.zeros(0, np.int64), *places]).astype(np.uint32)
        doc_ids = view.doc_ids(doc_ords)
        order = sorted(range(len(doc_ids)), key=doc_ids.__getitem__)
        self.doc_ids = [doc_ids[i] for i in order]
        self.doc_ords = doc_ords[np.array(order, dtype=np.int64)]

    def __len__(self) -> int:
        return len(self.doc_ids)

    def dense(self) -> DenseBytes:
        """Return the dense rows."""
        dim = self.view.dense_dim or 0
        rows, lows = np.zeros((len(self), dim), np.int8), np.zeros((len(self), dim), np.int8)
        scales = np.zeros(len(self), np.float32)
        is_int8 = True
        for number, live in enumerate(self.view.segments):
            if live.segment.dense is None:
                continue
            mine, at = self.of_segment(number)
            stored, stored_scales = live.segment.dense
            if stored_scales is not None:
                rows[mine], scales[mine] = stored[at], stored_scales[at]
                continue
            is_int8 = False
            rows[mine], lows[mine], scales[mine] = _in_two_bytes(stored[at].astype(np.float32))
        return DenseBytes(rows, None if is_int8 else lows, scales)

    def counted_terms(self) -> CountedTerms:
        """Return the terms of the tokens branch; requires BM25 over words."""
        terms = sorted({term for live in self.view.segments for term in _terms_of(live.segment)})
        position_of = {term: position for position, term in enumerate(terms)}
        lengths = np.zeros(len(self), dtype=np.int64)
        parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for number, live in enumerate(self.view.segments):
            stored = live.segment.tokens
            if stored is None:
                continue
            mine, at = self.of_segment(number)
            positions = np.array([position_of[term] for term in _terms_of(live.segment)], dtype=np.int64)
            indptr, entries = row_entries(stored.indptr, at)
            lengths[mine] = live.segment.lengths[at]
            documents = np.repeat(mine, np.diff(indptr))
            parts.append((positions[stored.term_ids[entries]], documents, stored.weights[entries].astype(np.int64)))
        none = np.zeros(0, dtype=np.int64)
        numbers, documents, counts = (np.concatenate([none, *column]) for column in zip(*parts, strict=True))
        order = np.lexsort((documents, numbers))
        kept, sizes = np.unique(numbers, return_counts=True)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return CountedTerms([terms[i] for i in kept], starts, documents[order], counts[order], lengths)

    def of_segment(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the numbers of a segment's documents, and their rows in the segment."""
        at, rows = self.view.locate(self.doc_ords)
        mine = np.flatnonzero(at == number)
        return mine, rows[mine]


def _terms_of(segment: Segment) -> list[str]:
    if not segment.has("tokens"):
        return []
    terms = segment.terms
    return [str(terms[i]) for i in range(len(terms))]


def _in_two_bytes(values: Floats) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8], Floats]:
    """Return the first byte of each number, the second one, and a scale per row."""
    scales = (np.abs(values).max(axis=1, initial=0.0) / 127).astype(np.float32)
    in_steps = np.rint(values / np.where(scales > 0, scales, 1)[:, None] * 256)
    steps = in_steps.clip(-127 * 256, 127 * 256).astype(np.int32)
    highs = (steps + 128) >> 8
    return highs.astype(np.int8), (steps - 256 * highs).astype(np.int8), scales
