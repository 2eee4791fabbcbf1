"""Query encoding in one call of the kernel: tokenize, average the table rows of the terms, count the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lightir.kernel import Rows, _native
from lightir.kernel.tokenizer import TextPolicy
from lightir.vectors import QueryVectors, Ragged, SparseVectors

ByLibrary = Callable[[Sequence[str], Sequence[int]], tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
"""Function from a batch of texts and positions in it to term ids and indptr, by the tokenizers library."""


class DenseRows(NamedTuple):
    """The rows that dense queries are sums of.

    Attributes:
        table: (n_rows, width) float16, float32, int8 or bfloat16 (uint16), one row per term.
        scales: (n_rows,) float32 scales of int8 rows, else None.
        pairs: pairs (n, 2) uint32 of adjacent terms, ascending and distinct, their rows and the rows' scales, of the
            kinds of table and scales; None if queries have no rows of pairs.
        gate: keys and values, each (n_rows + n, G) float16 or float32, for the terms and then the pairs. Row i of a
            query has the weight exp(min(max(keys[i] . c, -6), 6)), where c is the mean of values[i] over the query's
            rows. None if all weights are 1.
    """

    table: Rows | npt.NDArray[np.uint16]
    scales: npt.NDArray[np.float32] | None = None
    pairs: tuple[npt.NDArray[np.uint32], Rows | npt.NDArray[np.uint16], npt.NDArray[np.float32] | None] | None = None
    gate: tuple[Rows, Rows] | None = None


class TextEncoder:
    """A query encoder made of a tokenizer, a text policy, a query table and term weights; safe to share by threads."""

    def __init__(
        self,
        tokenizer: _native.Tokenizer | None,
        policy: TextPolicy,
        by_library: ByLibrary,
        *,
        rows: DenseRows | None = None,
        dim: int | None = None,
        vocab_size: int | None = None,
        binary: bool = False,
        term_weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Borrow the arrays.

        Args:
            tokenizer: the kernel's tokenizer; None if the library tokenizes all texts.
            policy: normalization of each text and of its ids.
            by_library: function that tokenizes the texts that the kernel's tokenizer does not support.
            rows: rows of the dense vectors; None to make no dense vectors.
            dim: width of the dense vectors; None for the width of the table.
            vocab_size: width of the sparse vectors; None to make no sparse vectors.
            binary: whether a term's weight is 1 instead of its count.
            term_weights: (vocab_size,) float32 factors of the weights, or None.
        """
        width = 0 if rows is None else int(rows.table.shape[1])
        self.dim = (width if dim is None else dim) if rows is not None else None
        """Width of the dense vectors; None if there are none."""
        self.counts_terms = vocab_size is not None
        """Whether the encoder makes sparse vectors."""
        self.by_library = by_library
        self.native = _native.QueryEncoder(
            tokenizer,
            policy,
            rows,
            width if dim is None else dim,
            vocab_size,
            binary,
            term_weights,
            (Ragged, SparseVectors, QueryVectors),
        )

    def encode(self, texts: Sequence[str], *, threads: int, out: npt.NDArray[np.float32] | None = None) -> QueryVectors:
        """Return the terms and vectors of texts; the GIL is released except for a few short texts.

        Args:
            texts: n texts.
            threads: maximum number of threads; the result does not depend on it.
            out: (n, dim) float32, C-contiguous, to write the dense vectors to; None for a new array.

        Raises:
            InvalidInput: a term id is outside the table or the vocabulary, or `out` has a wrong shape or dtype.
        """
        return self.native.encode(texts, threads, self.by_library, out)

    def encode_terms(self, queries: Ragged, *, threads: int) -> npt.NDArray[np.float32]:
        """Return the dense vectors of queries of given terms, equal to those of their texts.

        Args:
            queries: term ids, one ragged row per query.
            threads: maximum number of threads; the result does not depend on it.

        Returns:
            (n, dim) float32 rows of length 1; zeros for a query without terms.

        Raises:
            InvalidInput: a term id is outside the table, or the encoder makes no dense vectors.
        """
        out = np.empty((len(queries), self.dim or 0), dtype=np.float32)
        self.native.encode_terms(queries.term_ids, queries.indptr, threads, out)
        return out
