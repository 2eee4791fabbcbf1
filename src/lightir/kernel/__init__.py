"""Compiled functions over plain numpy arrays: inversion, exact top k, means of dense and sparse rows, pair scores.

Every function has a slow, readable twin of the same name in `lightir.kernel.reference`. Loading this module selects
the best instruction set of the processor; the environment variable LIGHTIR_KERNEL (scalar, avx2, avx512, and
neon, dotprod on aarch64) overrides the choice. All instruction sets return the same bits, with any number of
threads. The functions release the GIL. They check their arguments: a wrong dtype, shape, order or id raises
InvalidInput and never crashes.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.kernel import _native

Weights = npt.NDArray[np.uint8] | npt.NDArray[np.float32]
Rows = npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.int8]
DocOrds = npt.NDArray[np.uint32]
Scores = npt.NDArray[np.float32]

BLOCK_SIZE = 65_536  # documents per block, so that an offset fits 16 bits


@dataclass(frozen=True, slots=True)
class Postings:
    """An inverted file as plain arrays, ordered by term. The arrays can be saved and memory-mapped.

    A run is the postings of one term in one block of 65,536 documents.

    Attributes:
        vocab_size: exclusive upper bound of the term ids.
        n_docs: number of documents; each doc_ord is below it.
        term_ids: (n_terms,) uint32 ids of the terms that occur, ascending.
        term_indptr: (n_terms + 1,) int64; term i has the runs term_indptr[i] to term_indptr[i + 1].
        run_blocks: (n_runs,) uint32 block numbers, ascending within a term.
        run_indptr: (n_runs + 1,) int64; run j has the postings run_indptr[j] to run_indptr[j + 1].
        offsets: (n_postings,) uint16, doc_ord - 65,536 * block, ascending within a run.
        weights: (n_postings,) uint8 impacts or float32 weights.
    """

    vocab_size: int
    n_docs: int
    term_ids: npt.NDArray[np.uint32]
    term_indptr: npt.NDArray[np.int64]
    run_blocks: npt.NDArray[np.uint32]
    run_indptr: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint16]
    weights: Weights

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, in the order in which files of postings store them."""
        names = ("term_ids", "term_indptr", "run_blocks", "run_indptr", "offsets", "weights")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Copies:
    """int8 copies of float16 or float32 rows, which a scan reads before the rows (`copy_rows`).

    Attributes:
        rows: (n, width) int8 values.
        scales: (n,) float32 largest magnitude of each row / 127; copy i represents scales[i] * rows[i].
        errors: (n,) float32 upper bounds of the Euclidean distance between row i and its copy.
    """

    rows: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RowCodes:
    """2-bit codes of rows, which a scan reads before the rows and before their copies (`code_rows`).

    A code u is the number 2 u - 3. A query's product with row i is its product with the center, plus that of the
    rotated query with scales[i] * numbers of row i, plus or minus errors[i] times the query's length.

    Attributes:
        rows: (ceil(n / 64), m, 64) uint8 with m = ceil(width / 4), padded with zeros. Byte [b, j, r] has the codes of
            row 64 b + r in the columns j, j + m, j + 2 m and j + 3 m, lowest bits first.
        scales: (n,) bfloat16 stored as uint16, not negative.
        errors: (n,) bfloat16 stored as uint16, with a bound of what the roundings of a search can add.
        center: (width,) float32 mean of each column over a sample of rows.
    """

    rows: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.uint16]
    errors: npt.NDArray[np.uint16]
    center: npt.NDArray[np.float32]

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """Return the arrays in the order that the compiled module expects."""
        return (self.rows, self.scales, self.errors, self.center)


def dispatch() -> str:
    """Return the name of the instruction set in use: "scalar", "avx2", "avx512", "neon" or "dotprod"."""
    return _native.dispatch()


def available() -> list[str]:
    """Return the names of the instruction sets that this processor supports, lowest first."""
    return _native.available()


