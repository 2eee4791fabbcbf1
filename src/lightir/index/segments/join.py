"""Documents of several segments as the arrays of one, piece by piece, in little memory however many they are.

Memory holds 65,536 documents' rows and, of every document of the new segment, some numbers and no text: its place, its
key, where its rows begin. `rows.join` does the same in memory and gives the same bytes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index.bm25 import saturation
from lightir.index.segments import dictionary
from lightir.index.segments.rows import RowNumbers
from lightir.index.segments.segment import Segment, SparseBranch
from lightir.kernel.segments import DocumentIds
from lightir.vectors import SparseVectors, row_entries, row_starts

PIECE_DOCUMENTS = 16_384
PIECE_POSTINGS = 1 << 21

Array = npt.NDArray[Any]
Part = tuple[Segment, RowNumbers]
"""A segment, and the places of some of its documents, ascending."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """An array that nobody holds as a whole.

    Attributes:
        dtype: of its elements.
        shape: of the whole.
        pieces: gives it in pieces along the first axis, as often as it is called.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]


class Joined:
    """Some documents of some segments, in ascending order of their ids."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Put the documents of all parts in order; each doc_id comes once."""
        self._segments = [segment for segment, _ in parts]
        self._every = [len(places) == len(segment) for segment, places in parts]
        order = _order_of_ids(parts)
        self._of = np.repeat(np.arange(len(parts)), [len(places) for _, places in parts])[order]
        self._places = np.concatenate([places for _, places in parts])[order]
        self.doc_keys = self._column([segment.doc_keys for segment in self._segments], np.dtype(np.int64))
        self.pending = self._column([segment.pending for segment in self._segments], np.dtype(np.bool_))

    def __len__(self) -> int:
        return len(self._of)

    def doc_ids(self) -> tuple[Streamed, npt.NDArray[np.int64]]:
        """What `SortedStrings.pack` gives of the ids."""
        lengths = self._column([np.diff(segment.doc_ids.indptr) for segment in self._segments], np.dtype(np.int64))
        indptr = row_starts(lengths)

        def pieces() -> Iterator[Array]:
            for span in self._spans(PIECE_DOCUMENTS):
                each = zip(self._of[span].tolist(), self._places[span].tolist(), strict=True)
                texts = [self._segments[i].doc_ids.text(place) for i, place in each]
                yield np.frombuffer(b"".join(texts), np.uint8)

        return Streamed(np.dtype(np.uint8), (int(indptr[-1]),), pieces), indptr

    def having(self, branch: str) -> list[Segment]:
        """The segments that hold a branch of the documents; of vectors, those of documents that have some."""
        there = [segment for i, segment in enumerate(self._segments) if segment.has(branch) and np.any(self._of == i)]
        if branch == "tokens":
            return there
        encoded = [self._segments[i] for i in np.unique(self._of[~self.pending])]
        return [segment for segment in there if segment in encoded]

    def _column(self, arrays: Sequence[Array | None], dtype: np.dtype[Any], span: slice = slice(None)) -> Array:
        """A number, or a row of them, of each document of a span; zeros where a segment has none."""
        of, places = self._of[span], self._places[span]
        width = next((each.shape[1:] for each in arrays if each is not None), ())
        out = np.zeros((len(of), *width), dtype)
        for i in np.unique(of):
            here, array = of == i, arrays[i]
            if array is not None:
                out[here] = array[places[here]]
        return out

    def _spans(self, size: int) -> Iterator[slice]:
        return (slice(first, min(first + size, len(self))) for first in range(0, len(self), size))

    # Dense rows

    def dense(self) -> tuple[Streamed, npt.NDArray[np.float32] | None]:
        """The dense rows, (n, dim) float16 or int8, zeros for those without; and the (n,) scales of int8 rows."""
        having = self.having("dense")
        found = [segment.dense if segment in having else None for segment in self._segments]
        model = next(each for each in found if each is not None)
        rows = [None if each is None else each[0] for each in found]
        dtype, width = model[0].dtype, model[0].shape[1]

        def pieces() -> Iterator[Array]:
            return (self._column(rows, dtype, span) for span in self._spans(PIECE_DOCUMENTS))

        scales = [None if each is None else each[1] for each in found]
        joined = None if model[1] is None else self._column(scales, np.dtype(np.float32))
        return Streamed(dtype, (len(self), width), pieces), joined

    # Sparse branches

    def sparse(self, scratch: Path) -> tuple[dict[str, Array | Streamed], int]:
        """The arrays of the learned sparse branch by name, and its vocabulary's size.

        Args:
            scratch: a folder for temporary files, which have no names there.
        """
        having = self.having("sparse")
        branches = [segment.sparse if segment in having else None for segment in self._segments]
        vocab_size = next(each.postings.vocab_size for each in branches if each is not None)
        rows = _SparseRows(self, branches, None, vocab_size, np.dtype(np.uint8))
        postings = inverted(rows.blocks(), vocab_size, scratch)
        return {**_named("sparse.forward", rows.arrays()), **_named("sparse.postings", postings)}, vocab_size

    def tokens(self, mean: float, scratch: Path) -> tuple[dict[str, Array | Streamed], int, int]:
        """The arrays of the tokens branch by name, its vocabulary's size, and how many terms all documents have.

        Args:
            mean: the mean document length that BM25's saturation is stored for.
            scratch: see `sparse`.
        """
        branches = [segment.tokens for segment in self._segments]
        used = [self._used(i) for i in range(len(self._segments))]
        terms, places = dictionary.union(
            [
                segment.terms.terms() if mask.all() else segment.terms.select(mask)
                for segment, mask in zip(self._segments, used, strict=True)
            ]
        )
        moved = [np.zeros(len(mask), np.uint32) for mask in used]
        for to, mask, place in zip(moved, used, places, strict=True):
            to[mask] = place
        rows = _SparseRows(self, branches, moved, len(terms), np.dtype(np.float32))
        if rows.largest() <= 255:
            rows = _SparseRows(self, branches, moved, len(terms), np.dtype(np.uint8))
        if self._segments[0].holds_bags:
            postings = inverted(rows.blocks(), len(terms), scratch)
            named = {**_named("tokens.forward", rows.arrays()), **_named("tokens.postings", postings)}
            return {**named, **dictionary.pack(terms)}, len(terms), 0
        lengths = self._column([segment.lengths for segment in self._segments], np.dtype(np.uint32))

        def saturated() -> Iterator[SparseVectors]:
            first = 0
            for block in rows.blocks():
                here = lengths[first : first + len(block)]
                first += len(block)
                yield block.with_weights(saturation(block.weights, block.indptr, here, mean))

        postings = inverted(saturated(), len(terms), scratch)
        df = np.zeros(len(terms), np.uint32)
        runs = postings["run_indptr"][postings["term_indptr"]]  # type: ignore[index]
        df[postings["term_ids"]] = np.diff(runs)  # type: ignore[index]
        named = {**_named("tokens.forward", rows.arrays()), **_named("tokens.postings", postings)}
        arrays = {**named, "tokens.lengths": lengths, "tokens.df": df, **dictionary.pack(terms)}
        return arrays, len(terms), int(lengths.sum(dtype=np.int64))

    def _used(self, i: int) -> npt.NDArray[np.bool_]:
        """Which terms of a segment's dictionary its documents here have; a segment's dictionary has no others."""
        segment = self._segments[i]
        used = np.full(len(segment.terms), self._every[i])
        if not self._every[i] and segment.tokens is not None:
            places = self._places[self._of == i]
            for first in range(0, len(places), PIECE_DOCUMENTS):
                _, entries = row_entries(segment.tokens.indptr, places[first : first + PIECE_DOCUMENTS])
                used[segment.tokens.term_ids[entries]] = True
        return used


