"""The compiled functions over plain numpy arrays: inverting, exact top k, means of dense and sparse rows, pair scores.

Every function has a slow readable twin of the same name in `lightir.kernel.reference`. The processor's best
instruction set is picked when this module is loaded; the environment variable LIGHTIR_KERNEL (scalar, avx2, avx512)
picks another. All of them return the same bits, with any number of threads. The GIL is released throughout.
Arguments are checked at the border: a wrong dtype, shape, order or id is an InvalidInput, never a crash.
"""

from __future__ import annotations

import operator
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

BLOCK_SIZE = 65_536  # documents in a block: their offsets fit 16 bits


@dataclass(frozen=True, slots=True)
class Postings:
    """An inverted file as plain arrays, term after term; they can be saved, and memory-mapped when read again.

    A run is the postings of one term in one block of 65,536 documents.

    Attributes:
        vocab_size: every term id is below it.
        n_docs: every doc_ord is below it.
        term_ids: (n_terms,) uint32, the terms that occur, ascending.
        term_indptr: (n_terms + 1,) int64; term i has runs term_indptr[i] to term_indptr[i + 1].
        run_blocks: (n_runs,) uint32, ascending within a term.
        run_indptr: (n_runs + 1,) int64; run j has postings run_indptr[j] to run_indptr[j + 1].
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
        """The arrays by name, in a fixed order: what a file of postings holds beside vocab_size and n_docs."""
        names = ("term_ids", "term_indptr", "run_blocks", "run_indptr", "offsets", "weights")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Copies:
    """int8 copies of float16 or float32 rows, which a scan reads in their place: see `copy_rows`.

    Attributes:
        rows: (n, width) int8.
        scales: (n,) float32, a row's largest magnitude / 127; copy i stands for scales[i] * rows[i].
        errors: (n,) float32, at least the length of what row i differs from that.
    """

    rows: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]
    errors: npt.NDArray[np.float32]


def dispatch() -> str:
    """Name of the instruction set in use: "scalar", "avx2" or "avx512"."""
    return _native.dispatch()


def available() -> list[str]:
    """Names of the instruction sets that this processor has, lowest first."""
    return _native.available()


def pack_bitmap(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """The bitmap of a mask over documents, as `allowed` takes it.

    Args:
        mask: (n_docs,) bool.

    Returns:
        (ceil(n_docs / 8),) uint8, document i in bit i % 8 (least significant first) of byte i // 8.
    """
    return np.packbits(mask, bitorder="little")


def invert(
    indptr: npt.NDArray[np.int64], term_ids: npt.NDArray[np.uint32], impacts: Weights, *, vocab_size: int, n_docs: int
) -> Postings:
    """The postings of documents' sparse vectors; the same input gives the same bytes.

    Args:
        indptr: (n_docs + 1,) int64.
        term_ids: (nnz,) uint32, ascending and different within a document, below vocab_size.
        impacts: (nnz,) uint8 impacts, or float32 weights that are finite and not negative. Zeros are kept.
        vocab_size: scratch memory is 24 bytes times this.
        n_docs: may be 0.
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
    """The k documents with the largest inner product with one query, exact: score down, then doc_ord up.

    A score is the float32 sum of query weight * impact in ascending order of term ids, each product and each sum
    rounded: exact for whole numbers below 2 ** 24. Only documents with a score above 0 come back.

    Args:
        postings: see `invert`.
        query_term_ids: (n,) uint32 in any order, each once (a term that occurs twice is refused: sum it first),
            below the postings' vocab_size. Empty: nothing comes back.
        query_weights: (n,) float32, finite and not negative.
        k: number wanted; fewer come back when fewer match.
        allowed: bitmap of the documents that may come back (`pack_bitmap`); None for all.

    Returns:
        doc_ords (m,) uint32 and scores (m,) float32, m <= k.

    Raises:
        InvalidInput: for arguments that break the above.
        FormatError: if the postings point outside themselves.
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
    floors: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.int64], DocOrds, Scores]:
    """`sparse_top_k` of many queries, given and returned one after the other.

    Args:
        query_indptr: (n_queries + 1,) int64; query i has terms query_indptr[i] to query_indptr[i + 1].
        threads: at most this many work at the same time, each on whole queries.
        floors: (n_queries,) float32; documents that score less than a query's are left out. None for all.

    Returns:
        indptr (n_queries + 1,) int64, doc_ords uint32, scores float32; query i has hits indptr[i] to indptr[i + 1].
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
        floors,
    )