def pack_bitmap(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return the bitmap of a mask over documents, for the `allowed` arguments.

    Args:
        mask: (n_docs,) bool, True for documents that may be returned.

    Returns:
        (ceil(n_docs / 8),) uint8; document i is bit i % 8 (least significant first) of byte i // 8.
    """
    return np.packbits(mask, bitorder="little")


def invert(
    indptr: npt.NDArray[np.int64], term_ids: npt.NDArray[np.uint32], impacts: Weights, *, vocab_size: int, n_docs: int
) -> Postings:
    """Return the postings of sparse document vectors; the same input gives the same bytes.

    Args:
        indptr: (n_docs + 1,) int64; document i has the entries indptr[i] to indptr[i + 1].
        term_ids: (nnz,) uint32 below vocab_size, strictly ascending within a document.
        impacts: (nnz,) uint8 impacts, or finite, non-negative float32 weights. Zeros are kept.
        vocab_size: size of the vocabulary; the call needs 24 bytes of scratch memory per term.
        n_docs: number of documents, 0 or more.
    """
    vocab_size, n_docs = _count("vocab_size", vocab_size), _count("n_docs", n_docs)
    return Postings(vocab_size, n_docs, *_native.invert(indptr, term_ids, impacts, vocab_size, n_docs))


def sparse_top_k(
    postings: Postings,
    query_term_ids: npt.NDArray[np.uint32],
    query_weights: npt.NDArray[np.float32],
    *,
    k: int,
    allowed: npt.NDArray[np.uint8] | None = None,
) -> tuple[DocOrds, Scores]:
    """Return the k documents with the largest inner product with one query, exactly; ties go to the smaller doc_ord.

    A score is the float32 sum of query weight * impact in ascending order of term ids. Each product and each sum is
    rounded, which is exact for whole numbers below 2 ** 24. Only documents with a score above 0 are returned.

    Args:
        postings: inverted file to search.
        query_term_ids: (n,) uint32 below the postings' vocab_size, in any order, without duplicates. An empty query
            returns nothing.
        query_weights: (n,) float32, finite and non-negative.
        k: maximum number of documents; fewer are returned when fewer match.
        allowed: bitmap of the documents that may be returned (`pack_bitmap`); None for all.

    Returns:
        doc_ords (m,) uint32 and scores (m,) float32, m <= k.

    Raises:
        InvalidInput: an argument has a wrong dtype, shape, order or value.
        FormatError: the postings are damaged: an index is out of bounds.
    """
    query_indptr = np.array([0, len(query_term_ids)], dtype=np.int64)
    _, doc_ords, scores = sparse_top_k_batch(
        postings, query_indptr, query_term_ids, query_weights, k=k, allowed=allowed
    )
    return doc_ords, scores


def sparse_top_k_batch(
    postings: Postings,
    query_indptr: npt.NDArray[np.int64],
    query_term_ids: npt.NDArray[np.uint32],
    query_weights: npt.NDArray[np.float32],
    *,
    k: int,
    threads: int = 1,
    allowed: npt.NDArray[np.uint8] | None = None,
) -> tuple[npt.NDArray[np.int64], DocOrds, Scores]:
    """Return the k best documents of each of a batch of queries, as `sparse_top_k` ranks them.

    Args:
        postings: inverted file to search.
        query_indptr: (n_queries + 1,) int64; query i has the terms query_indptr[i] to query_indptr[i + 1].
        query_term_ids: (n_terms,) uint32 of all queries, without duplicates within a query.
        query_weights: (n_terms,) float32 of all queries, finite and non-negative.
        k: maximum number of documents per query.
        threads: maximum number of threads; each works on whole queries.
        allowed: bitmap of the documents that may be returned (`pack_bitmap`); None for all.

    Returns:
        indptr (n_queries + 1,) int64, doc_ords uint32, scores float32; query i has the hits indptr[i] to indptr[i + 1].
    """
    return _native.sparse_top_k(
        (
            postings.term_ids,
            postings.term_indptr,
            postings.run_blocks,
            postings.run_indptr,
            postings.offsets,
            postings.weights,
        ),
        postings.vocab_size,
        postings.n_docs,
        query_indptr,
        query_term_ids,
        query_weights,
        _count("k", k),
        _threads(threads),
        allowed,
    )


def dense_top_k(
    rows: Rows,
    queries: npt.NDArray[np.float32],
    *,
    k: int,
    scales: npt.NDArray[np.float32] | None = None,
    threads: int = 1,
    allowed: npt.NDArray[np.uint8] | None = None,
    copies: Copies | RowCodes | None = None,
) -> tuple[DocOrds, Scores]:
    """Return the k rows with the largest inner product per query; ties go to the smaller row. Exact, but for `copies`.

    A query that is narrower than the rows is compared with their first columns (a Matryoshka prefix). The prefix is
    not normalized again; a caller that needs unit length at this width must scale the rows.

    Args:
        rows: (n_docs, width) float16, float32 or int8.
        queries: (n, dim) float32, finite, dim <= width.
        k: maximum number of rows per query; fewer are returned when fewer are allowed.
        scales: (n_docs,) float32 for int8 rows, else None; row i represents scales[i] * rows[i].
        threads: maximum number of threads.
        allowed: bitmap of the rows that may be returned (`pack_bitmap`); None for all.
        copies: int8 copies (`copy_rows`) or 2-bit codes (`code_rows`) of the rows. The scan then reads only the rows
            whose copies or codes score high enough. Copies never change the result, and codes leave out one of its
            rows with a probability below 1e-9. It reads neither if k is more than one row in 200, and no codes for a
            while if they exclude too few rows.

    Returns:
        doc_ords (n, m) uint32 and scores (n, m) float32 with m = min(k, number of allowed rows); both are (0, 0)
        without queries. Products are summed in float32 (32 partial sums, then a tree), which is within about
        1e-6 * |row| * |query| of the exact value.

    Raises:
        InvalidInput: an argument has a wrong dtype or shape, or an allowed row scores NaN.
    """
    codes = copies.arrays() if isinstance(copies, RowCodes) else None
    arrays = (copies.rows, copies.scales, copies.errors) if isinstance(copies, Copies) else None
    indptr, doc_ords, scores = _native.dense_top_k(
        rows,
        scales,
        queries,
        _count("k", k),
        _threads(threads),
        allowed,
        arrays,
        codes,
    )
    n_queries = len(indptr) - 1
    n_hits = int(indptr[1]) if n_queries else 0
    return doc_ords.reshape(n_queries, n_hits), scores.reshape(n_queries, n_hits)


def copy_rows(rows: Rows) -> Copies:
    """Return int8 copies of finite float16 or float32 rows, with a scale and an error bound per row."""
    if rows.dtype == np.int8:
        raise InvalidInput("rows are int8 and need no copies; copy_rows requires float16 or float32")
    copies = Copies(np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32), np.empty(len(rows), np.float32))
    for first in range(0, len(rows), 4096):  # bounds the memory of the float64 values below
        span = slice(first, first + 4096)
        values = rows[span].astype(np.float32)
        scales = np.abs(values).max(axis=1, initial=0.0) / np.float32(127)
        divisors = np.where(scales > 0, scales, np.float32(1))
        rounded = np.rint(values / divisors[:, None])
        residuals = values.astype(np.float64) - scales[:, None].astype(np.float64) * rounded
        errors = (np.sqrt(np.einsum("ij,ij->i", residuals, residuals)) * (1 + 1e-6)).astype(np.float32)
        copies.rows[span], copies.scales[span] = rounded, scales
        copies.errors[span] = np.nextafter(errors, np.float32(np.inf))
    return copies


CODED_BLOCK = 64  # rows whose codes are stored together
CODED_SAMPLE = 16_384  # rows from which the center is estimated


def code_center(rows: Rows, *, scales: npt.NDArray[np.float32] | None = None) -> npt.NDArray[np.float32]:
    """Return the center for `code_rows`: the mean of the first 16,384 rows.

    Any center is right; this one makes errors small.
    """
    first = slice(min(len(rows), CODED_SAMPLE))
    sample = rows[first].astype(np.float64)
    if scales is not None:
        sample *= scales[first, None]
    return (sample.mean(axis=0) if len(sample) else np.zeros(rows.shape[1])).astype(np.float32)


def code_rows(
    rows: Rows,
    *,
    scales: npt.NDArray[np.float32] | None = None,
    center: npt.NDArray[np.float32] | None = None,
) -> RowCodes:
    """Return 2-bit codes of rows, similar to RaBitQ (Gao & Long, SIGMOD 2024).

    A row y, less the center, is rotated. Its codes u divide each column into four steps, which are as long as the root
    mean square of the columns. The scale s = |y|^2 / (u . y) makes s u - y orthogonal to y, so the score's error is the
    product of s u - y and of the query's part across y. That part points in any direction, as the rotation looks
    random. So the error is at most 6.5 standard deviations, 6.5 / sqrt(width - 1) |query| |s u - y|, but with a
    probability below exp(-6.5^2 / 2) < 1e-9. Rows of up to 43 columns have the bound of Cauchy and Schwarz,
    |query| |s u - y|. No error is below 2 s, which leaves room for that of a search's tables. Rounding s adds to it.

    Args:
        rows: (n, width) float16, float32 or int8, finite.
        scales: (n,) float32 for int8 rows, else None; row i represents scales[i] * rows[i].
        center: (width,) float32 (`code_center`); None to estimate it from the rows.

    Raises:
        InvalidInput: a row is not finite, or too large for an error bound in float32.
    """
    middle = code_center(rows, scales=scales) if center is None else center
    return RowCodes(*_native.code_rows(rows, scales, middle), middle)


def dense_pair_scores(
    rows: Rows,
    doc_ords: DocOrds,
    query: npt.NDArray[np.float32],
    *,
    scales: npt.NDArray[np.float32] | None = None,
) -> Scores:
    """Return the inner products of one query with given rows, bit-identical to those of `dense_top_k`.

    Args:
        rows: (n_docs, width) float16, float32 or int8.
        doc_ords: (n,) uint32, in any order; duplicates are allowed.
        query: (dim,) float32, dim <= width.
        scales: (n_docs,) float32 for int8 rows, else None.

    Returns:
        (n,) float32.
    """
    return _native.dense_pair_scores(rows, scales, doc_ords, query)


def mean_rows(
    table: Rows | npt.NDArray[np.uint16],
    token_ids: npt.NDArray[np.uint32],
    indptr: npt.NDArray[np.int64],
    *,
    normalize: bool,
    scales: npt.NDArray[np.float32] | None = None,
    dim: int | None = None,
    threads: int = 1,
) -> npt.NDArray[np.float32]:
    """Return the mean of each query's table rows (LightRetriever, Eq. 6), optionally L2-normalized.

    Args:
        table: (vocab_size, width) float16, float32, int8, or bfloat16 stored as uint16.
        token_ids: (total,) uint32 tokens of all queries; a repeated token counts each time.
        indptr: (n + 1,) int64; query i has the tokens indptr[i] to indptr[i + 1].
        normalize: L2-normalize the mean. A mean of zeros stays zero.
        scales: (vocab_size,) float32 for int8 tables, else None.
        dim: number of leading columns to average, before normalization; None for all.
        threads: maximum number of threads.

    Returns:
        (n, dim) float32; zeros for a query without tokens.
    """
    threads = _threads(threads)
    if not isinstance(table, np.ndarray) or table.ndim != 2:
        raise InvalidInput("table must be a numpy array of 2 dimensions")
    width = table.shape[1] if dim is None else _count("dim", dim)
    if width > table.shape[1]:
        raise InvalidInput(f"the table is {table.shape[1]} wide, which is less than dim {width}")
    out = np.empty((max(len(indptr) - 1, 0), width), dtype=np.float32)
    _native.mean_rows(table, scales, token_ids, indptr, normalize, threads, out)
    return out


def mean_expansions(
    row_ids: npt.NDArray[np.uint32],
    row_weights: npt.NDArray[np.float16] | npt.NDArray[np.float32],
    token_ids: npt.NDArray[np.uint32],
    indptr: npt.NDArray[np.int64],
    *,
    vocab_size: int,
    threads: int = 1,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Return the mean of each query's rows of a sparse table (SiDR's model-free queries), as sparse rows.

    Args:
        row_ids: (n_rows, width) uint32 below vocab_size, in any order; a repeated id counts each time.
        row_weights: (n_rows, width) float16 or float32.
        token_ids: (total,) uint32 below n_rows, tokens of all queries; a repeated token counts each time.
        indptr: (n + 1,) int64; query i has the tokens indptr[i] to indptr[i + 1].
        vocab_size: width of the result.
        threads: maximum number of threads.

    Returns:
        indptr (n + 1,) int64, term ids uint32 ascending within a row, and non-zero weights float32. Sums are in float64
        in the order of the tokens, so a row depends only on its query.

    Raises:
        InvalidInput: a token has no row, or a term id is outside the vocabulary.
    """
    return _native.mean_expansions(
        row_ids, row_weights, token_ids, indptr, _count("vocab_size", vocab_size), _threads(threads)
    )


def split_words(
    texts: Sequence[str],
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64], list[int]]:
    r"""Return the words of ASCII texts, equal to `re.findall(r"\b\w\w+\b", text.lower())` but much faster.

    Args:
        texts: n texts.

    Returns:
        The distinct words in order of first occurrence; ids (total,) uint32, positions of the texts' words in that
        list; indptr (n + 1,) int64; and the ascending positions of non-ASCII texts, which get no words.
    """
    return _native.split_words(texts)