def _order_of_ids(parts: Sequence[Part]) -> npt.NDArray[np.int64]:
    """The places of the parts' documents, one part after the other, in ascending order of their ids."""
    firsts = row_starts([len(segment) for segment, _ in parts])[:-1]
    doc_ords = np.concatenate([first + places for first, (_, places) in zip(firsts, parts, strict=True)])
    ids = DocumentIds([segment.doc_ids.arrays for segment, _ in parts])
    return ids.order(doc_ords.astype(np.uint32), np.zeros(len(doc_ords), np.float32))  # all tie, so ids alone count


@dataclass(frozen=True, slots=True)
class _SparseRows:
    """The documents' rows of one sparse branch.

    Attributes:
        joined: the documents.
        branches: of each segment; None for empty rows.
        moved: for each segment what its term ids become; None where they stay.
        vocab_size: every new term id is below it.
        dtype: of the weights.
    """

    joined: Joined
    branches: Sequence[SparseBranch | None]
    moved: Sequence[npt.NDArray[np.uint32]] | None
    vocab_size: int
    dtype: np.dtype[Any]

    def blocks(self, size: int = kernel.BLOCK_SIZE) -> Iterator[SparseVectors]:
        """All rows, so many at a time."""
        return (self._rows(span) for span in self.joined._spans(size))

    def arrays(self) -> dict[str, Array | Streamed]:
        """The rows' arrays by name."""
        lengths = [None if branch is None else np.diff(branch.indptr) for branch in self.branches]
        indptr = row_starts(self.joined._column(lengths, np.dtype(np.int64)))
        shape = (int(indptr[-1]),)

        def term_ids() -> Iterator[Array]:
            return (rows.term_ids for rows in self.blocks(PIECE_DOCUMENTS))

        def weights() -> Iterator[Array]:
            return (rows.weights for rows in self.blocks(PIECE_DOCUMENTS))

        return {
            "indptr": indptr,
            "term_ids": Streamed(np.dtype(np.uint32), shape, term_ids),
            "weights": Streamed(self.dtype, shape, weights),
        }

    def largest(self) -> float:
        """The largest weight."""
        if all(branch is None or branch.weights.dtype == np.uint8 for branch in self.branches):
            return 255.0
        return max(float(rows.weights.max(initial=0)) for rows in self.blocks(PIECE_DOCUMENTS))

    def _rows(self, span: slice) -> SparseVectors:
        of, places = self.joined._of[span], self.joined._places[span]
        parts = [self._part(i, places[of == i]) for i in np.unique(of).tolist()]
        rows = SparseVectors.concatenate(parts)
        if len(parts) == 1:
            return rows
        place = np.empty(len(of), np.int64)
        place[np.argsort(of, kind="stable")] = np.arange(len(of))
        return rows.take(place)

    def _part(self, i: int, places: RowNumbers) -> SparseVectors:
        branch = self.branches[i]
        if branch is None:
            return SparseVectors.empty(len(places), vocab_size=self.vocab_size, dtype=self.dtype)
        indptr, entries = _entries(branch, places)
        term_ids = branch.term_ids[entries]
        moved = term_ids if self.moved is None else self.moved[i][term_ids]
        weights = branch.weights[entries].astype(self.dtype, copy=False)
        return SparseVectors(indptr, moved, weights, self.vocab_size)


