"""Documents of several sources as the arrays of one segment.

A source is rows in memory or a memory-mapped segment. The arrays of up to 65,536 documents are held in memory. Those
of more are streamed: memory then holds the rows of 65,536 documents at a time and, for each document of the new
segment, a few numbers and no text. Both give the same bytes.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.index.bm25 import saturation
from lightir.index.segments import dictionary
from lightir.index.segments.dictionary import SortedStrings, Terms
from lightir.index.segments.rows import DocumentRows, RowNumbers, TokenRows, WeightedTerms
from lightir.kernel.segments import DocumentIds
from lightir.types import Branch
from lightir.vectors import SparseVectors, row_entries, row_starts

HELD_DOCUMENTS = kernel.BLOCK_SIZE
"""Maximum number of documents of a segment whose arrays are held in memory."""

PIECE_DOCUMENTS = 16_384
PIECE_POSTINGS = 1 << 21

Array: TypeAlias = npt.NDArray[Any]
Part: TypeAlias = tuple[DocumentRows, RowNumbers]
"""A source and the numbers of the documents to take from it."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """An array that is never in memory as a whole.

    Attributes:
        dtype: type of the elements.
        shape: shape of the whole array.
        pieces: returns an iterator over pieces along the first axis; may be called repeatedly.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Array]]


AnyArray: TypeAlias = Array | Streamed