def sparse_pair_scores(
    indptr: npt.NDArray[np.int64],
    term_ids: npt.NDArray[np.uint32],
    impacts: Weights,
    doc_ords: DocOrds,
    query_term_ids: npt.NDArray[np.uint32],
    query_weights: npt.NDArray[np.float32],
) -> Scores:
    """The sparse scores of some documents for one query, to the bit as `sparse_top_k` has them; 0 without a match.

    Args:
        indptr, term_ids, impacts: the documents, as `invert` takes them.
        doc_ords: (n,) uint32, any order, repeats allowed.
        query_term_ids, query_weights: as in `sparse_top_k`; an id that no document holds counts nothing.

    Returns:
        (n,) float32.
    """
    return _native.sparse_pair_scores(indptr, term_ids, impacts, doc_ords, query_term_ids, query_weights)


def dense_top_k(
    rows: Rows,
    queries: npt.NDArray[np.float32],
    *,
    k: int,
    scales: npt.NDArray[np.float32] | None = None,
    threads: int = 1,
    allowed: npt.NDArray[np.uint8] | None = None,
    copies: Copies | None = None,
) -> tuple[DocOrds, Scores]:
    """For each query the k rows with the largest inner product, exact: score down, then row up.

    A query that is narrower than the rows meets their first columns (a Matryoshka prefix, as it is stored: rows
    that should have length 1 at that width have to be scaled by the caller).

    Args:
        rows: (n_docs, width) float16, float32 or int8.
        queries: (n, dim) float32, finite, dim <= width.
        k: number wanted; fewer come back when fewer rows are allowed.
        scales: (n_docs,) float32 for int8 rows, else None; row i stands for scales[i] * rows[i].
        threads: at most this many work at the same time.
        allowed: bitmap of the rows that may come back (`pack_bitmap`); None for all.
        copies: of these very rows; only rows whose copy's score is near enough are then read. The result is the same.

    Returns:
        doc_ords (n, m) uint32 and scores (n, m) float32, m = min(k, number of allowed rows), (0, 0)
        without queries. Products are summed in
        float32 (32 partial sums, then a tree): within about 1e-6 * |row| * |query| of the exact value.

    Raises:
        InvalidInput: also when an allowed row scores NaN.
    """
    indptr, doc_ords, scores = dense_top_k_batch(
        rows, queries, k=k, scales=scales, threads=threads, allowed=allowed, copies=copies
    )
    n_queries = len(indptr) - 1
    n_hits = int(indptr[1]) if n_queries else 0
    return doc_ords.reshape(n_queries, n_hits), scores.reshape(n_queries, n_hits)


def dense_top_k_batch(
    rows: Rows,
    queries: npt.NDArray[np.float32],
    *,
    k: int,
    scales: npt.NDArray[np.float32] | None = None,
    threads: int = 1,
    allowed: npt.NDArray[np.uint8] | None = None,
    copies: Copies | None = None,
    floors: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.int64], DocOrds, Scores]:
    """`dense_top_k`, with the queries' rows one after the other, since floors may leave different numbers of them.

    Args:
        floors: (n,) float32; rows that score less than a query's are left out. None for all.

    Returns:
        indptr (n + 1,) int64, doc_ords uint32, scores float32; query i has hits indptr[i] to indptr[i + 1].
    """
    bytes_of = None if copies is None else (copies.rows, copies.scales, copies.errors)
    return _native.dense_top_k(rows, scales, queries, _count("k", k), _threads(threads), allowed, bytes_of, floors)