def _entries(branch: SparseBranch, places: RowNumbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | slice]:
    """As `row_entries` for ascending places; those of neighbours, the usual case, are a slice, which copies nothing."""
    if places[-1] - places[0] >= len(places):
        return row_entries(branch.indptr, places)
    indptr = branch.indptr[places[0] : places[-1] + 2]
    return indptr - indptr[0], slice(int(indptr[0]), int(indptr[-1]))


def inverted(blocks: Iterator[SparseVectors], vocab_size: int, scratch: Path) -> dict[str, Array | Streamed]:
    """The arrays of `kernel.invert` of all blocks' documents together, by name.

    Each block is inverted by itself into temporary files; its runs then go to their places among those of the others.

    Args:
        blocks: documents, kernel.BLOCK_SIZE at a time, the last perhaps fewer; weights uint8 or float32.
        vocab_size: of all.
        scratch: a folder for the files, which have no names there.
    """
    term_ids_of, run_indptr_of = [], []
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    with tempfile.TemporaryFile(dir=scratch) as offsets_file, tempfile.TemporaryFile(dir=scratch) as weights_file:
        for block in blocks:
            csr = block.indptr, block.term_ids, block.weights
            made = kernel.invert(*csr, vocab_size=vocab_size, n_docs=len(block))
            offsets_file.write(made.offsets.data)
            weights_file.write(made.weights.data)
            term_ids_of.append(made.term_ids)
            run_indptr_of.append(made.run_indptr)
            dtype = made.weights.dtype
        offsets, weights = _mapped(offsets_file, np.dtype(np.uint16)), _mapped(weights_file, dtype)
    firsts = row_starts([int(indptr[-1]) for indptr in run_indptr_of])[:-1]
    order = np.argsort(np.concatenate(term_ids_of), kind="stable")  # by term, then by block
    blocks_of = np.repeat(np.arange(len(term_ids_of), dtype=np.uint32), [len(each) for each in term_ids_of])
    begins = np.concatenate([indptr[:-1] + first for indptr, first in zip(run_indptr_of, firsts, strict=True)])[order]
    run_indptr = row_starts(np.concatenate([np.diff(indptr) for indptr in run_indptr_of])[order])
    term_ids, n_runs = np.unique(np.concatenate(term_ids_of), return_counts=True)

    def gathered(array: Array) -> Iterator[Array]:
        first = 0
        while first < len(begins):
            most = run_indptr[first] + PIECE_POSTINGS
            end = max(first + 1, int(np.searchsorted(run_indptr, most, side="right")) - 1)
            here = run_indptr[first : end + 1] - run_indptr[first]
            yield array[np.arange(here[-1]) + np.repeat(begins[first:end] - here[:-1], np.diff(here))]
            first = end

    return {
        "term_ids": term_ids.astype(np.uint32),
        "term_indptr": row_starts(n_runs),
        "run_blocks": blocks_of[order],
        "run_indptr": run_indptr,
        "offsets": Streamed(offsets.dtype, offsets.shape, lambda: gathered(offsets)),
        "weights": Streamed(weights.dtype, weights.shape, lambda: gathered(weights)),
    }


def _named(prefix: str, arrays: dict[str, Array | Streamed]) -> dict[str, Array | Streamed]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _mapped(file: IO[bytes], dtype: np.dtype[Any]) -> Array:
    file.flush()
    if not file.tell():
        return np.zeros(0, dtype)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def whole(array: Streamed, scratch: Path) -> Array:
    """The array as a temporary file without a name, memory-mapped."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        for piece in array.pieces():
            file.write(np.ascontiguousarray(piece).data)
        return _mapped(file, array.dtype).reshape(array.shape)