class Join:
    """Some documents of some sources, in ascending order of their ids.

    Attributes:
        order: (n,) for each document its position among the documents of all parts, one part after the other.
        doc_keys: (n,) keys in the store. They may be assigned after construction, when the store has inserted them.
        pending: (n,) bool, whether a document has no vectors yet.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        """Sort the documents of all parts; ids must be distinct."""
        self._sources = [rows for rows, _ in parts]
        self._is_whole = [len(numbers) == len(rows) for rows, numbers in parts]
        ids = [i if isinstance(i := rows.doc_ids, SortedStrings) else SortedStrings.pack(i) for rows in self._sources]
        self._ids = DocumentIds([strings.arrays for strings in ids])
        self._id_lengths = [np.diff(strings.arrays[1]) for strings in ids]
        firsts = row_starts([len(rows) for rows in self._sources])[:-1]
        ords = np.concatenate([first + numbers for first, (_, numbers) in zip(firsts, parts, strict=True)])
        ords = ords.astype(np.uint32)
        self.order = self._ids.order(ords, np.zeros(len(ords), np.float32))  # all scores tie, so ids alone decide
        self._ords = ords[self.order]
        counts = [len(numbers) for _, numbers in parts]
        self._source_of = np.repeat(np.arange(len(parts), dtype=np.int32), counts)[self.order]
        self._numbers: RowNumbers = self._ords - firsts[self._source_of]
        with_keys = all(len(rows.doc_keys) == len(rows) for rows in self._sources)
        keys = [rows.doc_keys for rows in self._sources]
        self.doc_keys = self._column(keys, np.dtype(np.int64)) if with_keys else np.zeros(0, np.int64)
        self.pending = self._column([rows.pending for rows in self._sources], np.dtype(np.bool_))

    def __len__(self) -> int:
        return len(self._source_of)

    @property
    def is_held(self) -> bool:
        """Whether the arrays are held in memory."""
        return len(self) <= HELD_DOCUMENTS

    def doc_ids(self) -> tuple[AnyArray, npt.NDArray[np.int64]]:
        """Return the ids as the arrays of SortedStrings."""
        indptr = row_starts(self._column(self._id_lengths, np.dtype(np.int64)))

        def pieces() -> Iterator[Array]:
            for span in self._spans(PIECE_DOCUMENTS):
                yield np.frombuffer("".join(self._ids.texts(self._ords[span])).encode(), np.uint8)

        return Streamed(np.dtype(np.uint8), (int(indptr[-1]),), pieces), indptr

    def has(self, branch: Branch) -> bool:
        """Whether documents have the branch; of vectors, encoded documents."""
        documents = self._source_of if branch == "tokens" else self._source_of[~self.pending]
        return any(getattr(self._sources[i], branch) is not None for i in np.unique(documents).tolist())

    def _groups(self, span: slice) -> Iterator[tuple[int, Array | slice, RowNumbers]]:
        """Yield for each source of a span its number, the positions of its documents in the span, and their rows."""
        source_of, numbers = self._source_of[span], self._numbers[span]
        if len(self._sources) == 1:
            yield 0, slice(None), numbers
            return
        order = np.argsort(source_of, kind="stable")
        bounds = np.flatnonzero(np.diff(source_of[order], prepend=-1, append=-1))
        for first, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            positions = order[first:end]
            yield int(source_of[positions[0]]), positions, numbers[positions]

    def _column(self, arrays: Sequence[Array | None], dtype: np.dtype[Any], span: slice = slice(None)) -> Array:
        """Return a number, or a row of numbers, per document of a span; zeros for sources without the array."""
        width = next((array.shape[1:] for array in arrays if array is not None), ())
        out = np.zeros((len(self._source_of[span]), *width), dtype)
        for source, positions, numbers in self._groups(span):
            array = arrays[source]
            if isinstance(positions, slice) and array is not None:
                return array[numbers].astype(dtype, copy=False)
            if array is not None:
                out[positions] = array[numbers]
        return out

    def _spans(self, size: int) -> Iterator[slice]:
        return (slice(first, min(first + size, len(self))) for first in range(0, len(self), size))

    # Dense rows

    def dense(self) -> tuple[AnyArray, npt.NDArray[np.float32] | None]:
        """Return the dense rows, (n, dim) float16 or int8, zeros if pending, and the (n,) scales of int8 rows."""
        matrices = [rows.dense for rows in self._sources]
        model = next(matrix for matrix in matrices if matrix is not None)
        rows = [None if matrix is None else matrix.rows for matrix in matrices]
        dtype, width = model.rows.dtype, model.rows.shape[1]
        scales = None
        if model.scales is not None:
            scales = self._column(
                [None if matrix is None else matrix.scales for matrix in matrices], np.dtype(np.float32)
            )
        if self.is_held:
            return self._column(rows, dtype), scales

        def pieces() -> Iterator[Array]:
            return (self._column(rows, dtype, span) for span in self._spans(PIECE_DOCUMENTS))

        return Streamed(dtype, (len(self), width), pieces), scales

    # Sparse branches

    def sparse(self, scratch: Path) -> tuple[dict[str, AnyArray], int]:
        """Return the arrays of the learned sparse branch by name, and the size of its vocabulary.

        Args:
            scratch: folder for temporary files, which are unlinked at once.
        """
        sources = [rows.sparse for rows in self._sources]
        vocab_size = next(rows.vocab_size for rows in sources if rows is not None)
        rows = _JoinedTerms(self, sources, None, vocab_size, np.dtype(np.uint8))
        postings = self._inverted(rows.blocks(), vocab_size, scratch)
        return {**_named("sparse.forward", rows.arrays()), **_named("sparse.postings", postings)}, vocab_size

    def tokens(self, mean: float, scratch: Path) -> tuple[dict[str, AnyArray], int, int]:
        """Return the arrays of the tokens branch by name, the size of its vocabulary, and the number of terms.

        Args:
            mean: mean document length for which BM25's saturation is stored.
            scratch: folder for temporary files, which are unlinked at once.
        """
        rows, terms, lengths = self._token_rows()
        arrays = {**_named("tokens.forward", rows.arrays()), **dictionary.dictionary_arrays(terms)}
        if lengths is None:
            postings = self._inverted(rows.blocks(), len(terms), scratch)
            return {**arrays, **_named("tokens.postings", postings)}, len(terms), 0

        def saturated() -> Iterator[SparseVectors]:
            first = 0
            for block in rows.blocks():
                block_lengths = lengths[first : first + len(block)]
                first += len(block)
                yield block.with_weights(saturation(block.weights, block.indptr, block_lengths, mean))

        postings = self._inverted(saturated(), len(terms), scratch)
        df = np.zeros(len(terms), np.uint32)
        runs = postings["run_indptr"][postings["term_indptr"]]  # type: ignore[index]
        df[postings["term_ids"]] = np.diff(runs)  # type: ignore[index]
        arrays |= {**_named("tokens.postings", postings), "tokens.lengths": lengths, "tokens.df": df}
        return arrays, len(terms), int(lengths.sum(dtype=np.int64))

    def token_rows(self) -> TokenRows:
        """Return the tokens branch as rows in memory, in the order of the ids."""
        rows, terms, lengths = self._token_rows()
        return TokenRows(terms, SparseVectors.concatenate(list(rows.blocks())), lengths)

    def _token_rows(self) -> tuple[_JoinedTerms, Terms, npt.NDArray[np.uint32] | None]:
        """Return the counts over the terms that occur, these terms, and the lengths; no lengths for bags."""
        tokens = [rows.tokens for rows in self._sources if rows.tokens is not None]  # all sources have it, or none
        used = [self._used_terms(i, source) for i, source in enumerate(tokens)]
        kept = [dictionary.select(source.terms, mask) for source, mask in zip(tokens, used, strict=True)]
        terms, positions = dictionary.union(kept)
        new_ids = [_spread(position, mask) for position, mask in zip(positions, used, strict=True)]
        counts = [source.counts for source in tokens]
        rows = _JoinedTerms(self, counts, new_ids, len(terms), np.dtype(np.float32))
        if rows.largest_weight() <= 255:
            rows = _JoinedTerms(self, counts, new_ids, len(terms), np.dtype(np.uint8))
        if tokens[0].lengths is None:
            return rows, terms, None
        return rows, terms, self._column([source.lengths for source in tokens], np.dtype(np.uint32))

    def _used_terms(self, i: int, source: TokenRows) -> npt.NDArray[np.bool_]:
        """Return which terms of a source's dictionary occur in the chosen documents; in all documents, every term."""
        used = np.full(len(source.terms), self._is_whole[i])
        if not self._is_whole[i]:
            numbers = self._numbers[self._source_of == i]
            for first in range(0, len(numbers), PIECE_DOCUMENTS):
                _, entries = row_entries(source.counts.indptr, numbers[first : first + PIECE_DOCUMENTS])
                used[source.counts.term_ids[entries]] = True
        return used

    def _inverted(self, blocks: Iterator[SparseVectors], vocab_size: int, scratch: Path) -> Mapping[str, AnyArray]:
        """Return the inverted file of the documents by array name."""
        if not self.is_held:
            return inverted(blocks, vocab_size, scratch)
        (block,) = blocks
        csr = block.indptr, block.term_ids, block.weights
        return kernel.invert(*csr, vocab_size=vocab_size, n_docs=len(block)).arrays()


