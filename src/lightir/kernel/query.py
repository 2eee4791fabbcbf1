"""Queries from text to vectors in one call of the kernel: tokenise, average the terms' table rows, count the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lightir.kernel import Rows, _native
from lightir.kernel.tokenizer import TextPolicy
from lightir.vectors import QueryVectors, Ragged, SparseVectors

ByLibrary = Callable[[Sequence[str], Sequence[int]], tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
"""From a batch and positions in it to the term ids and indptr of those texts, by the tokenizers library alone."""


class TextEncoder:
    """A tokenizer, a policy, a table and term weights, ready for texts. Any number of threads may call it at a time."""

    def __init__(
        self,
        tokenizer: _native.Tokenizer | None,
        policy: TextPolicy,
        by_library: ByLibrary,
        *,
        table: Rows | npt.NDArray[np.uint16] | None = None,
        scales: npt.NDArray[np.float32] | None = None,
        dim: int | None = None,
        vocab_size: int | None = None,
        binary: bool = False,
        term_weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Borrow the arrays.

        Args:
            tokenizer: the kernel's tokenizer; None if the library reads all texts.
            policy: normalization of each text and of its ids.
            by_library: function that reads the texts that the kernel's tokenizer refuses.
            table: (vocab_size, width) float16, float32, int8 or bfloat16 (uint16) rows; None for no dense vectors.
            scales: (vocab_size,) float32 scales of int8 rows, else None.
            dim: width of the dense vectors; None for the table's.
            vocab_size: width of the sparse vectors; None for none.
            binary: whether a term's weight is 1 instead of its count.
            term_weights: (vocab_size,) float32 that the weights are multiplied by, or None.
        """
        width = 0 if table is None else int(table.shape[1])
        self.dim = (width if dim is None else dim) if table is not None else None
        """Width of the dense vectors; None without them."""
        self.counts_terms = vocab_size is not None
        """Whether there are sparse vectors."""
        self.by_library = by_library
        self.native = _native.QueryEncoder(
            tokenizer,
            policy,
            table,
            scales,
            width if dim is None else dim,
            vocab_size,
            binary,
            term_weights,
            (Ragged, SparseVectors, QueryVectors),
        )

    def encode(self, texts: Sequence[str], *, threads: int, out: npt.NDArray[np.float32] | None = None) -> QueryVectors:
        """Return the texts' terms and vectors; the GIL is released for all but a few short texts.

        Args:
            texts: n texts.
            threads: maximum number of threads; the result does not depend on it.
            out: (n, dim) float32, C-contiguous, that the dense vectors are written to; None for a new array.

        Raises:
            InvalidInput: a term id beyond the table or the vocabulary, or an out that does not fit.
        """
        return self.native.encode(texts, threads, self.by_library, out)