def near_terms(
    text: npt.NDArray[np.uint8], indptr: npt.NDArray[np.int64], word: str, *, distance: int, prefix: bool = False
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the terms of a sorted dictionary that are near a word.

    The distance is the number of characters to insert, delete, replace or swap with their neighbor, where no part of
    the word is changed twice (optimal string alignment).

    Args:
        text: UTF-8 bytes of the terms.
        indptr: (n + 1,) start of each term; terms ascend.
        word: word to look for.
        distance: maximum distance, up to 255.
        prefix: whether the distance of a term is the smallest one of its prefixes.

    Returns:
        (m,) positions of the terms, ascending, and (m,) uint8 distances.
    """
    encoded = word.encode(errors="replace").decode()  # half of a surrogate pair is in no dictionary
    return _native.near_terms(text, indptr, encoded, _count("distance", distance), prefix)


def _count(name: str, value: int) -> int:
    value = _whole(name, value)
    if value < 0:
        raise InvalidInput(f"{name} must not be negative, but is {value}")
    return min(value, sys.maxsize)  # what the compiled module takes; more than any array has


def _threads(value: int) -> int:
    value = _whole("threads", value)
    if value < 1:
        raise InvalidInput(f"threads must be at least 1, but is {value}")
    return min(value, sys.maxsize)


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a whole number, but is {value!r}") from None