def copy_rows(rows: Rows) -> Copies:
    """int8 copies of finite float16 or float32 rows, a scale each, and bounds on what they lose."""
    if rows.dtype == np.int8:
        raise InvalidInput("int8 rows need no copies: they are bounded as they are")
    copies = Copies(np.empty(rows.shape, np.int8), np.empty(len(rows), np.float32), np.empty(len(rows), np.float32))
    for first in range(0, len(rows), 4096):  # so that the float64 values below stay small
        span = slice(first, first + 4096)
        values = rows[span].astype(np.float32)
        scales = np.abs(values).max(axis=1, initial=0.0) / np.float32(127)
        divisors = np.where(scales > 0, scales, np.float32(1))
        near = np.rint(values / divisors[:, None])
        lost = values.astype(np.float64) - scales[:, None].astype(np.float64) * near
        errors = (np.sqrt(np.einsum("ij,ij->i", lost, lost)) * (1 + 1e-6)).astype(np.float32)
        copies.rows[span], copies.scales[span] = near, scales
        copies.errors[span] = np.nextafter(errors, np.float32(np.inf))
    return copies


def dense_pair_scores(
    rows: Rows,
    doc_ords: DocOrds,
    query: npt.NDArray[np.float32],
    *,
    scales: npt.NDArray[np.float32] | None = None,
) -> Scores:
    """The inner products of one query with some rows, to the bit as `dense_top_k` has them.

    Args:
        rows, scales: as in `dense_top_k`.
        doc_ords: (n,) uint32, any order, repeats allowed.
        query: (dim,) float32, dim <= width.

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
    """The mean of each query's table rows (LightRetriever, Eq. 6), then scaled to length 1 if asked: in this order.

    Args:
        table: (vocab_size, width) float16, float32 or int8, or uint16, which is taken as bfloat16.
        token_ids: (total,) uint32, all queries' tokens one after the other, repeats counted each time.
        indptr: (n + 1,) int64; query i has tokens indptr[i] to indptr[i + 1].
        normalize: L2-normalise the mean. A mean of zeros stays zeros.
        scales: (vocab_size,) float32 for int8 tables, else None.
        dim: width of the prefix taken, before normalising; None for all of it.
        threads: at most this many work at the same time.

    Returns:
        (n, dim) float32; zeros for a query without tokens.
    """
    _threads(threads)
    if not isinstance(table, np.ndarray) or table.ndim != 2:
        raise InvalidInput("table must be a numpy array of 2 dimensions")
    width = table.shape[1] if dim is None else _count("dim", dim)
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
    """The mean of each query's rows of a sparse table (SiDR's queries without a model), as sparse rows.

    Args:
        row_ids: (n_rows, width) uint32 below vocab_size, in any order; the same id twice counts twice.
        row_weights: (n_rows, width) float16 or float32.
        token_ids: (total,) uint32 below n_rows, all queries' tokens one after the other, repeats counted each time.
        indptr: (n + 1,) int64; query i has tokens indptr[i] to indptr[i + 1].
        vocab_size: width of the result.
        threads: at most this many work at the same time.

    Returns:
        indptr (n + 1,) int64, term ids uint32 that ascend within a row, and weights float32, none of them 0. Sums are
        in float64 and in the order of the tokens, so a row depends on its query alone.

    Raises:
        InvalidInput: a token without a row, or a term id outside the vocabulary.
    """
    return _native.mean_expansions(
        row_ids, row_weights, token_ids, indptr, _count("vocab_size", vocab_size), _threads(threads)
    )


def split_words(
    texts: Sequence[str],
) -> tuple[list[str], npt.NDArray[np.uint32], npt.NDArray[np.int64], list[int]]:
    r"""The words of ASCII texts: what `re.findall(r"\b\w\w+\b", text.lower())` gives, many times as fast.

    Args:
        texts: n texts.

    Returns:
        The distinct words in the order in which they first occur; ids (total,) uint32, the texts' words as places
        among them, one text after the other; indptr (n + 1,) int64; and the positions of the texts that are not ASCII,
        ascending, which have no words here.
    """
    return _native.split_words(texts)


def _count(name: str, value: int) -> int:
    value = _whole(name, value)
    if value < 0:
        raise InvalidInput(f"{name} must not be negative, but is {value}")
    return value


def _threads(value: int) -> int:
    value = _whole("threads", value)
    if value < 1:
        raise InvalidInput(f"threads must be at least 1, but is {value}")
    return value


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be a whole number, but is {value!r}") from None
