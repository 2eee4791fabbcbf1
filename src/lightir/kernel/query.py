"""Query encoding in one call of the kernel: tokenize, average the table rows of the terms, count the terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from lightir.kernel import Rows, _native
from lightir.kernel.tokenizer import TextPolicy
from lightir.vectors import QueryVectors, Ragged, SparseVectors

ByLibrary = Callable[[Sequence[str], Sequence[int]], tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]]
"""Function from a batch of texts and positions in it to term ids and indptr, by the tokenizers library."""


class TextEncoder:
    """A query encoder made of a tokenizer, a text policy, a query table and term weights; safe to share by threads."""

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
            tokenizer: the kernel's tokenizer; None if the library tokenizes all texts.
            policy: normalization of each text and of its ids.
            by_library: function that tokenizes the texts that the kernel's tokenizer does not support.
            table: (vocab_size, width) float16, float32, int8 or bfloat16 (uint16) rows; None to make no dense vectors.
            scales: (vocab_size,) float32 scales of int8 rows, else None.
            dim: width of the dense vectors; None for the width of the table.
            vocab_size: width of the sparse vectors; None to make no sparse vectors.
            binary: whether a term's weight is 1 instead of its count.
            term_weights: (vocab_size,) float32 factors of the weights, or None.
        """
        width = 0 if table is None else int(table.shape[1])
        self.dim = (width if dim is None else dim) if table is not None else None
        """Width of the dense vectors; None if there are none."""
        self.counts_terms = vocab_size is not None
        """Whether the encoder makes sparse vectors."""
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
        """Return the terms and vectors of texts; the GIL is released except for a few short texts.

        Args:
            texts: n texts.
            threads: maximum number of threads; the result does not depend on it.
            out: (n, dim) float32, C-contiguous, to write the dense vectors to; None for a new array.

        Raises:
            InvalidInput: a term id is outside the table or the vocabulary, or `out` has a wrong shape or dtype.
        """
        return self.native.encode(texts, threads, self.by_library, out)