class _JoinedTerms:
    """Rows of one sparse branch of the documents of a join."""

    def __init__(
        self,
        documents: Join,
        sources: Sequence[WeightedTerms | None],
        new_ids: Sequence[npt.NDArray[np.uint32]] | None,
        vocab_size: int,
        dtype: np.dtype[Any],
    ) -> None:
        """Name the sources.

        Args:
            documents: the join.
            sources: rows of each source; None for empty rows.
            new_ids: new term ids of each source, by old term id; None to keep term ids.
            vocab_size: upper bound of the new term ids.
            dtype: type of the weights.
        """
        self._documents = documents
        self._sources = sources
        self._new_ids = new_ids
        self._vocab_size = vocab_size
        self._dtype = dtype

    def blocks(self, size: int = kernel.BLOCK_SIZE) -> Iterator[SparseVectors]:
        """Yield all rows, `size` documents at a time, or at once if they are held."""
        if self._documents.is_held:
            return iter((self._held,))
        return (self._rows(span) for span in self._documents._spans(size))

    def arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of the rows by name."""
        if self._documents.is_held:
            rows = self._held
            return {"indptr": rows.indptr, "term_ids": rows.term_ids, "weights": rows.weights}
        lengths = [None if source is None else np.diff(source.indptr) for source in self._sources]
        indptr = row_starts(self._documents._column(lengths, np.dtype(np.int64)))
        shape = (int(indptr[-1]),)

        def term_ids() -> Iterator[Array]:
            return (rows.term_ids for rows in self.blocks(PIECE_DOCUMENTS))

        def weights() -> Iterator[Array]:
            return (rows.weights for rows in self.blocks(PIECE_DOCUMENTS))

        return {
            "indptr": indptr,
            "term_ids": Streamed(np.dtype(np.uint32), shape, term_ids),
            "weights": Streamed(self._dtype, shape, weights),
        }

    def largest_weight(self) -> float:
        """Return an upper bound of the weights: the largest one, or 255 if all have a byte."""
        if all(source is None or source.weights.dtype == np.uint8 for source in self._sources):
            return 255.0
        return max(float(rows.weights.max(initial=0)) for rows in self.blocks(PIECE_DOCUMENTS))

    @cached_property
    def _held(self) -> SparseVectors:
        return self._rows(slice(None))

    def _rows(self, span: slice) -> SparseVectors:
        rows, position_of = [], []
        for i, positions, numbers in self._documents._groups(span):
            if isinstance(positions, slice):
                return self._source_rows(i, numbers)
            ascending = np.argsort(numbers)  # rows of a whole source are then a slice of it, which copies nothing
            rows.append(self._source_rows(i, numbers[ascending]))
            position_of.append(positions[ascending])
        row_of = np.argsort(np.concatenate(position_of))
        return SparseVectors.concatenate(rows).take(row_of)

    def _source_rows(self, i: int, numbers: RowNumbers) -> SparseVectors:
        source = self._sources[i]
        if source is None:
            return SparseVectors.empty(len(numbers), vocab_size=self._vocab_size, dtype=self._dtype)
        indptr, entries = _entries(source, numbers)
        term_ids = source.term_ids[entries]
        term_ids = term_ids if self._new_ids is None else self._new_ids[i][term_ids]
        return SparseVectors(
            indptr, term_ids, source.weights[entries].astype(self._dtype, copy=False), self._vocab_size
        )


def _spread(positions: npt.NDArray[np.uint32], kept: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """Return an array that holds the positions where the mask is set, and 0 elsewhere."""
    if len(positions) == len(kept):
        return positions
    out = np.zeros(len(kept), np.uint32)
    out[kept] = positions
    return out


def _entries(rows: WeightedTerms, numbers: RowNumbers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | slice]:
    """Return `row_entries`; entries of consecutive rows, the usual case, are a slice, which copies nothing."""
    if not np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
        return row_entries(rows.indptr, numbers)
    indptr = rows.indptr[numbers[0] : numbers[-1] + 2]
    return indptr - indptr[0], slice(int(indptr[0]), int(indptr[-1]))


def inverted(blocks: Iterator[SparseVectors], vocab_size: int, scratch: Path) -> dict[str, AnyArray]:
    """Return what `kernel.invert` returns for all blocks together, by name and streamed.

    Each block is inverted on its own into temporary files; then its runs are moved between those of the other blocks.

    Args:
        blocks: documents, kernel.BLOCK_SIZE at a time, the last block perhaps fewer; weights are uint8 or float32.
        vocab_size: size of the vocabulary of all blocks.
        scratch: folder for the files, which are unlinked at once.
    """
    term_ids_of, run_indptr_of = [], []
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    with tempfile.TemporaryFile(dir=scratch) as offsets_file, tempfile.TemporaryFile(dir=scratch) as weights_file:
        for block in blocks:
            csr = block.indptr, block.term_ids, block.weights
            postings = kernel.invert(*csr, vocab_size=vocab_size, n_docs=len(block))
            offsets_file.write(postings.offsets.data)
            weights_file.write(postings.weights.data)
            term_ids_of.append(postings.term_ids)
            run_indptr_of.append(postings.run_indptr)
            dtype = postings.weights.dtype
        offsets, weights = _mapped(offsets_file, np.dtype(np.uint16)), _mapped(weights_file, dtype)
    firsts = row_starts([int(indptr[-1]) for indptr in run_indptr_of])[:-1]
    order = np.argsort(np.concatenate(term_ids_of), kind="stable")  # by term, then by block
    block_of = np.repeat(np.arange(len(term_ids_of), dtype=np.uint32), [len(term_ids) for term_ids in term_ids_of])
    begins = np.concatenate([indptr[:-1] + first for indptr, first in zip(run_indptr_of, firsts, strict=True)])[order]
    run_indptr = row_starts(np.concatenate([np.diff(indptr) for indptr in run_indptr_of])[order])
    term_ids, n_runs = np.unique(np.concatenate(term_ids_of), return_counts=True)

    def gathered(array: Array) -> Iterator[Array]:
        first = 0
        while first < len(begins):
            limit = run_indptr[first] + PIECE_POSTINGS
            end = max(first + 1, int(np.searchsorted(run_indptr, limit, side="right")) - 1)
            starts = run_indptr[first : end + 1] - run_indptr[first]
            yield array[np.arange(starts[-1]) + np.repeat(begins[first:end] - starts[:-1], np.diff(starts))]
            first = end

    return {
        "term_ids": term_ids.astype(np.uint32),
        "term_indptr": row_starts(n_runs),
        "run_blocks": block_of[order],
        "run_indptr": run_indptr,
        "offsets": Streamed(offsets.dtype, offsets.shape, lambda: gathered(offsets)),
        "weights": Streamed(weights.dtype, weights.shape, lambda: gathered(weights)),
    }


def _named(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def _mapped(file: IO[bytes], dtype: np.dtype[Any]) -> Array:
    file.flush()
    if not file.tell():
        return np.zeros(0, dtype)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def mapped(array: Streamed, scratch: Path) -> Array:
    """Write an array to an unlinked temporary file and return it memory-mapped."""
    with tempfile.TemporaryFile(dir=scratch) as file:
        for piece in array.pieces():
            file.write(np.ascontiguousarray(piece).data)
        return _mapped(file, array.dtype).reshape(array.shape)
